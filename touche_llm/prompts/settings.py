"""Settings of the prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from touche_llm.data.settings import Option, Section


class PromptsConfig(Section):
    """Names of the task's prompts, or paths of `.jinja` files.

    Attributes:
        folder: Folder of templates that replace the project's own, as `folder/task/name.jinja`.
    """

    folder: Annotated[
        Path | None,
        Option(
            "--prompts",
            "Folder of templates, TASK/NAME.jinja, that replace the project's own",
            "Model",
            metavar="FOLDER",
        ),
    ] = None
    judge: Annotated[
        str,
        Option("--prompt", "Judge prompt: a name or a .jinja file", "Judging", is_common=True, metavar="NAME|FILE"),
    ] = "judge"
    objects: Annotated[
        str, Option("--objects-prompt", "Prompt that finds the objects of a topic", "Judging", metavar="NAME|FILE")
    ] = "objects"
    sentence: Annotated[
        str, Option("--sentence-prompt", "Prompt that judges a sentence", "Judging", metavar="NAME|FILE")
    ] = "sentence"
    stance: str = "stance"
    best: str = "best"
    order: str = "order"
    queries: str = "queries"
