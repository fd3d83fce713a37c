"""Client of a vLLM server over its OpenAI-compatible interface."""

from __future__ import annotations

import asyncio
import errno
import html
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar
from uuid import uuid4

import aiohttp
import msgspec
import orjson

from touche_llm.data.json_records import Count, Malformed, decode_json
from touche_llm.data.transport import BROKEN_TRIES, parse_retry_after, read_body
from touche_llm.errors import EngineError
from touche_llm.llm.concurrency import PRIORITY, BackoffSlots
from touche_llm.llm.engines.base import Completion, EngineInfo, Rejected, Transient
from touche_llm.llm.engines.chat_reply import CHAT_PATH, ChatReply, build_chat_body, read_completion
from touche_llm.llm.engines.connections import ConnectionPool, QueueTimeout, allow_connections
from touche_llm.llm.engines.health import HealthMonitor
from touche_llm.llm.engines.vllm_common import match_prefix, to_chat, verify_engine
from touche_llm.llm.request import Message, Request

# The server reads its key from the same variable. The key is never written to a file.
API_KEY_VARIABLE = "VLLM_API_KEY"
_MAX_BODY = 16 * 2**20
_HINT = "is the vLLM server running there? Set its address with `engine.base_url`"
# Max characters of a reply that an error quotes, and max bytes that are searched for the title of a web page.
_MAX_QUOTED, _MAX_TITLE, _MAX_PAGE_START = 300, 100, 10_000

_HEALTH_SECONDS = 5.0

ReplyT = TypeVar("ReplyT")


class _Model(msgspec.Struct):
    id: str
    max_model_len: Count | None = None


class _ModelList(msgspec.Struct):
    data: list[_Model]


class _Version(msgspec.Struct):
    version: str


class _Tokens(msgspec.Struct):
    count: Count
    tokens: list[int]


class _Text(msgspec.Struct):
    prompt: str


