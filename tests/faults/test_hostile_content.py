"""Every reader of files answers, or raises an error of ours: whatever the file holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.faults import strategies
from tests.faults.tally import Tally
from touche_llm.corpus.args_me import read_arguments
from touche_llm.corpus.json_lines import read_passages
from touche_llm.data.settings import YamlError, parse_yaml
from touche_llm.data.topics import read_topics
from touche_llm.data.trec_runs import read_run
from touche_llm.errors import DataError, ToucheError
from touche_llm.evaluation.qrels import read_qrels
from touche_llm.evaluation.run_validation import validate_run
from touche_llm.judging.labels import read_thresholds
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.pipeline.config_file import load_config
from touche_llm.tasks import get_task

TASK = get_task("comparative")


def replay(path: Path) -> Cache:
    with Cache(path, CacheMode.REPLAY) as cache:
        cache.count_entries()
        list(cache.iterate_entries())
        return cache


def skipping(read: Callable[..., Any]) -> Callable[[Path], Any]:
    return lambda path: list(read(path, lambda bad: None))


# The name of the file, what it holds, who reads it, and the errors that may come.
READERS: dict[str, tuple[str, st.SearchStrategy[bytes], Callable[[Path], Any], type[Exception]]] = {
    "topics": ("topics.xml", strategies.TOPICS, read_topics, DataError),
    "passages": ("corpus.jsonl", strategies.PASSAGES, lambda path: list(read_passages(path)), DataError),
    "passages, bad lines skipped": ("corpus.jsonl", strategies.PASSAGES, skipping(read_passages), DataError),
    "arguments": ("args.csv", strategies.ARGUMENTS, lambda path: list(read_arguments(path)), DataError),
    "arguments, bad lines skipped": ("args.csv", strategies.ARGUMENTS, skipping(read_arguments), DataError),
    "runs": ("run.txt", strategies.RUNS, read_run, DataError),
    "runs, validated": ("run.txt", strategies.RUNS, lambda path: validate_run(path, TASK), DataError),
    "rerank files": ("rerank.jsonl", strategies.RERANKS, read_run, DataError),
    "graded qrels": ("qrels.txt", strategies.QRELS, lambda path: read_qrels({"relevance": path}, TASK), DataError),
    "stance qrels": ("qrels.txt", strategies.QRELS, lambda path: read_qrels({"stance": path}, TASK), DataError),
    "YAML": ("any.yaml", strategies.YAML, lambda path: parse_yaml(path.read_bytes()), YamlError),
    "YAML with words": ("any.yaml", strategies.YAML, lambda path: parse_yaml(path.read_bytes(), words=True), YamlError),
    "configurations": ("config.yaml", strategies.YAML, lambda path: load_config(path, {}), ToucheError),
    "thresholds": ("thresholds.yaml", strategies.YAML, read_thresholds, ToucheError),
    "cassettes": ("cassette.jsonl", strategies.CASSETTES, replay, DataError),
}


def check(name: str, folder: Path, tally: Tally, trials: int, start: int) -> None:
    file, contents, read, kind = READERS[name]

    @seed(start)
    @settings(max_examples=trials, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(contents)
    def trial(content: bytes) -> None:
        path = folder / file
        path.write_bytes(content)
        try:
            read(path)
        except kind as error:
            tally.add(f"content: {name}", tried=1, refused=1, held=1)
            said = str(error)
            assert said.isprintable() or "\n" in said
            assert len(said) < 4_000
            if kind is not YamlError:
                assert file in said
        else:
            tally.add(f"content: {name}", tried=1, read=1, held=1)

    trial()


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_whatever_a_file_holds_it_is_read_or_refused(name: str, tmp_path: Path, tally: Tally, fault_seed: int) -> None:
    check(name, tmp_path, tally, 100, fault_seed)


@pytest.mark.nightly
@pytest.mark.parametrize("name", READERS)
def test_whatever_thousands_of_files_hold_they_are_read_or_refused(
    name: str, tmp_path: Path, tally: Tally, fault_seed: int
) -> None:
    check(name, tmp_path, tally, 5_000, fault_seed)
