"""vLLM in this process: the requests that the server's client would send, answered without a server."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

from jinja2 import TemplateError
from pydantic import BaseModel, Field, ValidationError

from touche_llm.errors import EngineError
from touche_llm.llm.engine import Completion, EngineFacts, Rejected, Transient
from touche_llm.llm.request import Message, Request
from touche_llm.llm.vllm_common import (
    BROKEN_TRIES,
    chat,
    finished,
    head_of,
    introduce,
    model_name,
    placed,
    start_options,
)

# What the server sends for a masked token, whose log-probability JSON cannot carry.
_MASKED = -9999.0
# Besides vLLM's own, what it raises for a request that it does not take; its server answers these with status 400.
_REFUSALS = (ValueError, TypeError, OverflowError, NotImplementedError, TemplateError)

_Logprob = Annotated[float, Field(allow_inf_nan=False)]


class _Sent(BaseModel):
    """A token of an answer as vLLM holds it, with its alternatives."""

    token: str
    logprob: _Logprob
    alternatives: list[tuple[str, _Logprob]]

    @property
    def spelled(self) -> bytes:
        """Nothing: no bytes are told."""
        return b""


class VllmOffline:
    """The model of a folder, loaded into this process. Use as an asynchronous context manager.

    Requests join vLLM's running batch as they come and leave it when they are answered, as in a server, so the batch is
    as large as the run's concurrency. vLLM is stepped in the event loop's own thread: between two steps whatever can
    go on does, and Ctrl-C waits for no more than a step.
    """

    def __init__(
        self, folder: Path, *, context: int | None, options: Mapping[str, Any], chat_template_kwargs: Mapping[str, Any]
    ) -> None:
        """Nothing is loaded yet.

        Args:
            folder: holds weights, tokeniser and chat template; its last name is the model's name.
            context: in tokens; the model's own where None.
            options: further arguments of `vllm.LLM`, by name.
            chat_template_kwargs: the chat template's switches, for counting tokens.
        """
        self._folder = folder
        self._arguments = start_options(options)
        self._arguments |= {"model": str(folder)} | ({} if context is None else {"max_model_len": context})
        self._chat_template_kwargs = dict(chat_template_kwargs)
        self._vllm: Any = None
        self._llm: Any = None
        self._numbers = count()
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        self._stepping: asyncio.Task[None] | None = None
        self._failure: EngineError | None = None

    async def __aenter__(self) -> VllmOffline:
        """Load the model, which takes minutes for a large one; raises EngineError where vLLM cannot."""
        # What vLLM has to say goes where messages go, not among a command's results.
        os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
        with _interruptible():
            self._vllm = _imported()
            try:
                self._llm = self._vllm.LLM(**self._arguments)
            except Exception as error:  # of whatever library has to do with loading a model
                raise EngineError(f"{self._folder}: vLLM cannot load the model: {_said(error)}") from error
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._stepping is not None:
            self._stepping.cancel()
            await asyncio.gather(self._stepping, return_exceptions=True)
        self._llm.llm_engine.engine_core.shutdown()
        self._llm = None

    async def connect(self, revision: str, top_logprobs: int) -> EngineFacts:
        """The same facts as a server's of the same model under the folder's name, after the same proof.

        Args:
            revision: what the user calls the weights' version; goes into the keys.
            top_logprobs: how many alternatives a token the run will ask for; 0 for none.

        Raises:
            EngineError: no schema enforced, no log-probabilities, or no chat template that takes a system message.
        """
        try:
            return await introduce(
                self,
                self._folder,
                model=model_name(self._folder),
                revision=revision,
                context=self._llm.model_config.max_model_len,
                version=self._vllm.version,
                chat_template_kwargs=self._chat_template_kwargs,
                top_logprobs=top_logprobs,
            )
        except (Rejected, Transient) as error:
            raise EngineError(f"{self._folder}: vLLM refused the start-up check: {error}") from error

    async def complete(self, request: Request) -> Completion:
        """Answer one request; raises Transient or Rejected, and EngineError once vLLM has failed."""
        number = str(next(self._numbers))
        prompt = self._rendered(request.messages, request.chat_template_kwargs)
        params = self._call(self._params, request)
        self._call(self._llm.llm_engine.add_request, number, prompt, params)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        if self._stepping is None:
            self._stepping = asyncio.create_task(self._step())
        try:
            return _completion(await future, request)
        finally:
            self._waiting.pop(number, None)

    async def count_tokens(self, messages: tuple[Message, ...]) -> int:
        """Number of prompt tokens of a chat, template included."""
        return len(self._rendered(messages, self._chat_template_kwargs)["prompt_token_ids"])

    async def head(self, text: str, tokens: int) -> str:
        """The beginning of `text` that has about this many tokens; always a prefix of it."""
        tokenizer = self._llm.get_tokenizer()
        found = self._call(tokenizer.encode, text, add_special_tokens=False)
        return text if len(found) <= tokens else head_of(text, tokenizer.decode(found[:tokens]))

    async def _step(self) -> None:
        """Step vLLM until nobody waits any more."""
        while self._waiting:
            try:
                outputs = self._llm.llm_engine.step()
            except Exception as error:
                self._failed(error)
                break
            for output in outputs:
                future = self._waiting.pop(output.request_id, None)
                # One that was cancelled is answered all the same.
                if future is not None and not future.done():
                    future.set_result(output)
            await asyncio.sleep(0)
        self._stepping = None

    def _failed(self, error: Exception) -> EngineError:
        """Note that vLLM has failed as a whole, and tell all who wait."""
        self._failure = EngineError(
            f"{self._folder}: vLLM has failed: {_said(error)}; what it said is above. Every answer so far is in the "
            "cache, unless that is off: go on with the same command"
        )
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(self._failure)
        return self._failure

    def _call(self, call: Any, *arguments: Any, **options: Any) -> Any:
        """Call vLLM for one request; what it refuses is Rejected."""
        if self._failure is not None:
            raise self._failure
        try:
            return call(*arguments, **options)
        except (self._vllm.VLLMClientError, *_REFUSALS) as error:
            raise Rejected(400, f"vLLM refused it: {_said(error)}") from error
        except Exception as error:
            raise self._failed(error) from error

    def _rendered(self, messages: tuple[Message, ...], chat_template_kwargs: Mapping[str, Any]) -> Any:
        """A chat as vLLM's prompt, made as `LLM.chat` does, but of any length, as the server's /tokenize counts it."""
        switches = {
            **chat_template_kwargs,
            "add_generation_prompt": True,
            "continue_final_message": False,
            "tokenize": self._vllm.is_mistral_tokenizer(self._llm.get_tokenizer()),
        }
        how = self._vllm.ChatParams(chat_template=self._llm.chat_template, chat_template_kwargs=switches)
        # The chat template writes the special tokens.
        tokens = self._vllm.TokenizeParams(max_total_tokens=None, add_special_tokens=False)
        _, (prompt,) = self._call(self._llm.renderer.render_chat, [chat(messages)], how, tokens)
        return prompt

    def _params(self, request: Request) -> Any:
        """How the answer is drawn; what a request does not say comes from the model's generation_config.json."""
        sampling = request.sampling
        asked = {
            "temperature": sampling.temperature,
            "seed": sampling.seed,
            "max_tokens": sampling.max_tokens,
            "logprobs": sampling.top_logprobs or None,
            "structured_outputs": self._vllm.StructuredOutputsParams(json=dict(request.schema)),
            "output_kind": self._vllm.RequestOutputKind.FINAL_ONLY,
        }
        defaults = self._llm.model_config.get_diff_sampling_param()
        return self._vllm.SamplingParams.from_optional(**defaults | asked)


