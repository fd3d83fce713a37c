"""Options, settings, messages and links on the pages exist."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import get_args

import pytest

from tests.cli.test_options import COMMANDS
from tests.docs.pages import DOCS, PAGES, ROOT, list_code, list_targets
from touche_llm import errors
from touche_llm.config.configuration import Config
from touche_llm.errors import FailureKind, ToucheError, list_fields

OPTIONS = {
    option
    for command in COMMANDS.values()
    for parameter in command.params
    for option in (*parameter.opts, *parameter.secondary_opts)
}
# Of vLLM, pytest and typer.
OTHER_OPTIONS = {
    *(
        "--help",
        "--fault-seed",
        "--fault-trial",
        "--touche-regress",
        "--structured-outputs-config",
        "--chat-template",
    ),
    *(
        "--enable-prompt-tokens-details",
        "--enable-prefix-caching",
        "--logprobs-mode",
        "--reasoning-parser",
    ),
    *(
        "--tokenizer-mode",
        "--enable-lora",
        "--lora-modules",
        "--quantization",
        "--speculative-config",
    ),
    *("--tensor-parallel-size", "--data-parallel-size"),
}
SETTINGS = {name for name, _ in list_fields(Config)}
SECTIONS = {name.partition(".")[0] for name in SETTINGS if "." in name}
MARKER = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)
# What a page says of the past.
HISTORY = {DOCS / "changelog.md"}
BY_PAGE = pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page not in HISTORY],
    ids=lambda page: str(page.relative_to(ROOT)),
)


@BY_PAGE
def test_an_option_of_a_page_exists(page: Path) -> None:
    codes = [code for code in list_code(page) if not code.startswith("python ")]
    named = {option for code in codes for option in re.findall(r"(?<!\S)--[a-z][\w-]*", code)}
    unknown = {option for option in named if not option.endswith("-")} - OPTIONS - OTHER_OPTIONS
    assert not unknown


@BY_PAGE
def test_a_setting_of_a_page_exists(page: Path) -> None:
    named = {
        name
        for code in list_code(page)
        for name in re.findall(r"(?<![\w./-])([a-z]+(?:\.[a-z_0-9]+)+)", code)
    }
    unknown = {name for name in named if name.partition(".")[0] in SECTIONS} - SETTINGS
    # Files, keys of a dictionary, and keys of task.yaml.
    unknown = {
        name for name in unknown if not re.search(r"\.(jinja|yaml|jsonl|sqlite|txt|py)$", name)
    }
    of_tasks = {f"stance.{name}" for name in ("labels", "no_side", "swapped", "unanswered")}
    assert not {name for name in unknown if name.rpartition(".")[0] not in SETTINGS} - of_tasks


@BY_PAGE
def test_a_link_of_a_page_leads_to_a_file(page: Path) -> None:
    for target in list_targets(page):
        if not target.startswith(("https://", "#")):
            assert (page.parent / target.partition("#")[0]).exists(), target


def test_a_message_on_the_page_of_errors_is_one_of_the_program() -> None:
    rows = re.findall(
        r"^\| `([^`]+)` \| (?!.*exit)", (DOCS / "reference" / "errors.md").read_text(), re.MULTILINE
    )
    source = "".join(path.read_text() for path in sorted((ROOT / "touche_llm").rglob("*.py")))
    assert rows and not [row for row in rows if row not in source]


def test_the_page_of_errors_has_a_remedy_for_each_exception_and_each_kind_of_failure() -> None:
    page = (DOCS / "reference" / "errors.md").read_text()
    before, after = page.split("## Kinds of failures")
    exceptions = {
        name
        for name, each in vars(errors).items()
        if isinstance(each, type) and issubclass(each, ToucheError)
    }
    assert set(re.findall(r"^\| `(\w+)` \| \S", before, re.MULTILINE)) == exceptions
    kinds = {name for part in get_args(FailureKind) for name in (get_args(part) or [part])}
    table = after.split("## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \| .* \| .+ \|$", table, re.MULTILINE)) == kinds


def test_each_promise_has_a_test() -> None:
    rows = re.findall(
        r"^\| .+ \| `(\S+)::(\w+)` \|$",
        (DOCS / "explanation" / "faults.md").read_text(),
        re.MULTILINE,
    )
    assert len(rows) >= 15
    for file, name in rows:
        assert re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE), name


def test_each_generated_part_has_its_place() -> None:
    generators = runpy.run_path(str(DOCS / "generated.py"))["GENERATORS"]
    assert {name for page in PAGES for name in MARKER.findall(page.read_text())} == set(generators)
    for name in ("command_line", "settings", "file_records", "prompt_variables", "published_files"):
        assert len(generators[name]()) > 500


def test_each_field_of_the_record_of_a_run_is_described() -> None:
    page = runpy.run_path(str(DOCS / "generated.py"))["GENERATORS"]["run_record"]()
    entries = re.findall(r"^`(\w+)`\n: [^.]+\.(.*)$", page, re.MULTILINE)
    named = {name for name, _ in entries}
    assert {"stages", "llm", "imputed_stances", "bits", "bad_lines"} <= named
    assert [name for name, sentence in entries if not sentence.endswith(".")] == []
    records = {line.removeprefix("## ").lower() for line in page.splitlines() if line[:3] == "## "}
    assert set(re.findall(r"\]\(#(\w+)\)", page)) <= records


def test_each_how_to_is_in_the_list() -> None:
    listed = (DOCS / "how-to" / "index.md").read_text().splitlines()
    assert {page.stem for page in (DOCS / "how-to").glob("*.md")} - {"index"} <= set(listed)
