"""The command line: parse, call one function, print."""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from touche_llm import __version__
from touche_llm.cli.lazy_commands import Program
from touche_llm.cli.shared_options import ParserError, describe_parser_error
from touche_llm.errors import (
    BadLine,
    DataError,
    ExtensionError,
    ToucheError,
    describe_os_error,
    lacks_memory,
    to_printable,
)

app = typer.Typer(
    cls=Program,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Zero-shot argument retrieval for the Touché shared tasks.",
    epilog="Exit codes: 0 done; 1 error; 2 wrong usage; 3 run with failures; 130 stopped",
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"touche-llm {__version__}")
        raise typer.Exit()


class _LogFile(logging.FileHandler):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Raise DataError."""
        raise DataError(f"{self.baseFilename}: cannot write the log: {sys.exc_info()[1]}")

    def close(self) -> None:
        """Close the file; `handleError` has reported that it cannot be written."""
        with suppress(OSError):
            super().close()


@app.callback()
def _callback(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    log_file: Annotated[
        Path | None,
        typer.Option(
            "--log-file", metavar="FILE", help="Log requests, retries and timings to this file."
        ),
    ] = None,
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    if log_file is None:
        return

    log = logging.getLogger("touche_llm")
    handler = _LogFile(log_file, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(process)d %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    context.call_on_close(handler.close)
    context.call_on_close(lambda: log.removeHandler(handler))
    log.info("touche-llm %s: %s", __version__, context.invoked_subcommand)


def _describe_error(error: Exception) -> str | None:
    """Return the message of an expected error; None for a bug."""
    match error:
        case ExtensionError():
            # The configuration, whose options an error names, cannot be made without the extension.
            return str(error)
        case ToucheError():
            # Imported here because it loads the configuration.
            from touche_llm.cli.options import name_options

            message = name_options(str(error))
            if isinstance(error, BadLine):
                message += "; --skip-bad-lines leaves such lines out"
            return message
        case OSError():
            return to_printable(describe_os_error(error))
        case UnicodeEncodeError():
            # Arguments were checked; what is left are names in folders, and of the current folder.
            return to_printable(f"{error.object:.200}: not UTF-8; rename the file or folder")
        case _ if lacks_memory(error):
            return "out of memory; close other programs or raise the limit (`ulimit -v`), and run the command again"
        case _:
            return _describe_sqlite_error(error)


def _describe_sqlite_error(error: Exception) -> str | None:
    """Return the message of an error of SQLite; None for any other error."""
    # Imported here because the help and the completion need no database.
    import sqlite3

    from touche_llm.data.sqlite import describe_database_error

    if not isinstance(error, sqlite3.Error):
        return None
    return to_printable(f"{describe_database_error(error)}; what was stored before is kept")


def main() -> None:
    """Run the command line; an expected error ends it with one line and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A character that the encoding lacks is written as Python would, `\\xe9`.
            stream.reconfigure(errors="backslashreplace")
    try:
        # All errors are reported below, in one style.
        code = app(args=sys.argv[1:], prog_name="touche-llm", standalone_mode=False)
        sys.stdout.flush()
        if code:
            sys.exit(code)
    except ParserError as error:
        # A group without a command shows its help.
        is_help = error.message.startswith("Usage:")
        message = error.message if is_help else f"error: {describe_parser_error(error)}"
        print(message, file=sys.stderr)
        sys.exit(error.exit_code)
    except Exception as error:
        if isinstance(error, OSError) and _is_of_standard_output(error):
            _discard_output()
            error.filename = "standard output"
        problem = None if "--debug" in sys.argv else _describe_error(error)
        if problem is None:
            raise
        # A reader that has closed the pipe, as `head` does, wants no message.
        if not isinstance(error, BrokenPipeError):
            print(f"error: {problem}", file=sys.stderr)
        sys.exit(getattr(error, "exit_code", 1))


def _is_of_standard_output(error: OSError) -> bool:
    """Return whether standard output is full, or has lost its reader."""
    return error.filename is None and error.errno in (errno.EPIPE, errno.ENOSPC)


def _discard_output() -> None:
    """Discard what is left of standard output, which Python would try to write at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
