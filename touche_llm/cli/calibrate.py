"""The command that fits stance thresholds on judged data, and measures them on other topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from touche_llm.cli import options as o
from touche_llm.cli.output import Format, FormatOption, print_rows, say
from touche_llm.cli.progress import CommandProgress
from touche_llm.cli.tables import Column, show_table
from touche_llm.data.files import check_output
from touche_llm.errors import UsageError, shorten
from touche_llm.evaluation.calibration import (
    CalibrationSet,
    CrossValidation,
    Fold,
    LabelScores,
    cross_validate,
    measure_thresholds,
    read_calibration_set,
)
from touche_llm.evaluation.qrels import STANCE, read_qrels
from touche_llm.judging.stance import read_settings, write_thresholds
from touche_llm.pipeline.run_directory import RunDirectory
from touche_llm.tasks import get_task
from touche_llm.tasks.base import Task

_FOLDS = 5
_SEED = 0
# Held-out topics: their name, the prompt of the stances, the scores, and the thresholds that one fold has.
_Part = tuple[str, str, Fold | CrossValidation, Mapping[str, float]]


def calibrate(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder of a run that was judged with log-probabilities.")
    ],
    stance: Annotated[Path, typer.Option("--stance", help="The stance qrels: qid 0 doc LABEL.")],
    out: Annotated[Path | None, typer.Option("--out", help="The YAML file to write, for --config of a run.")] = None,
    evaluate: Annotated[
        Path | None, typer.Option("--evaluate", help="Fit nothing: measure the thresholds of this file.")
    ] = None,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", metavar="ID", help="Use only this topic; repeatable.")
    ] = None,
    folds: Annotated[
        int | None, typer.Option("--folds", min=2, help=f"Parts that the topics are divided into (default: {_FOLDS}).")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help=f"Seed of the division (default: {_SEED}).")] = None,
    overwrite: o.OverwriteOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Fit or measure the thresholds of stance labels that take no side.

    Thresholds are fitted by cross-validation over topics. If the run has a stance prompt of its own, the judge prompt's
    stances of the same documents are measured too.

    Quote the held-out value: no document is labelled with thresholds that its own topic helped to fit.
    `--evaluate` refuses topics that the thresholds were fitted on.
    """
    if (out is None) is (evaluate is None):
        raise UsageError("give either --out FILE to fit thresholds, or --evaluate FILE to measure those of a file")
    if evaluate is not None and (folds is not None or seed is not None):
        raise UsageError("--folds, --seed: only for fitting; leave them out with --evaluate")
    if out is not None:
        check_output(out, overwrite, [stance])
    directory = RunDirectory(run)
    directory.check_finished("judge")
    task = get_task(directory.read_config().task)
    if not task.no_stances:
        stances = "all its stances take a side" if task.stances else "it has no stances"
        raise UsageError(f"{task.name}: {stances}, so it has no thresholds")
    settings = read_settings(evaluate) if evaluate is not None else None
    examples = read_calibration_set(
        directory.judgments_file, directory.stances_file, read_qrels({STANCE: stance}, task).stances, task, topic or ()
    )
    _warn_of_unused(examples)
    topics = list(dict.fromkeys(example.topic_id for example in examples.used))
    if out is not None:
        division = (task, _FOLDS if folds is None else folds, _SEED if seed is None else seed)
        report = cross_validate(examples.used, *division)
        shared = cross_validate(examples.shared, *division) if examples.shared else None
        write_thresholds(out, report.thresholds, report.topics, examples.prompt)
        _show_report(output, report, shared, examples, out)
    elif settings is not None:
        seen = [each for each in topics if each in settings.calibrated_on]
        if seen:
            raise UsageError(
                f"{evaluate}: its thresholds were fitted on {len(seen)} of the {len(topics)} judged topics: "
                f"{', '.join(seen)}; measure them on others with --topic, or fit on fewer topics (--out with --topic)"
            )
        _show_evaluation(output, examples, settings.thresholds, task, topics)


def _warn_of_unused(examples: CalibrationSet) -> None:
    warn = CommandProgress().warn
    if examples.without:
        warn(
            f"judged documents without probabilities in the run, not used: {len(examples.without):,} "
            f"(topic and document): {shorten(examples.without)}"
        )
    if examples.elsewhere:
        warn(f"judged documents that are not in the run, not used: {examples.elsewhere:,}")


