"""Options of commands that read the labels of judges."""

from __future__ import annotations

from typing import Annotated

import typer

from touche_llm.errors import UsageError
from touche_llm.tasks import TASK_HELP
from touche_llm.tasks.parts import Scale, parse_scale

JudgeTaskOption = Annotated[
    str | None,
    typer.Option(
        "--task",
        metavar="NAME|FOLDER",
        help=f"{TASK_HELP} (default: the task of the first judge's folder, else passages).",
        rich_help_panel="Input",
    ),
]
ScaleOption = Annotated[
    str | None,
    typer.Option(
        "--scale",
        metavar="LOWEST..HIGHEST",
        help="Scale of the judges' files, if it is not that of the qrels.",
        rich_help_panel="Input",
    ),
]
SkipBadLabelsOption = Annotated[
    bool,
    typer.Option(
        "--skip-bad-labels",
        help="Leave out labels of judges outside the scale.",
        rich_help_panel="Input",
    ),
]


def read_scale(text: str | None) -> Scale | None:
    """Read a scale, None if none is given; raise UsageError for other text."""
    if text is None:
        return None
    try:
        return parse_scale(text)
    except ValueError as error:
        raise UsageError(f"--scale: {error}") from error
