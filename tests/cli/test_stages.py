"""What the estimate of a run says besides its numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.sample_runs import config_for
from touche_llm.cli.emit import Format
from touche_llm.cli.stages import show_cost
from touche_llm.llm.recorder import Usage
from touche_llm.pipeline.dry_run import Cost, DryRun


def test_answers_that_need_no_request_are_counted_only_if_there_are_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = []
    for known in (0, 4321):
        usage = Usage(requests=1)
        found = DryRun([Cost("judge", "comparative/judge", usage, usage)], {"judge": known})

        async def estimate(*_: Any, overwrite: bool, found: DryRun = found) -> DryRun:
            return found

        monkeypatch.setattr("touche_llm.cli.stages.estimate_cost", estimate)
        show_cost(Format.TABLE, config_for(tmp_path), tmp_path / "out", ("judge",))
        shown.append(capsys.readouterr().out.splitlines())
    (added,) = set(shown[1]) - set(shown[0])
    assert "4,321" in added and set(shown[0]) < set(shown[1])
