"""Options that commands share, and the signatures that typer reads."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from touche_llm.errors import UsageError

CommandFunction = Callable[..., None]
# Qrels files given on the command line, by aspect.
QrelsFiles = Mapping[str, Path]
OutOption = Annotated[
    Path, typer.Option("--out", metavar="FOLDER", help="Folder of the run.", rich_help_panel="Output")
]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace existing files.", rich_help_panel="Output")]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Only estimate the requests and tokens.", rich_help_panel="Output")
]
_QRELS = {
    "relevance": "Relevance qrels: qid 0 doc grade.",
    "quality": "Quality qrels.",
    "stance": "Stance qrels: qid 0 doc LABEL.",
    "coherence": "Coherence qrels, for pairs of sentences.",
}

# Only one task has this aspect, and `--qrels` takes it too.
_HIDDEN = ("coherence",)


def make_parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    """Make a keyword parameter of a command."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def takes_qrels(command: CommandFunction) -> CommandFunction:
    """Add the options of qrels files to a command, which receives those given by aspect, as `qrels_files`."""
    own = [item for item in inspect.signature(command, eval_str=True).parameters.values() if item.name != "qrels_files"]

    @wraps(command)
    def expanded(*arguments: Any, **values: Any) -> None:
        given = {aspect: path for aspect in _QRELS if (path := values.pop(aspect)) is not None}
        for text in values.pop("qrels") or ():
            aspect, separator, path = text.partition("=")
            if not (aspect and separator and path):
                raise UsageError(f"--qrels {text:.80}: must be ASPECT=FILE, as --qrels depth=qrels-depth.txt")
            if aspect in given:
                raise UsageError(f"--qrels {text:.80}: the qrels of {aspect} are given twice; leave one out")
            given[aspect] = Path(path)
        command(*arguments, qrels_files=given, **values)

    for aspect, help_ in _QRELS.items():
        option = typer.Option(
            f"--{aspect}", metavar="FILE", help=help_, rich_help_panel="Input", hidden=aspect in _HIDDEN
        )
        own.append(make_parameter(aspect, Annotated[Path | None, option], None))
    option = typer.Option(
        "--qrels",
        metavar="ASPECT=FILE",
        help="Qrels of another aspect, as coherence; repeatable.",
        rich_help_panel="Input",
    )
    own.append(make_parameter("qrels", Annotated[list[str] | None, option], None))
    set_signature(expanded, own)
    return expanded


def format_qrels_option(aspect: str, file: str = "FILE") -> str:
    """Return the option that gives the qrels of an aspect, with its value."""
    return f"--{aspect} {file}" if aspect in _QRELS else f"--qrels {aspect}={file}"


def set_signature(command: CommandFunction, parameters: list[inspect.Parameter]) -> None:
    """Set the signature that typer reads."""
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [item if item.kind is item.POSITIONAL_ONLY else item.replace(kind=item.KEYWORD_ONLY) for item in parameters]
    )
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}


def require_cache(cache: Path) -> None:
    """Raise UsageError if a cache does not exist, instead of creating it."""
    if not cache.is_file():
        raise UsageError(f"{cache}: no such cache; name one with --cache")
