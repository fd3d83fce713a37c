"""Published chat templates: the system message, open thoughts, kept thoughts, and control text of documents."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest

from tests.chat_templates import FOLDER, read_template, render
from touche_llm.data.records import decode_json
from touche_llm.doctor.checks.open_thought import check_open_thought
from touche_llm.doctor.checks.system_message import check_system_message
from touche_llm.doctor.checks.thinking import check_thinking
from touche_llm.doctor.survey import ServerUnderTest, Survey
from touche_llm.engines.chat import ChatServer
from touche_llm.engines.dialects import (
    PROBE_ANSWER,
    TokenCount,
    UnenforcedSchema,
    make_vllm_dialect,
)
from touche_llm.engines.http import ReplyT
from touche_llm.engines.identification import ServerCheck
from touche_llm.engines.settings import EngineConfig
from touche_llm.errors import Rejected
from touche_llm.llm.protocol import EngineInfo
from touche_llm.llm.settings import SamplingConfig
from touche_llm.text.sanitize import sanitize

FILES = {path.stem: path for path in sorted(FOLDER.glob("*.jinja"))}
pytestmark = pytest.mark.skipif(not FILES, reason=f"the published templates are not at {FOLDER}")
# One of them writes the last two, whatever the chat.
SWITCHES = {"enable_thinking": False, "thinking": False, "functions": "", "datetime": ""}
REFUSES_SYSTEM_MESSAGES = {"google-gemma-2-2b-it"}
OPENS_A_THOUGHT = {
    "Apriel-1.6-15b-Thinker-fixed",
    "Cohere2MoE",
    "MiniMax-M2",
    "NVIDIA-Nemotron-Nano-v2",
    "StepFun3.5-Flash",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "llama-cpp-deepseek-r1",
}
# Templates and the presets whose delimiters they keep around a thought.
KEEPS = {
    "Qwen-Qwen3-0.6B": ("qwen3",),
    "Qwen3.5-4B": ("qwen3",),
    "Reka-Edge": ("qwen3",),
    "NVIDIA-Nemotron-Nano-v2": ("mistral",),
    "google-gemma-2-2b-it": ("qwen3", "mistral"),
    "Kimi-K2-Thinking": (),
    "deepseek-ai-DeepSeek-V3.2": (),
    "openai-gpt-oss-120b": (),
}
# What a template could write as control: tags, and those of Mistral and MiniMax.
_CONTROL = re.compile(r"<[|｜/]?[^\s<>{}'\"]{1,40}>|\[/?[A-Z_]{3,}\]|\]~!?b\[?\]?|\[e~\[")


class Rendering(ChatServer):
    """Client of a server that renders chats with a template, without a connection."""

    def __init__(self, template: str) -> None:
        super().__init__(
            "http://server", concurrency=1, request_timeout=5, chat_template_kwargs=SWITCHES
        )
        self.template = template

    async def post(self, path: str, body: dict[str, Any], reply: type[ReplyT]) -> ReplyT:
        if path == "/tokenize":
            is_continued = body.get("continue_final_message", False)
            try:
                text = render(
                    self.template, body["messages"], is_continued, **body["chat_template_kwargs"]
                )
            except ValueError as error:
                raise Rejected(400, str(error)) from error
            answer: Any = {"count": len(text), "tokens": list(text.encode())}
        elif path == "/detokenize":
            answer = {"prompt": bytes(body["tokens"]).decode()}
        else:
            try:
                text = render(
                    self.template, body["messages"], False, **body["chat_template_kwargs"]
                )
            except ValueError as error:
                raise Rejected(400, str(error)) from error
            choice = {"message": {"content": PROBE_ANSWER}, "finish_reason": "stop"}
            answer = {"choices": [choice], "usage": {"prompt_tokens": len(text)}}
        return decode_json(orjson.dumps(answer), reply)


async def check_of(
    name: str, probe: Callable[[Survey], Awaitable[list[ServerCheck]]], **sampling: Any
) -> ServerCheck:
    settings = SamplingConfig(**{"chat_template_kwargs": SWITCHES, **sampling})
    template = FILES[name].read_text(encoding="utf-8") if name in FILES else read_template(name)
    server = Rendering(template)
    dialect = make_vllm_dialect(server, "fake")
    survey = Survey(
        subject=ServerUnderTest(server, EngineConfig(), settings),
        info=EngineInfo(model="fake", revision="", context=0, overhead=0, engine="fake"),
        dialect=dialect,
        schema=UnenforcedSchema(()),
        token_count=TokenCount(dialect.counter, prompt_tokens=0),
    )
    (check,) = await probe(survey)
    return check


@pytest.mark.parametrize("name", FILES)
async def test_only_a_refused_system_message_blocks_and_an_open_thought_is_named(name: str) -> None:
    check, is_refused = await check_of(name, check_system_message), name in REFUSES_SYSTEM_MESSAGES
    assert (check.is_ok, check.is_blocking) == (not is_refused, is_refused)
    assert is_refused == ("sampling.system_message: user" in check.remedy)
    thought = await check_of(
        name, check_open_thought, system_message="user" if is_refused else "role"
    )
    assert (thought.is_ok, thought.is_blocking) == (name not in OPENS_A_THOUGHT, False)
    assert thought.is_ok or "sampling.thinking" in thought.remedy


@pytest.mark.parametrize("name", KEEPS)
async def test_a_reasoning_run_keeps_its_thought_or_is_refused(name: str) -> None:
    switches = SWITCHES | {"enable_thinking": True, "thinking": True}
    for preset in ("qwen3", "mistral"):
        thinking = {"judge": 64, "delimiters": preset, "chat_template_kwargs": switches}
        check = await check_of(name, check_thinking, thinking=thinking)
        is_kept = preset in KEEPS[name]
        assert (check.is_ok, check.is_blocking) == (is_kept, not is_kept)


@pytest.mark.parametrize("name", FILES)
def test_control_text_of_a_document_stays_text(name: str) -> None:
    template = FILES[name].read_text(encoding="utf-8")
    controls = sorted(set(_CONTROL.findall(template)))
    plain, hostile = (
        render(template, [{"role": "user", "content": f"Passage: {text} End."}], False, **SWITCHES)
        for text in ("words", sanitize(" ".join(controls)))
    )
    assert {control: hostile.count(control) for control in controls} == {
        control: plain.count(control) for control in controls
    }
