"""The command line: parse, call one function, print."""

from __future__ import annotations

import sqlite3
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from touche_llm.cli import (
    batch,
    calibrate,
    compare,
    demo,
    evaluate,
    files,
    fuse,
    prompts,
    prompts_compare,
    prompts_copy,
    prompts_render,
    prompts_try,
    regress,
    report,
    stages,
    tira,
)
from touche_llm.corpus.passages import BadLine
from touche_llm.errors import ToucheError, printable

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Argument retrieval for the Touché shared tasks with open-weight models served by vLLM.",
    epilog="Exit codes: 0 done; 1 data, prompt or engine error; 2 wrong usage; 3 a run with failures; 130 stopped.",
)
STAGES = (stages.run, stages.index, stages.retrieve, stages.judge, stages.rank)
OTHERS = (
    calibrate.calibrate,
    files.validate,
    fuse.fuse,
    evaluate.evaluate,
    compare.compare,
    report.report,
    tira.tira,
    demo.demo,
)
for command in (*STAGES, *OTHERS):
    app.command()(command)
app.add_typer(files.cache_app, name="cache")
app.add_typer(regress.regress_app, name="regress")
app.add_typer(batch.app, name="batch")
prompts.prompts_app.command("copy")(prompts_copy.copy)
prompts.prompts_app.command("render")(prompts_render.render)
prompts.prompts_app.command("try")(prompts_try.try_)
prompts.prompts_app.command("compare")(prompts_compare.compare)
app.add_typer(prompts.prompts_app, name="prompts")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"touche-llm {version('touche-llm')}")
        raise typer.Exit()


@app.callback()
def _callback(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; also after the command.")
    ] = False,
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """What stands before a command."""


def main() -> None:
    """Run the command line; errors of ours end it with one line and their exit code."""
    # Accepted anywhere, since one adds it to the end of the command that failed.
    debug = "--debug" in sys.argv
    try:
        app(args=[argument for argument in sys.argv[1:] if argument != "--debug"])
    except ToucheError as error:
        if debug:
            raise
        print(f"error: {error}", file=sys.stderr)
        if isinstance(error, BadLine):
            print("--skip-bad-lines leaves such lines out, counts and lists them", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        if debug:
            raise
        where = f"{error.filename}: " if error.filename else ""
        print(printable(f"error: {where}{error.strerror or error}"), file=sys.stderr)
        sys.exit(1)
    except sqlite3.Error as error:
        if debug:
            raise
        print(printable(f"error: cache or index: {error}; what was stored before is kept"), file=sys.stderr)
        sys.exit(1)
