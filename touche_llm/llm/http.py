"""HTTP client of a server: slots, time limits, typed failures, bounded replies."""

from __future__ import annotations

import asyncio
import errno
import html
import os
import re
import resource
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, Self, TypeVar

import aiohttp
import orjson

from touche_llm.data.concurrency import describe_connection_error, parse_retry_after, read_body, to_line
from touche_llm.data.records import Malformed, decode_json
from touche_llm.errors import EngineError
from touche_llm.llm.engine import BrokenReply, EngineDeath, Rejected, Transient

# Open files besides the connections: the cache, the index, outputs. macOS allows at most OPEN_MAX.
_OTHER_FILES, _OPEN_MAX = 128, 10_240


def allow_connections(wanted: int) -> int:
    """Raise the limit of open files as far as `wanted` connections need; return how many connections it allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    files = min(wanted + _OTHER_FILES, _OPEN_MAX if hard == resource.RLIM_INFINITY else hard)
    if soft < files:
        soft = files
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(min(wanted, soft - _OTHER_FILES), 1)


class ConnectionPool(aiohttp.TCPConnector):
    """Pool that closes connections on which the server sends data without a request.

    aiohttp would take the data for the reply to the next request (its issue 13656), and store the label of one document
    for another.
    """

    async def _get(self, *args: Any) -> Any:
        while (connection := await super()._get(*args)) is not None:
            if connection.protocol is not None and not connection.protocol.should_close:
                break
            connection.close()
        return connection


# Times that the limit of a request begins again, at most, while requests wait at the server: an hour by default.
_MAX_WAITS = 12


class QueueTimeout:
    """Limit on the seconds that a server takes for a request, excluding its time in the queue.

    Servers process requests in the order of arrival. The time of a request therefore restarts with each reply to an
    earlier request, behind which it may have been queued. With 256 requests at a time and one reply every two seconds,
    a request can wait 512 s without timing out. When its time is over and the server reports waiting requests, perhaps
    those of others, the time of all restarts: sent again, a request would wait at the end of the queue.
    """

    def __init__(self, seconds: float, has_queue: Callable[[], Awaitable[bool]]) -> None:
        """Set the limit.

        Args:
            seconds: Time of a request.
            has_queue: Returns whether requests wait at the server.
        """
        self.seconds = seconds
        self._has_queue = has_queue
        # Start of the time of each request in flight, in the order of sending.
        self._started: dict[int, float] = {}
        self._numbers = count()
        # One look at the queue serves all requests.
        self._looking = asyncio.Lock()

    @asynccontextmanager
    async def limit(self) -> AsyncIterator[None]:
        """Send a request and read its reply in this block; raise TimeoutError when its time is over."""
        clock, started, number = asyncio.get_running_loop().time, self._started, next(self._numbers)
        started[number] = clock()
        async with asyncio.timeout(None) as limit:
            watch = asyncio.create_task(self._watch(number, limit))
            try:
                yield
                now = clock()
                for later in started:
                    if later > number:
                        started[later] = now
            finally:
                watch.cancel()
                del started[number]

    async def _watch(self, number: int, limit: asyncio.Timeout) -> None:
        """End a request when its time is over and no queue excuses it."""
        clock = asyncio.get_running_loop().time
        end = clock() + _MAX_WAITS * self.seconds
        while True:
            await asyncio.sleep(max(0.0, self._started[number] + self.seconds - clock()))
            async with self._looking:
                if clock() < self._started[number] + self.seconds:
                    continue
                if clock() >= end or not await self._has_queue():
                    limit.reschedule(clock())
                    return
                self._started |= dict.fromkeys(self._started, clock())


# Seconds after which a server without a sign of life is dead, and seconds between two looks at it. A proxy that
# reloads its configuration is back sooner.
_DEAD_AFTER, _INTERVAL = 8.0, 1.0
# The server reads its key from the same variable. The key is never written to a file.
API_KEY_VARIABLE = "VLLM_API_KEY"
_MAX_BODY = 16 * 2**20
# Max characters of the title of a web page that an error quotes, and max bytes that are searched for it.
_MAX_TITLE, _MAX_PAGE_START = 100, 10_000
_HEALTH_SECONDS = 5.0
_QUEUE = re.compile(r"^vllm:num_requests_(waiting|running)(?:\{[^}]*\})? (\d[\d.e+]*)", re.MULTILINE)

ReplyT = TypeVar("ReplyT")


class HttpClient:
    """Client of one server. Use as an asynchronous context manager.

    Attributes:
        base_url: Address without `/v1`.
        is_monitored: Whether a failure makes the client find out whether the server is dead; set it once the server
            has answered, since before it may be the wrong address.
        is_patient: Whether requests that wait behind those of others have more time, see `QueueTimeout`.
        section: Section of the settings of the server, for messages.
        address: Where its address is given, for messages.
    """

    section, address = "engine", "`engine.base_url`"
    is_patient = True

    def __init__(
        self,
        base_url: str,
        *,
        concurrency: int,
        request_timeout: float,
        restart: Callable[[], Awaitable[str]] | None = None,
    ) -> None:
        """Initialise the client; nothing is sent yet.

        Args:
            base_url: Address, with or without `/v1` or `/v1/chat/completions`.
            concurrency: Max number of requests at a time.
            request_timeout: Seconds per request; see `QueueTimeout`.
            restart: Starts the server again, once, if it dies, and returns its new address.
        """
        self.base_url = base_url.rstrip("/").removesuffix("/chat/completions").removesuffix("/v1")
        self.is_monitored = False
        self._slots = asyncio.Semaphore(allow_connections(concurrency))
        self._timeout = QueueTimeout(request_timeout, self._has_queue)
        self._session: aiohttp.ClientSession | None = None
        self._restart = restart
        # Name of the model in the first reply; it can be an alias of the requested name.
        self._reply_model: str | None = None
        self._key = ""
        self._is_restarted = False
        # Check after a failure, and restart if the server is dead, which all requests share.
        self._recovery: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._key = key = os.environ.get(API_KEY_VARIABLE, "").strip()
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
        if self._recovery is not None:
            self._recovery.cancel()
            await asyncio.gather(self._recovery, return_exceptions=True)
        await self._session.close()

    async def get(self, path: str, reply: type[ReplyT]) -> ReplyT:
        """Return the reply to a GET request, decoded; raise as `post` does."""
        return _read(path, await self._call("GET", path, None), reply)

    async def post(self, path: str, body: dict[str, Any], reply: type[ReplyT]) -> ReplyT:
        """Return the reply to a POST request, decoded.

        Raises:
            Transient, Rejected: The request failed.
            EngineDeath: The server has died.
            EngineError: The address is no URL, or a restart failed.
        """
        async with self._slots:
            if self._recovery is not None:
                await asyncio.shield(self._recovery)
            try:
                content = await self._call("POST", path, orjson.dumps(body))
            except Transient as error:
                if error.kind == "timeout":
                    load = await self._describe_load()
                    error.reason, error.is_busy = error.reason + load, bool(load)
                if self.is_monitored and not error.is_overload:
                    if self._recovery is None or self._recovery.done():
                        self._recovery = asyncio.create_task(self._recover(error.reason))
                    await asyncio.shield(self._recovery)
                raise
        return _read(path, content, reply)

    def check_model(self, reply_model: str | None, requested: str) -> None:
        """Raise EngineError if another model replies than in the first reply; replies need not name their model."""
        if reply_model is None:
            return
        if self._reply_model is None:
            self._reply_model = reply_model
        if reply_model != self._reply_model:
            raise EngineError(
                f"{self.base_url}: {reply_model!r:.200} answers now, {self._reply_model!r:.200} answered before; its "
                f"answers are not stored under the name {requested!r}; serve one model and run the same command "
                "again, or keep the new answers separate with `engine.revision`"
            )

    async def read_queue(self) -> tuple[int, str]:
        """Return how many requests of all clients wait at vLLM, and its queue in words; 0 and "" for other servers."""
        found = _QUEUE.findall((await self.look("/metrics"))[1])
        sums = {kind: sum(int(float(value)) for name, value in found if name == kind) for kind, _ in found}
        if len(sums) < 2:
            return 0, ""
        return sums["waiting"], f"{sums['waiting']:,} requests wait and {sums['running']:,} run"

    async def _has_queue(self) -> bool:
        """Return whether requests wait that have more time for it."""
        return self.is_patient and (await self.read_queue())[0] > 0

    async def _describe_load(self) -> str:
        """Return that the server is busy, if it answers other requests; else nothing."""
        _, queue = await self.read_queue()
        if not queue and (await self.look("/v1/models"))[0] >= 400:
            return ""
        load = queue or "it answers other requests"
        return f": the server is busy ({load}); wait, or give requests more time with `{self.section}.request_timeout`"

    async def look(self, path: str) -> tuple[int, str]:
        """Return the status and the text of a quick reply, without a retry; 408 if it is late, 503 if there is none."""
        assert self._session is not None
        try:
            async with asyncio.timeout(_HEALTH_SECONDS), self._session.get(self.base_url + path) as response:
                return response.status, (await read_body(response, _MAX_BODY)).decode("utf-8", "replace")
        except TimeoutError:
            return 408, ""
        except (aiohttp.ClientError, OSError):
            return 503, ""

    async def _recover(self, reason: str) -> None:
        """Return if the server is alive after a failure, or has been restarted; raise EngineDeath if it is dead."""
        clock = asyncio.get_running_loop()
        end = clock.time() + _DEAD_AFTER
        # A server that is slow or has no `/health` is alive.
        while (await self.look("/health"))[0] >= 500:
            if clock.time() >= end:
                break
            await asyncio.sleep(_INTERVAL)
        else:
            return
        if self._restart is None or self._is_restarted:
            again = " again, after a restart" if self._is_restarted else ""
            raise EngineDeath(f"the server answered before and is dead now{again} ({reason}); see its log")
        self._is_restarted = True
        self.base_url = await self._restart()

    async def _call(self, method: str, path: str, body: bytes | None) -> bytes:
        assert self._session is not None, "use the client as an asynchronous context manager"
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
        except aiohttp.InvalidURL as error:
            raise EngineError(f"{self.base_url}: not a URL; give {self.address} like http://127.0.0.1:8000") from error
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            is_late = isinstance(error, TimeoutError)
            is_overload = is_late or (isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE))
            reason = describe_connection_error(error, self._timeout.seconds)
            raise Transient("timeout" if is_late else "server_error", reason, is_overload=is_overload) from error
        if status >= 400 and self._key:
            # Servers echo a key that they refuse, and messages are printed.
            content = content.replace(self._key.encode(), b"[key]")
        if status in (408, 429) or status >= 500:
            reason, is_overload = f"HTTP {status}: {_read_error(content)}", status in (429, 503)
            raise Transient("server_error", reason, retry_after, is_overload=is_overload)
        if status >= 400:
            raise Rejected(status, f"HTTP {status} from {path}: {_read_error(content)}")
        if status >= 300:
            raise Rejected(
                status,
                f"HTTP {status} from {path}: a redirect to {location!r:.200}, and redirects are not followed; "
                f"give the server's own address with {self.address}",
            )
        return content


def _read(path: str, content: bytes, reply: type[ReplyT]) -> ReplyT:
    try:
        return decode_json(content, reply)
    except Malformed as error:
        reason = f"malformed reply from {path}: {_describe_page(content) or error}"
        raise BrokenReply(reason) from error


def _read_error(content: bytes) -> str:
    """Return the message of an error reply, shortened."""
    try:
        message = orjson.loads(content)["error"]["message"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        message = _describe_page(content) or content[:_MAX_PAGE_START].decode("utf-8", errors="replace")
    return to_line(str(message))


def _describe_page(content: bytes) -> str:
    """Return a description of a reply that is a web page, with its title; empty for other replies."""
    start = content[:_MAX_PAGE_START].decode("utf-8", errors="replace").lstrip("\ufeff \t\r\n")
    if not start.lower().startswith(("<!doctype html", "<html", "<head", "<title")):
        return ""
    _, _, rest = start.partition("<title")
    title = " ".join(html.unescape(rest.partition(">")[2].partition("<")[0]).split())
    return f"a web page{f' ({title[:_MAX_TITLE]!r})' if title else ''}"
