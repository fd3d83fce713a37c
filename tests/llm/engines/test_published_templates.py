"""Published chat templates: the system message, open thoughts, kept thoughts, and control text of documents."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.chat_templates import FOLDER, render
from tests.llm.engines.test_thinking_templates import Rendering
from touche_llm.llm.chat import ChatServer
from touche_llm.llm.checks import ServerCheck, Survey
from touche_llm.llm.settings import EngineConfig, SamplingConfig
from touche_llm.llm.startup import check_start_up
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
# Others keep the thoughts of both, since they write messages as they are.
KEEPS_ONLY = {
    "qwen3": {
        "Bielik-11B-v3.0-Instruct",
        "MiniMax-M2",
        "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
        "Qwen-QwQ-32B",
        "Qwen-Qwen3-0.6B",
        "Qwen3.5-4B",
        "Reka-Edge",
        "StepFun3.5-Flash",
        "openbmb-MiniCPM5-1B",
        "poolside-Laguna-XS-2.1",
        "poolside-Laguna-XS.2",
    },
    "mistral": {"NVIDIA-Nemotron-Nano-v2"},
}
KEEPS_NONE = {
    "Apriel-1.6-15b-Thinker-fixed",
    "Cohere2MoE",
    "CohereForAI-c4ai-command-r-plus-tool_use",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use",
    "GLM-4.6",
    "GLM-4.7-Flash",
    "Kimi-K2-Thinking",
    "Kimi-K3",
    "MiniMax-M3",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
    "deepseek-ai-DeepSeek-V3.1",
    "deepseek-ai-DeepSeek-V3.2",
    "deepseek-ai-DeepSeek-V4",
    "deepseek-ai-DeepSeek-V4-Flash-0731",
    "llama-cpp-deepseek-r1",
    "llama-cpp-rwkv-world",
    "meetkai-functionary-medium-v3.2",
    "muse-glimmer",
    "openai-gpt-oss-120b",
    "poolside-Laguna-S-2.1",
    "upstage-Solar-Open-100B",
}
# What a template could write as control: tags, and those of Mistral and MiniMax.
_CONTROL = re.compile(r"<[|｜/]?[^\s<>{}'\"]{1,40}>|\[/?[A-Z_]{3,}\]|\]~!?b\[?\]?|\[e~\[")


async def checks_of(name: str, **sampling: Any) -> dict[str, ServerCheck]:
    """Return the checks of a server that renders with a published template."""
    settings = SamplingConfig(**{"chat_template_kwargs": SWITCHES, **sampling})
    async with Rendering(FILES[name].read_text(encoding="utf-8")).running() as server:
        async with ChatServer(server.url, concurrency=8, request_timeout=5, chat_template_kwargs=SWITCHES) as client:
            found = Survey(client, EngineConfig(), settings)
            await check_start_up(found)
    return {check.name: check for check in found.checks}


@pytest.mark.parametrize("name", FILES)
async def test_only_a_refused_system_message_blocks_and_an_open_thought_is_named(name: str) -> None:
    found = await checks_of(name)
    is_refused = name in REFUSES_SYSTEM_MESSAGES
    assert [check.name for check in found.values() if check.is_blocking] == ["system message"] * is_refused
    if is_refused:
        assert "sampling.system_message: user" in found["system message"].remedy
        found = await checks_of(name, system_message="user")
        assert not any(check.is_blocking for check in found.values())
    thought = found["open thought"]
    assert (thought.is_ok, thought.is_blocking) == (name not in OPENS_A_THOUGHT, False)
    assert thought.is_ok or "sampling.thinking" in thought.remedy


@pytest.mark.parametrize("name", FILES)
async def test_a_reasoning_run_keeps_its_thought_or_is_refused(name: str) -> None:
    switches = SWITCHES | {"enable_thinking": True, "thinking": True}
    for preset in KEEPS_ONLY:
        thinking = {"judge": 64, "delimiters": preset, "chat_template_kwargs": switches}
        check = (await checks_of(name, system_message="user", thinking=thinking))["thinking"]
        others = set().union(*(names for other, names in KEEPS_ONLY.items() if other != preset))
        is_kept = name not in KEEPS_NONE | others
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
