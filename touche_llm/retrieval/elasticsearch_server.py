"""Settings of Elasticsearch, and requests with its official client: login, error messages, retries."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import AfterValidator, Field

from touche_llm.data.concurrency import RetryNotice, TransientFailure, retry, retry_blocking, to_line
from touche_llm.data.settings import Option, Scope, Section, check_address
from touche_llm.errors import EngineError, UsageError, Warn, needs_extra

if TYPE_CHECKING:  # the client is loaded when a server is opened
    from elasticsearch import Elasticsearch

KEY_VARIABLE, USER_VARIABLE, PASSWORD_VARIABLE = (
    "ELASTICSEARCH_API_KEY",
    "ELASTICSEARCH_USER",
    "ELASTICSEARCH_PASSWORD",
)
_HOW_TO_LOG_IN = f"give {KEY_VARIABLE}, or {USER_VARIABLE} and {PASSWORD_VARIABLE}, in the environment"
# HTTP statuses of transient failures, of a request or of one document in it.
RETRYABLE_STATUSES = (429, 502, 503, 504)

ResultT = TypeVar("ResultT")

# What the client logs as a warning is reported as a notice or an error here.
logging.getLogger("elastic_transport").addHandler(logging.NullHandler())


class ElasticsearchSettings(Section):
    """Settings of Elasticsearch; times are in seconds."""

    url: Annotated[
        str,
        AfterValidator(partial(check_address, secret="the environment")),
        Option("--elasticsearch", "Address of Elasticsearch", "Retrieval", metavar="URL"),
        Scope.DELIVERY,
    ] = "http://127.0.0.1:9200"
    index: Annotated[
        str,
        Option("--elasticsearch-index", "Name of the index in Elasticsearch", "Retrieval", metavar="NAME"),
        Scope.RETRIEVE,
    ] = Field("touche-llm", pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=200)
    request_timeout: Annotated[float, Scope.DELIVERY] = Field(60.0, gt=0.0, allow_inf_nan=False)
    retry_for: Annotated[float, Scope.DELIVERY] = Field(300.0, ge=0.0, allow_inf_nan=False)


class Server(AbstractContextManager["Server"]):
    """One server, behind the official client. A context manager."""

    # The synchronous client, each request in a thread of its own: the asynchronous one follows redirects, with the
    # documents, and nothing public turns that off. Neither waits before it repeats a request after a 429 or 503 (15
    # requests in 7 ms with max_retries=14, of version 9.5), so that the program's own retry policy is used.

    def __init__(self, settings: ElasticsearchSettings, warn: Warn) -> None:
        """Connect without retries, since a wrong address is likelier than a transient failure.

        Raises:
            UsageError: The client is not installed, the environment holds no valid login, or the server refuses it.
            EngineError: The server is unreachable or is not Elasticsearch.
        """
        with needs_extra("elasticsearch", "`retriever.name: elasticsearch`"):
            from elasticsearch import Elasticsearch, ElasticsearchWarning
            from elasticsearch.serializer import OrjsonSerializer
        self._settings = settings
        self._note = RetryNotice(warn, settings.url, settings.retry_for)
        options = _read_login()
        if settings.url.startswith("https:"):
            import ssl  # takes a while to load

            # Certificates as Python takes them: those of the system, or of SSL_CERT_FILE.
            options["ssl_context"] = ssl.create_default_context()
        self._client = Elasticsearch(
            settings.url,
            serializer=OrjsonSerializer(),
            request_timeout=settings.request_timeout,
            max_retries=0,
            **options,
        )
        # Deprecations concern this program, not its user.
        warnings.filterwarnings("ignore", category=ElasticsearchWarning)
        try:
            number = self.request("start-up check", lambda client: client.info()["version"]["number"], once=True)
        except BaseException:
            self.close()
            raise
        self.version = to_line(str(number))

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def request(self, what: str, send: Callable[[Elasticsearch], ResultT], *, once: bool = False) -> ResultT:
        """Return the result of a request; transient failures are retried for `retry_for` seconds.

        `send` sends the request, once for each try, and reads its reply; it may raise TransientFailure. With `once`,
        nothing is retried. `what` describes the request in errors.

        Raises:
            UsageError: The server refuses the key or the password.
            EngineError: The server cannot be reached, refuses, sends another reply, or fails for as long as is retried.
        """
        call = partial(self._send, what, send)
        with self._report_lasting_failure(what):
            return call() if once else retry_blocking(call, self._settings.retry_for, TransientFailure, self._note)

    async def request_async(self, what: str, send: Callable[[Elasticsearch], ResultT]) -> ResultT:
        """Return the result of a request as `request`, sent in a thread."""
        call = partial(asyncio.to_thread, self._send, what, send)
        with self._report_lasting_failure(what):
            return await retry(call, self._settings.retry_for, TransientFailure, self._note)

    def error(self, problem: str) -> EngineError:
        """Return an error that names this server."""
        return EngineError(f"{self._settings.url}: {problem}")

    @contextmanager
    def _report_lasting_failure(self, what: str) -> Iterator[None]:
        try:
            yield
        except TransientFailure as failed:
            raise self.error(
                f"{what}: {failed.reason}; is Elasticsearch running there? Set its address with `elasticsearch.url`, "
                f"or retry for more than {self._settings.retry_for:g} s with `elasticsearch.retry_for`"
            ) from None

    def _send(self, what: str, send: Callable[[Elasticsearch], ResultT]) -> ResultT:
        from elastic_transport import ConnectionError as NotReached
        from elastic_transport import ConnectionTimeout, TransportError
        from elasticsearch import ApiError, UnsupportedProductError

        try:
            return send(self._client)
        except UnsupportedProductError:
            raise self.error(
                "not Elasticsearch; the official client supports nothing else, so OpenSearch does not work"
            ) from None
        except ApiError as error:
            body = error.body
            refusal = describe_refusal(body.get("error") if isinstance(body, dict) else body)
            raise self._describe_status(what, error.status_code, refusal) from None
        except ConnectionTimeout:
            raise TransientFailure(f"no answer within {self._settings.request_timeout:g} s") from None
        except NotReached as error:
            raise TransientFailure(f"the connection broke: {to_line(str(error.message))}") from None
        except (TransportError, ValueError, LookupError, TypeError, AttributeError) as error:
            cause = error.message if isinstance(error, TransportError) else f"malformed reply: {error!r}"
            raise self.error(f"{what}: {to_line(str(cause))}; is this Elasticsearch?") from None

    def _describe_status(self, what: str, status: int, refusal: str) -> Exception:
        problem = f"HTTP {status}: {refusal}"
        if status in RETRYABLE_STATUSES:
            return TransientFailure(problem)
        if status == 401:
            return UsageError(f"{self._settings.url}: login refused ({problem}); {_HOW_TO_LOG_IN}")
        return self.error(f"{what}: {problem}")


def describe_refusal(error: Any) -> str:
    """Return `type: reason` of the error of a refusal, shortened."""
    if isinstance(error, dict) and isinstance(error.get("type"), str):
        return to_line(f"{error['type']}: {error['reason']}" if error.get("reason") else error["type"])
    return to_line(str(error))


def _read_login() -> dict[str, Any]:
    """Return the arguments of the client that log in, from the environment; empty if it holds no login."""
    key, user, password = (os.environ.get(name, "") for name in (KEY_VARIABLE, USER_VARIABLE, PASSWORD_VARIABLE))
    if bool(user) is not bool(password) or (key and user):
        raise UsageError(f"Elasticsearch: {_HOW_TO_LOG_IN}, not only a part of it or both")
    if not f"{key}{user}{password}".isprintable() or not key.isascii():
        raise UsageError(f"Elasticsearch: the key or password has an invalid form; {_HOW_TO_LOG_IN}")
    if key:
        return {"api_key": key}
    # Encoded here, since the client accepts only ASCII and Elasticsearch UTF-8.
    return {"basic_auth": base64.b64encode(f"{user}:{password}".encode()).decode()} if user else {}
