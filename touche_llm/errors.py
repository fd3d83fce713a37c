"""Exceptions of this program, and helpers for messages: `location: problem; what to do`.

    Exception
    ├── ToucheError                printed by the command line in one line
    │   ├── DataError              an input file is invalid or unreadable
    │   │   ├── BadLine            one line of a corpus is
    │   │   └── NoCandidates       a first stage finds nothing to judge (retrieval.candidates)
    │   ├── UsageError             a command, an option or a setting is invalid
    │   ├── ExtensionError         an extension cannot be loaded or registered
    │   ├── PromptError            a template cannot be loaded or rendered
    │   ├── EngineError            an engine cannot be used
    │   └── ReplayMiss             a replay needs answers that the cache lacks
    ├── RequestFailure             one request failed; its client counts, retries or stores it
    │   ├── TransientFailure       it may succeed when it is retried
    │   │   └── Transient          the same of an engine, with its kind
    │   │       ├── Unreachable    no connection; the run ends if it lasts
    │   │       └── BrokenReply    malformed; tried a few times
    │   │           └── MissingLogprobs
    │   ├── Rejected               the engine refuses it; stored, unless it refuses all
    │   │   └── OversizedReply     the reply is too long to be read
    │   └── Unusable               the answer cannot be used; another sample is requested
    └── ValueError
        ├── YamlError              a text is not YAML (settings.yaml_text)
        └── Malformed              a text is not the JSON that was expected (data.records)

Kinds of failure, as `failures.jsonl` counts them, are those of `FailureKind`.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError
    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

# Shows a line that the user should read.
Warn = Callable[[str], None]

_ADVICE = {
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT), "; free some space and run the same command again"
    ),
    errno.EFBIG: "; raise the limit (`ulimit -f`) and run the same command again",
    **dict.fromkeys(
        (errno.EMFILE, errno.ENFILE),
        "; raise the limit (`ulimit -n`) and run the same command again",
    ),
    **dict.fromkeys((errno.EEXIST, errno.ENOTDIR), "; a folder is needed there: name another one"),
}


def to_printable(text: str) -> str:
    """Return untrusted text with its unprintable characters replaced, apart from line feeds."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


def shorten(names: Iterable[str], limit: int = 10) -> str:
    """Return the first `limit` names for a message, topic 2 before topic 10, with their number if there are more."""
    names = sorted(names, key=lambda name: (len(name), name))
    first = ", ".join(names[:limit])
    return f"{first}, … ({len(names)} in all)" if len(names) > limit else first


def describe_os_error(error: OSError) -> str:
    """Return `file: cause` of an operating system error, with advice if there is any."""
    where = f"{error.filename}: " if error.filename is not None else ""
    advice = _ADVICE.get(error.errno or 0, "")
    return f"{where}{error.strerror or error}{advice}"


class ToucheError(Exception):
    """Base of all errors that the command line prints without a traceback.

    The message is printable.
    """

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(to_printable(message))

    @property
    def location(self) -> str:
        """The file, `file:line`, option or setting at fault: the message up to its first `: `.

        May be empty.
        """
        location, separator, _ = str(self).partition(": ")
        return location if separator else ""


class ToucheWarning(UserWarning):
    """What a user of the library should know of a result; the command line prints it as a note."""


class DataError(ToucheError):
    """Invalid or unreadable input file."""


class BadLine(DataError):
    """Line of a corpus, or a row that begins in it, that is not a document."""

    def __init__(self, source: object, line: int, reason: str) -> None:
        """Name the source, mostly the path of a file, and a line or number in it."""
        super().__init__(f"{source}:{line}: {reason}")
        self.source, self.line, self.reason = source, line, reason


class UsageError(ToucheError):
    """Invalid command, option or configuration."""

    exit_code = 2


class ExtensionError(ToucheError):
    """Extension of the program that cannot be loaded or registered."""

    exit_code = 2


class PromptError(ToucheError):
    """Prompt template that cannot be loaded or rendered."""


class EngineError(ToucheError):
    """Engine that cannot be used: unreachable, with another model, or without schema enforcement."""


class ReplayMiss(ToucheError):
    """Replay that needs answers which the cache lacks."""


# The model refused; the answer reached the length limit; it is not JSON; it does not fit the
# schema; its log-probabilities are impossible.
UnusableKind = Literal["refused", "cut_off", "not_json", "outside_schema", "impossible_logprobs"]
# Or the server replied with an error or broke off; it did not reply in time.
FailureKind = UnusableKind | Literal["server_error", "timeout"]
# Max tries after a complete but malformed reply: a proxy may damage one, a broken server sends only
# such replies.
BROKEN_TRIES = 3


class RequestFailure(Exception):
    """Base of the failures of one request, which its client counts, retries or stores."""


