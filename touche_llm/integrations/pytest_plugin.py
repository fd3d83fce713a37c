"""pytest plugin that replays recorded runs: the option `--touche-regress DIR` and the fixture `touche_regress`.

pytest loads this module at every start, so other modules are imported only when a run is replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_OPTION = "--touche-regress"
_DEFAULT = "regress"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--touche-regress`."""
    parser.getgroup("touche-llm").addoption(
        _OPTION,
        metavar="DIR",
        default=None,
        help="Also replay the runs that `touche-llm regress record` stored in DIR, each as a test.",
    )


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add a test for each recorded run if the option is given.

    Pytest calls plugins before it applies `-k` and `-m`.
    """
    given: str | None = config.getoption(_OPTION)
    if given is None:
        return
    from touche_llm.errors import ToucheError
    from touche_llm.regression.snapshot import find_snapshots

    try:
        folders = find_snapshots(Path(given), [])
    except ToucheError as error:
        raise pytest.UsageError(f"{_OPTION}: {error}") from error
    items += [
        RecordedRun.from_parent(session, name=folder.name, nodeid=f"{given}::{folder.name}", folder=folder)
        for folder in folders
    ]


class RunDiffers(Exception):
    """The replay differs from the recorded run; the message lists the differences."""


class RecordedRun(pytest.Item):
    """A test that replays one recorded run."""

    def __init__(self, *, folder: Path, **others: Any) -> None:
        super().__init__(**others)
        self.folder = folder

    def runtest(self) -> None:
        """Replay the run; raise RunDiffers if the replay differs."""
        if problem := _describe_problem(self.folder):
            raise RunDiffers(problem)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the differences without a traceback."""
        if isinstance(excinfo.value, RunDiffers):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Return the heading of a failure."""
        return self.folder, None, f"recorded run {self.name}"


@pytest.fixture
def touche_regress(request: pytest.FixtureRequest) -> Callable[[str | Path], None]:
    """Return a function that replays a recorded run and fails with the differences.

    Call it with the name of a run in the folder of `--touche-regress` (else in `regress`, below pytest's root folder),
    or with the path of a recorded run: `touche_regress("first")`, `touche_regress(Path("elsewhere/first"))`.
    """

    def check(run: str | Path) -> None:
        given = request.config.getoption(_OPTION)
        root = Path(given) if given else request.config.rootpath / _DEFAULT
        folder = run if isinstance(run, Path) else root / run
        if problem := _describe_problem(folder):
            pytest.fail(problem, pytrace=False)

    return check


def _describe_problem(folder: Path) -> str:
    """Replay a recorded run; return the differences or the error as text, empty if there is none."""
    from touche_llm.data import concurrency
    from touche_llm.errors import ToucheError
    from touche_llm.regression.check import check_snapshot
    from touche_llm.regression.differences import format_differences
    from touche_llm.regression.snapshot import find_snapshots, open_snapshot

    try:
        (found,) = find_snapshots(folder.parent, [folder.name])
        # The test may have a running event loop.
        differences = concurrency.run(check_snapshot(open_snapshot(found)))
    except ToucheError as error:
        return f"error: {error}"
    return format_differences(folder.name, differences) if differences else ""
