"""What can go wrong, by who has to act. Every message says what, where, and what to do next."""

import errno
from collections.abc import Sequence
from pathlib import Path

_ADVICE = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "; free some space and run the same command again"),
    errno.EFBIG: "; raise the limit (`ulimit -f`) and run the same command again",
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "; raise the limit (`ulimit -n`) and run the same command again"),
}


def to_printable(text: str) -> str:
    """Text from outside with nothing in it that a terminal would act on but line feeds."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


def shorten(names: Sequence[str], most: int = 10) -> str:
    """The first of some names for a message, and how many there are."""
    shown = ", ".join(names[:most])
    return f"{shown}, … ({len(names)} in all)" if len(names) > most else shown


def describe_os_error(error: OSError) -> str:
    """Return what the system refused as `file: cause`, with what to do where that is known."""
    where = f"{error.filename}: " if error.filename is not None else ""
    advice = _ADVICE.get(error.errno or 0, "")
    return f"{where}{error.strerror or error}{advice}"


class ToucheError(Exception):
    """Base of all errors that the command line prints, most as one line. What is quoted in the message is printable."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(to_printable(message))


class DataError(ToucheError):
    """A file that was given does not hold what it should: the person with the file has to act."""


class BadLine(DataError):
    """A line, or a row that begins in it, that is not a document; `path` and `line` say where."""

    def __init__(self, path: Path, line: int, reason: str) -> None:
        super().__init__(f"{path}:{line}: {reason}")
        self.path, self.line, self.reason = path, line, reason


class UsageError(ToucheError):
    """A command, an option or a configuration that cannot be carried out as it was asked."""

    exit_code = 2


class PromptError(ToucheError):
    """A prompt template that cannot be loaded or rendered: its author has to act."""


class EngineError(ToucheError):
    """The engine cannot be used at all (not there, wrong model, does not enforce schemas)."""


class ReplayMiss(ToucheError):
    """Replay asked for answers that the cache does not hold."""
