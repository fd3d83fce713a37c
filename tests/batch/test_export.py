"""Export of pending requests as batch files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from tests import batch_replies as b
from tests.batch.stages import (
    COMPARATIVE,
    TokenCounter,
    Waiting,
    export_stage,
    import_files,
    simple_config,
)
from tests.fake_server import FakeServer
from tests.sample_runs import Silent, retrieve_stage, run_on
from tests.scripted_engine import FACTS
from touche_llm.errors import UsageError
from touche_llm.llm.cache import Cache
from touche_llm.llm.request import Message
from touche_llm.pipeline import batch
from touche_llm.pipeline.batch import pending_requests, write_requests
from touche_llm.pipeline.engines import store_engine_info


async def test_lines_hold_the_bodies_that_a_server_receives(tmp_path: Path) -> None:
    config = simple_config(tmp_path, engine__model="fake", engine__context=8192, rank=("judge",))
    server = FakeServer()
    await run_on(server, config, tmp_path / "asked")
    elsewhere = config.model_copy(update={"cache": config.cache.model_copy(update={"file": tmp_path / "new.sqlite"})})
    out = tmp_path / "out"
    await retrieve_stage(elsewhere, out, Silent())
    requests = (await export_stage(elsewhere, out)).requests
    lines = b.read(out / "requests.jsonl")
    assert [line["custom_id"] for line in lines] == [request.key for request in requests]
    assert {(line["method"], line["url"]) for line in lines} == {("POST", "/v1/chat/completions")}
    # A server gets an id for each request besides, which a file has as `custom_id`.
    sent = server.bodies
    assert sorted(orjson.dumps(line["body"]) for line in lines) == sorted(map(orjson.dumps, sent))
    assert set(lines[0]) == {"custom_id", "method", "url", "body"}


async def test_a_file_that_no_export_wrote_is_not_overwritten(waiting: Waiting) -> None:
    config, out, _ = waiting
    found = await pending_requests("judge", config, out, None, Silent())
    for name in ("candidates.run.txt", "config.yaml"):
        before = (out / name).read_bytes()
        with pytest.raises(UsageError, match="`overwrite: true`"):
            write_requests(found, out, out / name)
        assert (out / name).read_bytes() == before


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


async def test_model_and_context_are_taken_from_the_cache(waiting: Waiting) -> None:
    config, out, requests = waiting
    await import_files(out, b.write(out / "r.jsonl", b.answers(requests[:1], COMPARATIVE)))
    unnamed = config.model_copy(update={"engine": config.engine.model_copy(update={"model": None, "context": None})})
    assert [each.key for each in (await export_stage(unnamed, out)).requests] == [each.key for each in requests[1:]]


async def test_the_tokeniser_of_another_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known, counted = FACTS.overhead, FACTS.overhead + 1

    class Counter(TokenCounter):
        async def count_tokens(self, messages: tuple[Message, ...]) -> int:
            return counted + await super().count_tokens(messages)

    config = simple_config(tmp_path)
    await retrieve_stage(config, tmp_path / "out", Silent())
    with Cache(config.cache.file) as cache:
        store_engine_info(FACTS, cache)
    monkeypatch.setattr(batch, "ChatTokenizer", Counter)
    with pytest.raises(UsageError, match=rf"\b{counted} tokens.*\bscripted\b.*\b{known}\b") as caught:
        await export_stage(config, tmp_path / "out", tokenizer=tmp_path)
    assert caught.value.location == "engine.tokenizer"
