"""`--concurrency auto` against a real vLLM: its load is understood, and what is sent follows it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.llm.engines.test_server import question
from tests.vllm.conftest import Tell
from touche_llm.llm.adaptive import AdaptiveSlots
from touche_llm.llm.engines import server as vllm_server
from touche_llm.llm.engines.server import VllmServer

pytestmark = pytest.mark.vllm
REQUESTS = 300


async def test_the_number_of_requests_follows_the_load_of_the_server(
    vllm_url: str, tell: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_server, "_LOOK_SECONDS", 0.1)
    looks: list[tuple[int, int, int]] = []
    look = AdaptiveSlots.look

    def noted(slots: AdaptiveSlots, waiting: int, running: int) -> None:
        look(slots, waiting, running)
        looks.append((waiting, running, slots.most))

    monkeypatch.setattr(AdaptiveSlots, "look", noted)
    async with VllmServer(vllm_url, concurrency=None, request_timeout=120, chat_template_kwargs={}) as server:
        await server.connect("tiny", "", 20)
        asked = [replace(question(f"Question {number}?"), model="tiny") for number in range(REQUESTS)]
        answers = await asyncio.gather(*map(server.complete, asked))
    assert all(answer.text for answer in answers)
    # The server told of requests that it was working on, and the number left the 32 that it begins with.
    assert max(running for _, running, _ in looks) > 0
    assert {most for _, _, most in looks} != {32}
    most = max(most for *_, most in looks)
    tell(f"{REQUESTS} requests: {len(looks)} looks, at most {most} at a time, at the end {looks[-1]}")
