"""Chat templates of reasoning models, published and the project's own, and how they are rendered.

Published ones are read from a folder beside the checkout, by their names in llama.cpp's
`models/templates`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Template, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

_ROOT = Path(__file__).parents[1]
FOLDER = _ROOT.parent / "shared" / "data" / "chat_templates"
_GUIDE = (_ROOT / "docs" / "how-to" / "reasoning.md").read_text(encoding="utf-8")
# Marks the end of a message that is continued, as in `render_jinja_template` of transformers 5.
_TAG = "CONTINUE_FINAL_MESSAGE_TAG "


class _Generation(Extension):
    """The tag of transformers around what a model has written, which changes nothing that is rendered."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


_ENVIRONMENT = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
)

QWEN3, QWEN3_5 = "Qwen-Qwen3-0.6B", "Qwen3.5-4B"
DEEPSEEK_R1, DEEPSEEK_V3_1 = "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "deepseek-ai-DeepSeek-V3.1"
MISTRAL, HARMONY = "mistralai-Ministral-3-14B-Reasoning-2512", "openai-gpt-oss-120b"
PUBLISHED = (QWEN3, QWEN3_5, DEEPSEEK_R1, DEEPSEEK_V3_1, MISTRAL, HARMONY)

# That of Qwen3 without tools: the last message keeps its thought, taken apart and written anew;
# earlier ones lose theirs. The model opens it.
OWN = (
    "{% for m in messages %}{% set thought, closing, answer = m.content.rpartition('</think>') %}"
    "{% set content = answer.lstrip('\n') if m.role == 'assistant' else m.content %}"
    "{{ '<|im_start|>' ~ m.role ~ '\n' }}{% if m.role == 'assistant' and loop.last %}"
    "{{ '<think>\n' ~ thought.partition('<think>')[2].strip('\n') ~ '\n</think>\n\n' }}{% endif %}"
    "{{ content ~ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)
# The one that the guide gives for DeepSeek R1, and that of V3.1 by the change that it names.
(KEPT,) = re.findall(r"^```jinja\n(.*?)```$", _GUIDE, re.MULTILINE | re.DOTALL)


def read_template(name: str) -> str:
    """Return a published template by its name, and any other text as it is.

    Skip the test if there is no such file.
    """
    if name not in PUBLISHED:
        return name
    file = FOLDER / f"{name}.jinja"
    if not file.is_file():
        pytest.skip(f"the published template is not at {file}")
    return file.read_text(encoding="utf-8")


@cache
def _compile(template: str) -> Template:
    return _ENVIRONMENT.from_string(template)


def render(
    template: str, messages: Sequence[Mapping[str, str]], is_continued: bool, **switches: Any
) -> str:
    """Return the text of a prompt, as transformers renders it.

    Raises:
        ValueError: The template changed the message that is to be continued, or refuses the
            messages.
    """

    def refuse(message: str) -> None:
        raise ValueError(message)

    chat = [dict(message) for message in messages]
    final = chat[-1]["content"].strip()
    if is_continued:
        chat[-1]["content"] += _TAG
    tokens = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "raise_exception": refuse,
        "strftime_now": lambda form: date.today().strftime(form),
    }
    prompt = _compile(template).render(
        messages=chat, add_generation_prompt=not is_continued, **tokens, **switches
    )
    if not is_continued:
        return prompt
    if final not in prompt or _TAG.strip() not in prompt:
        raise ValueError(
            "the final message does not appear in the chat after applying the chat template"
        )
    kept, _, after = prompt.rpartition(_TAG.strip())
    return kept if after.startswith(" ") else kept.rstrip()
