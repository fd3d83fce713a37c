"""HTTP transport of ChatNoir: rate limit, retries, and a key that is never logged or redirected."""

from __future__ import annotations

import asyncio
import html
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import quote

import aiohttp
import orjson
from pydantic import SecretStr

from touche_llm.data.transport import TransientFailure, parse_retry_after, read_body, retry
from touche_llm.errors import EngineError, UsageError, Warn
from touche_llm.retrieval.chatnoir.settings import API_KEY_VARIABLE, ChatNoirSettings

HOW_TO_GIVE_A_KEY = (
    f"give it in the environment variable {API_KEY_VARIABLE}, or as chatnoir.api_key in the configuration; "
    "ChatNoir hands keys out at https://www.chatnoir.eu/apikey/"
)
_MIN_KEY_CHARS = 8

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class HttpReply:
    """Reply of status 200 or 404; the `content` of an overlong reply is one byte longer than the limit."""

    status: int
    content: bytes
    charset: str


class RateLimiter:
    """Rate limiter that keeps requests at least `1 / per_second` seconds apart."""

    def __init__(self, per_second: float) -> None:
        self._interval = 1.0 / per_second
        self._free_at = 0.0

    async def wait(self) -> None:
        """Wait until the next request may be sent."""
        now = time.monotonic()
        at = max(now, self._free_at)
        self._free_at = at + self._interval
        await asyncio.sleep(at - now)

    def hold(self, seconds: float) -> None:
        """Block all requests for this long."""
        self._free_at = max(self._free_at, time.monotonic() + seconds)


class Transport:
    """Connection to one server with one key and one rate limit. An asynchronous context manager."""

    # Models, index ids and base address are those of chatnoir-api. Its transport is not used: `request_page` serialises
    # without aliases, so `from` is sent as `start` and every page is the first one; it also blocks and supports neither
    # Retry-After nor typed errors.

    def __init__(self, settings: ChatNoirSettings, warn: Warn) -> None:
        """Read the key without sending a request.

        Raises:
            UsageError: The key has an invalid form.
        """
        self.key = _read_key(settings)
        self._settings, self._warn = settings, warn
        self._has_reported = False
        self._limiter = RateLimiter(settings.requests_per_second)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Transport:
        # ChatNoir is a public server, so proxies of the environment are used, as in chatnoir-api.
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=self._settings.request_timeout),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=True,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        await self._session.close()

    async def request(
        self,
        what: str,
        path: str,
        read: Callable[[HttpReply], ResultT],
        *,
        limit: int,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        hint: str = "",
    ) -> ResultT:
        """Send a request and return its reply as parsed by `read`; retry transient failures.

        Args:
            what: Description of the request for errors.
            path: Path below the base address.
            read: Parser of the reply; if it raises TransientFailure, the request is sent again.
            limit: Max bytes of the reply; a longer one is cut after `limit + 1`.
            params: Query of the address, without the key, since other hosts may log it.
            body: JSON to send with POST; None sends a GET and follows redirects.
            hint: End of the error message if all retries fail.

        Raises:
            UsageError: ChatNoir refuses the key.
            EngineError: ChatNoir cannot be reached, refuses the request, or fails until the retries end.
        """

        async def once() -> ResultT:
            return read(await self._send(path, limit, params, body))

        try:
            return await retry(once, self._settings.retry_for, TransientFailure, self._report_once)
        except TransientFailure as error:
            raise self.error(
                f"{what}: {error}; all replies so far are in {self._settings.cache}: resume with the same command{hint}"
            ) from error

    def _report_once(self, failed: TransientFailure) -> None:
        """Report the first failure that is retried, to explain the wait."""
        if not self._has_reported:
            self._has_reported = True
            place, seconds = self._settings.base_url, self._settings.retry_for
            self._warn(f"{place}: {failed}; tried again for up to {seconds:g} s (chatnoir.base_url)")

    async def _send(self, path: str, limit: int, params: Mapping[str, str] | None, body: bytes | None) -> HttpReply:
        """Send a request once, within the rate limit; raise an error for a status other than 200 and 404."""
        assert self._session is not None, "use the transport as an asynchronous context manager"
        await self._limiter.wait()
        method, headers = "GET", {}
        if body is not None:
            method, headers = "POST", {"Accept": "application/json", "Content-Type": "application/json"}
        url = self._settings.base_url + path
        problem = ""
        try:
            # ChatNoir redirects documents to another host, which must not receive the key.
            async with self._session.request(
                method, url, params=params, data=body, headers=headers, allow_redirects=body is None
            ) as response:
                reply = HttpReply(response.status, await read_body(response, limit), response.charset or "utf-8")
                requested_wait = parse_retry_after(response.headers.get("Retry-After"))
        except TimeoutError:
            problem = f"no answer within {self._settings.request_timeout:g} s"
        except (aiohttp.ClientError, OSError) as error:
            problem = f"the connection broke: {type(error).__name__}: {error}"
        # Raised outside the handler: a chained error would print the reply, which may contain the key.
        if problem:
            raise TransientFailure(self.clean(problem))
        if reply.status in (200, 404):
            return reply
        problem = f"HTTP {reply.status}: {self.clean(_extract_message(reply.content))}"
        if reply.status == 429 or reply.status >= 500:
            self._wait_as_requested(requested_wait or 0.0, problem)
            raise TransientFailure(problem)
        if reply.status == 401:
            raise UsageError(f"{url}: ChatNoir refuses the key ({problem}); {HOW_TO_GIVE_A_KEY}")
        if reply.status == 403:
            raise self.error(
                f"ChatNoir refuses this address or this key ({problem}); ask its maintainers, or give another key: "
                + HOW_TO_GIVE_A_KEY
            )
        raise self.error(f"{path}: {problem}; is this ChatNoir? see chatnoir.base_url")

    def _wait_as_requested(self, seconds: float, problem: str) -> None:
        if seconds > self._settings.retry_for:
            raise self.error(
                f"{problem}; ChatNoir requests a wait of {seconds:,.0f} s, longer than chatnoir.retry_for; all "
                f"replies so far are in {self._settings.cache}: resume then with the same command"
            )
        if seconds > 0:
            self._warn(f"ChatNoir: {problem}; waiting for {seconds:,.0f} s as requested")
            self._limiter.hold(seconds)

    def clean(self, text: str) -> str:
        """Return a text from a server on one line, without the key, shortened."""
        if self.key is not None:
            key = self.key.get_secret_value()
            for form in {key, quote(key, safe=""), html.escape(key), orjson.dumps(key).decode()[1:-1]}:
                text = text.replace(form, "[key]")
        return " ".join(text.split())[:300]

    def error(self, problem: str) -> EngineError:
        """Return an error that names this server."""
        return EngineError(f"{self._settings.base_url}: {problem}")


def _read_key(settings: ChatNoirSettings) -> SecretStr | None:
    """Return the key from the configuration or else from the environment."""
    given = settings.api_key.get_secret_value() if settings.api_key else os.environ.get(API_KEY_VARIABLE, "")
    key = given.strip()
    if key and (len(key) < _MIN_KEY_CHARS or not key.isascii() or not key.isprintable() or " " in key):
        raise UsageError(f"chatnoir.api_key: the key for ChatNoir has an invalid form; {HOW_TO_GIVE_A_KEY}")
    return SecretStr(key) if key else None


def _extract_message(content: bytes) -> str:
    """Return the message of an error reply: ChatNoir sends `{"code": …, "error": …, "message": …}`, a proxy a page."""
    try:
        return str(orjson.loads(content)["message"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return content.decode("utf-8", errors="replace")