class VllmServer:
    """Engine that sends requests to a vLLM server. Use as an asynchronous context manager."""

    def __init__(
        self,
        base_url: str,
        *,
        concurrency: int,
        request_timeout: float,
        chat_template_kwargs: Mapping[str, Any],
        restart: Callable[[], Awaitable[str]] | None = None,
    ) -> None:
        """Initialise the client; nothing is sent yet.

        Args:
            base_url: Address, with or without `/v1`.
            concurrency: Max number of requests at a time; fewer after 429, 503 and timeouts.
            request_timeout: Seconds per request; see `QueueTimeout`.
            chat_template_kwargs: Switches of the chat template.
            restart: Starts the server again, once, if it dies, and returns its new address.
        """
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        self.model = ""
        self._slots = BackoffSlots(allow_connections(concurrency))
        self._timeout = QueueTimeout(request_timeout)
        self._chat_template_kwargs = dict(chat_template_kwargs)
        self._session: aiohttp.ClientSession | None = None
        self._restart = restart
        self._monitor = HealthMonitor(self._is_alive, None if restart is None else self._move)
        # A server that never answered is not dead, but not there.
        self._has_answered = False
        # Name of the model in the first reply; it can be an alias of the requested name.
        self._reply_model: str | None = None
        # True for vLLM, unless a proxy assigns ids of its own; None before the first reply.
        self._repeats_ids: bool | None = None

    async def __aenter__(self) -> VllmServer:
        key = os.environ.get(API_KEY_VARIABLE, "").strip()
        if not (key.isascii() and key.isprintable()):
            raise EngineError(f"{API_KEY_VARIABLE}: the key has a character that HTTP headers cannot hold")
        self._session = aiohttp.ClientSession(
            connector=ConnectionPool(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, connect=min(30.0, self._timeout.seconds)),
            headers={"Authorization": f"Bearer {key}"} if key else {},
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        await self._monitor.close()
        await self._session.close()

    async def connect(self, model: str | None, revision: str, top_logprobs: int) -> EngineInfo:
        """Get the model and its context from the server, and verify that it can do what the run needs.

        Args:
            model: Name of the served model; None if the server serves exactly one.
            revision: The user's name for the version of the weights; part of the keys, since the server does not know
                it.
            top_logprobs: Number of alternatives per token that the run requests; 0 for none.

        Raises:
            EngineError: The server is unreachable, serves another model, does not enforce schemas, or sends no
                log-probabilities.
        """
        try:
            served = (await self._get("/v1/models", _ModelList)).data
            version = (await self._get("/version", _Version)).version
            chosen = self._choose(served, model)
            self.model = chosen.id
            if chosen.max_model_len is None:
                raise EngineError(f"{self.base_url}: does not report the context length of {chosen.id}; is it vLLM?")
            overhead = await self.count_tokens((Message("system", ""), Message("user", "")))
            await verify_engine(self, self.base_url, chosen.id, self._chat_template_kwargs, top_logprobs)
            self._has_answered = True
        except Transient as error:
            raise EngineError(f"{self.base_url}: {error.reason}; {_HINT}") from error
        except Rejected as error:
            hint = f"give its key in {API_KEY_VARIABLE}" if error.status in (401, 403) else _HINT
            raise EngineError(f"{self.base_url}: the server refused the start-up check: {error}; {hint}") from error
        return EngineInfo(
            model=chosen.id,
            revision=revision,
            context=chosen.max_model_len,
            overhead=overhead,
            engine=f"vllm {version}",
        )

    async def complete(self, request: Request) -> Completion:
        """Return the completion of a request.

        Raises:
            Transient, Rejected: The request failed.
            EngineDeath: The server has died.
            EngineError: Another model answers than before.
        """
        sent_id = uuid4().hex
        reply = await self._post(CHAT_PATH, build_chat_body(request) | {"request_id": sent_id}, ChatReply)
        self._check_id(reply.id, sent_id)
        self._check_model(reply.model)
        return read_completion(reply, request.logprob_fields)

    async def count_tokens(self, messages: tuple[Message, ...]) -> int:
        """Return the number of prompt tokens of a chat, template included."""
        body = {
            "model": self.model,
            "messages": to_chat(messages),
            "chat_template_kwargs": self._chat_template_kwargs,
        }
        return (await self._post("/tokenize", body, _Tokens)).count

    async def truncate(self, text: str, max_tokens: int) -> str:
        """Return a prefix of `text` with about this many tokens."""
        body: dict[str, Any] = {"model": self.model, "prompt": text, "add_special_tokens": False}
        tokens = (await self._post("/tokenize", body, _Tokens)).tokens
        if len(tokens) <= max_tokens:
            return text
        decoded = (await self._post("/detokenize", {"model": self.model, "tokens": tokens[:max_tokens]}, _Text)).prompt
        return match_prefix(text, decoded)

    def _check_model(self, reply_model: str | None) -> None:
        """Raise EngineError if another model answers than in the first reply."""
        if reply_model is None:
            return  # replies need not name their model
        if self._reply_model is None:
            self._reply_model = reply_model
        if reply_model != self._reply_model:
            raise EngineError(
                f"{self.base_url}: {reply_model!r:.200} answers now, {self._reply_model!r:.200} answered before; its "
                f"answers are not stored under the name {self.model!r}; serve one model and run the same command "
                "again, or keep the new answers separate with `engine.revision`"
            )

    def _check_id(self, reply_id: str | None, sent_id: str) -> None:
        """Raise Transient for a reply to another request, if the server repeats the ids of requests."""
        is_same = reply_id is not None and reply_id.endswith(sent_id)
        if self._repeats_ids is None:
            self._repeats_ids = is_same
        if self._repeats_ids and not is_same:
            reason = f"the reply {reply_id!r:.100} belongs to another request; is a proxy out of step?"
            raise Transient("server_error", reason)

    def _choose(self, served: list[_Model], model: str | None) -> _Model:
        if model is None and len(served) == 1:
            return served[0]
        by_name = {choice.id: choice for choice in served}
        if model in by_name:
            return by_name[model]
        names = ", ".join(by_name) or "no model"
        wanted = "" if model is None else f", not {model!r}"
        raise EngineError(f"{self.base_url}: serves {names}{wanted}; choose one with `engine.model`")

    async def _is_alive(self) -> bool:
        """Return whether the server shows a sign of life; one that is slow or has no `/health` does."""
        assert self._session is not None
        try:
            async with asyncio.timeout(_HEALTH_SECONDS), self._session.get(f"{self.base_url}/health") as response:
                return response.status < 500
        except TimeoutError:
            return True
        except (aiohttp.ClientError, OSError):
            return False

    async def _move(self) -> None:
        """Restart the server and send requests to its new address."""
        assert self._restart is not None
        self.base_url = await self._restart()

    async def _get(self, path: str, reply: type[ReplyT]) -> ReplyT:
        return _read(path, await self._call("GET", path, None), reply)

    async def _post(self, path: str, body: dict[str, Any], reply: type[ReplyT]) -> ReplyT:
        async with self._slots.hold(PRIORITY.get()):
            halvings = self._slots.halvings
            try:
                content = await self._call("POST", path, orjson.dumps(body))
            except Transient as error:
                if error.is_overload:
                    self._slots.halve(halvings)
                elif self._has_answered:
                    await self._monitor.check(error)
                raise
            self._slots.grow()
        return _read(path, content, reply)

    async def _call(self, method: str, path: str, body: bytes | None) -> bytes:
        assert self._session is not None, "use the server as an asynchronous context manager"
        headers = {"Content-Type": "application/json"}
        try:
            # A redirect would send the prompts and the key to another server.
            async with (
                self._timeout.limit(),
                self._session.request(
                    method, self.base_url + path, data=body, headers=headers, allow_redirects=False
                ) as response,
            ):
                content = await read_body(response, _MAX_BODY)
                if len(content) > _MAX_BODY:
                    raise aiohttp.ClientPayloadError(f"a reply of more than {_MAX_BODY:,} bytes")
                status, retry_after = response.status, parse_retry_after(response.headers.get("Retry-After"))
                location = response.headers.get("Location", "")
        except aiohttp.ClientConnectorError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise Transient("server_error", "too many open files (ulimit -n)", is_overload=True) from error
            raise Transient("server_error", f"cannot connect ({error.strerror or error})") from error
        except TimeoutError as error:
            raise Transient("timeout", f"no answer within {self._timeout.seconds:g} s", is_overload=True) from error
        except aiohttp.InvalidURL as error:
            raise EngineError(
                f"{self.base_url}: not a URL; give `engine.base_url` like http://127.0.0.1:8000"
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            reason = f"the connection broke: {type(error).__name__}: {_to_line(str(error))}"
            raise Transient("server_error", reason) from error
        if status in (408, 429) or status >= 500:
            reason, is_overload = f"HTTP {status}: {_read_error(content)}", status in (429, 503)
            raise Transient("server_error", reason, retry_after, is_overload=is_overload)
        if status >= 400:
            raise Rejected(status, f"HTTP {status} from {path}: {_read_error(content)}")
        if status >= 300:
            raise Rejected(
                status,
                f"HTTP {status} from {path}: a redirect to {location!r:.200}, and redirects are not followed; "
                "give the server's own address with `engine.base_url`",
            )
        return content


def _read(path: str, content: bytes, reply: type[ReplyT]) -> ReplyT:
    try:
        return decode_json(content, reply)
    except Malformed as error:
        reason = f"malformed reply from {path}: {_describe_page(content) or error}"
        raise Transient("server_error", reason, max_tries=BROKEN_TRIES) from error


def _read_error(content: bytes) -> str:
    """Return the message of an error reply, shortened."""
    try:
        message = orjson.loads(content)["error"]["message"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        message = _describe_page(content) or content[:_MAX_QUOTED].decode("utf-8", errors="replace")
    return _to_line(str(message))


def _to_line(text: str) -> str:
    """Return the beginning of an untrusted text on one line."""
    return " ".join(text[:_MAX_QUOTED].split())


def _describe_page(content: bytes) -> str:
    """Return a description of a reply that is a web page, with its title; empty for other replies."""
    start = content[:_MAX_PAGE_START].decode("utf-8", errors="replace").lstrip("\ufeff \t\r\n")
    if not start.lower().startswith(("<!doctype html", "<html", "<head", "<title")):
        return ""
    _, _, rest = start.partition("<title")
    title = " ".join(html.unescape(rest.partition(">")[2].partition("<")[0]).split())
    return f"a web page{f' ({title[:_MAX_TITLE]!r})' if title else ''}"
