"""The command that checks a run file."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer

from touche_llm.cli import measured_runs as m
from touche_llm.cli import setting_options as s
from touche_llm.cli.output import Format, FormatOption, print_rows, say
from touche_llm.cli.progress import CommandProgress
from touche_llm.cli.tables import show_lines
from touche_llm.data.topics import read_topics
from touche_llm.data.trec_runs import read_candidates
from touche_llm.evaluation.run_validation import RunProblem, validate_run
from touche_llm.pipeline.corpora import open_local_corpus
from touche_llm.pipeline.datasets import Dataset
from touche_llm.pipeline.run_lookup import find_run_file, find_task
from touche_llm.tasks.base import Task

# Maximum number of printed warnings.
_MANY = 20
# Number of problems of a kind that are printed if there are more, without --all.
_SHOWN = 3
# What differs between problems of one kind: quoted text, words with digits, ids.
_VARYING = re.compile(r"""'[^']*'|"[^"]*"|\S*\d\S*|(?<=topic )[^\s:]+|(?<=document )[^\s:]+""")


@s.takes_settings("dataset", "topics", "corpus", "index", "skip_bad_lines")
def validate(
    given: s.Given,
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run file of this or any other program, or the folder of a run.")
    ],
    task: m.TaskOption = None,
    every: Annotated[bool, typer.Option("--all", help="Print all problems; json and tsv always do.")] = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Check a run file.

    Checks columns, labels, ranks, scores, ties, duplicates, limits, topics, documents and tag.

    Prints the problems with their lines. Exit code 0 for a valid file, 1 for any other.
    """
    inputs = s.read_inputs(given)
    known, run = find_task(task, [run], inputs.dataset), find_run_file(run)
    read = None if inputs.topics is None else read_topics(inputs.topics)
    if inputs.dataset is not None:
        read = Dataset(inputs.dataset, known.reference).topics
    topic_ids = None if read is None else {topic.id for topic in read}
    if not inputs.has_documents:
        problems = validate_run(run, known, topic_ids=topic_ids)
    else:
        with open_local_corpus(
            inputs.documents,
            inputs.index,
            known,
            skip_bad_lines=given.get("skip_bad_lines", False),
            warn=CommandProgress().warn,
        ) as opened:
            unknown = opened.documents.find_unknown
            problems = validate_run(run, known, topic_ids=topic_ids, unknown_documents=unknown)
    notes, warnings = ([], []) if problems else _remarks(run, known, topic_ids)
    if output is Format.TABLE:
        _show(run, problems, every)
        show_lines(f"note: {note}" for note in notes)
        show_lines(f"warning: {warning}" for warning in warnings[:_MANY])
        if len(warnings) > _MANY:
            more = len(warnings) - _MANY
            print(f"warning: and {more} more topics with fewer than {known.min_per_topic} lines")
    else:
        # Line 0 is the file as a whole.
        found = [("error", each.line or None, each.message) for each in problems]
        found += [("note", None, note) for note in notes] + [("warning", None, warning) for warning in warnings]
        rows = [{"file": run, "line": line, "level": level, "message": message} for level, line, message in found]
        print_rows(output, rows, ("file", "line", "level", "message"))
    if problems:
        say(output, f"{len(problems):,} problem{'s' if len(problems) > 1 else ''}: not a valid {known.name} run")
        raise typer.Exit(1)
    checked = [name for name, given in (("topics", topic_ids), ("documents", inputs.has_documents)) if given]
    say(output, f"{run}: a valid {known.name} run" + (f", {' and '.join(checked)} checked" if checked else ""))


def _show(run: Path, problems: list[RunProblem], every: bool) -> None:
    """Print problems with their lines: all, or the first ones of each kind and the number of the others."""
    kinds: dict[str, list[RunProblem]] = {}
    for problem in problems:
        kinds.setdefault("" if every else _VARYING.sub("…", problem.message), []).append(problem)
    for kind, found in kinds.items():
        first = found if every or len(found) <= _SHOWN + 1 else found[:_SHOWN]
        show_lines(f"{run}:{problem.line}: {problem.message}" for problem in first)
        if more := len(found) - len(first):
            show_lines([f"… and {more:,} more lines: {kind}; --all prints them all"])


def _remarks(run: Path, task: Task, topic_ids: Collection[str] | None) -> tuple[list[str], list[str]]:
    """Return notes and warnings on a valid run."""
    rankings = read_candidates(run, task.max_per_topic)
    notes = []
    if topic_ids is not None and len(topic_ids) > len(rankings):
        notes.append(f"{len(topic_ids) - len(rankings)} of {len(topic_ids)} topics have no line")
    least = task.min_per_topic
    return notes, [
        f"topic {topic} has {len(lines)} lines, the organisers want at least {least}"
        for topic, lines in rankings.items()
        if len(lines) < least
    ]
