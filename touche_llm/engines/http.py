"""HTTP client of a server: slots, time limits, typed failures, bounded replies."""

from __future__ import annotations

import asyncio
import os
import re
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import aiohttp
import orjson

from touche_llm.data.records import Malformed, decode_json
from touche_llm.engines.connections import (
    describe_connection_error,
    parse_retry_after,
    read_body,
    to_line,
)
from touche_llm.errors import (
    BrokenReply,
    EngineError,
    FailureKind,
    OversizedReply,
    Rejected,
    Transient,
    Unreachable,
)
from touche_llm.text.quoting import MODEL_KEY_VARIABLE

# Open files besides the connections: the cache, the index, outputs.
_OTHER_FILES = 128
_MAX_BODY = 16 * 2**20
_QUEUE = re.compile(r"^vllm:num_requests_waiting(?:\{[^}]*\})? (\d[\d.e+]*)", re.MULTILINE)
# Max bytes of a reply of another form, such as a web page, that an error quotes.
_MAX_QUOTED = 100

ReplyT = TypeVar("ReplyT")


def allow_open_files(wanted: int) -> None:
    """Raise the limit of open files to `wanted`, or as far as the system allows.

    MacOS begins with 256.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class HttpClient:
    """Client of one server. Use as an asynchronous context manager.

    Attributes:
        base_url: Address without `/v1`.
        section: Section of the settings of the server, for messages.
        address: Where its address is given, for messages.
        patience: How many times its limit a request may take while requests wait at vLLM.
    """

    def __init__(
        self,
        base_url: str,
        *,
        concurrency: int,
        request_timeout: float,
        section: str = "engine",
        address: str = "`engine.base_url`",
        patience: int = 12,
    ) -> None:
        """Initialise the client of a server; nothing is sent yet.

        Args:
            base_url: Address, with or without `/v1` or `/v1/chat/completions`.
            concurrency: Max number of requests at a time.
            request_timeout: Seconds without a reply to any request of the client after which a
                request fails, unless requests wait at vLLM.
            section: Section of the settings of the server, for messages.
            address: Where its address is given, for messages.
            patience: How many times its limit a request may take while requests wait at vLLM.
        """
        self.section = section
        self.address = address
        self.patience = patience
        self.base_url = base_url.rstrip("/").removesuffix("/chat/completions").removesuffix("/v1")
        allow_open_files(concurrency + _OTHER_FILES)
        self._slots = asyncio.Semaphore(concurrency)
        self._seconds = request_timeout
        self._last_reply = 0.0
        self._session: aiohttp.ClientSession | None = None
        # Name of the model in the first reply; it can be an alias of the requested name.
        self._reply_model: str | None = None
        # The server reads its key from the same variable. The key is never written to a file.
        self._key = os.environ.get(MODEL_KEY_VARIABLE, "").strip()

    async def __aenter__(self) -> Self:
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        # Without `force_close`, aiohttp would take data that a server sends on an idle connection
        # for the reply to the next request (its issue 13656), and the label of one document would
        # be stored for another.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=None, connect=min(30.0, self._seconds)),
            headers=headers,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        await self._session.close()

    async def get(self, path: str, reply: type[ReplyT]) -> ReplyT:
        """Return the reply to a GET request, decoded; raise as `post` does."""
        return await self._call("GET", path, None, reply)

    async def post(self, path: str, body: dict[str, Any], reply: type[ReplyT]) -> ReplyT:
        """Return the reply to a POST request, decoded.

        Raise Transient or Rejected, or EngineError for no URL.
        """
        async with self._slots:
            return await self._call("POST", path, orjson.dumps(body), reply)

    def check_model(self, reply_model: str | None, requested: str) -> None:
        """Raise EngineError if another model replies than in the first reply.

        Args:
            reply_model: Name of the model in a reply; None if the reply names none, which is fine.
            requested: Name of the model in the request.
        """
        if not self._reply_model:
            self._reply_model = reply_model
        if reply_model is None or reply_model == self._reply_model:
            return

        first = to_line(str(self._reply_model))
        other = to_line(reply_model)
        raise EngineError(
            f"{self.base_url}: {other!r} answers now, {first!r} answered before; its "
            f"answers are not stored under the name {requested!r}; serve one model and run the same command "
            "again, or keep the new answers separate with `engine.revision`"
        )

    @asynccontextmanager
    async def _limit(self) -> AsyncIterator[None]:
        """Raise TimeoutError in the block if the server has sent no reply for too long.

        The time begins again with the reply to any request of this client, and while requests wait
        at the server (see `_expire_in_silence`).
        """
        # A request waits behind others: with 256 at a time and a reply every two seconds, for
        # 512 s. Ended and sent again, it would wait at the end of the queue.
        async with asyncio.timeout(None) as limit:
            watch = asyncio.create_task(self._expire_in_silence(limit))
            try:
                yield
                self._last_reply = asyncio.get_running_loop().time()
            finally:
                watch.cancel()

    async def _expire_in_silence(self, limit: asyncio.Timeout) -> None:
        """Let a time limit expire once the server has sent no reply for too long.

        A server with waiting requests is busy, perhaps with those of other clients. It gets more
        time, up to `patience` times as much.
        """
        clock = asyncio.get_running_loop().time
        started = clock()
        end_of_patience = started + self.patience * self._seconds
        while True:
            await self._wait_for_silence(started)
            if clock() >= end_of_patience:
                break
            is_busy = await self.count_waiting() > 0
            if not is_busy:
                break
            # As after a reply, all requests of this client wait for another `_seconds`.
            self._last_reply = clock()

        # A limit that is over now raises TimeoutError in its block.
        now = clock()
        limit.reschedule(now)

    async def _wait_for_silence(self, started: float) -> None:
        """Wait until the last reply, or the start of a request, is as long ago as the time limit.

        Args:
            started: Time of the event loop at which the request was sent.
        """
        clock = asyncio.get_running_loop().time
        while True:
            silent_since = max(started, self._last_reply)
            remaining = silent_since + self._seconds - clock()
            if remaining <= 0.0:
                return
            await asyncio.sleep(remaining)

    async def count_waiting(self) -> int:
        """Return how many requests of all clients wait at vLLM; 0 for other servers."""
        assert self._session is not None
        try:
            # A redirect would send the key to another server.
            request = self._session.get(self.base_url + "/metrics", allow_redirects=False)
            async with asyncio.timeout(5.0), request as response:
                content = await read_body(response, _MAX_BODY)
        except (TimeoutError, aiohttp.ClientError, OSError):
            return 0
        metrics = content.decode("utf-8", "replace")
        return sum(int(float(count)) for count in _QUEUE.findall(metrics))

    async def _call(
        self, method: str, path: str, body: bytes | None, reply: type[ReplyT]
    ) -> ReplyT:
        """Send a request once, and return its reply, decoded.

        Raises:
            EngineError: The address is no URL.
            Rejected: The server refuses the request, or redirects it.
            Transient: There is no reply, or a retry may help.
        """
        raw = await self._send(method, path, body)
        if raw.status < 300:
            return _decode(raw, path, reply)

        is_redirect = raw.status < 400
        if is_redirect:
            problem = f"a redirect to {to_line(raw.location)!r}; give the server's own address with {self.address}"
        else:
            problem = _describe_refusal(raw.content)

        if raw.status in (408, 429) or raw.status >= 500:
            raise Transient("server_error", f"HTTP {raw.status}: {problem}", raw.retry_after)
        raise Rejected(raw.status, f"HTTP {raw.status} from {path}: {problem}")

    async def _send(self, method: str, path: str, body: bytes | None) -> _RawReply:
        """Send a request once, and translate the errors of the connection.

        Raises:
            EngineError: The address is no URL.
            Transient: There is no complete reply.
        """
        try:
            return await self._exchange(method, path, body)
        except aiohttp.InvalidURL as error:
            raise EngineError(
                f"{self.base_url}: not a URL; give {self.address} like http://127.0.0.1:8000"
            ) from error
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            reason = describe_connection_error(error, self._seconds)
            if isinstance(error, aiohttp.ClientConnectorError):
                raise Unreachable("server_error", reason) from error
            kind: FailureKind = "timeout" if isinstance(error, TimeoutError) else "server_error"
            raise Transient(kind, reason) from error

    async def _exchange(self, method: str, path: str, body: bytes | None) -> _RawReply:
        """Send a request once within the time limit; raise the errors of aiohttp."""
        assert self._session is not None, "use the client as an asynchronous context manager"
        # A redirect would send the prompts and the key to another server.
        exchange = self._session.request(
            method, self.base_url + path, data=body, allow_redirects=False
        )
        async with self._limit(), exchange as response:
            return _RawReply(
                status=response.status,
                content=await read_body(response, _MAX_BODY),
                retry_after=parse_retry_after(response.headers.get("Retry-After")),
                location=response.headers.get("Location", ""),
            )


@dataclass(frozen=True, slots=True)
class _RawReply:
    """Reply of a server.

    Attributes:
        status: HTTP status.
        content: Body, cut after `_MAX_BODY` bytes and one more.
        retry_after: Seconds to wait before a retry, as the server requests.
        location: Target of a redirect; empty for other replies.
    """

    status: int
    content: bytes
    retry_after: float | None
    location: str


def _decode(raw: _RawReply, path: str, reply: type[ReplyT]) -> ReplyT:
    """Return a reply as this type.

    Raises:
        BrokenReply: It is not of this type.
        OversizedReply: It is too long to be read.
    """
    if len(raw.content) > _MAX_BODY:
        problem = f"the reply from {path} has more than {_MAX_BODY:,} bytes"
        raise OversizedReply(raw.status, f"{problem}; shorten the document, or check the server")
    try:
        return decode_json(raw.content, reply)
    except Malformed as error:
        quoted = _quote(raw.content)
        raise BrokenReply(f"malformed reply from {path}: {error}: {quoted!r}") from error


def _describe_refusal(content: bytes) -> str:
    try:
        return extract_message(orjson.loads(content))
    except orjson.JSONDecodeError:
        return _quote(content)


def extract_message(error: Any) -> str:
    """Return the message of a server's error as one line.

    Servers send `{"error": {"message": TEXT}}`, `{"error": TEXT}`, `{"message": TEXT}` or a text;
    another value is returned as JSON.
    """
    message = error
    for name in ("error", "message"):
        if isinstance(message, dict) and message.get(name):
            message = message[name]
    if not isinstance(message, str):
        message = orjson.dumps(message).decode()
    return to_line(message)


def _quote(content: bytes) -> str:
    return to_line(content.decode("utf-8", errors="replace"))[:_MAX_QUOTED]
