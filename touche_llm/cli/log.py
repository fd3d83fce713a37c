"""The log of a command, in a file or on standard error."""

from __future__ import annotations

import argparse
import logging
import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from touche_llm import __version__
from touche_llm.errors import UsageError

PROGRAM = "touche_llm"
_FORMAT = "%(asctime)s %(process)d %(levelname)s %(message)s"
# Max characters of a line.
_LONGEST = 2_000
_LOG = logging.getLogger(__name__)


class _LineFormatter(logging.Formatter):
    """Formatter of records as bounded lines, without API keys and control characters."""

    def __init__(self) -> None:
        super().__init__(_FORMAT)
        names = (name for name in os.environ if name.endswith(("_API_KEY", "_PASSWORD")))
        self._keys = [key for name in names if (key := os.environ[name].strip())]

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        text = super().format(record)
        for key in self._keys:
            text = text.replace(key, "[key]")
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[:_LONGEST])


class _LogFile(logging.FileHandler):
    """Log file that a run survives if it cannot be written."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Stop logging with a note if the file cannot be written."""
        logging.getLogger(PROGRAM).removeHandler(self)
        print(f"note: {self.baseFilename}: cannot write the log: {sys.exc_info()[1]}", file=sys.stderr)

    def close(self) -> None:
        """Close the file; `handleError` has reported that it cannot be written."""
        with suppress(OSError):
            super().close()


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Handler for the current standard error, which a progress bar replaces while it is drawn."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        self.stream = sys.stderr
        super().emit(record)


def take_options(arguments: list[str]) -> tuple[list[str], argparse.Namespace]:
    """Split off the options that may be given before or after the command: `debug`, and those of the log."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for flag in ("--debug", "--verbose"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--log-file", type=Path)
    try:
        options, rest = parser.parse_known_args(arguments)
    except argparse.ArgumentError as error:
        raise UsageError(f"{error.argument_name}: {error.message}, as --log-file run.log") from error
    return rest, options


@contextmanager
def logged(command: str, file: Path | None = None, *, verbose: bool = False) -> Iterator[None]:
    """Log while the block runs, and how it ends; do nothing without a file, unless `verbose` logs on standard error."""
    handlers: list[logging.Handler] = [_LogFile(file, encoding="utf-8")] if file else []
    handlers += [_Stderr()] if verbose else []
    if not handlers:
        yield
        return
    program = logging.getLogger(PROGRAM)
    before = program.level
    for handler in handlers:
        handler.setFormatter(_LineFormatter())
        program.addHandler(handler)
    program.setLevel(logging.DEBUG)
    _LOG.info("touche-llm %s, Python %s, %s: %s", __version__, platform.python_version(), sys.platform, command)
    started, ending = time.monotonic(), "exit code 0"
    try:
        yield
    except BaseException as error:
        ending = f"exit code {error.code or 0}" if isinstance(error, SystemExit) else type(error).__name__
        raise
    finally:
        _LOG.info("%s: %s after %.3f s", command, ending, time.monotonic() - started)
        for handler in handlers:
            program.removeHandler(handler)
            handler.close()
        program.setLevel(before)
