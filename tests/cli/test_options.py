"""Options and help of the commands, and errors of the option parser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from typer.main import get_command

from tests.cli.conftest import Touche
from tests.own_runs import rewrite
from touche_llm import cli
from touche_llm.cli.demo import SAMPLES
from touche_llm.cli.lazy_commands import LazyCommand

SAMPLE = SAMPLES / "comparative"
RUN = [
    "run",
    "--topics",
    str(SAMPLE / "topics.xml"),
    "--corpus",
    str(SAMPLE / "passages.jsonl"),
    "--out",
    "o",
]


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(command, LazyCommand):
        command = command.loaded
    yield path, command
    for name in command.list_commands(None) if hasattr(command, "list_commands") else ():
        yield from commands(command.get_command(None, name), (*path, name))


COMMANDS = dict(commands(get_command(cli.app)))


@pytest.mark.parametrize(
    "path", [(), ("run",), ("prompts",), ("prompts", "try"), ("batch", "ray"), ("tira",)]
)
def test_the_help_fits_80_columns_and_cuts_no_name(
    touche: Touche, path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = touche(*path, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert all(cell_len(line) <= 80 for line in done.stdout.splitlines()) and "…" not in done.stdout
    words = set(re.split(r"[\s,/]+", done.stdout))
    names = {
        name
        for item in COMMANDS[path].params
        for name in item.opts
        if item.param_type_name == "option"
    }
    assert names <= words
    if not path:
        names_of_commands = {path[0] for path in COMMANDS if path}
        assert "validate" in names_of_commands and names_of_commands <= words


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "--out: missing"),
        (["run", "--depth"], "--depth"),
        (["run", "--dpeth", "3"], "--dpeth: no such option; did you mean --depth"),
        (["run", "--out", "o", "--limit-topics", "many"], "--limit-topics: must be"),
        (["rank", "--out", "o", "--k1", "2"], "--k1: no such option"),
        ([*RUN, "--rank", "judge,pairwise"], "from 2 to 200, as pairwise:10"),
        ([*RUN, "--set", "rankin.listwise.window=5"], "rankin: no such name"),
        (["evaluate", "r", "--qrels", "depth"], "--qrels depth: must be ASPECT=FILE"),
        (["evaluate", "r", "--quality", "a", "--qrels", "quality=b"], "--qrels quality=b: must be"),
        (["index", "--dataset", "a/b", "--corpus", "c"], "--dataset a/b: has topics and documents"),
        (["prompts", "shwo"], "shwo"),
    ],
)
def test_a_wrong_argument_is_one_line(touche: Touche, arguments: list[str], message: str) -> None:
    done = touche(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith("error: ") and message in done.stderr


def test_a_group_without_a_command_shows_its_help(touche: Touche) -> None:
    done = touche("prompts")
    assert (done.returncode, done.stdout) == (2, "") and "compare" in done.stderr.split()


@pytest.mark.parametrize(
    ("text", "options", "location"),
    [
        ("depth: 0", [], "some.yaml: depth: "),
        ("depth: 0", ["--depth", "0"], "--depth: "),
        ("depth: 5", ["--set", "depth=0"], "--set depth: "),
        ("depth: 5", ["--thinking", "nobody=9"], "--thinking nobody: no such name"),
        ("task: chess", [], "some.yaml: task: "),
        ("retriever: {k1: x}", ["--depth", "5"], "some.yaml: retriever.k1: "),
        # Errors of a command that has begun.
        ("engine: {name: managed, model: nowhere}", [], "some.yaml: engine.model: nowhere: "),
        ("engine: {name: managed}", ["--model", "nowhere"], "--model: nowhere: "),
        ("engine: {name: managed}", [], "--model: "),
    ],
)
def test_an_error_names_the_file_or_the_option_that_a_value_comes_from(
    touche: Touche, tmp_path: Path, text: str, options: list[str], location: str
) -> None:
    (tmp_path / "some.yaml").write_text(f"{text}\n")
    done = touche(*RUN, "--config", "some.yaml", *options)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"error: {location}"), done.stderr


def test_an_error_names_the_folder_of_a_run_that_a_value_comes_from(
    touche: Touche, tmp_path: Path
) -> None:
    assert touche("retrieve", *RUN[1:5], "--depth", "5", "--out", "begun").returncode == 0
    file = tmp_path / "begun" / "config.yaml"
    rewrite(file, file.read_text().replace("name: server", "name: managed"))
    done = touche("judge", "--out", "begun", "--set", "engine.model=nowhere")
    assert done.stderr.startswith("error: --set engine.model: nowhere: ")
    rewrite(file, file.read_text().replace("model: null", "model: nowhere", 1))
    done = touche("judge", "--out", "begun")
    assert done.stderr.startswith("error: begun/config.yaml: engine.model: nowhere: "), done.stderr


@pytest.mark.parametrize(
    ("options", "flag", "value"),
    [
        (["--set", "engine.name=managed"], "--model", "TOUCHE_LLM_MODEL"),
        (
            ["--base-url", "http://127.0.0.1:1", "--retry-for", "0"],
            "http://127.0.0.1:1",
            "--base-url",
        ),
        (["--cache", "."], ".", "--cache"),
    ],
)
def test_an_error_names_the_option(
    touche: Touche, options: list[str], flag: str, value: str
) -> None:
    done = touche(*RUN, *options)
    line = done.stderr.splitlines()[-1]
    assert done.returncode in (1, 2)
    assert line.startswith(f"error: {flag}: ") and value in line and "`" not in line
