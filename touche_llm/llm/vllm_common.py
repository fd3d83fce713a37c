"""What the two ways to vLLM share, over HTTP and in process: so that both give the same answers and the same facts."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import orjson

from touche_llm.errors import EngineError, UsageError
from touche_llm.llm.answer import Token, Unusable
from touche_llm.llm.engine import Engine, EngineFacts, MissingLogprobs, Transient
from touche_llm.llm.labels import LOGPROB_ROUNDING, check_logprobs, overlaps, value_spans
from touche_llm.llm.request import Message, Origin, Request, Sampling

# A grammar that allows white space between tokens lets weak models write it without end; the switch exists for this
# backend, and one backend must hold for all requests.
_STRUCTURED_OUTPUTS = {"backend": "xgrammar", "disable_any_whitespace": True}
# A reply that came whole and is broken may be a proxy's fault; the engine's would come again and again.
BROKEN_TRIES = 3
# Alternatives under e^-25 change no probability that is stored; masked tokens come as -9999.
_LEAST_LOGPROB = -25.0
_WHITE_SPACE = b" \t\r\n"
# No free model answers with this word.
_PROBE_WORD = "quokka-7351"


class SentToken(Protocol):
    """A token of an answer as vLLM names it, before anything is believed of its log-probabilities."""

    @property
    def token(self) -> str:
        """Its text."""
        ...

    @property
    def logprob(self) -> float:
        """Its own."""
        ...

    @property
    def spelled(self) -> bytes:
        """Its bytes, as far as vLLM tells them."""
        ...

    @property
    def alternatives(self) -> Sequence[tuple[str, float]]:
        """The most probable tokens at its place, itself included."""
        ...


def start_options(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a vLLM that the program starts itself: what it needs of it, and what is asked for.

    Where the environment switches torch.compile off, vLLM has to be told, or it does not start.
    """
    eager = {"enforce_eager": True} if os.environ.get("TORCHDYNAMO_DISABLE") == "1" else {}
    return {"structured_outputs_config": _STRUCTURED_OUTPUTS, **eager, **asked}


def model_folder(model: str | None) -> Path:
    """The folder of a model that the program loads itself.

    Raises:
        UsageError: none is given, or it holds no model.
    """
    if model is None:
        raise UsageError("engine.model: give the folder of the model (--model FOLDER, for tira also TOUCHE_LLM_MODEL)")
    folder = Path(model)
    if not (folder / "config.json").is_file():
        raise UsageError(
            f"{folder}: no model: a folder with config.json, weights and tokeniser is needed (--model FOLDER)"
        )
    return folder


def model_name(folder: str | Path) -> str:
    """The name under which a folder's model is known: the folder's last name."""
    return Path(os.path.abspath(folder)).name


def chat(messages: Sequence[Message]) -> list[dict[str, str]]:
    """Messages in the form that vLLM takes."""
    return [{"role": message.role, "content": message.content} for message in messages]


def finished(reason: str | None) -> str:
    """Why an answer ended; raises Transient where that was no end of an answer."""
    if reason not in ("stop", "length", "content_filter"):
        raise Transient("server_error", f"the answer ended with {reason!r}", most_tries=BROKEN_TRIES)
    return reason


def head_of(text: str, decoded: str) -> str:
    """The beginning of `text` that its first tokens, decoded, stand for.

    A tokeniser that normalises does not give its input back, but about as many characters.
    """
    return text[: len(decoded.rstrip("\ufffd"))]


def placed(sent: Sequence[SentToken], text: str, fields: Collection[str]) -> list[Token]:
    """The tokens of the answer that carry the values of fields, with their places in its text.

    Empty where the tokens do not spell the text. White space is not compared: some tokenisers keep it in their tokens
    and lose it in the tokens' texts. Tokens before the answer (reasoning), after it (the end token) and of white space
    alone are left out. A log-probability that rounding raised above 0 becomes 0; see `check_logprobs` for others.
    """
    if not fields:
        return []
    content = text.encode("utf-8", "replace")
    places = [place for place, byte in enumerate(content) if byte not in _WHITE_SPACE]
    pieces = [(token.spelled or token.token.encode("utf-8", "replace")).translate(None, _WHITE_SPACE) for token in sent]
    start = b"".join(pieces).rfind(content.translate(None, _WHITE_SPACE))
    if start < 0 or not places:
        return []
    found: list[Token] = []
    spans = value_spans(text, tuple(fields)).values()
    at = -start
    for token, piece in zip(sent, pieces, strict=True):
        if piece and 0 <= at < len(places) and overlaps(places[at], token.token, spans):
            top = [
                (alternative, logprob if logprob < 0.0 else _unrounded(logprob))
                for alternative, logprob in token.alternatives
                if logprob > _LEAST_LOGPROB
            ]
            found.append(Token(at=places[at], token=token.token, logprob=_unrounded(token.logprob), top=top))
        at += len(piece)
    return found


def _unrounded(logprob: float) -> float:
    return 0.0 if 0.0 < logprob <= LOGPROB_ROUNDING else logprob


async def introduce(
    engine: Engine,
    where: str | Path,
    *,
    model: str,
    revision: str,
    context: int,
    version: str,
    chat_template_kwargs: Mapping[str, Any],
    top_logprobs: int,
) -> EngineFacts:
    """The facts about an engine, once it has proved that it can do what the run needs.

    Args:
        engine: answers already.
        where: its address or folder, for messages.
        model: its name.
        revision: what the user calls the weights' version; goes into the keys, vLLM cannot tell it.
        context: in tokens.
        version: vLLM's.
        chat_template_kwargs: of the run.
        top_logprobs: how many alternatives a token the run will ask for; 0 for none.

    Raises:
        EngineError: no schema enforced, or no log-probabilities. Says what to do.
    """
    overhead = await engine.count_tokens((Message("system", ""), Message("user", "")))
    await _prove(engine, where, model, chat_template_kwargs, top_logprobs)
    return EngineFacts(model=model, revision=revision, context=context, overhead=overhead, engine=f"vllm {version}")


async def _prove(
    engine: Engine, where: str | Path, model: str, chat_template_kwargs: Mapping[str, Any], top_logprobs: int
) -> None:
    """Ask for an answer that only an enforced schema gives."""
    schema = {
        "type": "object",
        "properties": {"word": {"enum": [_PROBE_WORD]}},
        "required": ["word"],
        "additionalProperties": False,
    }
    no_logprobs = EngineError(
        f"{where}: {model} sends no log-probabilities that spell its answer; grades would be coarse. "
        "Use a server that does, or ask for plain grades with --no-logprobs"
    )
    request = Request(
        messages=(Message("user", "Say hello."),),
        schema=schema,
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
        enforced = orjson.loads(completion.text) == {"word": _PROBE_WORD}
    except orjson.JSONDecodeError:
        enforced = False
    if not enforced:
        hint = ""
        if not completion.text and completion.reasoning:
            hint = " (its reasoning was not empty: switch thinking off)"
        raise EngineError(
            f"{where}: {model} does not enforce JSON schemas: asked for the word {_PROBE_WORD} alone, "
            f"it answered {completion.text[:80]!r}{hint}; it must support `structured_outputs` (vLLM 0.11 on)"
        )
    if top_logprobs and not any(token.top for token in completion.tokens):
        raise no_logprobs
    try:
        check_logprobs(completion.text, completion.tokens)
    except Unusable as error:
        raise EngineError(
            f"{where}: {model} sends log-probabilities that cannot be: {error.reason}. Serve it with --logprobs-mode "
            "raw_logprobs, the default of vLLM, or ask for plain grades with --no-logprobs"
        ) from error
