"""Requests to Elasticsearch with its official client: login, error messages, retries."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import re
import ssl
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from elastic_transport import ApiResponse, ConnectionTimeout, TlsError, TransportError
from elastic_transport import ConnectionError as NotReached
from elasticsearch import ApiError, Elasticsearch, ElasticsearchWarning, UnsupportedProductError
from elasticsearch.serializer import OrjsonSerializer
from pydantic import Field, ValidationError

from touche_llm.data.transport import TransientFailure, retry
from touche_llm.errors import EngineError, UsageError, Warn
from touche_llm.retrieval.settings import RETRYABLE_STATUSES, ElasticReply, ElasticsearchSettings

KEY_VARIABLE, USER_VARIABLE, PASSWORD_VARIABLE = (
    "ELASTICSEARCH_API_KEY",
    "ELASTICSEARCH_USER",
    "ELASTICSEARCH_PASSWORD",
)
_HOW_TO_LOG_IN = f"give {KEY_VARIABLE}, or {USER_VARIABLE} and {PASSWORD_VARIABLE}, in the environment"
_WARNING = re.compile(r'"([^"]*)"')
_NOTICE_EVERY = 60.0  # seconds

ReplyT = TypeVar("ReplyT", bound=ElasticReply)
Send = Callable[[Elasticsearch], ApiResponse[Any]]

# What the client logs as a warning is reported as a notice or an error here.
logging.getLogger("elastic_transport").addHandler(logging.NullHandler())


class _ServerVersion(ElasticReply):
    number: str = Field(max_length=100)


class _Info(ElasticReply):
    version: _ServerVersion


class _Reason(ElasticReply):
    type: str
    reason: str | None = None


class Server:
    """One server, behind the official client. A context manager."""

    # The synchronous client, each request in a thread of its own: the asynchronous one follows redirects, with the
    # documents, and nothing public turns that off. Neither waits before it repeats a request after a 429 or 503 (15
    # requests in 7 ms with max_retries=14, of version 9.5), so that the program's own retry policy is used.

    def __init__(self, settings: ElasticsearchSettings, warn: Warn) -> None:
        """Connect without retries, since a wrong address is likelier than a transient failure.

        Raises:
            UsageError: The environment holds no valid login, or the server refuses it.
            EngineError: The server is unreachable or is not Elasticsearch.
        """
        self._settings, self._warn = settings, warn
        self._warned: set[str] = set()
        self._quiet_until = 0.0
        self._secrets = _login()
        options: dict[str, Any] = {"headers": {"authorization": self._secrets[-1]}} if self._secrets else {}
        if settings.url.startswith("https:"):
            # Certificates as Python takes them: those of the system, or of SSL_CERT_FILE.
            options["ssl_context"] = ssl.create_default_context()
        self._client = Elasticsearch(
            settings.url,
            serializer=OrjsonSerializer(),
            request_timeout=settings.request_timeout,
            max_retries=0,
            **options,
        )
        # Warnings are read from the replies instead and reported as notices.
        warnings.filterwarnings("ignore", category=ElasticsearchWarning)
        try:
            info = self.parse(_Info, self.request_once("start-up check", lambda client: client.info()))
        except BaseException:
            self.close()
            raise
        self.version = self.clean(info.version.number)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    async def request(self, what: str, send: Send) -> ApiResponse[Any]:
        """Return the reply to a request; transient failures are retried for `retry_for` seconds.

        Args:
            what: Description of the request for errors.
            send: Sends the request with the client, in a thread, once for each try; may raise TransientFailure.

        Raises:
            UsageError: The server refuses the key or the password.
            EngineError: The server cannot be reached, refuses, or fails for as long as is retried.
        """
        seconds = self._settings.retry_for
        try:
            return await retry(
                partial(asyncio.to_thread, self._send, what, send), seconds, TransientFailure, self._note
            )
        except TransientFailure as failed:
            raise self._lost(what, f"{failed.reason} for {seconds:g} s (elasticsearch.retry_for)") from None

    def request_once(self, what: str, send: Send) -> ApiResponse[Any]:
        """Return the reply to a request that is not retried."""
        try:
            return self._send(what, send)
        except TransientFailure as failed:
            raise self._lost(what, failed.reason) from None

    def parse(self, model: type[ReplyT], response: ApiResponse[Any]) -> ReplyT:
        """Return the body of a reply as a record; raise EngineError if it is invalid."""
        try:
            return model.model_validate(response.body)
        except ValidationError as error:
            first = error.errors()[0]
            problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        # Raised outside the handler: a chained error would print the reply, which may contain the key.
        raise self.error(f"malformed reply, not of Elasticsearch: {self.clean(problem)}")

    def describe_refusal(self, response_body: Any) -> str:
        """Return `type: reason` from the body of a refusal, shortened."""
        error = response_body.get("error") if isinstance(response_body, dict) else response_body
        try:
            reason = _Reason.model_validate(error)
        except ValidationError:
            return self.clean(str(error))
        return self.clean(f"{reason.type}: {reason.reason}" if reason.reason else reason.type)

    def error(self, problem: str) -> EngineError:
        """Return an error that names this server."""
        return EngineError(f"{self._settings.url}: {problem}")

    def clean(self, text: str) -> str:
        """Return a text of the server on one line, without key and password, shortened."""
        for secret in self._secrets:
            text = text.replace(secret, "[secret]")
        return " ".join(text.split())[:300]

    def _lost(self, what: str, problem: str) -> EngineError:
        return self.error(
            f"{what}: {problem}; is Elasticsearch running there? Set its address with `elasticsearch.url`"
        )

    def _send(self, what: str, send: Send) -> ApiResponse[Any]:
        # `from None`: a chained error would print the reply, which may contain the key.
        try:
            response = send(self._client)
        except UnsupportedProductError:
            raise self.error(
                "not Elasticsearch; the official client supports nothing else, so OpenSearch does not work"
            ) from None
        except ApiError as error:
            raise self._refused(what, error.status_code, self.describe_refusal(error.body)) from None
        except TlsError as error:
            raise self.error(
                f"no secure connection: {self.clean(str(error.message))}; the environment variable SSL_CERT_FILE names "
                "the certificates to trust"
            ) from None
        except ConnectionTimeout:
            raise TransientFailure(f"no answer within {self._settings.request_timeout:g} s") from None
        except NotReached as error:
            raise TransientFailure(f"the connection broke: {self.clean(str(error.message))}") from None
        except (TransportError, ValueError) as error:
            cause = error.message if isinstance(error, TransportError) else error
            raise self.error(f"{what}: {self.clean(str(cause))}; is this Elasticsearch?") from None
        for message in _WARNING.findall(response.meta.headers.get("warning") or ""):
            if message not in self._warned:
                self._warned.add(message)
                self._warn(f"{self._settings.url}: {self.clean(message)}")
        return response

    def _refused(self, what: str, status: int, refusal: str) -> Exception:
        problem = f"HTTP {status}: {refusal}"
        if status in RETRYABLE_STATUSES:
            return TransientFailure(problem)
        if status == 401:
            return UsageError(f"{self._settings.url}: login refused ({problem}); {_HOW_TO_LOG_IN}")
        if status == 403:
            return self.error(
                f"{what}: this user or key lacks a privilege ({problem}); loading needs the index privilege `all`, "
                "searching `read` and `view_index_metadata`, and both the cluster privilege `monitor`"
            )
        if refusal.startswith("media_type_header_exception"):
            return self.error(
                f"{problem}; Elasticsearch 8 refuses clients of version 9: pip install 'elasticsearch>=8.17,<9', "
                "which Elasticsearch 9 accepts too"
            )
        return self.error(f"{what}: {problem}")

    def _note(self, failed: TransientFailure) -> None:
        """Report a retried failure, at most once a minute, to explain the wait."""
        if time.monotonic() >= self._quiet_until:
            self._quiet_until = time.monotonic() + _NOTICE_EVERY
            url, seconds = self._settings.url, self._settings.retry_for
            self._warn(f"{url}: {failed}; tried again for up to {seconds:g} s")


def _login() -> list[str]:
    """Return the secrets of the environment, the last one being the header for logging in; empty if none is set.

    The header is built here, since the client accepts only ASCII and Elasticsearch UTF-8.
    """
    key, user, password = (os.environ.get(name, "") for name in (KEY_VARIABLE, USER_VARIABLE, PASSWORD_VARIABLE))
    if bool(user) is not bool(password) or (key and user):
        raise UsageError(f"Elasticsearch: {_HOW_TO_LOG_IN}, not only a part of it or both")
    if not all(value.isprintable() and value.strip() == value for value in (key, user, password)) or not key.isascii():
        raise UsageError(f"Elasticsearch: the key or password has an invalid form; {_HOW_TO_LOG_IN}")
    if key:
        return [key, f"ApiKey {key}"]
    coded = base64.b64encode(f"{user}:{password}".encode()).decode()
    return [password, coded, f"Basic {coded}"] if user else []
