"""Energy and hardware in the metadata of a run, with tirex-tracker."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tests.cli.conftest import Touche, made_app, touche
from tests.sample_runs import SAMPLE, Silent, config_for, retrieve_stage
from touche_llm.errors import UsageError

__all__ = ["made_app", "touche"]
CPU = "CPU_ENERGY_SYSTEM_JOULES"


async def read_stage(tmp_path: Path) -> dict[str, Any]:
    """Run the first stage with the meter; return the metadata."""
    await retrieve_stage(config_for(tmp_path, energy=True), tmp_path / "out", Silent())
    content: dict[str, Any] = yaml.safe_load((tmp_path / "out/ir-metadata.yml").read_text())
    return content


async def test_a_stage_has_its_energy_and_hardware(tmp_path: Path) -> None:
    pytest.importorskip("tirex_tracker")
    metadata = await read_stage(tmp_path)
    facts = metadata["stages"]["retrieve"]
    # None on a machine without counters.
    assert list(facts["energy in joules"]) == ["cpu", "memory", "gpu"]
    assert all(value is None or value >= 0 for value in facts["energy in joules"].values())
    assert facts["hardware"]["cpu"]["number of cores"] >= 1 and facts["hardware"]["memory"]["in MB"] > 100
    assert metadata["platform"]["hardware"] == facts["hardware"]


class Handle:
    """A measurement with these results of the library."""

    def __init__(self, results: dict[str, bytes]) -> None:
        self.results, self.stops = results, 0

    def stop(self) -> Any:
        from tirex_tracker import Measure

        self.stops += 1
        return {Measure[name]: SimpleNamespace(value=value) for name, value in self.results.items()}


async def test_joules_are_numbers_and_unknown_parts_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = pytest.importorskip("tirex_tracker")
    handle = Handle(
        {CPU: b"12.5", "RAM_ENERGY_SYSTEM_JOULES": b"null", "CPU_MODEL_NAME": b"Fast", "GPU_MODEL_NAME": b""}
    )
    monkeypatch.setattr(tracker.TrackingHandle, "start", lambda measures: handle)
    facts = (await read_stage(tmp_path))["stages"]["retrieve"]
    assert facts["energy in joules"] == {"cpu": 12.5, "memory": None, "gpu": None}
    assert facts["hardware"] == {"cpu": {"model": "Fast"}}
    assert handle.stops == 1


async def test_the_meter_of_a_stage_that_fails_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = pytest.importorskip("tirex_tracker")
    handle = Handle({})
    monkeypatch.setattr(tracker.TrackingHandle, "start", lambda measures: handle)
    monkeypatch.setattr("touche_llm.pipeline.stages.retrieve_candidates", None)
    with pytest.raises(TypeError):
        await read_stage(tmp_path)
    assert handle.stops == 1


async def test_a_tracker_that_cannot_start_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = pytest.importorskip("tirex_tracker")

    def fail(measures: object) -> None:
        raise RuntimeError("no signal")

    monkeypatch.setattr(tracker.TrackingHandle, "start", fail)
    with pytest.raises(UsageError, match="no signal"):
        await read_stage(tmp_path)


async def test_a_tracker_that_fails_while_it_measures_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = pytest.importorskip("tirex_tracker")

    class Lost(Handle):
        def stop(self) -> Any:
            raise RuntimeError("no counter any more")

    monkeypatch.setattr(tracker.TrackingHandle, "start", lambda measures: Lost({}))
    with pytest.raises(UsageError, match="no counter any more"):
        await read_stage(tmp_path)


def test_without_its_library_the_extra_is_named(touche: Touche, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tirex_tracker", None)
    files = ("--topics", str(SAMPLE / "topics.xml"), "--corpus", str(SAMPLE / "passages.jsonl"))
    done = touche("retrieve", *files, "--energy", "--out", "out")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert "--energy" in done.stderr and "pip install 'touche-llm[tirex]'" in done.stderr
