"""The command that fits the stance thresholds on judged data, and measures them on other topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from touche_llm.cli import options as o
from touche_llm.cli.output import Format, FormatOption, plain, print_rows, say, show_table
from touche_llm.config import load_config
from touche_llm.data.files import check_output
from touche_llm.errors import DataError, UsageError, shorten
from touche_llm.evaluation.calibration import (
    CalibrationSet,
    CrossValidation,
    LabelScores,
    cross_validate,
    measure_thresholds,
    read_calibration_set,
)
from touche_llm.evaluation.qrels import read_stances
from touche_llm.judging.stance import read_settings, write_thresholds
from touche_llm.pipeline.progress import ConsoleProgress
from touche_llm.pipeline.run_files import CONFIG, JUDGMENTS, STANCES
from touche_llm.pipeline.run_folder import check_finished
from touche_llm.tasks import get_task
from touche_llm.tasks.base import Task

_FOLDS = 5
_SEED = 0


def calibrate(
    run: Annotated[Path, typer.Option("--run", help="The folder of a run that was judged with log-probabilities.")],
    stance: Annotated[Path, typer.Option("--stance", help="The stance qrels: qid 0 doc LABEL.")],
    out: Annotated[Path | None, typer.Option("--out", help="The YAML file to write, for --config of a run.")] = None,
    evaluate: Annotated[
        Path | None, typer.Option("--evaluate", help="Fit nothing: measure the thresholds of this file.")
    ] = None,
    topic: Annotated[list[str] | None, typer.Option("--topic", help="Use only this topic; can be repeated.")] = None,
    folds: Annotated[
        int | None, typer.Option("--folds", min=2, help=f"Parts that the topics are dealt to (default: {_FOLDS}).")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help=f"Seed of the dealing (default: {_SEED}).")] = None,
    overwrite: o.OverwriteOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Fit the thresholds of the labels that take no side, by cross-validation over topics; or measure such thresholds.

    The figure to quote is the held-out one: no document is labelled with thresholds that its own topic helped to fit.
    `--evaluate` refuses topics that the thresholds were fitted on.
    """
    if (out is None) is (evaluate is None):
        raise UsageError("give either --out FILE, to fit thresholds, or --evaluate FILE, to measure those of a file")
    if evaluate is not None and (folds is not None or seed is not None):
        raise UsageError("--folds and --seed say how to fit; --evaluate fits nothing")
    if out is not None:
        check_output(out, overwrite, [stance])
    if not (run / CONFIG).exists():
        raise DataError(f"{run / CONFIG}: not there; give the folder of a run with --run")
    check_finished(run, "judge")
    task = get_task(load_config(run / CONFIG, {}).task)
    if not task.no_stances:
        raise UsageError(f"{task.name}: all its stances take a side, so there is no threshold to fit or measure")
    settings = read_settings(evaluate) if evaluate is not None else None
    examples = read_calibration_set(run / JUDGMENTS, run / STANCES, read_stances(stance, task), task, topic or ())
    _tell_unused(examples)
    topics = list(dict.fromkeys(example.topic_id for example in examples.used))
    if out is not None:
        report = cross_validate(
            examples.used, task, _FOLDS if folds is None else folds, _SEED if seed is None else seed
        )
        write_thresholds(out, report.thresholds, report.topics, examples.prompt)
        _show_report(output, report, out)
    elif settings is not None:
        seen = [each for each in topics if each in settings.calibrated_on]
        if seen:
            raise UsageError(
                f"{evaluate}: its thresholds were fitted on {len(seen)} of the {len(topics)} judged topics: "
                f"{', '.join(seen)}; measure them on others with --topic, or fit on fewer topics (--out with --topic)"
            )
        _show_evaluation(output, examples, settings.thresholds, task, topics)


def _tell_unused(examples: CalibrationSet) -> None:
    warn = ConsoleProgress().warn
    if examples.without:
        warn(
            f"not used, since the run has no probabilities of them: {len(examples.without):,} of the judged documents "
            f"(topic and document): {shorten(examples.without)}"
        )
    if examples.elsewhere:
        warn(f"not used, since they are not in the run: {examples.elsewhere:,} of the judged documents")


