"""The table of commands: it agrees with the commands, and lists them without loading them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping

import pytest

from tests.cli.conftest import Touche
from touche_llm.cli.commands import PANELS, CommandEntry
from touche_llm.cli.lazy_commands import LazyCommand

# Runs the program, and lists the modules that it has imported.
LIST_MODULES = """
import sys
from touche_llm.cli import main
try:
    main()
except SystemExit:
    pass
print(*sys.modules, file=sys.stderr)
"""


def list_entries() -> Iterator[tuple[str, CommandEntry]]:
    """Yield the commands of the table with their names on the command line."""
    for entries in PANELS.values():
        for entry in entries:
            if isinstance(entry, CommandEntry):
                yield entry.name, entry
            else:
                yield from ((f"{entry.name} {command.name}", command) for command in entry.commands)


ENTRIES = dict(list_entries())
COMMAND_MODULES = {entry.function.rpartition(".")[0] for entry in ENTRIES.values()}


def complete_in_bash(words: str) -> dict[str, str]:
    """Return the variables by which bash requests the completion of the last word."""
    return {
        "_TOUCHE_LLM_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }


def complete_in_zsh(words: str) -> dict[str, str]:
    """Return the variables by which zsh requests the completion of the last word."""
    return {"_TOUCHE_LLM_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": words}


@pytest.mark.parametrize("name", ENTRIES)
def test_the_table_has_the_first_sentence_of_a_commands_docstring(name: str) -> None:
    lazy = LazyCommand(ENTRIES[name])
    assert lazy.get_short_help_str(limit=1000) == ENTRIES[name].summary
    # The help of the program cuts a sentence that is too long for a line.
    for limit in (20, 45, 60, 80, 1000):
        assert lazy.get_short_help_str(limit) == lazy.loaded.get_short_help_str(limit)


@pytest.mark.parametrize(
    ("arguments", "variables", "unwanted"),
    [
        (["--help"], {}, {*COMMAND_MODULES, "touche_llm.config.configuration", "pydantic"}),
        pytest.param(
            ["prompts", "--help"],
            {},
            {*COMMAND_MODULES, "touche_llm.config.configuration"},
            marks=pytest.mark.slow,
        ),
        (
            [],
            complete_in_bash("touche-llm "),
            {*COMMAND_MODULES, "touche_llm.config.configuration"},
        ),
        pytest.param(
            [],
            complete_in_bash("touche-llm tasks "),
            {*COMMAND_MODULES, "touche_llm.config.configuration"},
            marks=pytest.mark.slow,
        ),
        (
            [],
            complete_in_bash("touche-llm run --"),
            COMMAND_MODULES - {"touche_llm.cli.run"} | {"touche_llm.runs.stages", "rich"},
        ),
        ([], complete_in_bash("touche-llm evaluate --"), {"pandas", "scipy"}),
    ],
)
def test_the_help_and_the_completion_load_only_what_they_need(
    arguments: list[str], variables: Mapping[str, str], unwanted: set[str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIST_MODULES, *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and done.stdout
    loaded = set(done.stderr.splitlines()[-1].split())
    assert "touche_llm.cli.lazy_commands" in loaded
    assert loaded & unwanted == set()


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        ("touche-llm r", ["run", "retrieve", "rank", "runs", "report", "regress"]),
        ("touche-llm --deb", ["--debug"]),
        ("touche-llm prompts c", ["check", "copy", "compare"]),
        ("touche-llm run --cache", ["--cache", "--cache-mode"]),
        ("touche-llm prompts try --do", ["--doc"]),
        ("touche-llm fuse --method ", ["rrf", "interpolation"]),
        ("touche-llm runs --format t", ["table", "tsv"]),
    ],
)
def test_the_shell_completes_commands_options_and_values(
    touche: Touche, monkeypatch: pytest.MonkeyPatch, words: str, completions: list[str]
) -> None:
    for name, value in complete_in_bash(words).items():
        monkeypatch.setenv(name, value)
    done = touche()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == completions


def test_a_completion_shows_the_summary_of_a_command(
    touche: Touche, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in complete_in_zsh("touche-llm val").items():
        monkeypatch.setenv(name, value)
    assert f'"validate":"{ENTRIES["validate"].summary}"' in touche().stdout
