"""How Elasticsearch is asked: bounded replies, again where a failure may pass, the key told to nobody else."""

from __future__ import annotations

import base64
import logging
import os
import ssl
import time
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar

from elastic_transport import ApiResponse, ConnectionTimeout, NodeConfig, TlsError, TransportError, Urllib3HttpNode
from elastic_transport import ConnectionError as NotReached
from elasticsearch import ApiError, Elasticsearch, UnsupportedProductError
from elasticsearch.serializer import OrjsonSerializer
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    stop_after_attempt,
    stop_after_delay,
    wait_random_exponential,
)

from touche_llm.corpus.elastic import DOCUMENTS_AT_ONCE, MAY_PASS, ElasticsearchSettings, Notify, Transient
from touche_llm.corpus.passages import MAX_LINE_BYTES
from touche_llm.errors import EngineError, UsageError

KEY_VARIABLE, USER_VARIABLE, PASSWORD_VARIABLE = (
    "ELASTICSEARCH_API_KEY",
    "ELASTICSEARCH_USER",
    "ELASTICSEARCH_PASSWORD",
)
_HOW_TO_LOG_IN = f"give {KEY_VARIABLE}, or {USER_VARIABLE} and {PASSWORD_VARIABLE}, in the environment"
# No line of a corpus is longer, so that documents always fit; the rest is what stands around them.
_MAX_REPLY = (DOCUMENTS_AT_ONCE + 1) * MAX_LINE_BYTES
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 30.0  # seconds before a second try, and at most
_TOLD_EVERY = 60.0

ReplyT = TypeVar("ReplyT", bound=BaseModel)
ResultT = TypeVar("ResultT")

# What the client logs as a warning is told as a notice or an error here.
logging.getLogger("elastic_transport").addHandler(logging.NullHandler())


class _TooLong(ValueError):
    """A reply that goes on and on; the client lets ValueErrors through."""


class _Node(Urllib3HttpNode):
    """The client's connections, but a reply is read up to a limit only."""

    def __init__(self, config: NodeConfig) -> None:
        super().__init__(config)
        urlopen = self.pool.urlopen

        def bounded(*arguments: Any, **options: Any) -> SimpleNamespace:
            response = urlopen(*arguments, **options | {"preload_content": False})
            try:
                content = response.read(_MAX_REPLY + 1)
                if len(content) > _MAX_REPLY:
                    raise _TooLong(f"a reply of more than {_MAX_REPLY:,} bytes")
            except BaseException:
                response.close()
                raise
            response.release_conn()
            return SimpleNamespace(status=response.status, headers=response.headers, data=content)

        self.pool.urlopen = bounded  # type: ignore[method-assign, assignment]


class _Version(BaseModel):
    number: str = Field(max_length=100)


class _Info(BaseModel):
    version: _Version


class _Reason(BaseModel):
    model_config = ConfigDict(strict=True)

    type: str
    reason: str | None = None


