"""The log of a command, in a file or on standard error."""

from __future__ import annotations

import io
import logging
import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EPIPE
from pathlib import Path
from typing import Any, NamedTuple

from touche_llm import __version__
from touche_llm.errors import UsageError

_OUT, _ERR = 1, 2


class _Descriptor(io.FileIO):
    """Stream whose reader may close it, as `head` does; later output is dropped.

    The command ends with its own exit code then, even if Python flushes the rest while it shuts down.
    """

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            number = self.fileno()
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, number)
            os.close(nowhere)
            # An error of standard error cannot be shown.
            if number == _OUT and error.errno != EPIPE:
                raise OSError(error.errno, error.strerror, "standard output") from error
            return memoryview(data).nbytes


def open_streams() -> None:
    """Make standard output and standard error accept any text and survive their readers."""
    for number, name in ((_OUT, "stdout"), (_ERR, "stderr")):
        given = getattr(sys, name)
        if given is None:
            # The caller closed it; the next opened file would get its number and all printed output.
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        # A replaced stream, as in tests, is kept.
        elif given is getattr(sys, f"__{name}__"):
            given.flush()
            buffered = io.BufferedWriter(_Descriptor(number, "w", closefd=False))
            # A character that the encoding lacks is written as Python would, `\\xe9`.
            stream = io.TextIOWrapper(
                buffered,
                given.encoding,
                "backslashreplace",
                line_buffering=given.line_buffering,
                write_through=given.write_through,
            )
            setattr(sys, name, stream)


def write_as_utf8() -> None:
    """Switch standard output to UTF-8, so that rows for programs do not depend on the terminal's encoding."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")


PROGRAM, TEXT = "touche_llm", "touche_llm.text"
_FORMAT = "%(asctime)s %(process)d %(levelname)s %(message)s"
# Characters of a line; with texts, as many as a prompt can have.
_LONGEST, _LONGEST_WITH_TEXT = 2_000, 1_000_000
_LOG = logging.getLogger(__name__)


class LogOptions(NamedTuple):
    """Options of the log: what to log and where.

    Attributes:
        file: Appended to.
        verbose: Log on standard error.
        with_text: Log prompts, answers and what the server says of failures as well.
    """

    file: Path | None = None
    verbose: bool = False
    with_text: bool = False


class _LineFormatter(logging.Formatter):
    """Formatter of records as bounded lines, without API keys and control characters."""

    def __init__(self, longest: int) -> None:
        super().__init__(_FORMAT)
        self._longest = longest
        self._keys = [
            value for name, value in os.environ.items() if name.endswith(("_API_KEY", "_PASSWORD")) and value.strip()
        ]

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        text = super().format(record)
        for key in self._keys:
            text = text.replace(key.strip(), "[key]")
        text = text[: self._longest]
        return text if text.isprintable() else "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()


class _LogFile(logging.FileHandler):
    """Log file that a run survives if it cannot be written."""

    _has_failed = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Stop logging with a note if the file cannot be written."""
        self._has_failed = True
        logging.getLogger(PROGRAM).removeHandler(self)
        print(
            f"note: {self.baseFilename}: cannot write the log: {sys.exc_info()[1]}; going on without", file=sys.stderr
        )

    def close(self) -> None:
        """Close the file; a failure to write was reported before."""
        try:
            super().close()
        except OSError:
            if not self._has_failed:
                raise


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Handler for the current standard error, which a progress bar replaces while it is drawn."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        self.stream = sys.stderr
        super().emit(record)


def take_options(arguments: list[str]) -> tuple[list[str], LogOptions]:
    """Split off the options of the log, which may be given before or after the command.

    Raises:
        UsageError: `--log-file` has no value, or `--log-text` has nowhere to go.
    """
    rest: list[str] = []
    waiting = iter(arguments)
    file, verbose, with_text = None, False, False
    for argument in waiting:
        name, _, value = argument.partition("=")
        if name == "--log-file":
            found = value or next(waiting, "")
            if not found or found.startswith("--"):
                raise UsageError("--log-file: needs the name of a file, as --log-file run.log")
            file = Path(found)
        elif argument == "--log-text":
            with_text = True
        elif argument == "--verbose":
            verbose = True
        else:
            rest.append(argument)
    if with_text and file is None and not verbose:
        raise UsageError("--log-text: no log to write to; give --log-file FILE or --verbose too")
    return rest, LogOptions(file, verbose, with_text)


@contextmanager
def logged(options: LogOptions, command: str) -> Iterator[None]:
    """Log while the block runs, and how it ends; do nothing without a log."""
    if options.file is None and not options.verbose:
        yield
        return
    handlers: list[logging.Handler] = [_LogFile(options.file, encoding="utf-8")] if options.file else []
    handlers += [_Stderr()] if options.verbose else []
    program, text = logging.getLogger(PROGRAM), logging.getLogger(TEXT)
    before = program.level, text.level
    for handler in handlers:
        handler.setFormatter(_LineFormatter(_LONGEST_WITH_TEXT if options.with_text else _LONGEST))
        program.addHandler(handler)
    program.setLevel(logging.DEBUG)
    if options.with_text:
        text.setLevel(logging.DEBUG)
    _LOG.info("touche-llm %s, Python %s, %s: %s", __version__, platform.python_version(), sys.platform, command)
    started, ending = time.monotonic(), "exit code 0"
    try:
        yield
    except BaseException as error:
        is_exit = isinstance(error, SystemExit)
        ending = f"exit code {error.code or 0}" if isinstance(error, SystemExit) else type(error).__name__
        if not is_exit:
            logging.getLogger(TEXT).info("%s", error)
        raise
    finally:
        _LOG.info("%s: %s after %.3f s", command, ending, time.monotonic() - started)
        for handler in handlers:
            program.removeHandler(handler)
            handler.close()
        program.setLevel(before[0])
        text.setLevel(before[1])