def _show_report(output: Format, report: CrossValidation, out: Path) -> None:
    if output is Format.TABLE:
        _show_folds(report)
    else:
        labels = report.thresholds
        rows = [
            {"held_out": f"fold {number}", "topics": len(fold.topics), "topic_ids": " ".join(fold.topics)}
            | _row(fold.scores, fold.thresholds, labels)
            | _without(fold.most_probable)
            for number, fold in enumerate(report.folds, start=1)
        ]
        # Each document was labelled with its own fold's thresholds.
        pooled = {"held_out": "all folds", "topics": len(report.topics), "topic_ids": " ".join(report.topics)}
        rows.append(pooled | _row(report.scores, {}, labels) | _without(report.most_probable))
        print_rows(output, rows)
    with_thresholds, without = report.scores.macro_f1, report.most_probable.macro_f1
    figure = "macro-F1 (F1 above)" if output is Format.TABLE else "macro_f1"
    figures = f"{with_thresholds:.4f} with thresholds, {without:.4f} with the most probable label"
    say(output, f"the figure to quote is held out: {figure} {figures}")
    if with_thresholds <= without:
        say(output, "the thresholds do not help on topics that took no part: better leave them out")
    fitted = _spelled(report.thresholds)
    say(output, f"thresholds fitted on all {len(report.topics)} topics, to be used on others: {fitted}")
    say(output, f"written to {out}; use it with --thresholds, measure it on other topics with --evaluate")


def _show_folds(report: CrossValidation) -> None:
    table = Table("held out", "topics", "docs", "thresholds of the others")
    for name in ("F1", "accuracy", "F1 without", "accuracy without"):
        table.add_column(name, justify="right")
    for number, fold in enumerate(report.folds, start=1):
        topics = f"{len(fold.topics)}: {shorten(list(fold.topics))}"
        cells = (f"fold {number}", topics, f"{fold.scores.documents:,}", _spelled(fold.thresholds))
        table.add_row(*(plain(cell) for cell in (*cells, *_figures(fold.scores), *_figures(fold.most_probable))))
    table.add_section()
    pooled = ("all folds together", str(len(report.topics)), f"{report.scores.documents:,}", "")
    table.add_row(*pooled, *_figures(report.scores), *_figures(report.most_probable))
    show_table(table)


def _show_evaluation(
    output: Format, examples: CalibrationSet, thresholds: Mapping[str, float], task: Task, topics: list[str]
) -> None:
    ways: tuple[tuple[str, Mapping[str, float]], ...] = (("thresholds", thresholds), ("most probable", {}))
    if output is not Format.TABLE:
        rows = [
            {"labels": name, "topics": len(topics)}
            | _row(measure_thresholds(examples.used, given, task), given, task.no_stances)
            for name, given in ways
        ]
        print_rows(output, rows)
        return
    table = Table("labels", "topics", "documents")
    for name in ("macro-F1", "accuracy"):
        table.add_column(name, justify="right")
    for name, given in ways:
        scores = measure_thresholds(examples.used, given, task)
        spelled = f"{name}: {_spelled(thresholds) or 'none'}" if name == "thresholds" else name
        table.add_row(plain(spelled), str(len(topics)), f"{scores.documents:,}", *_figures(scores))
    show_table(table)


def _row(scores: LabelScores, thresholds: Mapping[str, float], labels: Iterable[str]) -> dict[str, Any]:
    """LabelScores as columns, with the threshold of each of the labels, or None for a label that has none."""
    found = {f"threshold_{label}": thresholds.get(label) for label in labels}
    return {"documents": scores.documents, **found, "macro_f1": scores.macro_f1, "accuracy": scores.accuracy}


def _without(scores: LabelScores) -> dict[str, float]:
    """LabelScores of the most probable labels, as further columns."""
    return {"macro_f1_without": scores.macro_f1, "accuracy_without": scores.accuracy}


def _figures(scores: LabelScores) -> tuple[str, str]:
    return f"{scores.macro_f1:.3f}", f"{scores.accuracy:.3f}"


def _spelled(thresholds: Mapping[str, float]) -> str:
    return ", ".join(f"{label} {value:.3g}" for label, value in thresholds.items())
