"""Faults of servers that should answer after reasoning, each in one line that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from tests.fake_server import FakeServer, good, reply
from tests.other_servers import FakeLlamaCpp, FakeSglang
from touche_llm.doctor.examination import examine
from touche_llm.doctor.survey import ServerUnderTest
from touche_llm.engines.chat import ChatServer
from touche_llm.engines.identification import ServerCheck
from touche_llm.engines.settings import EngineConfig
from touche_llm.llm.settings import SamplingConfig, ThinkingConfig

PROBE = '{"word":"quokka-7351"}'


async def survey_of(
    server: FakeServer, thinking: ThinkingConfig | None = None
) -> ServerCheck | None:
    sampling = SamplingConfig(thinking=thinking or ThinkingConfig(judge=64))
    async with server.running():
        async with ChatServer(
            server.url, concurrency=8, request_timeout=5, chat_template_kwargs={}
        ) as client:
            examination = await examine(ServerUnderTest(client, EngineConfig(), sampling))
    return next((check for check in examination.checks if check.name == "thinking"), None)


def after_a_thought(text: str, **message: Any) -> Callable[..., Any]:
    """Answer well without a thought, and so after one."""

    async def behave(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return (
            reply(text, **message)
            if body.get("continue_final_message")
            else await good(request, body)
        )

    return behave


class Template(FakeServer):
    """Server whose chat template changes the last message."""

    def __init__(self, change: Callable[[str], str]) -> None:
        super().__init__()
        self.change = change

    async def tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        if not body.get("continue_final_message"):
            return await super().tokenize(request)
        text = self.change(body["messages"][-1]["content"])
        return web.json_response({"count": len(text), "tokens": list(text.encode())})


@pytest.mark.parametrize(
    ("server", "named"),
    [
        # The grammar is not applied with a reasoning parser:
        # https://github.com/vllm-project/vllm/issues/39130
        (FakeServer(probe=after_a_thought("The word is quokka.")), "--reasoning-parser"),
        # The answer lands in the reasoning: https://github.com/vllm-project/vllm/issues/50948
        (FakeServer(probe=after_a_thought("", reasoning=PROBE)), "--reasoning-parser"),
        # Templates like DeepSeek's keep only what follows the closing delimiter.
        (Template(lambda content: content.split("</think>")[-1]), "--chat-template"),
        (Template(lambda content: f"Say hello.{content}<|im_end|>"), "--chat-template"),
        # Templates like those of Kimi K2 and DeepSeek V3.2 write an empty thought before the
        # message.
        (Template(lambda content: f"Say hello.<think></think>{content}"), "--chat-template"),
    ],
    ids=["grammar", "reasoning", "dropped", "ended", "empty thought"],
)
async def test_each_fault_is_found_and_named(server: FakeServer, named: str) -> None:
    check = await survey_of(server)
    assert check is not None and check.is_blocking and named in check.remedy


async def test_a_server_that_shows_no_prompts_is_checked_by_its_answer() -> None:
    check = await survey_of(FakeSglang())
    assert check is not None and check.is_ok is None and not check.is_blocking


async def test_llama_cpp_refuses_to_continue_a_thought_under_a_schema() -> None:
    check = await survey_of(FakeLlamaCpp())
    assert (
        check is not None and check.is_blocking and "Failed to initialize samplers" in check.value
    )
