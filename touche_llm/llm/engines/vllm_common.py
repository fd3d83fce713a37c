"""Shared parts of all ways to vLLM: start options, model folder, start-up check."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from touche_llm.errors import EngineError, UsageError
from touche_llm.llm.answers import AnswerModel, Unusable, build_schema, parse_answer
from touche_llm.llm.engines.base import Engine, MissingLogprobs
from touche_llm.llm.logprobs import check_logprobs
from touche_llm.llm.request import Message, Origin, Request, Sampling

# With white space allowed between tokens, weak models write it endlessly. Only this backend has the switch, and all
# requests must use the same backend.
_STRUCTURED_OUTPUTS = {"backend": "xgrammar", "disable_any_whitespace": True}


class _Probe(AnswerModel):
    """Answer that no model gives unless the schema is enforced."""

    word: Literal["quokka-7351"]


def build_start_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options to start vLLM with: those that the program needs, overridden by those of the user.

    If the environment switches torch.compile off, vLLM does not start without `enforce_eager`.
    """
    eager = {"enforce_eager": True} if os.environ.get("TORCHDYNAMO_DISABLE") == "1" else {}
    return {"structured_outputs_config": _STRUCTURED_OUTPUTS, **eager, **options}


def check_model_folder(model: str | None) -> Path:
    """Return the folder of a model that the program serves itself.

    Raises:
        UsageError: No folder is given, or it holds no model.
    """
    if model is None:
        raise UsageError("engine.model: give the folder of the model (for tira also TOUCHE_LLM_MODEL)")
    folder = Path(model)
    if not (folder / "config.json").is_file():
        raise UsageError(f"{folder}: no model; give a folder with config.json, weights and tokenizer (`engine.model`)")
    return folder


def get_model_name(folder: str | Path) -> str:
    """Return the name under which a folder's model is served: the last part of its path."""
    return Path(os.path.abspath(folder)).name


def to_chat(messages: Sequence[Message]) -> list[dict[str, str]]:
    """Return messages in the form of a chat request."""
    return [{"role": message.role, "content": message.content} for message in messages]


def match_prefix(text: str, decoded: str) -> str:
    """Return the prefix of `text` that corresponds to its first tokens, decoded.

    The decoded text of a tokenizer that normalises differs from its input, but has about as many characters.
    """
    return text[: len(decoded.rstrip("\ufffd"))]


async def verify_engine(
    engine: Engine, location: str, model: str, chat_template_kwargs: Mapping[str, Any], top_logprobs: int
) -> None:
    """Verify that an engine enforces schemas: request an answer that no model gives otherwise.

    Raises:
        EngineError: Schemas are not enforced, or log-probabilities are missing or impossible.
    """
    no_logprobs = EngineError(
        f"{location}: {model} sends no log-probabilities that spell its answer; grades would be coarse; "
        "use a server that does, or request plain grades with `sampling.logprobs: false`"
    )
    request = Request(
        messages=(Message("user", "Say hello."),),
        schema=build_schema(_Probe),
        sampling=Sampling(max_tokens=64, top_logprobs=top_logprobs),
        model=model,
        revision="",
        chat_template_kwargs=chat_template_kwargs,
        origin=Origin("start-up check", 0, "", "", None),
    )
    try:
        completion = await engine.complete(request)
    except MissingLogprobs as error:
        raise no_logprobs from error
    try:
        parse_answer(completion.text, _Probe)
    except Unusable as error:
        hint = ""
        if not completion.text and completion.reasoning:
            hint = " (its reasoning was not empty: switch thinking off)"
        raise EngineError(
            f"{location}: {model} does not enforce JSON schemas: restricted to a single word, "
            f"it answered {completion.text[:80]!r}{hint}; use a server with `structured_outputs` (vLLM 0.11 or later)"
        ) from error
    if top_logprobs and not any(token.top for token in completion.tokens):
        raise no_logprobs
    try:
        check_logprobs(completion.text, completion.tokens)
    except Unusable as error:
        raise EngineError(
            f"{location}: {model} sends impossible log-probabilities: {error.reason}; serve it with --logprobs-mode "
            "raw_logprobs, the default of vLLM, or request plain grades with `sampling.logprobs: false`"
        ) from error
