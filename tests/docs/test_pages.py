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
from touche_llm.config import Config
from touche_llm.errors import ToucheError, list_fields
from touche_llm.llm.answers import FailureKind

OPTIONS = {
    option
    for command in COMMANDS.values()
    for parameter in command.params
    for option in (*parameter.opts, *parameter.secondary_opts)
}
# Of vLLM, pytest and typer.
OTHER_OPTIONS = {
    "--help",
    "--fault-seed",
    "--fault-trial",
    "--structured-outputs-config",
    "--enable-prompt-tokens-details",
    "--enable-prefix-caching",
    "--chat-template",
    "--logprobs-mode",
    "--reasoning-parser",
    "--tokenizer-mode",
    "--enable-lora",
    "--lora-modules",
    "--quantization",
    "--speculative-config",
    "--tensor-parallel-size",
    "--data-parallel-size",
    "--touche-regress",
}
SETTINGS = {name for name, _ in list_fields(Config)}
SECTIONS = {name.partition(".")[0] for name in SETTINGS if "." in name}
MARKER = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)
# What a page says of the past.
HISTORY = {DOCS / "changelog.md"}
BY_PAGE = pytest.mark.parametrize(
    "page", [page for page in PAGES if page not in HISTORY], ids=lambda page: str(page.relative_to(ROOT))
)


@BY_PAGE
def test_an_option_of_a_page_exists(page: Path) -> None:
    codes = [code for code in list_code(page) if not code.startswith("python ")]
    named = {option for code in codes for option in re.findall(r"(?<!\S)--[a-z][\w-]*", code)}
    unknown = {option for option in named if not option.endswith("-")} - OPTIONS - OTHER_OPTIONS
    assert not unknown


@BY_PAGE
def test_a_setting_of_a_page_exists(page: Path) -> None:
    named = {name for code in list_code(page) for name in re.findall(r"(?<![\w./-])([a-z]+(?:\.[a-z_0-9]+)+)", code)}
    unknown = {name for name in named if name.partition(".")[0] in SECTIONS} - SETTINGS
    # Files, keys of a dictionary, and keys of task.yaml.
    unknown = {name for name in unknown if not re.search(r"\.(jinja|yaml|jsonl|sqlite|txt|py)$", name)}
    assert not {name for name in unknown if not is_key(name)}


def is_key(name: str) -> bool:
    """Whether it is a key in a setting that is a dictionary, or a key of a task's definition."""
    return name.rpartition(".")[0] in SETTINGS or name in {
        "stance.labels",
        "stance.no_side",
        "stance.swapped",
        "stance.unanswered",
    }


@BY_PAGE
def test_a_link_of_a_page_leads_to_a_file(page: Path) -> None:
    for target in list_targets(page):
        if not target.startswith(("https://", "#")):
            assert (page.parent / target.partition("#")[0]).exists(), target


def test_a_message_on_the_page_of_errors_is_one_of_the_program() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| (?!.*exit)", (DOCS / "reference" / "errors.md").read_text(), re.MULTILINE)
    source = "".join(path.read_text() for path in sorted((ROOT / "touche_llm").rglob("*.py")))
    assert rows and not [row for row in rows if row not in source]


def test_the_page_of_errors_has_a_remedy_for_each_exception_and_each_kind_of_failure() -> None:
    page = (DOCS / "reference" / "errors.md").read_text()
    before, after = page.split("## Kinds of failures")
    exceptions = {
        name for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, ToucheError)
    }
    assert set(re.findall(r"^\| `(\w+)` \| \S", before, re.MULTILINE)) == exceptions
    kinds = {name for part in get_args(FailureKind) for name in (get_args(part) or [part])}
    table = after.split("## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \| .* \| .+ \|$", table, re.MULTILINE)) == kinds


def test_each_generated_part_has_its_place() -> None:
    generators = runpy.run_path(str(DOCS / "generated.py"))["GENERATORS"]
    assert {name for page in PAGES for name in MARKER.findall(page.read_text())} == set(generators)
    for name in ("command_line", "settings", "file_records", "prompt_variables", "published_files"):
        assert len(generators[name]()) > 500


def test_a_plain_page_says_where_its_generated_parts_are_and_the_built_one_does_not() -> None:
    generate = runpy.run_path(str(DOCS / "generated.py"))["generate"]
    for page in PAGES:
        source = page.read_text()
        notes = re.findall(r"^<!-- generated: \w+ -->\n(\*.+\*)$", source, re.MULTILINE)
        assert len(notes) == len(MARKER.findall(source)) and all("make docs" in note for note in notes)
        if page.stem in ("errors", "measures", "prompts"):
            built = generate(source)
            assert notes and not MARKER.search(built) and not any(note in built for note in notes)


def test_the_readme_is_one_page() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_each_how_to_is_in_the_list() -> None:
    listed = (DOCS / "how-to" / "index.md").read_text().splitlines()
    assert {page.stem for page in (DOCS / "how-to").glob("*.md")} - {"index"} <= set(listed)


def test_what_doctor_prints_by_its_page_is_in_the_program() -> None:
    page = (DOCS / "reference" / "doctor.md").read_text()
    rows = re.findall(r"^\| (`.+?`) \| ", page, re.MULTILINE)
    quoted = {text for row in rows for text in re.findall(r"`([^`]+)`", row)}
    source = "".join(path.read_text() for path in sorted((ROOT / "touche_llm" / "llm").rglob("*.py")))
    assert len(quoted) > 30 and not {text for text in quoted if text not in source}
