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
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


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
        self._session = aiohttp.ClientSession(
            # aiohttp would take data that a server sends on an idle connection for the reply to the
            # next request (its issue 13656), and the label of one document would be stored for
            # another.
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=None, connect=min(30.0, self._seconds)),
            headers={"Content-Type": "application/json"}
            | ({"Authorization": f"Bearer {self._key}"} if self._key else {}),
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

        Replies need not name their model.
        """
        self._reply_model = self._reply_model or reply_model
        if reply_model not in (None, self._reply_model):
            first = to_line(str(self._reply_model))
            other = to_line(str(reply_model))
            raise EngineError(
                f"{self.base_url}: {other!r} answers now, {first!r} answered before; its "
                f"answers are not stored under the name {requested!r}; serve one model and run the same command "
                "again, or keep the new answers separate with `engine.revision`"
            )

    @asynccontextmanager
    async def _limit(self) -> AsyncIterator[None]:
        """Raise TimeoutError in the block if no request gets a reply for too long.

        A request waits in the server's queue behind others: with 256 at a time and one reply every
        two seconds, for 512 s. Its time therefore begins again with each reply, and while the queue
        holds requests, perhaps of other
        clients: sent again, it would wait at the end.
        """
        clock = asyncio.get_running_loop().time
        started = clock()

        async def watch() -> None:
            end = started + self.patience * self._seconds
            while True:
                while (rest := max(started, self._last_reply) + self._seconds - clock()) > 0.0:
                    await asyncio.sleep(rest)
                if clock() >= end or not await self.count_waiting():
                    break
                self._last_reply = clock()
            limit.reschedule(clock())

        async with asyncio.timeout(None) as limit:
            watching = asyncio.create_task(watch())
            try:
                yield
                self._last_reply = clock()
            finally:
                watching.cancel()

    async def count_waiting(self) -> int:
        """Return how many requests of all clients wait at vLLM; 0 for other servers."""
        assert self._session is not None
        try:
            # A redirect would send the key to another server.
            request = self._session.get(self.base_url + "/metrics", allow_redirects=False)
            async with asyncio.timeout(5.0), request as response:
                text = (await read_body(response, _MAX_BODY)).decode("utf-8", "replace")
        except (TimeoutError, aiohttp.ClientError, OSError):
            return 0
        return sum(int(float(count)) for count in _QUEUE.findall(text))

    async def _call(
        self, method: str, path: str, body: bytes | None, reply: type[ReplyT]
    ) -> ReplyT:
        raw = await self._send(method, path, body)
        if raw.status < 300:
            return _decode(raw, path, reply)
        if raw.status < 400:
            problem = f"a redirect to {to_line(raw.location)!r}; give the server's own address with {self.address}"
        else:
            problem = _describe_refusal(raw.content)

        if raw.status in (408, 429) or raw.status >= 500:
            raise Transient("server_error", f"HTTP {raw.status}: {problem}", raw.retry_after)
        raise Rejected(raw.status, f"HTTP {raw.status} from {path}: {problem}")

    async def _send(self, method: str, path: str, body: bytes | None) -> _RawReply:
        """Send a request once.

        Raise Transient without a complete reply, or EngineError for no URL.
        """
        assert self._session is not None, "use the client as an asynchronous context manager"
        try:
            # A redirect would send the prompts and the key to another server.
            async with (
                self._limit(),
                self._session.request(
                    method, self.base_url + path, data=body, allow_redirects=False
                ) as response,
            ):
                return _RawReply(
                    status=response.status,
                    content=await read_body(response, _MAX_BODY),
                    retry_after=parse_retry_after(response.headers.get("Retry-After")),
                    location=response.headers.get("Location", ""),
                )
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
    """Return the message of an error, shortened; its form differs between servers."""
    for name in ("error", "message"):
        if isinstance(error, dict) and error.get(name):
            error = error[name]
    return to_line(error if isinstance(error, str) else orjson.dumps(error).decode())


def _quote(content: bytes) -> str:
    return to_line(content.decode("utf-8", errors="replace"))[:_MAX_QUOTED]
