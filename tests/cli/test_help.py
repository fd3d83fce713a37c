"""The help of every command, on a terminal of 80 columns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

from tests.cli.conftest import Touche
from tests.cli.terminal import ROWS, run_on_terminal
from touche_llm import cli
from touche_llm.cli.setting_options import OF_STAGE, OPTIONS
from touche_llm.config import is_one_of

COLUMNS = 80
# Two screens.
MAX_LINES = 2 * ROWS


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, group
    for name in group.list_commands(None) if hasattr(group, "list_commands") else ():
        yield from commands(group.get_command(None, name), (*path, name))


COMMANDS = dict(commands(get_command(cli.app)))
IS_LONG = {path for path, command in COMMANDS.items() if any(item.name == "help_all" for item in command.params)}


@pytest.fixture(scope="module")
def helps() -> dict[tuple[str, ...], str]:
    """The help of each command as a terminal of 80 columns shows it, by its arguments."""
    calls = [(*path, "--help") for path in COMMANDS] + [(*path, "--help-all") for path in sorted(IS_LONG)]
    return dict(zip(calls, run_on_terminal([(COLUMNS, call) for call in calls], Path.cwd()), strict=True))


def test_the_help_of_a_command_fits_two_screens(helps: dict[tuple[str, ...], str]) -> None:
    lengths = {path: len(helps[*path, "--help"].splitlines()) for path in COMMANDS}
    assert {path: length for path, length in lengths.items() if length > MAX_LINES} == {}


# Words in capitals are placeholders; others are given as they are, as in `vllm|ray`.
PLACEHOLDERS = {
    *("RUN", "FILE", "FOLDER", "NAME", "ID", "N", "NUMBER", "TEXT", "URL", "VALUE"),
    *("STAGE", "STEPS", "FIELD", "ASPECT", "PURPOSE"),
}


@pytest.mark.parametrize("path", [path for path, command in COMMANDS.items() if hasattr(command, "list_options")])
def test_a_placeholder_is_one_of_a_few_words_in_capitals(path: tuple[str, ...]) -> None:
    command = COMMANDS[path]
    context = typer.Context(command)
    panels = command.list_options(context, with_hidden=True)
    arguments = [name for name, _ in panels.get("Arguments", ())]
    options = [name for panel, rows in panels.items() if panel != "Arguments" for name, _ in rows]
    given = [re.sub(r"(-{1,2}[\w-]+(, | / )?)+", "", name).strip() for name in options]
    words = {word for name in (*arguments, *given) for word in re.split(r"[|,=]", name.removesuffix("...")) if word}
    assert {word for word in words if not word.islower()} <= PLACEHOLDERS
    pieces = command.collect_usage_pieces(context)[1:]
    assert [piece.strip("[]") for piece in pieces] == arguments


def test_the_help_lists_each_command_once_by_its_purpose(helps: dict[tuple[str, ...], str]) -> None:
    rows = re.findall(r"^  ([a-z]+)  ", helps["--help",].partition(f"{next(iter(cli.PANELS))}:")[2], re.MULTILINE)
    assert rows == list(cli.COMMANDS) and len(cli.PANELS) > 3
    assert all(f"\n{panel}:\n" in helps["--help",] for panel in cli.PANELS)
    assert "--limit-topics" in helps["run", "--help"]


def test_every_command_has_a_description() -> None:
    assert [path for path, command in COMMANDS.items() if not command.help] == []


def test_a_flag_is_off_unless_it_is_given() -> None:
    flags = {(path, item.name): item for path, command in COMMANDS.items() for item in command.params}
    flags = {name: item for name, item in flags.items() if getattr(item, "is_flag", False)}
    assert {name for name, item in flags.items() if item.default} == set()
    assert {path for path, name in flags if name == "overwrite"} >= {("run",), ("fuse",), ("report",), ("tira",)}


@pytest.mark.parametrize("path", [path for path, command in COMMANDS.items() if hasattr(command, "list_commands")])
def test_a_group_of_commands_alone_lists_them(touche: Touche, path: tuple[str, ...]) -> None:
    shown = touche(*path).stderr
    assert all(name in shown for name in COMMANDS[path].list_commands(None))


@pytest.mark.parametrize("path", COMMANDS)
def test_no_name_metavar_or_default_is_cut(helps: dict[tuple[str, ...], str], path: tuple[str, ...]) -> None:
    text = helps[*path, "--help-all" if path in IS_LONG else "--help"]
    assert all(len(line) <= COLUMNS for line in text.splitlines()) and "…" not in text
    words = text.split()
    for parameter in COMMANDS[path].params:
        if parameter.param_type_name == "option" and (path in IS_LONG or not parameter.hidden):
            assert {*parameter.opts, *parameter.secondary_opts} <= {word.rstrip(",") for word in words}
            assert parameter.metavar is None or parameter.metavar in words
    flat = " ".join(words)
    # An option of the command itself can have the name of a setting's, and another default.
    own = {parameter.name for parameter in COMMANDS[path].params}
    for option in OPTIONS.values():
        if (
            option.parameter_name in own
            and option.flag in words
            and option.default
            and f" {option.flag} " in flat
            and path in IS_LONG
        ):
            found = re.search(rf"^  {option.flag}\b.*?(?=^  -|^\w)", text, re.MULTILINE | re.DOTALL)
            assert found is not None and f"[default: {option.default}]" in " ".join(found[0].split())


def test_options_that_the_help_leaves_out_are_in_the_help_of_all(helps: dict[tuple[str, ...], str]) -> None:
    assert IS_LONG >= {("run",), ("retrieve",), ("judge",), ("rank",), ("batch", "export"), ("prompts", "try")}
    for path in IS_LONG:
        short, long = (
            set(re.findall(r"^  (--[\w-]+)", helps[*path, flag], re.MULTILINE)) for flag in ("--help", "--help-all")
        )
        assert short < long and {"--help-all", "--topics", "--model"} <= short


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--dpeth", "3"], "--dpeth: no such option; did you mean --depth"),
        (["run", "--out", "o", "--depth", "many"], "--depth: "),
        (["rank", "--out", "o", "--k1", "2"], "--k1: no such option"),
        (["jduge"], "jduge"),
        (["prompts", "shwo"], "shwo"),
    ],
)
def test_a_wrong_argument_is_one_line(touche: Touche, arguments: list[str], message: str) -> None:
    done = touche(*arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("error: ") and message in done.stderr


def test_a_group_without_a_command_shows_its_help(touche: Touche) -> None:
    done = touche("prompts")
    assert done.returncode == 2 and "Commands:" in done.stdout + done.stderr


def test_an_option_belongs_to_one_setting() -> None:
    flags = [flag for option in OPTIONS.values() for flag in option.option.flag.split("/")]
    assert len(flags) == len(set(flags)) > 40


@pytest.mark.parametrize("stage", OF_STAGE)
def test_a_stage_takes_the_options_of_its_settings(stage: str) -> None:
    flags = {option.flag for name, option in OPTIONS.items() if is_one_of(name, OF_STAGE[stage])}
    taken = {parameter.opts[0] for parameter in COMMANDS[stage,].params}
    assert flags < taken and not {option.flag for option in OPTIONS.values()} & (taken - flags)


def test_the_values_of_an_option_are_shown_as_they_are_given(touche: Touche) -> None:
    assert "--engine vllm|ray" in touche("batch", "run", "--help").stdout
