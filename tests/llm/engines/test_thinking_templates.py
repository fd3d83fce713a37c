"""Thoughts in the chat templates that are published with reasoning models, without a server's model."""

from __future__ import annotations

import pytest
from aiohttp import web

from tests.chat_templates import (
    MISTRAL,
    OWN,
    QWEN3_5,
    read_template,
    render,
)
from tests.fake_server import FakeServer
from tests.llm.engines.test_conformance import Model, examined
from touche_llm.llm.request import DELIMITERS

BARE = ("<think>", "</think>")
SYSTEM, USER = {"role": "system", "content": "Judge."}, {"role": "user", "content": "Say hello.\n"}
SWITCHES = {"enable_thinking": True, "thinking": True}


class Rendering(FakeServer):
    """Server that renders chats with a template."""

    def __init__(self, template: str) -> None:
        super().__init__()
        self.template = template

    async def tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        if "messages" not in body:
            return await super().tokenize(request)
        try:
            is_continued = body.get("continue_final_message", False)
            prompt = render(self.template, body["messages"], is_continued, **body.get("chat_template_kwargs", {}))
        except ValueError as error:
            return web.json_response({"error": {"message": str(error)}}, status=400)
        tokens = list(prompt.encode())
        return web.json_response({"count": len(tokens), "tokens": tokens})


@pytest.mark.parametrize(
    ("template", "kept"),
    [(OWN, {"qwen3"}), (MISTRAL, {"qwen3", "mistral"}), (QWEN3_5, {"qwen3"})],
    ids=["own", "mistral", "qwen3.5"],
)
async def test_the_doctor_names_the_delimiters_that_the_template_keeps(template: str, kept: set[str]) -> None:
    server = Rendering(read_template(template))
    server.rest = Model(()).answer
    row = (await examined(server))["thinking"]
    assert row.is_ok
    for name, delimiters in DELIMITERS.items():
        # The preset of DeepSeek has the delimiters of Qwen3.
        is_kept = name in kept or delimiters in [DELIMITERS[each] for each in kept]
        assert (delimiters[1].strip() in row.value) is is_kept
