"""Commands for finished runs: fuse them, check one, and record and replay them as tests."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from touche_llm.api.corpora import open_local_corpus
from touche_llm.api.dataset import Dataset
from touche_llm.cli import measured_runs as m
from touche_llm.cli import options as o
from touche_llm.cli import setting_options as s
from touche_llm.cli.output import Format, FormatOption, print_result, print_rows, say
from touche_llm.cli.setting_options import CommandProgress
from touche_llm.data.files import check_output, is_word, recover
from touche_llm.data.runs.reading import read_candidates, read_run
from touche_llm.data.runs.writing import write_run
from touche_llm.data.topics.reading import read_topics
from touche_llm.errors import UsageError, shorten
from touche_llm.evaluation.validation import validate_run
from touche_llm.ranking.fusion import FusionSettings
from touche_llm.ranking.run_fusion import fuse_runs
from touche_llm.regression.check import check_folder, load_finished_run
from touche_llm.regression.record import Recording, record
from touche_llm.regression.result import (
    CheckResult,
    LabelDifference,
    RankDifference,
    format_result,
)
from touche_llm.regression.snapshot import find_snapshots
from touche_llm.runs.overview import find_run_directory, find_run_file, find_task
from touche_llm.tasks import TASK_HELP, get_task
from touche_llm.tasks.task import Task


def fuse(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            help="Run files of this or any other program, or folders of runs; two or more.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="The run file to write.")],
    method: Annotated[
        Literal["rrf", "interpolation"],
        typer.Option(
            "--method", help="rrf: by reciprocal ranks; interpolation: by scores scaled to 0..1."
        ),
    ] = "rrf",
    k: Annotated[
        float,
        typer.Option(
            "--k", min=0, help="Constant of rrf; the larger, the less a first place counts."
        ),
    ] = 60.0,
    weight: Annotated[
        list[float] | None,
        typer.Option("--weight", help="One for each run, in their order (default: 1 each)."),
    ] = None,
    depth: Annotated[
        int, typer.Option("--depth", min=1, help="Lines for each topic; the runs are read whole.")
    ] = 1000,
    tag: Annotated[
        str, typer.Option("--tag", help="Last column of the run, one word.")
    ] = "touche-llm",
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            metavar="NAME|FOLDER",
            help=f"{TASK_HELP}, for the labels and limits (default: the task of the runs' folders). Needed where "
            "some documents have a stance and others none: those get the task's label for an unknown stance, or are "
            "left out where it has none.",
        ),
    ] = None,
    overwrite: o.OverwriteOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Fuse runs by reciprocal ranks or by scores.

    A document has the stance of the first run that gives it one.
    """
    known = _find_task(task, runs)
    settings = FusionSettings(method=method, k=k)
    weights = weight or [1.0] * len(runs)
    if len(runs) < 2:
        raise UsageError(f"{runs[0]}: one run cannot be fused; name two or more")
    if not is_word(tag):
        raise UsageError(f"--tag {tag!r:.40}: not one word; a run line has six columns")
    if known is not None and depth > known.documents_per_topic.max:
        raise UsageError(
            f"--depth {depth}: {known.name} allows at most {known.documents_per_topic.max} documents a topic; give less"
        )
    runs = [find_run_file(run) for run in runs]
    check_output(out, overwrite, runs)
    labels = known.stances if known is not None else None
    read = [read_run(run, labels) for run in runs]
    fused = fuse_runs(read, weights, settings, task=known, depth=depth, tag=tag)
    write_run(out, fused.lines)
    topics = {line.topic_id for line in fused.lines}
    counts = {
        f"topics that only some of the runs have ({shorten(fused.partial)})": len(fused.partial),
        "documents with different stances, the first run's kept": fused.disagreeing,
        f"documents without a stance, labelled {known.unknown_stance if known is not None else ''}": fused.imputed,
        "documents without a stance, left out because the task has no label for them": fused.left_out,
    }
    for what, count in counts.items():
        if count:
            say(output, f"{what}: {count:,}")
    row = {
        "file": out,
        "lines": len(fused.lines),
        "topics": len(topics),
        "partial_topics": len(fused.partial),
    }
    row |= {"disagreeing": fused.disagreeing, "imputed": fused.imputed, "left_out": fused.left_out}
    print_result(output, f"run: {out} ({len(fused.lines):,} lines, {len(topics):,} topics)", row)


