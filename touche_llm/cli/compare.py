"""The command that fits stance thresholds on judged data, and measures them on other topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from touche_llm.cli import measured_runs as m
from touche_llm.cli import options as o
from touche_llm.cli import setting_options as s
from touche_llm.cli.emit import (
    Column,
    Format,
    FormatOption,
    emit,
    format_interval,
    format_value,
    print_rows,
    say,
    show_lines,
)
from touche_llm.cli.setting_options import CommandProgress
from touche_llm.data.io import check_output
from touche_llm.errors import UsageError, shorten
from touche_llm.evaluation.calibration import (
    CalibrationSet,
    CrossValidation,
    LabelScores,
    cross_validate,
    measure_thresholds,
    read_calibration_set,
)
from touche_llm.evaluation.qrels import STANCE, read_qrels
from touche_llm.evaluation.significance import describe_missing_intervals
from touche_llm.judging.labels import read_thresholds, write_thresholds
from touche_llm.pipeline.run import find_run_file, find_task
from touche_llm.pipeline.run_directory import RunDirectory
from touche_llm.prompt_lab.holdout import record_evaluations
from touche_llm.tasks import get_task
from touche_llm.tasks.task import Task

if TYPE_CHECKING:
    from touche_llm.evaluation.measures import Evaluation


@s.takes_settings("dataset")
@o.takes_qrels
def compare(
    given: s.GivenSettings,
    qrels_files: o.QrelsFiles,
    runs: m.RunsArgument,
    baseline: Annotated[
        Path | None,
        typer.Option(
            "--baseline", metavar="RUN", help="The run that the others are compared with (default: the first)."
        ),
    ] = None,
    task: m.TaskOption = None,
    output: FormatOption = Format.TABLE,
    depth: m.DepthOption = None,
    run_topics: m.RunTopicsOption = False,
    html: Annotated[
        Path | None,
        typer.Option("--html", help="Write a page as well, with 2 to 8 runs side by side (report.html, say)."),
    ] = None,
    top: Annotated[
        int, typer.Option("--top", min=1, help="With --html: number of documents of each run and topic.")
    ] = 20,
    overwrite: o.OverwriteOption = False,
) -> None:
    """Compare runs with the first: differences, intervals and tests.

    The table has 95 % intervals, and the topics won, tied and lost. p is that of a two-sided paired randomisation test
    over topics; p Holm is corrected for the number of runs compared with the baseline, measure by measure.

    Only topics that --limit-topics or --topic left in all runs count; one of these that a run lacks counts 0.

    Without qrels, those of the last evaluation or the runs' dataset are used. Stances are compared over the documents
    that both runs label (@5: over the first 5 of each). Notes on standard error are those of `evaluate`.
    """
    from touche_llm.evaluation.measures import compare_runs

    baseline = baseline or runs[0]
    if baseline not in runs:
        runs = [baseline, *runs]
    if len(runs) < 2:
        raise UsageError(f"{baseline} alone cannot be compared; name another run")
    known = find_task(task, runs, given.get("dataset"))
    files, qrels = m.require_qrels(known, runs, qrels_files, given.get("dataset"))
    measured = m.given_runs(runs, qrels, known)
    kept = [each for each in measured if not each.first_stage]
    if html is not None:
        from touche_llm.report.page import write_page
        from touche_llm.report.run_comparison import NamedRun, check_runs, gather_comparison, render_comparison

        inputs = (*map(find_run_file, runs), *files.values())
        check_output(html, overwrite, inputs)
        sides = [NamedRun(each.name, each.run, each.folder) for each in kept]
        check_runs(sides, known)
    qrels = m.select_common_topics(qrels, kept, shared=run_topics)
    evaluations = m.evaluate_runs(kept, qrels, depth or m.find_recall_depth(measured))
    record_evaluations((each.folder for each in kept), qrels, CommandProgress().warn)
    number = runs.index(baseline)
    frame, remarks = compare_runs(evaluations[number], [*evaluations[:number], *evaluations[number + 1 :]])
    notes = [*m.list_fitted(kept, qrels), *remarks]
    page = ""
    if html is not None:
        found = gather_comparison(sides, known, files, evaluations, frame, notes, top)
        size = write_page(render_comparison(found), html)
        page = f"page: {html} ({len(found.topics):,} topics, {size:,} bytes)"
    rows = frame.to_dict("records")
    if output is Format.TABLE:
        _show(rows, evaluations)
        show_lines(m.describe_qrels(files))
    else:
        print_rows(output, m.add_qrels(rows, files))
    m.print_notes(qrels, evaluations, kept, *notes, *describe_missing_intervals(rows))
    if page:
        say(output, page)


_COMPARED = (
    m.MEASURE,
    m.RUN_COLUMN,
    Column("value", drop=2),
    Column("baseline", drop=3, value="baseline_value"),
    Column("change", value="difference", sign="+"),
    Column("95 % interval", value=partial(format_interval, sign="+")),
    Column("p Holm", value="p_holm"),
    Column("+/=/-", drop=1, value=lambda row: f"{row['wins']}/{row['ties']}/{row['losses']}"),
    Column(
        "judged@k",
        drop=4,
        value=lambda row: f"{format_value(row['judged'], digits=3)}/{format_value(row['baseline_judged'], digits=3)}",
    ),
)


def _show(rows: Sequence[Mapping[str, Any]], evaluations: Sequence[Evaluation]) -> None:
    m.show_aspects(rows, _COMPARED, evaluations, f", change from the baseline {rows[0]['baseline']}")
    show_lines(
        (
            "value, baseline: over the topics that both runs have; for stances over the documents that both label, "
            "but for @5 over the first 5 of each",
            "p Holm: paired randomisation test, corrected for the number of runs; --format json has the uncorrected p",
            "+/=/-: topics in which the run is better than the baseline, equal, and worse",
            f"{m.JUDGED_LEGEND}; of the run and of the baseline",
        )
    )


_FOLDS, _SEED = 5, 0
# Begins the columns of thresholds, before their label.
_THRESHOLD = "threshold_"
_FOLD_COLUMNS = (
    Column("held out", is_text=True, value="held_out"),
    Column("prompt", drop=4, is_text=True),
    Column("topics", drop=1),
    Column("documents", drop=2),
    Column("F1", value="macro_f1", digits=3),
    Column("accuracy", digits=3),
    Column("F1 without", value="macro_f1_without", digits=3),
    Column("accuracy without", value="accuracy_without", digits=3),
)


def _list_threshold_columns(labels: Iterable[str]) -> list[Column]:
    return [Column(f"above {label}", drop=3, value=f"{_THRESHOLD}{label}", digits=3) for label in labels]


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

    Thresholds are fitted by cross-validation over topics.

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
    settings = read_thresholds(evaluate) if evaluate is not None else None
    examples = read_calibration_set(
        directory.judgments_file, directory.stances_file, read_qrels({STANCE: stance}, task).stances, task, topic or ()
    )
    _warn_of_unused(examples)
    topics = list(dict.fromkeys(example.topic_id for example in examples.used))
    if out is not None:
        division = (task, _FOLDS if folds is None else folds, _SEED if seed is None else seed)
        report = cross_validate(examples.used, *division)
        write_thresholds(out, report.thresholds, [*report.topics], examples.prompt)
        _show_report(output, report, examples.prompt, out)
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


def _show_report(output: Format, report: CrossValidation, prompt: str, out: Path) -> None:
    def make_row(name: str, of: CrossValidation, thresholds: Mapping[str, float]) -> dict[str, Any]:
        return (
            {"held_out": name, "prompt": prompt, "topics": len(of.topics), "topic_ids": " ".join(of.topics)}
            | _make_row(of.scores, thresholds, report.thresholds)
            | {"macro_f1_without": of.most_probable.macro_f1, "accuracy_without": of.most_probable.accuracy}
        )

    # Each document was labelled with its own fold's thresholds.
    rows = [make_row(f"fold {n}", fold, fold.thresholds) for n, fold in enumerate(report.folds, 1)]
    rows.append(make_row("all folds", report, {}))
    emit(output, rows, [*_FOLD_COLUMNS, *_list_threshold_columns(report.thresholds)])
    if report.scores.macro_f1 <= report.most_probable.macro_f1:
        say(output, "the thresholds do not help on held-out topics; leave them out")
    fitted = ", ".join(f"{label} {value:.3g}" for label, value in report.thresholds.items())
    say(output, f"thresholds fitted on all {len(report.topics)} topics, for other topics, in {out}: {fitted}")


def _show_evaluation(
    output: Format, examples: CalibrationSet, thresholds: Mapping[str, float], task: Task, topics: list[str]
) -> None:
    ways: tuple[tuple[str, Mapping[str, float]], ...] = (("thresholds", thresholds), ("most probable", {}))
    rows = [
        {"labels": name, "topics": len(topics)}
        | _make_row(measure_thresholds(examples.used, given, task), given, task.no_stances)
        for name, given in ways
    ]
    columns = [Column("labels", is_text=True), Column("topics"), Column("documents")]
    columns += [Column("macro-F1", value="macro_f1", digits=3), Column("accuracy", digits=3)]
    emit(output, rows, [*columns, *_list_threshold_columns(task.no_stances)])


def _make_row(scores: LabelScores, thresholds: Mapping[str, float], labels: Iterable[str]) -> dict[str, Any]:
    found = {f"{_THRESHOLD}{label}": thresholds.get(label) for label in labels}
    return {"documents": scores.documents, **found, "macro_f1": scores.macro_f1, "accuracy": scores.accuracy}
