"""Thoughts in the chat templates that are published with reasoning models, without a server's model."""

from __future__ import annotations

import itertools

import pytest
from aiohttp import web

from tests.chat_templates import (
    DEEPSEEK_R1,
    DEEPSEEK_V3_1,
    HARMONY,
    KEPT,
    KEPT_V3_1,
    MISTRAL,
    OWN,
    QWEN3,
    QWEN3_5,
    read_template,
    render,
)
from tests.fake_server import FakeServer
from tests.llm.engines.test_conformance import SCHEMAS, Model
from tests.llm.engines.test_thinking_check import survey_of
from touche_llm.llm.chat import ChatServer
from touche_llm.llm.checks import Survey
from touche_llm.llm.doctor import examine
from touche_llm.llm.request import DELIMITERS
from touche_llm.llm.settings import EngineConfig, SamplingConfig, ThinkingConfig

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
    ("template", "delimiters", "is_kept"),
    [
        (OWN, DELIMITERS["qwen3"], True),
        (QWEN3, DELIMITERS["qwen3"], True),
        (QWEN3_5, DELIMITERS["qwen3"], True),
        (MISTRAL, DELIMITERS["mistral"], True),
        (KEPT, DELIMITERS["deepseek"], True),
        (KEPT_V3_1, BARE, True),
        (DEEPSEEK_R1, DELIMITERS["deepseek"], False),
        (DEEPSEEK_V3_1, DELIMITERS["deepseek"], False),
        (DEEPSEEK_V3_1, BARE, False),
        (HARMONY, DELIMITERS["qwen3"], False),
        # Delimiters of another model.
        (QWEN3, DELIMITERS["mistral"], False),
        (QWEN3_5, DELIMITERS["mistral"], False),
        (KEPT, DELIMITERS["mistral"], False),
    ],
    ids=[
        *("own", "qwen3", "qwen3.5", "mistral", "r1 of the guide", "v3.1 of the guide", "r1", "v3.1", "v3.1 bare"),
        *("harmony", "qwen3 as mistral", "qwen3.5 as mistral", "r1 as mistral"),
    ],
)
async def test_the_check_passes_where_the_template_keeps_the_thought(
    template: str, delimiters: tuple[str, str], is_kept: bool
) -> None:
    check = await survey_of(Rendering(read_template(template)), ThinkingConfig(judge=64, delimiters=delimiters))
    assert check is not None and (check.is_ok, check.is_blocking) == (is_kept, not is_kept)
    assert is_kept or ("--chat-template" in check.remedy and "sampling.thinking.delimiters" in check.remedy)


@pytest.mark.parametrize(
    ("template", "kept"),
    [(OWN, {"qwen3"}), (MISTRAL, {"qwen3", "mistral"}), (QWEN3_5, {"qwen3"})],
    ids=["own", "mistral", "qwen3.5"],
)
async def test_the_doctor_names_the_delimiters_that_the_template_keeps(template: str, kept: set[str]) -> None:
    server = Rendering(read_template(template))
    server.rest = Model(()).answer
    async with server.running():
        async with ChatServer(server.url, concurrency=8, request_timeout=5, chat_template_kwargs={}) as client:
            checks = await examine(Survey(client, EngineConfig(), SamplingConfig(), SCHEMAS))
    (row,) = (check for check in checks if check.name == "thinking")
    assert row.is_ok
    for name, delimiters in DELIMITERS.items():
        # The preset of DeepSeek has the delimiters of Qwen3.
        is_kept = name in kept or delimiters in [DELIMITERS[each] for each in kept]
        assert (delimiters[1].strip() in row.value) is is_kept


@pytest.mark.parametrize(
    ("template", "delimiters"),
    [
        (OWN, DELIMITERS["qwen3"]),
        (QWEN3, DELIMITERS["qwen3"]),
        (QWEN3_5, DELIMITERS["qwen3"]),
        (MISTRAL, DELIMITERS["mistral"]),
        (KEPT, DELIMITERS["deepseek"]),
        (KEPT_V3_1, BARE),
    ],
    ids=["own", "qwen3", "qwen3.5", "mistral", "r1", "v3.1"],
)
def test_the_answer_begins_with_the_prompt_of_the_thought(template: str, delimiters: tuple[str, str]) -> None:
    template = read_template(template)
    thought = render(template, [SYSTEM, USER], False, **SWITCHES)
    message = {"role": "assistant", "content": "Tea.".join(delimiters)}
    answer = render(template, [SYSTEM, USER, message], True, **SWITCHES)
    # So a prefix cache has computed it.
    assert answer.startswith(thought) and answer.count("Tea.") == 1
    assert answer.rstrip().endswith(f"Tea.{delimiters[1].rstrip()}")


def test_the_template_of_these_tests_writes_what_the_published_one_writes() -> None:
    published = read_template(QWEN3)
    old = {"role": "assistant", "content": "<think>\nOld.\n</think>\n\nHello."}
    earlier = ([SYSTEM, USER], [SYSTEM, USER, old, USER])
    finals = [
        "".join((opening, text, closing)) for opening, closing in (*DELIMITERS.values(), BARE) for text in ("A.", "")
    ]

    def write(template: str, chat: list[dict[str, str]], is_continued: bool) -> str | None:
        try:
            return render(template, chat, is_continued, **SWITCHES)
        except ValueError:
            return None

    for chat in earlier:
        prompt = write(OWN, chat, False)
        assert prompt is not None and prompt == write(published, chat, False)
    for chat, final in itertools.product(earlier, finals):
        continued = [*chat, {"role": "assistant", "content": final}]
        assert write(OWN, continued, True) == write(published, continued, True)