class _Interrupted(BaseException):
    """Ctrl-C while a model is loaded."""


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C end the block: vLLM 0.32 swallows KeyboardInterrupt while it waits for its processes to start."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are not this thread's business
        return

    def stop(*_: object) -> None:
        raise _Interrupted

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    except _Interrupted:
        raise KeyboardInterrupt from None
    finally:
        signal.signal(signal.SIGINT, before)


def _imported() -> SimpleNamespace:
    """All that is used of vLLM, which takes seconds to import and is not always there."""
    try:
        from vllm import LLM, SamplingParams, __version__
        from vllm.exceptions import VLLMClientError
        from vllm.renderers import ChatParams, TokenizeParams
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
        from vllm.utils.mistral import is_mistral_tokenizer
    except ImportError as error:
        if error.name == "vllm":
            raise EngineError("vLLM is not installed here: pip install 'vllm>=0.32'") from error
        raise EngineError(f"this vLLM cannot be used in process (0.32 can): {_said(error)}") from error
    return SimpleNamespace(
        LLM=LLM,
        SamplingParams=SamplingParams,
        version=__version__,
        VLLMClientError=VLLMClientError,
        ChatParams=ChatParams,
        TokenizeParams=TokenizeParams,
        RequestOutputKind=RequestOutputKind,
        StructuredOutputsParams=StructuredOutputsParams,
        is_mistral_tokenizer=is_mistral_tokenizer,
    )


def _completion(output: Any, request: Request) -> Completion:
    answer = output.outputs[0]
    try:
        top_logprobs = request.sampling.top_logprobs
        sent = _sent(answer, top_logprobs) if top_logprobs else []
    except ValidationError as error:
        reason = f"a token of another form: {error.errors()[0]['msg']}"
        raise Transient("server_error", reason, most_tries=BROKEN_TRIES) from error
    return Completion(
        text=answer.text,
        finish_reason=finished(answer.finish_reason),
        prompt_tokens=len(output.prompt_token_ids),
        completion_tokens=len(answer.token_ids),
        tokens=placed(sent, answer.text, request.read_fields),
        cached_tokens=output.num_cached_tokens,
    )


def _sent(answer: Any, top_logprobs: int) -> list[_Sent]:
    """The tokens as the server sends them: of the alternatives, the drawn token comes first, then by rank."""
    return [
        _Sent(
            token=step[token].decoded_token,
            logprob=max(step[token].logprob, _MASKED),
            alternatives=[
                (each.decoded_token, max(each.logprob, _MASKED)) for each in islice(step.values(), top_logprobs)
            ],
        )
        for token, step in zip(answer.token_ids, answer.logprobs, strict=True)
    ]


def _said(error: Exception) -> str:
    """What an exception says, in one line, shortened."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
