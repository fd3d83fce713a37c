"""The help of every command, on a terminal of 80 columns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from tests.cli.conftest import Touche
from tests.cli.terminal import run_on_terminal
from touche_llm import cli
from touche_llm.cli.setting_options import OF_STAGE, OPTIONS
from touche_llm.config import is_one_of

COLUMNS = 80
# Two screens.


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


# Words in capitals are placeholders; others are given as they are, as in `vllm|ray`.


def test_the_help_lists_each_command_once_by_its_purpose(helps: dict[tuple[str, ...], str]) -> None:
    rows = re.findall(r"^  ([a-z]+)  ", helps["--help",].partition(f"{next(iter(cli.PANELS))}:")[2], re.MULTILINE)
    assert rows == list(cli.COMMANDS) and len(cli.PANELS) > 3
    assert all(f"\n{panel}:\n" in helps["--help",] for panel in cli.PANELS)
    assert "--limit-topics" in helps["run", "--help"]


def test_a_flag_is_off_unless_it_is_given() -> None:
    flags = {(path, item.name): item for path, command in COMMANDS.items() for item in command.params}
    flags = {name: item for name, item in flags.items() if getattr(item, "is_flag", False)}
    assert {name for name, item in flags.items() if item.default} == set()
    assert {path for path, name in flags if name == "overwrite"} >= {("run",), ("fuse",), ("report",), ("tira",)}


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


def test_an_option_belongs_to_one_setting() -> None:
    flags = [flag for option in OPTIONS.values() for flag in option.option.flag.split("/")]
    assert len(flags) == len(set(flags)) > 40


@pytest.mark.parametrize("stage", OF_STAGE)
def test_a_stage_takes_the_options_of_its_settings(stage: str) -> None:
    flags = {option.flag for name, option in OPTIONS.items() if is_one_of(name, OF_STAGE[stage])}
    taken = {parameter.opts[0] for parameter in COMMANDS[stage,].params}
    assert flags < taken and not {option.flag for option in OPTIONS.values()} & (taken - flags)
