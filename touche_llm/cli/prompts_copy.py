"""The command that copies a prompt to change it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from touche_llm.cli import setting_options as s
from touche_llm.cli.output import Format, FormatOption, print_rows, say
from touche_llm.cli.prompts_render import NameArgument
from touche_llm.cli.tables import show_lines
from touche_llm.data.files import open_atomic
from touche_llm.errors import UsageError
from touche_llm.prompts.catalog import load_named
from touche_llm.prompts.prompt import examples_path
from touche_llm.prompts.templates import read_text
from touche_llm.tasks import DEFAULT_TASK, get_task


@s.takes_settings("task", "prompts.folder")
def copy(
    given: s.Given,
    name: NameArgument,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="The template to write (default: NAME.jinja, here).")
    ] = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Write a prompt as a file of your own to change, with the files that it includes and its examples.

    No file is overwritten; the same command completes a copy that was interrupted.
    """
    of_task = get_task(given.get("task", DEFAULT_TASK))
    _, prompt = load_named(of_task, name, given.get("prompts.folder"))
    mine = file or Path(prompt.path.name)
    if mine.suffix != ".jinja":
        raise UsageError(f"{mine}: not the name of a template; end it in .jinja")
    texts = [(mine.parent / part, text) for part, text in prompt.files.texts.items()]
    if prompt.examples:
        texts.append((examples_path(mine), read_text(examples_path(prompt.path))))
    for path in (path for path, _ in texts if path == mine):
        raise UsageError(f"{path}: {prompt.path} includes a file of this name; give another FILE")
    there = [str(path) for path, text in texts if os.path.lexists(path) and not _holds(path, text)]
    if os.path.lexists(mine):
        there.insert(0, str(mine))
    if there:
        raise UsageError(f"{', '.join(there)}: exists; give another FILE, or one in another folder")
    # The template comes last, so that a copy that has it is complete.
    texts.append((mine, read_text(prompt.path)))
    for path, text in texts:
        try:
            with open_atomic(path) as stream:
                stream.write(text.encode())
        except OSError as error:
            raise UsageError(f"{path}: cannot write it: {error.strerror}") from error
    if output is not Format.TABLE:
        print_rows(output, [{"prompt": prompt.label, "file": path} for path, _ in texts])
    else:
        show_lines(f"wrote {path}" for path, _ in texts)
    version = prompt.header.version
    say(
        output,
        f"next: change a sentence of {mine} and raise its version, {version} to {version + 1}; then\n"
        f"  touche-llm prompts check {mine} --task {of_task.reference}",
    )


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_bytes() == text.encode()
