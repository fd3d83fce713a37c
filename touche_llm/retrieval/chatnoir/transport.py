"""How ChatNoir is reached: each request in its turn, again where a failure may pass, the key told to nobody else."""

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
from touche_llm.errors import EngineError, UsageError
from touche_llm.retrieval.chatnoir.cache import API_KEY_VARIABLE, ChatNoirSettings

HOW_TO_GIVE_A_KEY = (
    f"give it in the environment variable {API_KEY_VARIABLE}, or as chatnoir.api_key in the configuration; "
    "ChatNoir hands keys out at https://www.chatnoir.eu/apikey/"
)
_SHORTEST_KEY = 8

Notify = Callable[[str], None]
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply of status 200 or 404. `content` has one byte more than the limit when the reply was longer."""

    status: int
    content: bytes
    charset: str


class RateLimiter:
    """Lets requests through one by one, at least `1 / per_second` seconds apart."""

    def __init__(self, per_second: float) -> None:
        self._interval = 1.0 / per_second
        self._free_at = 0.0

    async def turn(self) -> None:
        """Wait until the next request may go."""
        now = time.monotonic()
        at = max(now, self._free_at)
        self._free_at = at + self._interval
        await asyncio.sleep(at - now)

    def hold(self, seconds: float) -> None:
        """Let nothing through for this long."""
        self._free_at = max(self._free_at, time.monotonic() + seconds)


class Transport:
    """One server, one key, one pace. Use as an asynchronous context manager."""

    # Ours are the models, index ids and base address of chatnoir-api, which are the contract. Its transport is not:
    # `request_page` serialises without aliases, so that `from` goes out as `start` and every page is the first one; it
    # also knows neither Retry-After nor typed errors, and blocks.

    def __init__(self, settings: ChatNoirSettings, notify: Notify) -> None:
        """Nothing is sent yet.

        Raises:
            UsageError: the key cannot be one.
        """
        self.key = _key(settings)
        self._settings, self._notify = settings, notify
        self._told = False
        self._pace = RateLimiter(settings.requests_per_second)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Transport:
        # The environment's proxy settings count, as they do for chatnoir-api: ChatNoir is outside the house.
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=self._settings.request_timeout),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=True,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        await self._session.close()

    async def ask(
        self,
        what: str,
        path: str,
        read: Callable[[Reply], ResultT],
        *,
        limit: int,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        hint: str = "",
    ) -> ResultT:
        """What `read` makes of the reply; failures that may pass are retried for `retry_for` seconds.

        Args:
            what: is asked for, in the words of an error.
            path: below the base address.
            read: may raise TransientFailure, and then the request is sent again.
            limit: bytes of the reply; of a longer one `limit + 1` are read.
            params: go into the address, which other hosts and their logs see: no key.
            body: JSON, sent with POST; without it the request is a GET, and redirects are followed.
            hint: ends the error of a failure that lasted.

        Raises:
            UsageError: ChatNoir does not take the key.
            EngineError: ChatNoir cannot be reached, refuses, or fails for as long as is retried.
        """

        async def once() -> ResultT:
            return read(await self._send(path, limit, params, body))

        try:
            return await retry(once, self._settings.retry_for, TransientFailure, self._tell_once)
        except TransientFailure as error:
            raise self.error(
                f"{what}: {error}; all that came so far is in {self._settings.cache}: go on with the same command{hint}"
            ) from error

    def _tell_once(self, failed: TransientFailure) -> None:
        """Report the first failure that is retried, so that nobody waits without knowing for what."""
        if not self._told:
            self._told = True
            place, seconds = self._settings.base_url, self._settings.retry_for
            self._notify(f"{place}: {failed}; tried again for up to {seconds:g} s (chatnoir.base_url)")

    async def _send(self, path: str, limit: int, params: Mapping[str, str] | None, body: bytes | None) -> Reply:
        """Send once, in turn; a status that is neither 200 nor 404 is raised."""
        assert self._session is not None, "use the transport as an asynchronous context manager"
        await self._pace.turn()
        method, headers = "GET", {}
        if body is not None:
            method, headers = "POST", {"Accept": "application/json", "Content-Type": "application/json"}
        url = self._settings.base_url + path
        problem = ""
        try:
            # Documents are served from another host, to which ChatNoir redirects; the key must not go there.
            async with self._session.request(
                method, url, params=params, data=body, headers=headers, allow_redirects=body is None
            ) as response:
                reply = Reply(response.status, await read_body(response, limit), response.charset or "utf-8")
                asked = parse_retry_after(response.headers.get("Retry-After"))
        except TimeoutError:
            problem = f"no answer within {self._settings.request_timeout:g} s"
        except (aiohttp.ClientError, OSError) as error:
            problem = f"the connection broke: {type(error).__name__}: {error}"
        # Raised out here, since an error that is chained to what the server sent would print it, key and all.
        if problem:
            raise TransientFailure(self.clean(problem))
        if reply.status in (200, 404):
            return reply
        problem = f"HTTP {reply.status}: {self.clean(_message(reply.content))}"
        if reply.status == 429 or reply.status >= 500:
            self._wait_as_asked(asked or 0.0, problem)
            raise TransientFailure(problem)
        if reply.status == 401:
            raise UsageError(f"{url}: ChatNoir does not take the key ({problem}); {HOW_TO_GIVE_A_KEY}")
        if reply.status == 403:
            raise self.error(
                f"ChatNoir refuses this address or this key ({problem}); ask its maintainers, or give another key: "
                + HOW_TO_GIVE_A_KEY
            )
        raise self.error(f"{path}: {problem}; is this ChatNoir? see chatnoir.base_url")

    def _wait_as_asked(self, seconds: float, problem: str) -> None:
        if seconds > self._settings.retry_for:
            raise self.error(
                f"{problem}; ChatNoir asks to wait for {seconds:,.0f} s, longer than chatnoir.retry_for; all that came "
                f"so far is in {self._settings.cache}: go on then with the same command"
            )
        if seconds > 0:
            self._notify(f"ChatNoir: {problem}; waiting for {seconds:,.0f} s as it asks")
            self._pace.hold(seconds)

    def clean(self, text: str) -> str:
        """What a server said, on one line, without the key, shortened."""
        if self.key is not None:
            key = self.key.get_secret_value()
            for form in {key, quote(key, safe=""), html.escape(key), orjson.dumps(key).decode()[1:-1]}:
                text = text.replace(form, "[key]")
        return " ".join(text.split())[:300]

    def error(self, problem: str) -> EngineError:
        """An error of this server."""
        return EngineError(f"{self._settings.base_url}: {problem}")


def _key(settings: ChatNoirSettings) -> SecretStr | None:
    """The key as it is given in the configuration, or else in the environment."""
    given = settings.api_key.get_secret_value() if settings.api_key else os.environ.get(API_KEY_VARIABLE, "")
    key = given.strip()
    if key and (len(key) < _SHORTEST_KEY or not key.isascii() or not key.isprintable() or " " in key):
        raise UsageError(f"the key for ChatNoir is no key: {HOW_TO_GIVE_A_KEY}")
    return SecretStr(key) if key else None


def _message(content: bytes) -> str:
    """What an error reply says: ChatNoir sends `{"code": …, "error": …, "message": …}`, a proxy a page."""
    try:
        return str(orjson.loads(content)["message"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return content.decode("utf-8", errors="replace")
