"""The command that serves the prompt workbench."""

from __future__ import annotations

import asyncio
import sys
import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from touche_llm.cli import options as o
from touche_llm.cli import setting_options as s
from touche_llm.cli.emit import show_lines
from touche_llm.cli.setting_options import CommandProgress
from touche_llm.errors import UsageError
from touche_llm.lab.server import serve_lab
from touche_llm.lab.workplace import LabInputs, Workplace

_OF_LAB = (*s.INPUTS, "prompts.folder", "engine", "sampling", "cache")


@s.takes_settings(*_OF_LAB)
@o.takes_qrels
def lab(
    given: s.GivenSettings,
    qrels_files: o.QrelsFiles,
    folder: Annotated[
        Path | None, typer.Argument(metavar="FOLDER|RUN", help="Where to look for runs (default: here).")
    ] = None,
    config_file: s.ConfigOption = None,
    assigned: s.SetOption = None,
    port: Annotated[int, typer.Option("--port", min=0, metavar="N", help="Port (default: a free one).")] = 0,
    stay_closed: Annotated[bool, typer.Option("--no-open", help="Open no browser.")] = False,
) -> None:
    """Serve a page to look at runs and to improve prompts. Ctrl-C ends it.

    The page shows all runs of a folder, their documents with answers and labels of your own, and a bench on which
    judge prompts are edited: answers change while you type. The settings given here override those of the runs; with
    --config or --topics there is the bench alone.

    Only programs of this machine that know the token in the printed address can read it.
    """
    is_alone = config_file is not None or not given.keys().isdisjoint(("topics", "dataset"))
    if folder is not None and config_file is not None:
        raise UsageError(f"--config {config_file}: for work without a run; leave out {folder}, or the file")
    root = folder or (None if is_alone else Path())
    if root is None:
        s.load_settings("lab", given, config_file, assigned)
    settings = given | s.set_values(assigned or [], "lab")
    workplace = Workplace(LabInputs(root, config_file, settings, qrels_files), CommandProgress().warn)
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(workplace, port, should_open=not stay_closed))


async def _serve(workplace: Workplace, port: int, *, should_open: bool) -> None:
    paths = await workplace.apart(workplace.describe_paths)
    async with serve_lab(workplace, port) as address:
        print(address.url)
        show_lines(f"{name}: {path}" for name, path in paths.items())
        show_lines(["Ctrl-C ends it"], sys.stderr)
        sys.stdout.flush()
        if should_open and sys.stdout.isatty():
            webbrowser.open(address.url)
        await asyncio.Event().wait()
