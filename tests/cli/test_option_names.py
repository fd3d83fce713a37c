"""Messages of the library name settings; the command line names their options."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Touche
from touche_llm.cli.demo import SAMPLES
from touche_llm.cli.setting_options import GivenSettings, name_options, read_inputs
from touche_llm.errors import UsageError

SAMPLE = SAMPLES / "comparative"
RUN = ["run", "--topics", str(SAMPLE / "topics.xml"), "--corpus", str(SAMPLE / "passages.jsonl"), "--out", "o"]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("a longer context (`engine.context`)", "a longer context (--context)"),
        ("engine.context: not set", "--context: not set"),
        ("use `cache.mode: reuse` here", "use --cache-mode reuse here"),
        ("`sampling.logprobs: false`, `sampling.logprobs: true`", "--no-logprobs, --logprobs"),
        ("`cache.retry_failures: true`", "--retry-failures"),
        ("`overwrite: true`", "--overwrite"),
        ("`depth: 4`", "--depth 4"),
        ("`ranking.document_tokens`", "--set ranking.document_tokens=…"),
        # Commands, columns and text from outside.
        ("`rank` of `touche-llm rank --out o`", "`rank` of `touche-llm rank --out o`"),
        ("rank: missing", "rank: missing"),
        ("`no.setting: 3` and `\n: x`", "`no.setting: 3` and `\n: x`"),
    ],
)
def test_settings_become_options(message: str, expected: str) -> None:
    assert name_options(message) == expected


@pytest.mark.parametrize(
    ("options", "flag", "value"),
    [
        (["--concurrency", "auto"], "--concurrency", "'auto'"),
        (["--set", "engine.name=managed"], "--model", "TOUCHE_LLM_MODEL"),
        (["--base-url", "http://127.0.0.1:1", "--retry-for", "0"], "http://127.0.0.1:1", "--base-url"),
        (["--cache", "."], ".", "--cache"),
    ],
)
def test_an_error_names_the_option(touche: Touche, options: list[str], flag: str, value: str) -> None:
    done = touche(*RUN, *options)
    line = done.stderr.splitlines()[-1]
    assert done.returncode in (1, 2)
    assert line.startswith(f"error: {flag}: ") and value in line and "`" not in line


@pytest.mark.parametrize("files", [{"topics": SAMPLE}, {"corpus": SAMPLE}, {"topics": SAMPLE, "corpus": SAMPLE}])
def test_a_dataset_leaves_no_place_for_files(files: GivenSettings) -> None:
    with pytest.raises(UsageError):
        read_inputs({"dataset": "a/dataset"} | files)
    assert read_inputs(files).dataset is None
