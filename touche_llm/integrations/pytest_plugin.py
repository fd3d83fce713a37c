"""pytest plugin that replays recorded runs, with the option `--touche-regress DIR`.

pytest loads this module at every start, so other modules are imported only when a run is replayed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

_OPTION = "--touche-regress"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--touche-regress`."""
    parser.getgroup("touche-llm").addoption(
        _OPTION,
        metavar="DIR",
        default=None,
        help="Also replay the runs that `touche-llm regress record` stored in DIR, each as a test.",
    )


def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add a test for each recorded run if the option is given.

    Pytest calls plugins before it applies `-k` and `-m`.
    """
    root: str | None = config.getoption(_OPTION)
    if root is None:
        return
    from touche_llm.errors import ToucheError
    from touche_llm.regression.snapshot import find_snapshots

    try:
        folders = find_snapshots(Path(root), [])
    except ToucheError as error:
        raise pytest.UsageError(f"{_OPTION}: {error}") from error
    for folder in folders:
        test = RecordedRun.from_parent(
            session,
            name=folder.name,
            nodeid=f"{root}::{folder.name}",
            folder=folder,
        )
        items.append(test)


class RecordedRun(pytest.Item):
    """A test that replays one recorded run."""

    def __init__(self, *, folder: Path, **others: Any) -> None:
        super().__init__(**others)
        self.folder = folder

    def runtest(self) -> None:
        """Replay the run; fail with the differences, without a traceback, if there are any."""
        import asyncio

        from touche_llm.regression.check import check_folder
        from touche_llm.regression.result import format_result

        result = asyncio.run(check_folder(self.folder))
        if not result.is_same:
            pytest.fail(format_result(self.name, result), pytrace=False)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Return the heading of a failure."""
        return self.folder, None, f"recorded run {self.name}"