class Server:
    """One server, asked with the official client. A context manager."""

    def __init__(self, settings: ElasticsearchSettings, notify: Notify) -> None:
        """Ask who is there; that is not tried again, since at the beginning a wrong address is likelier than a pause.

        Raises:
            UsageError: what the environment holds cannot log in, or the server does not take it.
            EngineError: nobody answers, or somebody else than Elasticsearch.
        """
        self._settings, self._notify = settings, notify
        self._told: set[str] = set()
        self._quiet_until = 0.0
        self._secrets = _login()
        options: dict[str, Any] = {"headers": {"authorization": self._secrets[-1]}} if self._secrets else {}
        if settings.url.startswith("https:"):
            # Certificates as Python takes them: those of the system, or of SSL_CERT_FILE.
            options["ssl_context"] = ssl.create_default_context()
        self._client = Elasticsearch(
            settings.url,
            node_class=_Node,
            serializer=OrjsonSerializer(),
            request_timeout=settings.request_timeout,
            max_retries=0,
            **options,
        )
        try:
            info = self.ask("who is there", lambda client: client.info(), self.reading(_Info), again=False)
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

    def ask(
        self,
        what: str,
        send: Callable[[Elasticsearch], ApiResponse[Any]],
        read: Callable[[ApiResponse[Any]], ResultT],
        *,
        again: bool = True,
    ) -> ResultT:
        """What `read` makes of the reply; failures that may pass are retried for `retry_for` seconds.

        Args:
            what: is asked for, in the words of an error.
            send: sends the request with the client; called once for each try.
            read: may raise Transient, and then the request is sent again.
            again: whether to retry.

        Raises:
            UsageError: the server does not take the key or the password.
            EngineError: the server cannot be reached, refuses, or fails for as long as is retried.
        """
        retrying = Retrying(
            retry=retry_if_exception_type(Transient),
            wait=wait_random_exponential(multiplier=_FIRST_WAIT, max=_LONGEST_WAIT),
            stop=stop_after_delay(self._settings.retry_for) if again else stop_after_attempt(1),
            before_sleep=self._tell_of,
            reraise=True,
        )
        try:
            return retrying(lambda: read(self._send(what, send)))
        except Transient as error:
            problem = str(error)
        lasted = f" for {self._settings.retry_for:g} s (elasticsearch.retry_for)" if again else ""
        raise self.error(f"{what}: {problem}{lasted}; is Elasticsearch there? see --elasticsearch")

    def reading(self, model: type[ReplyT]) -> Callable[[ApiResponse[Any]], ReplyT]:
        """A `read` for replies of one form; raises EngineError where a reply has another."""

        def read(response: ApiResponse[Any]) -> ReplyT:
            try:
                return model.model_validate(response.body)
            except ValidationError as error:
                first = error.errors()[0]
                problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise self.error(f"a reply of another form than Elasticsearch's: {self.clean(problem)}")

        return read

    def refusal(self, response_body: Any) -> str:
        """What the body of a refusal says: `type: reason`, shortened."""
        error = response_body.get("error") if isinstance(response_body, dict) else response_body
        try:
            said = _Reason.model_validate(error)
        except ValidationError:
            return self.clean(str(error))
        return self.clean(f"{said.type}: {said.reason}" if said.reason else said.type)

    def error(self, problem: str) -> EngineError:
        """An error of this server."""
        return EngineError(f"{self._settings.url}: {problem}")

    def clean(self, text: str) -> str:
        """What a server said, on one line, without key and password, shortened."""
        for secret in self._secrets:
            text = text.replace(secret, "[secret]")
        return " ".join(text.split())[:300]

    def _send(self, what: str, send: Callable[[Elasticsearch], ApiResponse[Any]]) -> ApiResponse[Any]:
        # `from None`, since an error that is chained to what the server sent would print it, key and all.
        try:
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                response = send(self._client)
        except UnsupportedProductError:
            raise self.error(
                "not Elasticsearch; the official client talks to nothing else, so OpenSearch is not supported"
            ) from None
        except ApiError as error:
            raise self._refused(what, error.status_code, self.refusal(error.body)) from None
        except TlsError as error:
            raise self.error(
                f"no safe connection: {self.clean(str(error.message))}; the environment variable SSL_CERT_FILE names "
                "the certificates to trust"
            ) from None
        except ConnectionTimeout:
            raise Transient(f"no answer within {self._settings.request_timeout:g} s") from None
        except NotReached as error:
            raise Transient(f"the connection broke: {self.clean(str(error.message))}") from None
        except (TransportError, ValueError) as error:
            said = error.message if isinstance(error, TransportError) else error
            raise self.error(f"{what}: {self.clean(str(said))}; is this Elasticsearch?") from None
        for each in told:
            self._tell_once(f"{self._settings.url}: {self.clean(str(each.message))}")
        return response

    def _refused(self, what: str, status: int, said: str) -> Exception:
        problem = f"HTTP {status}: {said}"
        if status in MAY_PASS:
            return Transient(problem)
        if status == 401:
            return UsageError(f"{self._settings.url}: does not let us in ({problem}); {_HOW_TO_LOG_IN}")
        if status == 403:
            return self.error(
                f"{what}: this user or key may not ({problem}); to load takes the index privilege `all`, to search "
                "`read` and `view_index_metadata`, both the cluster privilege `monitor`"
            )
        if said.startswith("media_type_header_exception"):
            return self.error(
                f"{problem}; an Elasticsearch 8 takes no client of version 9: pip install 'elasticsearch>=8.17,<9', "
                "which an Elasticsearch 9 takes too"
            )
        return self.error(f"{what}: {problem}")

    def _tell_of(self, state: RetryCallState) -> None:
        """Tell of a failure that is retried, once in a while, so that nobody waits without knowing for what."""
        if state.outcome is not None and time.monotonic() >= self._quiet_until:
            self._quiet_until = time.monotonic() + _TOLD_EVERY
            url, seconds = self._settings.url, self._settings.retry_for
            self._notify(f"{url}: {state.outcome.exception()}; tried again for up to {seconds:g} s")

    def _tell_once(self, message: str) -> None:
        if message not in self._told:
            self._told.add(message)
            self._notify(message)


def _login() -> list[str]:
    """What is secret, from the environment, the last of it being the header to log in with; empty where nothing is set.

    The header is made here, since the client takes ASCII alone where Elasticsearch takes UTF-8.
    """
    key, user, password = (os.environ.get(name, "") for name in (KEY_VARIABLE, USER_VARIABLE, PASSWORD_VARIABLE))
    if bool(user) is not bool(password) or (key and user):
        raise UsageError(f"Elasticsearch: {_HOW_TO_LOG_IN}, not a part of it or both")
    if not all(each.isprintable() and each.strip() == each for each in (key, user, password)) or not key.isascii():
        raise UsageError(f"Elasticsearch: no key or password looks like this; {_HOW_TO_LOG_IN}")
    if key:
        return [key, f"ApiKey {key}"]
    coded = base64.b64encode(f"{user}:{password}".encode()).decode()
    return [password, coded, f"Basic {coded}"] if user else []
