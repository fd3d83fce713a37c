"""Client of a vLLM server, over its OpenAI-compatible interface."""

from __future__ import annotations

import errno
import html
import os
import resource
from collections.abc import Mapping
from typing import Any, TypeVar
from uuid import uuid4

import aiohttp
import msgspec
import orjson

from touche_llm.data.json_records import Count, Malformed, decode_json
from touche_llm.data.transport import BROKEN_TRIES, parse_retry_after, read_body
from touche_llm.errors import EngineError
from touche_llm.llm.concurrency import PRIORITY, BackoffSlots
from touche_llm.llm.engines.base import Completion, EngineInfo, Rejected, Transient, Unreachable
from touche_llm.llm.engines.chat_reply import CHAT_PATH, ChatReply, build_chat_body, read_completion
from touche_llm.llm.engines.timeouts import QueueTimeout
from touche_llm.llm.engines.vllm_common import chat, match_prefix, verify_engine
from touche_llm.llm.request import Message, Request

# The server's own variable for its key, so that both sides can be set at once. The key is never written anywhere.
API_KEY_VARIABLE = "VLLM_API_KEY"
_MAX_BODY = 16 * 2**20
_EXPECTED = "is the vLLM server running there? Its address is --base-url"
# Characters of a reply that an error repeats, and bytes in which the title of a web page is looked for.
_MOST_QUOTED, _MOST_TITLE, _MOST_HEAD = 300, 100, 10_000
# Open files beside the connections: the cache, the index, outputs. macOS allows no more than OPEN_MAX.
_OTHER_FILES, _OPEN_MAX = 128, 10_240

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
    """One server at `base_url` (with or without `/v1`). Use as an asynchronous context manager."""

    def __init__(
        self,
        base_url: str,
        *,
        concurrency: int,
        request_timeout: float,
        chat_template_kwargs: Mapping[str, Any],
    ) -> None:
        """Nothing is sent yet.

        Args:
            base_url: with or without `/v1`.
            concurrency: Requests at a time, at most; fewer after 429, 503 and timeouts.
            request_timeout: In seconds; see `QueueTimeout`.
            chat_template_kwargs: of the run.
        """
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        self.model = ""
        self._slots = BackoffSlots(_possible_connections(concurrency))
        self._timeout = QueueTimeout(request_timeout)
        self._chat_template_kwargs = dict(chat_template_kwargs)
        self._session: aiohttp.ClientSession | None = None
        # What the first reply called the model; an alias of the name that was requested.
        self._answering: str | None = None
        # vLLM does, unless a proxy gives requests ids of its own; None before the first reply.
        self._repeats_ids: bool | None = None

    async def __aenter__(self) -> VllmServer:
        key = os.environ.get(API_KEY_VARIABLE, "").strip()
        if not (key.isascii() and key.isprintable()):
            raise EngineError(f"{API_KEY_VARIABLE}: the key holds a character that no HTTP header can carry")
        self._session = aiohttp.ClientSession(
            connector=_Connector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, connect=min(30.0, self._timeout.seconds)),
            headers={"Authorization": f"Bearer {key}"} if key else {},
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        await self._session.close()

    async def connect(self, model: str | None, revision: str, top_logprobs: int) -> EngineInfo:
        """Learn the model and its context, and prove that the server can do what the run needs.

        Args:
            model: the served name; may be None where the server serves exactly one.
            revision: what the user calls the weights' version; goes into the keys, the server cannot tell it.
            top_logprobs: how many alternatives a token the run will ask for; 0 for none.

        Raises:
            EngineError: no answer, another model, no schema enforced, or no log-probabilities. Says what to do.
        """
        try:
            served = (await self._get("/v1/models", _ModelList)).data
            version = (await self._get("/version", _Version)).version
            chosen = self._choose(served, model)
            self.model = chosen.id
            if chosen.max_model_len is None:
                raise EngineError(f"{self.base_url}: does not tell the context length of {chosen.id}; is it vLLM?")
            return await verify_engine(
                self,
                self.base_url,
                model=chosen.id,
                revision=revision,
                context=chosen.max_model_len,
                version=version,
                chat_template_kwargs=self._chat_template_kwargs,
                top_logprobs=top_logprobs,
            )
        except Transient as error:
            raise EngineError(f"{self.base_url}: {error.reason}; {_EXPECTED}") from error
        except Rejected as error:
            hint = f"give its key in {API_KEY_VARIABLE}" if error.status in (401, 403) else _EXPECTED
            raise EngineError(f"{self.base_url}: the server refused the start-up check: {error}; {hint}") from error

    async def complete(self, request: Request) -> Completion:
        """Answer one request; raises Transient or Rejected, and EngineError once another model answers."""
        sent_id = uuid4().hex
        reply = await self._post(CHAT_PATH, build_chat_body(request) | {"request_id": sent_id}, ChatReply)
        self._check_id(reply.id, sent_id)
        self._check_model(reply.model)
        return read_completion(reply, request.logprob_fields)

    async def count_tokens(self, messages: tuple[Message, ...]) -> int:
        """Number of prompt tokens of a chat, template included."""
        body = {
            "model": self.model,
            "messages": chat(messages),
            "chat_template_kwargs": self._chat_template_kwargs,
        }
        return (await self._post("/tokenize", body, _Tokens)).count

    async def truncate(self, text: str, max_tokens: int) -> str:
        """The beginning of `text` that has about this many tokens; always a prefix of it."""
        body: dict[str, Any] = {"model": self.model, "prompt": text, "add_special_tokens": False}
        found = (await self._post("/tokenize", body, _Tokens)).tokens
        if len(found) <= max_tokens:
            return text
        decoded = (await self._post("/detokenize", {"model": self.model, "tokens": found[:max_tokens]}, _Text)).prompt
        return match_prefix(text, decoded)

    def _check_model(self, answering: str | None) -> None:
        """Raise EngineError where another model answers than the one that answered first."""
        if answering is None:
            return  # a reply need not name its model
        if self._answering is None:
            self._answering = answering
        if answering != self._answering:
            raise EngineError(
                f"{self.base_url}: {answering!r:.200} answers now, {self._answering!r:.200} answered before; its "
                f"answers are not stored under the name {self.model!r}; serve one model and run the "
                "same command again, or keep the new answers separate with --revision"
            )

    def _check_id(self, reply_id: str | None, sent_id: str) -> None:
        """Raise Transient for the reply to another request, where the first reply repeated the id of its request."""
        is_same = reply_id is not None and reply_id.endswith(sent_id)
        if self._repeats_ids is None:
            self._repeats_ids = is_same
        if self._repeats_ids and not is_same:
            reason = f"the reply {reply_id!r:.100} is that of another request; is a proxy out of step?"
            raise Transient("server_error", reason)

    def _choose(self, served: list[_Model], model: str | None) -> _Model:
        names = [each.id for each in served]
        if model is None and len(served) == 1:
            return served[0]
        if model is None:
            raise EngineError(f"{self.base_url}: serves {', '.join(names) or 'no model'}; choose one with --model")
        for each in served:
            if each.id == model:
                return each
        raise EngineError(f"{self.base_url}: serves {', '.join(names) or 'no model'}, not {model!r}; see --model")

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
                raise
            self._slots.grow()
        return _read(path, content, reply)

    async def _call(self, method: str, path: str, body: bytes | None) -> bytes:
        assert self._session is not None, "use the server as an asynchronous context manager"
        headers = {"Content-Type": "application/json"}
        try:
            # A redirect would take prompts and key to another place.
            async with (
                self._timeout.limit(),
                self._session.request(
                    method, self.base_url + path, data=body, headers=headers, allow_redirects=False
                ) as response,
            ):
                content = await read_body(response, _MAX_BODY)
                if len(content) > _MAX_BODY:
                    raise aiohttp.ClientPayloadError(f"a reply of more than {_MAX_BODY:,} bytes")
                status, asked = response.status, parse_retry_after(response.headers.get("Retry-After"))
                location = response.headers.get("Location", "")
        except aiohttp.ClientConnectorError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise Transient("server_error", "too many open files (ulimit -n)", is_overload=True) from error
            raise Unreachable("server_error", f"cannot connect ({error.strerror or error})") from error
        except TimeoutError as error:
            raise Transient("timeout", f"no answer within {self._timeout.seconds:g} s", is_overload=True) from error
        except aiohttp.InvalidURL as error:
            raise EngineError(f"{self.base_url}: not a URL; give --base-url like http://127.0.0.1:8000") from error
        except (aiohttp.ClientError, OSError) as error:
            reason = f"the connection broke: {type(error).__name__}: {_one_line(str(error))}"
            raise Transient("server_error", reason) from error
        if status in (408, 429) or status >= 500:
            reason, is_overload = f"HTTP {status}: {_problem(content)}", status in (429, 503)
            raise Transient("server_error", reason, asked, is_overload=is_overload)
        if status >= 400:
            raise Rejected(status, f"HTTP {status} from {path}: {_problem(content)}")
        if status >= 300:
            raise Rejected(
                status,
                f"HTTP {status} from {path}: a redirect to {location!r:.200}, and redirects are not followed; "
                "give the server's own address with --base-url",
            )
        return content


