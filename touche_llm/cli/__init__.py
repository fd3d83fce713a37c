"""The command line: parse, call one function, print."""

from __future__ import annotations

import errno
import io
import logging
import os
import sqlite3
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

from touche_llm import __version__
from touche_llm.cli.options import Command, ParserError, describe_parser_error
from touche_llm.data.databases import describe_database_error
from touche_llm.errors import BadLine, DataError, ToucheError, describe_os_error, to_printable

# By the panel of the help, each command and the module that holds it: a function of its name, or
# `NAME_app`, a program with commands of its own.
PANELS = {
    "Make a run": {
        "run": "stages",
        "index": "servers",
        "retrieve": "stages",
        "judge": "stages",
        "rank": "stages",
        "fuse": "run_files",
        "batch": "batch",
        "tira": "stages",
        "demo": "demo",
    },
    "Look at runs": {"lab": "runs", "show": "show", "runs": "runs", "report": "runs"},
    "Measure and check": {
        "evaluate": "evaluate",
        "compare": "evaluate",
        "calibrate": "evaluate",
        "validate": "run_files",
        "regress": "run_files",
    },
    "Prompts, tasks and their data": {"prompts": "prompts", "tasks": "tasks", "data": "tasks"},
    "Servers and caches": {"doctor": "servers", "cache": "servers"},
}
COMMANDS = {name: module for commands in PANELS.values() for name, module in commands.items()}


class _Program(TyperGroup):
    """The program with its commands."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # Names for the help; `get_command` loads the commands.
        self.commands = cast(dict[str, Any], dict.fromkeys(COMMANDS))

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | TyperGroup | None:
        """Return a command, whose module is loaded only now, as libraries are slow to load.

        None if there is none.
        """
        if cmd_name not in COMMANDS or self.commands[cmd_name] is not None:
            return cast(TyperCommand | TyperGroup | None, self.commands.get(cmd_name))
        module = import_module(f"{__name__}.{COMMANDS[cmd_name]}")
        if (several := getattr(module, f"{cmd_name}_app", None)) is not None:
            several.rich_markup_mode = None
            for each in several.registered_commands:
                each.cls = Command
            command: TyperCommand | TyperGroup = typer.main.get_group(several)
            command.name = cmd_name
        else:
            alone = typer.Typer(add_completion=False, rich_markup_mode=None)
            alone.command(cmd_name, cls=Command)(getattr(module, cmd_name))
            command = cast(TyperCommand, typer.main.get_command(alone))
        self.commands[cmd_name] = command
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands by panel, each with the first sentence of its help."""
        for panel, names in PANELS.items():
            with formatter.section(panel):
                commands = ((name, self.get_command(ctx, name)) for name in names)
                formatter.write_dl(
                    [
                        (name, command.get_short_help_str(formatter.width))
                        for name, command in commands
                        if command
                    ]
                )


app = typer.Typer(
    cls=_Program,
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
    log, handler = logging.getLogger("touche_llm"), _LogFile(log_file, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(process)d %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    context.call_on_close(handler.close)
    context.call_on_close(lambda: log.removeHandler(handler))
    log.info("touche-llm %s: %s", __version__, context.invoked_subcommand)


def _describe_error(error: Exception) -> str | None:
    """Return the message of an expected error; None for a bug."""
    match error:
        case ToucheError():
            # Imported here because it loads the configuration.
            from touche_llm.cli.setting_options import name_options

            advice = (
                "; --skip-bad-lines leaves such lines out" if isinstance(error, BadLine) else ""
            )
            return name_options(str(error)) + advice
        case OSError():
            return to_printable(describe_os_error(error))
        case UnicodeEncodeError():
            # Arguments were checked; what is left are names in folders, and of the current folder.
            return to_printable(f"{error.object:.200}: not UTF-8; rename the file or folder")
        case sqlite3.Error():
            return to_printable(f"{describe_database_error(error)}; what was stored before is kept")
        case MemoryError():
            return "out of memory; close other programs or raise the limit (`ulimit -v`), and run the command again"
        case _:
            return None


def main() -> None:
    """Run the command line; an expected error ends it with one line and an exit code."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
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
        print(
            error.message if is_help else f"error: {describe_parser_error(error)}", file=sys.stderr
        )
        sys.exit(error.exit_code)
    except typer.Abort:
        sys.exit("error: aborted")
    except Exception as error:
        if (
            isinstance(error, OSError)
            and error.filename is None
            and error.errno in (errno.EPIPE, errno.ENOSPC)
        ):
            # Standard output is full or has lost its reader; Python would try to write the rest of
            # it again.
            error.filename = "standard output"
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        message = None if "--debug" in sys.argv else _describe_error(error)
        if message is None:
            raise
        if not isinstance(error, BrokenPipeError):
            print(f"error: {message}", file=sys.stderr)
        sys.exit(getattr(error, "exit_code", 1))