def _show_report(
    output: Format, report: CrossValidation, shared: CrossValidation | None, examples: CalibrationSet, out: Path
) -> None:
    # Each document was labelled with its own fold's thresholds.
    parts: list[_Part] = [
        (f"fold {number}", examples.prompt, fold, fold.thresholds) for number, fold in enumerate(report.folds, start=1)
    ]
    parts.append(("all folds", examples.prompt, report, {}))
    if output is Format.TABLE:
        _show_folds(parts)
    else:
        parts += [("all folds", examples.shared_prompt, shared, {})] if shared is not None else []
        rows = (
            {"held_out": name, "prompt": prompt, "topics": len(of.topics), "topic_ids": " ".join(of.topics)}
            | _row(of.scores, thresholds, report.thresholds)
            | {"macro_f1_without": of.most_probable.macro_f1, "accuracy_without": of.most_probable.accuracy}
            for name, prompt, of, thresholds in parts
        )
        print_rows(output, rows)
    measure = "macro-F1 (F1 above)" if output is Format.TABLE else "macro_f1"
    say(output, f"held out, the value to quote: {measure} {_format_gain(report)}")
    if shared is not None:
        where = f"{shared.scores.documents:,} documents by the judge prompt (--stance-prompt shared)"
        say(output, f"the same {where}: {_format_gain(shared)}")
    if report.scores.macro_f1 <= report.most_probable.macro_f1:
        say(output, "the thresholds do not help on held-out topics; leave them out")
    fitted = _format_thresholds(report.thresholds)
    say(output, f"thresholds fitted on all {len(report.topics)} topics, for other topics: {fitted}")
    say(output, f"written to {out}; use it with --thresholds, measure it on other topics with --evaluate")


def _format_gain(report: CrossValidation) -> str:
    without = report.most_probable.macro_f1
    return f"{report.scores.macro_f1:.4f} with thresholds, {without:.4f} with the most probable label"


def _show_folds(parts: Sequence[_Part]) -> None:
    columns = [Column("held out", is_text=True), Column("topics", drop=1), Column("documents", drop=2)]
    columns += [Column("thresholds of the others", drop=3, is_text=True)]
    columns += map(Column, ("F1", "accuracy", "F1 without", "accuracy without"))
    *folds, pooled = (
        (name, str(len(of.topics)), f"{of.scores.documents:,}", _format_thresholds(thresholds))
        + (*_format_scores(of.scores), *_format_scores(of.most_probable))
        for name, _, of, thresholds in parts
    )
    show_table(columns, [*folds, (), pooled])


def _show_evaluation(
    output: Format, examples: CalibrationSet, thresholds: Mapping[str, float], task: Task, topics: list[str]
) -> None:
    ways: tuple[tuple[str, Mapping[str, float]], ...] = (("thresholds", thresholds), ("most probable", {}))
    measured = [(name, given, measure_thresholds(examples.used, given, task)) for name, given in ways]
    if output is not Format.TABLE:
        rows = (
            {"labels": name, "topics": len(topics)} | _row(of, given, task.no_stances) for name, given, of in measured
        )
        print_rows(output, rows)
        return
    columns = (Column("labels", is_text=True), *map(Column, ("topics", "documents", "macro-F1", "accuracy")))
    cells = ((name, str(len(topics)), f"{of.documents:,}", *_format_scores(of)) for name, _, of in measured)
    show_table(columns, cells, title=f"thresholds: {_format_thresholds(thresholds) or 'none'}")


def _row(scores: LabelScores, thresholds: Mapping[str, float], labels: Iterable[str]) -> dict[str, Any]:
    """Return scores as columns, with the threshold of each label, None for a label without one."""
    found = {f"threshold_{label}": thresholds.get(label) for label in labels}
    return {"documents": scores.documents, **found, "macro_f1": scores.macro_f1, "accuracy": scores.accuracy}


def _format_scores(scores: LabelScores) -> tuple[str, str]:
    return f"{scores.macro_f1:.3f}", f"{scores.accuracy:.3f}"


def _format_thresholds(thresholds: Mapping[str, float]) -> str:
    return ", ".join(f"{label} {value:.3g}" for label, value in thresholds.items())
