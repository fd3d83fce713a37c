from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.main import get_command

from touche_llm import cli
from touche_llm.cli import main
from touche_llm.errors import ToucheError


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


Touche = Callable[..., Done]


@pytest.fixture(scope="session")
def made_app() -> Callable[..., object]:
    """The command line, made once: reading the signatures of all commands takes longer than most of them."""
    return get_command(cli.app)


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Intervals are as wide as they like here.

    With 10,000 resamples the tests would take twice as long.
    """
    monkeypatch.setattr("touche_llm.evaluation.randomisation.RESAMPLES", 300)


@pytest.fixture
def touche(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    made_app: Callable[..., object],
) -> Touche:
    """Calls the command line in this process, with the temporary folder as current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "app", made_app)

    def call(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["touche-llm", *arguments])
        code: int | str | None = 0
        try:
            main()
        except SystemExit as ended:
            code = ended.code
        except ToucheError:
            code = -1
            traceback.print_exc()
        captured = capsys.readouterr()
        assert isinstance(code, int)
        return Done(code, captured.out, captured.err)

    return call
