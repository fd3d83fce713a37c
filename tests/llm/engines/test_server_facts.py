"""What a server reports of how it serves a model, and where it goes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from tests.fake_server import FakeServer, reply
from tests.sample_runs import config_for, run_on, with_cache
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.chat import ChatServer
from touche_llm.llm.checks import Survey
from touche_llm.llm.settings import EngineConfig, SamplingConfig
from touche_llm.llm.startup import connect

BASE = {"id": "base", "max_model_len": 8192, "owned_by": "vllm", "root": "org/base"}
ADAPTER = {"id": "mine", "max_model_len": None, "owned_by": "vllm", "root": "/adapters/mine", "parent": "base"}
METRICS = """# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
vllm:cache_config_info{block_size="16",cache_dtype="fp8",engine="0",sliding_window="None"} 1.0
vllm:cache_config_info{block_size="16",cache_dtype="fp8",engine="1",sliding_window="None"} 1.0
vllm:spec_decode_num_drafts_total{engine="0",model_name="base"} 0.0
vllm:num_requests_running{engine="0",model_name="base"} 0.0
"""


@dataclass
class Reporting(FakeServer):
    """A server with metrics; None if it has none."""

    models: list[dict[str, Any]] = field(default_factory=lambda: [BASE, ADAPTER])
    metrics: str | None = METRICS

    def add_routes(self, app: web.Application) -> None:
        super().add_routes(app)

        async def metrics(_: web.Request) -> web.Response:
            return web.Response(text=self.metrics or "", status=200 if self.metrics is not None else 404)

        app.router.add_get("/metrics", metrics)


async def facts(server: Reporting, model: str) -> dict[str, str]:
    async with server.running():
        async with ChatServer(server.url, concurrency=1, request_timeout=5.0, chat_template_kwargs={}) as client:
            return (await connect(Survey(client, EngineConfig(model=model), SamplingConfig()))).serving


async def test_the_metrics_tell_copies_and_speculative_decoding() -> None:
    assert await facts(Reporting(), "base") == {
        "root": "org/base",
        "fingerprint": "fake",
        "key-value cache": "fp8",
        "data parallel": "2",
        "speculative decoding": "yes",
    }


@pytest.mark.parametrize("metrics", [None, "vllm:cache_config_info{engine="])
async def test_metrics_that_are_missing_or_malformed_tell_nothing(metrics: str | None) -> None:
    assert await facts(Reporting(metrics=metrics), "mine") == {
        "root": "/adapters/mine",
        "base model": "base",
        "fingerprint": "fake",
    }


async def test_an_adapter_is_a_model_name_whose_context_is_that_of_its_model(tmp_path: Path) -> None:
    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return reply('{"relevance":2,"quality":1,"stance":"FIRST"}')

    config = config_for(tmp_path, engine__model="mine", topic=("3",), depth=2)
    await run_on(Reporting(rest=answer), config, tmp_path / "out")
    judge = yaml.safe_load((tmp_path / "out" / "ir-metadata.yml").read_text())["stages"]["judge"]
    assert (judge["model"], judge["context"]) == ("mine", 8192)
    assert judge["serving"]["base model"] == "base" and judge["serving"]["data parallel"] == "2"
    # A replay repeats what was reported.
    replayed = with_cache(config, mode=CacheMode.REPLAY)
    await run_on(Reporting(), replayed, tmp_path / "replayed")
    again = yaml.safe_load((tmp_path / "replayed" / "ir-metadata.yml").read_text())["stages"]["judge"]
    assert again["serving"] == judge["serving"]
    with Cache(config.cache.file) as cache:
        assert [entry.value["serving"]["base model"] for entry in cache.find("engine")] == ["base"]
