"""Runs that stop, go on, are repeated, refreshed or replayed: nothing is lost and nothing is asked twice."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from aiohttp import web

from tests.fake_server import FakeServer, fields_in, good, says, status
from tests.sample_runs import SAMPLE, Silent, config_for, rank_stage, run_lines, run_on, with_cache
from touche_llm.config.files import load_config
from touche_llm.errors import DataError, ReplayMiss
from touche_llm.llm.cache import Cache
from touche_llm.runs import stages as pipeline
from touche_llm.runs.dry_run import estimate_cost


async def test_a_run_that_is_killed_goes_on_and_asks_only_for_what_is_missing(
    tmp_path: Path,
) -> None:
    async def slow(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(0.02)
        return await good(request, body)

    server = FakeServer(rest=slow)
    async with server.running():
        files = {
            "topics": SAMPLE / "topics.xml",
            "corpus": SAMPLE / "passages.jsonl",
            "index": tmp_path / "index",
        }
        settings = {
            "cache.file": tmp_path / "answers.sqlite",
            "engine.base_url": server.url,
            "engine.concurrency": 4,
        }
        (tmp_path / "config.yaml").write_text(
            yaml.safe_dump({name: str(path) for name, path in files.items()})
        )
        flags = [f"--set={name}={value}" for name, value in settings.items()]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "touche_llm", "run", f"--config={tmp_path / 'config.yaml'}"),
            *(f"--out={tmp_path / 'killed'}", *flags),
        )
        while len(server.bodies) < 40:
            await asyncio.sleep(0.01)
            assert process.returncode is None
        process.send_signal(signal.SIGKILL)
        await process.wait()
        with Cache(tmp_path / "answers.sqlite") as cache:
            stored = len(cache.find("answer"))
        assert stored > 0
        assert not (tmp_path / "killed" / "run.txt").exists()
        server.bodies.clear()
        # The same command in this process.
        config = load_config(None, files | settings)
        await pipeline.run_all(config, tmp_path / "killed", Silent())
        with Cache(tmp_path / "answers.sqlite") as cache:
            total = len(cache.find("answer"))
        assert 0 < len(server.bodies) == total - stored
        first = (tmp_path / "killed" / "run.txt").read_bytes()
        await pipeline.run_all(
            with_cache(config, file=tmp_path / "other.sqlite"), tmp_path / "whole", Silent()
        )
    assert (tmp_path / "whole" / "run.txt").read_bytes() == first


async def test_a_stage_that_fails_leaves_nothing_of_an_earlier_state_behind_it(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    await run_on(FakeServer(), config_for(tmp_path, topic=("3",), depth=5), out)
    changed = config_for(
        tmp_path, topic=("3",), depth=20, sampling__max_tokens=9, cache__mode="replay"
    )
    with pytest.raises(ReplayMiss):
        await pipeline.run_all(changed, out, Silent(), overwrite=True)
    assert len(run_lines(out / "candidates.run.txt")) == 20
    assert not (out / "run.txt").exists()
    with pytest.raises(DataError, match="judgments.jsonl: no such file; run `touche-llm judge`"):
        await rank_stage(changed, out, Silent())


FAILING_FILES = (
    "run.txt",
    "judgments.jsonl",
    "failures.jsonl",
    "comparisons.jsonl",
    "comparison_failures.jsonl",
)


async def fails_often(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """No usable answer to many questions, and a status 400 to others: the same ones each time."""
    shown = body["messages"][-1]["content"].split("Passage")
    if "best" in fields_in(body):
        return await (good if len(shown[1]) > len(shown[2]) else says('{"best":NaN}'))(
            request, body
        )
    return await [good, status(400), says("Well, ")][len(shown[-1]) % 3](request, body)


async def test_a_run_with_failures_is_replayed_whole_and_sends_them_again_only_on_demand(
    tmp_path: Path,
) -> None:
    server = FakeServer(rest=fails_often)

    async def run(out: str, **cache: Any) -> tuple[str, int]:
        """What a run says, and how many requests it sends."""
        server.bodies.clear()
        progress = Silent()
        config = config_for(
            tmp_path,
            topic=("3",),
            depth=12,
            rank=("judge", "pairwise:4"),
            engine__base_url=server.url,
            **cache,
        )
        result = await pipeline.run_all(config, tmp_path / out, progress)
        assert result.failures
        return "\n".join(progress.notices), len(server.bodies)

    async with server.running():
        said, sent = await run("first")
        failures = [
            orjson.loads(line)
            for name in ("failures.jsonl", "comparison_failures.jsonl")
            for line in (tmp_path / "first" / name).read_bytes().splitlines()
        ]
        assert {each["kind"] for each in failures} == {"not_json", "server_error"}
        assert sent > 0 and "retry_failures" not in said
        said, sent = await run("second")
        assert sent == 0 and "retry_failures" in said
        judged = yaml.safe_load((tmp_path / "second" / "ir-metadata.yml").read_text())["stages"][
            "judge"
        ]["llm"]["counts"]
        of_judge = [each for each in failures if each["prompt"].startswith("comparative/judge")]
        assert judged["known_failures"] == len(of_judge) > 1
        assert judged["unusable_records"] == sum(len(each["attempts"]) for each in of_judge)
        assert f"{len(of_judge)} had no usable answer before" in said
        _, retried = await run("retried", cache__retry_failures=True)
        assert retried == sum(len(each["attempts"]) for each in failures)
    said, _ = await run("replayed", cache__mode="replay")
    assert "retry_failures" not in said
    for out in ("second", "retried", "replayed"):
        for name in FAILING_FILES:
            assert (tmp_path / out / name).read_bytes() == (
                tmp_path / "first" / name
            ).read_bytes(), (out, name)
    # The flag is for one command, not for later stages.
    assert "retry_failures" not in (tmp_path / "retried" / "config.yaml").read_text()


async def test_a_dry_run_counts_failures_that_are_not_sent_again(tmp_path: Path) -> None:
    config = config_for(tmp_path, topic=("3",), depth=12)
    failed = len((await run_on(FakeServer(rest=fails_often), config, tmp_path / "out")).failures)
    assert failed > 1
    before = config.cache.file.read_bytes()
    cost = await estimate_cost(config, None, ("retrieve", "judge"), Silent())
    assert (cost.known["judge"], cost.failed["judge"], cost.costs) == (12 - failed, failed, [])
    retrying = config_for(tmp_path, topic=("3",), depth=12, cache__retry_failures=True)
    retried = await estimate_cost(retrying, tmp_path / "out", ("judge",), Silent())
    assert retried.failed["judge"] == 0
    assert sum(cost.usage.requests for cost in retried.costs) == failed
    assert config.cache.file.read_bytes() == before
