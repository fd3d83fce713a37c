"""What a server reports of how it serves a model, and where it goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from tests.fake_server import FakeServer, reply
from tests.sample_runs import config_for, run_on, with_cache
from touche_llm.llm.cache import Cache, CacheMode

BASE = {"id": "base", "max_model_len": 8192, "owned_by": "vllm", "root": "org/base"}
ADAPTER = {
    "id": "mine",
    "max_model_len": None,
    "owned_by": "vllm",
    "root": "/adapters/mine",
    "parent": "base",
}


async def test_an_adapter_is_a_model_name_whose_context_is_that_of_its_model(
    tmp_path: Path,
) -> None:
    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return reply('{"relevance":2,"quality":1,"stance":"FIRST"}')

    config = config_for(tmp_path, engine__model="mine", topic=("3",), depth=2)
    await run_on(FakeServer(rest=answer, models=[BASE, ADAPTER]), config, tmp_path / "out")
    judge = yaml.safe_load((tmp_path / "out" / "ir-metadata.yml").read_text())["stages"]["judge"]
    model = judge["llm"]["model"]
    assert (model["name"], model["context"]) == ("mine", 8192)
    assert model["serving"] == {
        "root": "/adapters/mine",
        "base model": "base",
        "fingerprint": "fake",
    }
    # A replay repeats what was reported.
    replayed = with_cache(config, mode=CacheMode.REPLAY)
    await run_on(FakeServer(models=[BASE, ADAPTER]), replayed, tmp_path / "replayed")
    again = yaml.safe_load((tmp_path / "replayed" / "ir-metadata.yml").read_text())["stages"][
        "judge"
    ]
    assert again["llm"]["model"]["serving"] == model["serving"]
    with Cache(config.cache.file) as cache:
        assert [entry.value["serving"]["base model"] for entry in cache.find("engine")] == ["base"]