class _Connector(aiohttp.TCPConnector):
    """Connections that are closed, not used again, once a server sends on them what no request asked for.

    aiohttp would take it for the reply to the next request (its issue 13656): the label of one document for another.
    """

    async def _get(self, *args: Any) -> Any:
        while (connection := await super()._get(*args)) is not None:
            if connection.protocol is not None and not connection.protocol.should_close:
                break
            connection.close()
        return connection


def _possible_connections(wanted: int) -> int:
    """Raise the limit of open files as far as `wanted` connections need, and return how many it allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    files = min(wanted + _OTHER_FILES, _OPEN_MAX if hard == resource.RLIM_INFINITY else hard)
    if soft < files:
        soft = files
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(min(wanted, soft - _OTHER_FILES), 1)


def _read(path: str, content: bytes, reply: type[ReplyT]) -> ReplyT:
    try:
        return decode_json(content, reply)
    except Malformed as error:
        reason = f"{path} sent a reply of another form: {_web_page(content) or error}"
        raise Transient("server_error", reason, max_tries=BROKEN_TRIES) from error


def _problem(content: bytes) -> str:
    """What an error reply says, shortened."""
    try:
        message = orjson.loads(content)["error"]["message"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        message = _web_page(content) or content[:_MOST_QUOTED].decode("utf-8", errors="replace")
    return _one_line(str(message))


def _one_line(text: str) -> str:
    """The beginning of a text from outside, in one line."""
    return " ".join(text[:_MOST_QUOTED].split())


def _web_page(content: bytes) -> str:
    """What to call a reply that is a web page, by its title; empty for any other."""
    start = content[:_MOST_HEAD].decode("utf-8", errors="replace").lstrip("\ufeff \t\r\n")
    if not start.lower().startswith(("<!doctype html", "<html", "<head", "<title")):
        return ""
    _, _, rest = start.partition("<title")
    title = " ".join(html.unescape(rest.partition(">")[2].partition("<")[0]).split())
    return f"a web page{f' ({title[:_MOST_TITLE]!r})' if title else ''}"
