"""One process at a time writes in the folder of a run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.fake_server import FakeServer
from tests.sample_runs import Silent, config_for, run_on
from touche_llm.errors import UsageError
from touche_llm.runs import stages as pipeline
from touche_llm.runs.directory import RunDirectory

HOLD = """
import sys, time
from pathlib import Path
from touche_llm.runs.directory import RunDirectory
with RunDirectory(Path(sys.argv[1])).lock("judge", print):
    print("held", flush=True)
    time.sleep(60)
"""


def nothing(message: str) -> None:
    raise AssertionError(message)


def test_the_lock_of_a_process_that_is_killed_is_released_and_before_that_its_holder_is_named(
    tmp_path: Path,
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with (
            pytest.raises(UsageError, match=rf"judge, process {holder.pid} on "),
            RunDirectory(tmp_path).lock("rank", nothing),
        ):
            pass
        holder.kill()
        holder.wait()
        with RunDirectory(tmp_path).lock("rank", nothing):
            assert f"rank, process {os.getpid()} on " in (tmp_path / ".touche-llm.lock").read_text()


async def test_all_that_write_are_refused_while_another_command_writes(tmp_path: Path) -> None:
    config, out = config_for(tmp_path, topic=("3",), depth=3), tmp_path / "out"
    await run_on(FakeServer(), config, out)
    before = {
        path.name: path.read_bytes() for path in out.iterdir() if not path.name.startswith(".")
    }
    # Whatever gets past the lock would end here in another way: nothing listens on that port.
    engine = config.engine.model_copy(update={"base_url": "http://127.0.0.1:1"})
    changed = config.model_copy(update={"tag": "other", "engine": engine})
    with RunDirectory(out).lock("run", nothing):
        for work in (
            pipeline.run_all,
            pipeline.run_retrieve,
            pipeline.run_judge,
            pipeline.run_rank,
        ):
            coroutine: Coroutine[Any, Any, object] = work(changed, out, Silent())
            with pytest.raises(UsageError, match=f"run, process {os.getpid()} "):
                await coroutine
    assert {
        path.name: path.read_bytes() for path in out.iterdir() if not path.name.startswith(".")
    } == before
