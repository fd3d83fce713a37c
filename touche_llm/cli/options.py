"""Options that commands share, and the signatures that typer reads."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from touche_llm.errors import UsageError

Command = Callable[..., None]
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


def make_parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    """Make a keyword parameter of a command."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def takes_qrels(command: Command) -> Command:
    """Add the options of qrels files to a command, which receives those given by aspect, as `qrels_files`."""
    own = [item for item in inspect.signature(command, eval_str=True).parameters.values() if item.name != "qrels_files"]

    @wraps(command)
    def expanded(*arguments: Any, **values: Any) -> None:
        given = {aspect: values.pop(aspect) for aspect in _QRELS}
        command(*arguments, qrels_files={name: path for name, path in given.items() if path is not None}, **values)

    for aspect, help_ in _QRELS.items():
        option = typer.Option(f"--{aspect}", metavar="FILE", help=help_, rich_help_panel="Input")
        own.append(make_parameter(aspect, Annotated[Path | None, option], None))
    set_signature(expanded, own)
    return expanded


def set_signature(command: Command, parameters: list[inspect.Parameter]) -> None:
    """Set the signature that typer reads."""
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [item if item.kind is item.POSITIONAL_ONLY else item.replace(kind=item.KEYWORD_ONLY) for item in parameters]
    )
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}


def require_cache(cache: Path) -> None:
    """Raise UsageError if a cache does not exist, instead of creating it."""
    if not cache.is_file():
        raise UsageError(f"{cache}: no such cache; name one with --cache")
