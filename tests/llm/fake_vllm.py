"""As much of the `vllm` package as the engine in process uses, with a model that answers with the first label."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import orjson
import pytest
from jinja2 import TemplateError

CONTEXT = 1000


class ClientError(Exception):
    """What vLLM says of a request that it does not take."""


@dataclass
class Answered:
    """What the model says, in tokens of one character."""

    text: str
    finish_reason: str = "stop"
    logprob: float = -0.5
    cached_tokens: int | None = None


def first_labels(params: Any) -> Answered:
    fields = params.structured_outputs.json["properties"]
    return Answered(orjson.dumps({name: labels["enum"][0] for name, labels in fields.items()}).decode())


@dataclass
class FakeVllm:
    """The library and its one engine; `width` requests are answered in a step."""

    say: Callable[[Any], Answered] = first_labels
    width: int = 4
    sends_logprobs: bool = True
    generation_config: dict[str, Any] = field(default_factory=dict)
    before_step: Callable[[], None] = lambda: None
    # What was seen.
    arguments: dict[str, Any] = field(default_factory=dict)
    params: list[Any] = field(default_factory=list)
    running: list[tuple[str, int, Any]] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    closed: bool = False

    def install(self, monkeypatch: pytest.MonkeyPatch) -> FakeVllm:
        """Make `import vllm` find this."""
        sampling = SimpleNamespace(from_optional=lambda **values: SimpleNamespace(**values))
        structured = SimpleNamespace(
            StructuredOutputsParams=SimpleNamespace, RequestOutputKind=SimpleNamespace(FINAL_ONLY=2)
        )
        renderers = SimpleNamespace(ChatParams=SimpleNamespace, TokenizeParams=SimpleNamespace)
        exceptions = SimpleNamespace(VLLMClientError=ClientError)
        parts = {
            "vllm": {"LLM": self.load, "SamplingParams": sampling, "__version__": "0.0-fake"},
            "vllm.exceptions": vars(exceptions),
            "vllm.renderers": vars(renderers),
            "vllm.sampling_params": vars(structured),
            "vllm.utils": {},
            "vllm.utils.mistral": {"is_mistral_tokenizer": lambda _: False},
        }
        modules = {name: ModuleType(name) for name in parts}
        for name, contents in parts.items():
            vars(modules[name]).update(contents)
            parent, _, last = name.rpartition(".")
            if parent:
                setattr(modules[parent], last, modules[name])
            monkeypatch.setitem(sys.modules, name, modules[name])
        return self

    def load(self, **arguments: Any) -> Any:
        """`vllm.LLM`."""
        self.arguments = arguments
        engine = SimpleNamespace(
            add_request=self.add_request, step=self.step, engine_core=SimpleNamespace(shutdown=self.shutdown)
        )
        tokenizer = SimpleNamespace(
            encode=lambda text, add_special_tokens: [ord(c) for c in text], decode=lambda ids: "".join(map(chr, ids))
        )
        return SimpleNamespace(
            llm_engine=engine,
            chat_template=None,
            get_tokenizer=lambda: tokenizer,
            renderer=SimpleNamespace(render_chat=self.render_chat),
            model_config=SimpleNamespace(
                max_model_len=arguments.get("max_model_len", CONTEXT),
                get_diff_sampling_param=lambda: dict(self.generation_config),
            ),
        )

    def render_chat(self, conversations: list[list[dict[str, str]]], chat: Any, tokens: Any) -> Any:
        assert chat.chat_template_kwargs["add_generation_prompt"] and not tokens.add_special_tokens
        text = "".join(f"<{each['role']}>{each['content']}" for each in conversations[0])
        if "no such role" in text:
            raise TemplateError("the template takes no such role")
        text += "<think>" * bool(chat.chat_template_kwargs.get("enable_thinking"))
        return None, [{"prompt_token_ids": [ord(c) for c in text + "<assistant>"]}]

    def add_request(self, number: str, prompt: Any, params: Any) -> None:
        length = len(prompt["prompt_token_ids"])
        if length > CONTEXT:
            raise ClientError(f"the prompt (length {length}) is longer than the context of {CONTEXT}")
        if "allOf" in params.structured_outputs.json:
            raise ValueError("the grammar does not know allOf")
        self.params.append(params)
        self.running.append((number, length, params))

    def step(self) -> list[Any]:
        self.before_step()
        self.batches.append(len(self.running))
        done, self.running = self.running[: self.width], self.running[self.width :]
        return [self._output(*each) for each in done]

    def shutdown(self) -> None:
        self.closed = True

    def _output(self, number: str, length: int, params: Any) -> Any:
        said = self.say(params)
        logprobs = None
        if params.logprobs and self.sends_logprobs:
            logprobs = [
                {
                    ord(c): SimpleNamespace(decoded_token=c, logprob=said.logprob),
                    **{n: SimpleNamespace(decoded_token=chr(n), logprob=-math.inf) for n in range(200, 230)},
                }
                for c in said.text
            ]
        elif params.logprobs:
            logprobs = [{ord(c): SimpleNamespace(decoded_token="?", logprob=said.logprob)} for c in said.text]
        answer = SimpleNamespace(
            text=said.text,
            finish_reason=said.finish_reason,
            token_ids=[ord(c) for c in said.text],
            logprobs=logprobs,
        )
        return SimpleNamespace(
            request_id=number,
            prompt_token_ids=[0] * length,
            outputs=[answer],
            num_cached_tokens=said.cached_tokens,
        )
