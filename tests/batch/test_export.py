"""Export of pending requests as batch files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from tests import batch_replies as b
from tests.batch.stages import COMPARATIVE, Waiting, export_stage, import_files, simple_config
from tests.fake_server import FakeServer
from tests.sample_runs import Silent, retrieve_stage, run_on
from touche_llm.errors import UsageError


async def test_lines_hold_the_bodies_that_a_server_receives(tmp_path: Path) -> None:
    config = simple_config(tmp_path, engine__model="fake", engine__context=8192, rank=("judge",))
    server = FakeServer()
    await run_on(server, config, tmp_path / "asked")
    elsewhere = config.model_copy(
        update={"cache": config.cache.model_copy(update={"file": tmp_path / "new.sqlite"})}
    )
    out = tmp_path / "out"
    await retrieve_stage(elsewhere, out, Silent())
    requests = await export_stage(elsewhere, out)
    lines = b.read(out / "requests.jsonl")
    assert [line["custom_id"] for line in lines] == [request.key for request in requests]
    assert {(line["method"], line["url"]) for line in lines} == {("POST", "/v1/chat/completions")}
    # A server gets an id for each request besides, which a file has as `custom_id`.
    sent = server.bodies
    assert sorted(orjson.dumps(line["body"]) for line in lines) == sorted(map(orjson.dumps, sent))
    assert set(lines[0]) == {"custom_id", "method", "url", "body"}


@pytest.mark.parametrize(
    ("flags", "location"),
    [
        ({"engine__model": None}, "engine.model"),
        ({"engine__context": None}, "engine.context"),
        ({"cache__mode": "off"}, "cache.mode"),
    ],
)
async def test_an_export_needs_model_context_and_a_writable_cache(
    tmp_path: Path, flags: dict[str, Any], location: str
) -> None:
    config = simple_config(tmp_path, **flags)
    await retrieve_stage(config, tmp_path / "out", Silent())
    with pytest.raises(UsageError) as caught:
        await export_stage(config, tmp_path / "out")
    assert caught.value.location == location


async def test_a_file_of_that_name_that_no_export_wrote_stays(tmp_path: Path) -> None:
    config, out = (
        simple_config(tmp_path, engine__model="fake", engine__context=8192),
        tmp_path / "out",
    )
    await retrieve_stage(config, out, Silent())
    (out / "requests.jsonl").write_text("mine")
    with pytest.raises(UsageError) as caught:
        await export_stage(config, out)
    assert caught.value.location == str(out / "requests.jsonl")
    assert (out / "requests.jsonl").read_text() == "mine"
    (out / "requests.jsonl").unlink()
    assert await export_stage(config, out) and await export_stage(config, out)


async def test_model_and_context_are_taken_from_the_cache(waiting: Waiting) -> None:
    config, out, requests = waiting
    await import_files(out, b.write(out / "r.jsonl", b.answers(requests[:1], COMPARATIVE)))
    unnamed = config.model_copy(
        update={"engine": config.engine.model_copy(update={"model": None, "context": None})}
    )
    assert [each.key for each in await export_stage(unnamed, out)] == [
        each.key for each in requests[1:]
    ]
