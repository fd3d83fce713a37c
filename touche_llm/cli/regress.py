"""The commands that record runs and check their replays."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from touche_llm.cli import options as s
from touche_llm.cli import shared_options as o
from touche_llm.cli.output import Format, FormatOption, print_result, print_rows, say
from touche_llm.config.files import UserOptions
from touche_llm.data.files import recover
from touche_llm.errors import UsageError
from touche_llm.interrupts import run_until_interrupted
from touche_llm.regression.check import check_folder, load_finished_run
from touche_llm.regression.record import Recording, record
from touche_llm.regression.result import CheckResult, LabelDifference, RankDifference, format_result
from touche_llm.regression.snapshot import find_snapshots

_DEFAULT = Path("regress")
# Keys of the rows of a check.
_COLUMNS = ("run", "difference", "prompt", "topic", "document", "recorded", "replayed", "error")
DirOption = Annotated[
    Path, typer.Option("--dir", metavar="FOLDER", help="The folder of the recorded runs.")
]
NamesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="NAME", help="Recorded runs (default: all).")
]


RunDirArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")
]
NameArgument = Annotated[
    str | None,
    typer.Argument(help="Name of the recorded run (default: the name of the folder)."),
]


def record_(
    run_dir: RunDirArgument,
    name: NameArgument = None,
    root: DirOption = _DEFAULT,
    config_file: s.FolderConfigOption = None,
    overwrite: o.OverwriteOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Store a finished run with everything that a replay needs, in DIR/NAME.

    Its first stage is copied and never repeated.
    """
    target = root / (run_dir.resolve().name if name is None else name)
    recover(target.parent)
    _check_target(target, overwrite)
    config = load_finished_run(run_dir, UserOptions(config=config_file))
    made = run_until_interrupted(record(config, run_dir, target))
    print_result(output, _describe(target, made), {"folder": target, **asdict(made)})
    if made.note is not None:
        say(output, f"note: {target}: {made.note}")


def _check_target(target: Path, overwrite: bool) -> None:
    """Raise UsageError unless a run may be recorded in the folder `target`."""
    if not os.path.lexists(target):
        return
    if target.is_symlink() or not target.is_dir():
        raise UsageError(f"{target}: not a folder; give another name")
    if not overwrite:
        raise UsageError(
            f"{target}: the folder exists; give another name, or replace it with `overwrite: true`"
        )


def check_(
    names: NamesArgument = None, root: DirOption = _DEFAULT, output: FormatOption = Format.TABLE
) -> None:
    """Replay recorded runs offline, with the current program and templates.

    Prints the topics, ranks, labels and prompts that differ. Exit code 0 if every run is reproduced
    byte for byte, 1 otherwise.
    """
    results: dict[str, CheckResult] = {}
    for folder in find_snapshots(root, names or []):
        result = run_until_interrupted(check_folder(folder))
        say(output, format_result(folder.name, result))
        results[folder.name] = result

    if output is not Format.TABLE:
        rows = [row for name, result in results.items() for row in _list_rows(name, result)]
        print_rows(output, rows, _COLUMNS)
    if not all(result.is_same for result in results.values()):
        raise typer.Exit(1)


def _list_rows(name: str, result: CheckResult) -> list[dict[str, Any]]:
    """Return a row for each difference of a recorded run; keys without a meaning are None."""
    found: list[dict[str, Any]] = []
    if result.error is not None:
        found.append({"difference": "error", "error": result.error})
    for topic_id in result.topics:
        found.append({"difference": "topic", "topic": topic_id})
    for rank in result.ranks:
        found.append({"difference": "rank", **_describe_change(rank)})
    for label in result.labels:
        found.append({"difference": "label", **_describe_change(label)})
    for prompt in result.prompts:
        if prompt.has_changed_template:
            found.append({"difference": "template", "prompt": prompt.purpose})
        for missing in prompt.missing:
            place = {"topic": missing.topic_id, "document": missing.document_id}
            found.append({"difference": "answer", "prompt": prompt.purpose, **place})

    empty = dict.fromkeys(_COLUMNS)
    return [{**empty, "run": name, **row} for row in found]


def _describe_change(difference: RankDifference | LabelDifference) -> dict[str, Any]:
    return {
        "topic": difference.topic_id,
        "document": difference.document_id,
        "recorded": difference.recorded,
        "replayed": difference.replayed,
    }


def _describe(target: Path, made: Recording) -> str:
    counts = (
        f"{made.topics:,} topics, {made.documents:,} documents, "
        f"{made.answers:,} cassette entries, {made.size:,} bytes"
    )
    return f"recorded: {target} ({counts})"