def _find_task(name: str | None, runs: Sequence[Path]) -> Task | None:
    """Return the task of this name, or without a name that of the folders among the runs.

    None if there are none.
    """
    tasks = [
        (path, directory.read_task())
        for path in runs
        if (directory := find_run_directory(path)) is not None
    ]
    known = get_task(name) if name is not None else (tasks[0][1] if tasks else None)
    for path, task in tasks:
        if known is not None and task.name != known.name:
            raise UsageError(
                f"{path}: a run of {task.name}, not of {known.name}; fuse runs of one task"
            )
    return known


# Number of problems and notes in a table.
_MANY = 20


@s.takes_settings("dataset", "topics", "corpus", "index", "skip_bad_lines")
def validate(
    given: s.GivenSettings,
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="A run file of this or any other program, or the folder of a run."
        ),
    ],
    task: m.TaskOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Check a run file.

    Checks columns, labels, ranks, scores, ties, duplicates, limits, topics, documents and tag.

    Prints the problems with their lines. Exit code 0 for a valid file, 1 for any other.
    """
    s.check_inputs(given)
    dataset, topics, index = given.get("dataset"), given.get("topics"), given.get("index")
    documents = dataset or given.get("corpus")
    known, run = find_task(task, [run], dataset), find_run_file(run)
    read = None if topics is None else read_topics(topics)
    if dataset is not None:
        read = Dataset(dataset, known.reference).topics
    topic_ids = None if read is None else {topic.id for topic in read}
    if documents is None and index is None:
        problems = validate_run(run, known, topic_ids=topic_ids)
    else:
        skip, warn = given.get("skip_bad_lines", False), CommandProgress().warn
        with open_local_corpus(documents, index, known, skip_bad_lines=skip, warn=warn) as opened:
            unknown = opened.documents.find_unknown
            problems = validate_run(run, known, topic_ids=topic_ids, unknown_documents=unknown)
    # Line 0 is the file as a whole.
    found = [("error", each.line or None, each.message) for each in problems]
    found += [
        ("warning", None, remark)
        for remark in ([] if problems else _remarks(run, known, topic_ids))
    ]
    rows = [
        {"file": run, "line": line, "level": level, "message": message}
        for level, line, message in found
    ]
    if output is not Format.TABLE:
        print_rows(output, rows, ("file", "line", "level", "message"))
    elif rows:
        for row in rows[:_MANY]:
            place = run if row["line"] is None else f"{run}:{row['line']}"
            say(output, f"{place}: {row['level']}: {row['message']}")
        if len(rows) > _MANY:
            say(output, f"… and {len(rows) - _MANY:,} more; --format tsv prints them all")
    if problems:
        say(
            output,
            f"{len(problems):,} problem{'s' if len(problems) > 1 else ''}: not a valid {known.name} run",
        )
        raise typer.Exit(1)
    checked = [
        name for name, given in (("topics", topic_ids), ("documents", documents or index)) if given
    ]
    say(
        output,
        f"{run}: a valid {known.name} run"
        + (f", {' and '.join(checked)} checked" if checked else ""),
    )


def _remarks(run: Path, task: Task, topic_ids: Collection[str] | None) -> list[str]:
    rankings = read_candidates(run, task.documents_per_topic.max)
    warnings = []
    if topic_ids is not None and len(topic_ids) > len(rankings):
        warnings.append(f"{len(topic_ids) - len(rankings)} of {len(topic_ids)} topics have no line")
    least = task.documents_per_topic.min
    return warnings + [
        f"topic {topic} has {len(lines)} lines, the organisers want at least {least}"
        for topic, lines in rankings.items()
        if len(lines) < least
    ]


_DEFAULT = Path("regress")
# Keys of the rows of a check.
_COLUMNS = ("run", "difference", "prompt", "topic", "document", "recorded", "replayed", "error")
DirOption = Annotated[
    Path, typer.Option("--dir", metavar="FOLDER", help="The folder of the recorded runs.")
]
NamesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="NAME", help="Recorded runs (default: all).")
]


def record_(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    name: Annotated[
        str | None,
        typer.Argument(help="Name of the recorded run (default: the name of the folder)."),
    ] = None,
    root: DirOption = _DEFAULT,
    overwrite: o.OverwriteOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Store a finished run with everything that a replay needs, in DIR/NAME.

    Its first stage is copied and never repeated.
    """
    target = root / (run_dir.resolve().name if name is None else name)
    recover(target.parent)
    _check_target(target, overwrite)
    config = load_finished_run(run_dir)
    made = asyncio.run(record(config, run_dir, target))
    print_result(output, _describe(target, made), {"folder": target, **asdict(made)})
    if made.note:
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
        result = asyncio.run(check_folder(folder))
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