class TransientFailure(RequestFailure):
    """Failure of a request that may succeed when it is retried, after the seconds that the server requested."""

    def __init__(
        self, reason: str, retry_after: float | None = None, max_tries: int | None = None
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after = retry_after
        self.max_tries = max_tries


class Transient(TransientFailure):
    """Transient failure of an engine."""

    def __init__(
        self,
        kind: FailureKind,
        reason: str,
        retry_after: float | None = None,
        max_tries: int | None = None,
    ) -> None:
        super().__init__(reason, retry_after, max_tries)
        self.kind: FailureKind = kind


class Unreachable(Transient):
    """Failure to connect to a server.

    A run ends if it lasts, since every other request would fail too.
    """


class BrokenReply(Transient):
    """Complete but malformed reply, tried a few times.

    At an address that a server does not know, it may be a page.
    """

    def __init__(self, reason: str) -> None:
        super().__init__("server_error", reason, max_tries=BROKEN_TRIES)


class MissingLogprobs(BrokenReply):
    """Answer without the log-probabilities requested; not stored, so that no replay uses it."""


class Rejected(RequestFailure):
    """The engine rejects the request, so that a retry would not help; `status` is the HTTP status.

    Stored as a failure of the request unless `is_fatal`.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status

    @property
    def is_fatal(self) -> bool:
        """Whether every other request would be rejected too: a redirect, an invalid key, an unknown path."""
        return self.status < 400 or self.status in (401, 403, 404)


class OversizedReply(Rejected):
    """Reply that is longer than what is read; the same request would get it again."""

    @property
    def is_fatal(self) -> bool:
        """Whether every other request would get such a reply: replies are as long as their documents."""
        return False


class Unusable(RequestFailure):
    """Answer that cannot be used; another sample is requested.

    Attributes:
        kind: Kind to count.
        reason: Reason in words.
        text: What was answered.
    """

    def __init__(self, kind: UnusableKind, reason: str, text: str = "") -> None:
        super().__init__(f"{kind}: {reason}")
        self.kind: UnusableKind = kind
        self.reason = reason
        self.text = text


# Texts of errors for which Python has no type of its own: of threads and of libraries.
_MEMORY_PROBLEMS = (
    "can't start new thread",
    "failed to map segment",
    "Cannot allocate memory",
    "cannot allocate memory",
)


def lacks_memory(error: Exception) -> bool:
    """Return whether an error comes from a lack of memory."""
    if isinstance(error, ImportError | RuntimeError):
        return any(problem in str(error) for problem in _MEMORY_PROBLEMS)
    return isinstance(error, MemoryError)


@contextmanager
def needs_extra(extra: str, what: str) -> Iterator[None]:
    """Turn a failed import of a library that `what` needs into a UsageError that names the extra to install."""
    try:
        yield
    except ImportError as error:
        if lacks_memory(error):
            raise
        raise UsageError(
            f"{what}: needs {error.name or error}, which is not installed; pip install 'touche-llm[{extra}]'"
        ) from error


def list_fields(section: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield all fields of a section and of the sections in it, with their dotted names."""
    # Imported here because pydantic is slow to load, and every command imports this module.
    from pydantic import BaseModel

    for name, field in section.model_fields.items():
        yield prefix + name, field
        # Includes optional sections, which only some tasks have.
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from list_fields(kind, f"{prefix}{name}.")


# Other text is not quoted: it may be an API key in the wrong place.
_QUOTED = (bool, int, float, type(None))
_QUOTED_TEXT = ("literal_error", "enum", "int_parsing", "float_parsing", "bool_parsing")
# As pydantic writes "Input should be a valid tuple", "…, unable to parse string as an integer".
_REWORDED = {
    r"^Field required$": "missing",
    r"^\w+ should": "must",
    r"^Input is not": "must be",
    r", (?!').*| or instance of \w+| for <class.*": "",
    "tuple": "list",
}
# Errors of a name: it is unknown, or no text.
_UNKNOWN = ("extra_forbidden", "invalid_key")


def describe_problem(error: ErrorDetails) -> str:
    """Return the expected value and, if it may be quoted, the actual one.

    The caller adds the location.
    """
    kind, value = error["type"], error["input"]
    if kind in _UNKNOWN:
        return "no such name"
    if kind == "value_error":
        return error["msg"].removeprefix("Value error, ")
    expected = error["msg"]
    for pattern, words in _REWORDED.items():
        expected = re.sub(pattern, words, expected)
    is_quoted = isinstance(value, _QUOTED) or (isinstance(value, str) and kind in _QUOTED_TEXT)
    return f"{expected}, not {value!r:.40}" if is_quoted else expected


def describe_first_problem(
    error: ValidationError, *location: str, model: type[BaseModel] | None = None
) -> str:
    """Return `place: problem` of the first error, with the place below `location`.

    With the `model`, the known names follow an unknown one.
    """
    # A misspelt name is missing too, but the misspelling says more.
    first = min(error.errors(include_url=False), key=lambda found: found["type"] not in _UNKNOWN)
    parts = [part for part in first["loc"] if part != "[key]"]
    place, problem = ".".join(map(str, (*location, *parts))), describe_problem(first)
    if model is not None and first["type"] in _UNKNOWN:
        known = _list_names(model, parts[:-1])
        problem += f"; expected one of {', '.join(known)}"
    # The message of a check of several fields begins with the name of one in its section.
    is_name = model is not None and place and problem.partition(":")[0] in _list_names(model, parts)
    return f"{place}{'.' if is_name else ': '}{problem}" if place else problem


def _list_names(model: type[BaseModel], sections: Iterable[object]) -> list[str]:
    """Return the names of the fields of a section of a model."""
    prefix = "".join(f"{name}." for name in sections if isinstance(name, str))
    names = [name.removeprefix(prefix) for name, _ in list_fields(model) if name.startswith(prefix)]
    return [name for name in names if "." not in name]
