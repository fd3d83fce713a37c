"""Recorded runs as tests: `pytest --touche-regress DIR`, one for each, and the fixture `touche_regress`.

pytest loads this at every start where the package is installed, so nothing more is imported until it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_OPTION = "--touche-regress"
_DEFAULT = "regress"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.getgroup("touche-llm").addoption(
        _OPTION,
        metavar="DIR",
        default=None,
        help="Also replay the runs that `touche-llm regress record` stored in DIR, each as a test.",
    )


@pytest.hookimpl(tryfirst=True)  # so that they can be selected like all others
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add a test for each recorded run, where the option asks for them."""
    given: str | None = config.getoption(_OPTION)
    if given is None:
        return
    from touche_llm.errors import ToucheError
    from touche_llm.regression.snapshot import find_recorded

    try:
        folders = find_recorded(Path(given), [])
    except ToucheError as error:
        raise pytest.UsageError(f"{_OPTION}: {error}") from error
    items += [
        RecordedRun.from_parent(session, name=folder.name, nodeid=f"{given}::{folder.name}", folder=folder)
        for folder in folders
    ]


class Differs(Exception):
    """A recorded run that does not come out as it was recorded; the message says how."""


class RecordedRun(pytest.Item):
    """The replay of one recorded run."""

    def __init__(self, *, folder: Path, **others: Any) -> None:
        super().__init__(**others)
        self.folder = folder

    def runtest(self) -> None:
        """Replay the run; raises Differs."""
        if problem := _problem(self.folder):
            raise Differs(problem)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The differences alone, without a traceback of this program."""
        if isinstance(excinfo.value, Differs):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        """What stands above a failure."""
        return self.folder, None, f"recorded run {self.name}"


@pytest.fixture
def touche_regress(request: pytest.FixtureRequest) -> Callable[[str | Path], None]:
    """Replays a recorded run and fails with what differs.

    Call it with the name of a run in the folder of `--touche-regress` (else in `regress`, below pytest's root folder),
    or with the path of a recorded run: `touche_regress("first")`, `touche_regress(Path("elsewhere/first"))`.
    """

    def check(run: str | Path) -> None:
        given = request.config.getoption(_OPTION)
        root = Path(given) if given else request.config.rootpath / _DEFAULT
        folder = run if isinstance(run, Path) else root / run
        if problem := _problem(folder):
            pytest.fail(problem, pytrace=False)

    return check


def _problem(folder: Path) -> str:
    """What keeps a recorded run from coming out as it was recorded; empty where nothing does."""
    from concurrent.futures import ThreadPoolExecutor

    # In a thread of its own, since the test may have an event loop that runs.
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(_checked, folder).result()


def _checked(folder: Path) -> str:
    import asyncio

    from touche_llm.errors import ToucheError
    from touche_llm.regression.check import check
    from touche_llm.regression.format_diff import told
    from touche_llm.regression.snapshot import find_recorded, open_recorded

    try:
        (found,) = find_recorded(folder.parent, [folder.name])
        findings = asyncio.run(check(open_recorded(found)))
    except ToucheError as error:
        return f"error: {error}"
    return told(folder.name, findings) if findings else ""
