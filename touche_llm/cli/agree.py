"""The command that measures how far judges agree with people."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from math import isnan
from pathlib import Path
from typing import Annotated

import typer

from touche_llm.cli import measured_runs as m
from touche_llm.cli import options as s
from touche_llm.cli import shared_options as o
from touche_llm.cli.judge_options import (
    JudgeTaskOption,
    ScaleOption,
    SkipBadLabelsOption,
    read_scale,
)
from touche_llm.cli.options import CommandProgress
from touche_llm.cli.output import (
    Column,
    Format,
    FormatOption,
    format_value,
    print_rows,
    show_lines,
    show_table,
)
from touche_llm.errors import UsageError
from touche_llm.evaluation.judges.agreement import Agreement, AgreementName
from touche_llm.evaluation.judges.differences import LEVEL, JudgeDifference
from touche_llm.evaluation.judges.study import AspectStudy, describe_findings
from touche_llm.evaluation.judges.systems import PairOutcome, SystemOrder
from touche_llm.evaluation.qrels import Qrels, read_qrels
from touche_llm.evaluation.significance import Estimate, compute_interval
from touche_llm.runs.judges import agree as agree_with_people
from touche_llm.runs.judges import find_judge_task
from touche_llm.tasks.task import Task

# Head of the column of a measure whose name is too long for one.
_HEADS = {AgreementName.QUADRATIC_KAPPA: "quadratic", AgreementName.AUC: "AUC of 1+"}
_OUTCOME_HEADS = {
    PairOutcome.BOTH: "both",
    PairOutcome.PEOPLE: "people's",
    PairOutcome.JUDGE: "judge's",
    PairOutcome.REVERSED: "reversed",
    PairOutcome.NEITHER: "neither",
}
# Up to so many judges have their tables of labels, probabilities and systems printed.
_MAX_DETAILED = 3
Row = dict[str, object]

JudgesArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="JUDGE",
        help="Folders of judged runs, or files of labels in qrels form, of this or any other program.",
    ),
]


@s.takes_settings("dataset")
@o.takes_qrels
def agree(
    given: s.GivenSettings,
    qrels_files: o.QrelsFiles,
    judges: JudgesArgument,
    task: JudgeTaskOption = None,
    systems: Annotated[
        list[Path] | None,
        typer.Option(
            "--systems",
            metavar="RUN",
            help="A run to rank by both grades, or a folder of run files; repeatable.",
            rich_help_panel="Input",
        ),
    ] = None,
    second: Annotated[
        list[str] | None,
        typer.Option(
            "--second",
            metavar="ASPECT=FILE",
            help="Qrels of other people, measured like a judge; repeatable.",
            rich_help_panel="Input",
        ),
    ] = None,
    scale: ScaleOption = None,
    skip_bad_labels: SkipBadLabelsOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Measure how far judges agree with people, and whether they rank systems as people do.

    Labels are the most probable ones; the mean error is that of the expected grade. Intervals are
    95 % intervals over topics, and p is that of a paired randomisation test over topics, corrected
    by Holm's method for the number of pairs. No model is needed.

    With --systems, pairs of systems that differ significantly by people's grades are looked for by
    the judge's. Notes are on standard error.
    """
    known = find_judge_task(task, judges)
    files = m.find_qrels_files(known, [], qrels_files, given.get("dataset"))
    if not files:
        options = ", ".join(o.format_qrels_option(aspect) for aspect in known.judged_aspects)
        raise UsageError(f"{options}: no qrels given; give one or more, or --dataset ID")
    study = agree_with_people(
        judges,
        read_qrels(files, known),
        known,
        systems=systems or (),
        second=_read_second(second or (), known),
        scale=read_scale(scale),
        skip_bad_labels=skip_bad_labels,
    )
    if output is Format.TABLE:
        for of_aspect in study.aspects:
            _show_aspect(of_aspect)
        show_lines(m.describe_qrels(files))
    else:
        print_rows(output, study.to_rows())
    sys.stdout.flush()
    for note in (*study.notes, *study.interval_notes):
        CommandProgress().warn(note)


def _read_second(texts: Sequence[str], task: Task) -> Qrels | None:
    """Read the qrels of other people; None if none are given."""
    if not texts:
        return None
    files: dict[str, Path] = {}
    for text in texts:
        aspect, is_pair, path = text.partition("=")
        if not is_pair or not path or aspect in files:
            raise UsageError(
                f"--second {text:.80}: must be ASPECT=FILE, as --second relevance=qrels2.txt, once for an aspect"
            )
        files[aspect] = Path(path)
    return read_qrels(files, task)


def _show_aspect(study: AspectStudy) -> None:
    """Print the tables of an aspect, then the findings."""
    _show_labels(study)
    if study.people.scale is not None:
        _show_order_of_documents(study.agreements)
    _show_errors(study.agreements)
    if len(study.agreements) <= _MAX_DETAILED:
        for agreement in study.agreements:
            _show_confusion(agreement)
            _show_probabilities(agreement)
    else:
        show_lines(
            [
                f"tables of labels and probabilities: of up to {_MAX_DETAILED} judges, or with --format json",
                "",
            ]
        )
    _show_differences(study)
    if study.orders:
        _show_orders(study.orders)
        _show_favours(study.orders)
    findings = describe_findings(study)
    if findings:
        show_lines(["findings", *(f"  {finding}" for finding in findings)])
        print()


def _describe_documents(agreements: Iterable[Agreement]) -> list[str]:
    """Return one line if all judges label as many documents, else a line for each number."""
    judges_by_text: dict[str, list[str]] = {}
    for agreement in agreements:
        text = f"{agreement.documents:,} documents of {len(agreement.topics)} topics"
        judges_by_text.setdefault(text, []).append(agreement.judge.name)
    if len(judges_by_text) == 1:
        return list(judges_by_text)
    most_common = max(judges_by_text, key=lambda text: len(judges_by_text[text]))
    others = [
        f"{', '.join(judges)}: {text}"
        for text, judges in judges_by_text.items()
        if text != most_common
    ]
    return [most_common, *others]


def _show_labels(study: AspectStudy) -> None:
    """Print the agreement of labels: kappa and its quadratic weighting, or macro-F1."""
    names = [AgreementName.KAPPA, AgreementName.QUADRATIC_KAPPA]
    if study.people.scale is None:
        names = [AgreementName.KAPPA, AgreementName.MACRO_F1]
    _show_estimates(
        study.agreements,
        names,
        title=f"{study.aspect}: the most probable label",
        below=_describe_documents(study.agreements),
    )


def _show_order_of_documents(agreements: Sequence[Agreement]) -> None:
    """Print how far the labels order documents as people's do."""
    names = [AgreementName.SPEARMAN, AgreementName.AUC]
    _show_estimates(
        agreements, names, title=f"{agreements[0].aspect}: order of documents", below=()
    )


def _show_estimates(
    agreements: Sequence[Agreement],
    names: Sequence[AgreementName],
    title: str,
    below: Iterable[str],
) -> None:
    """Print a row for each judge that has one of the measures, with its intervals."""
    columns = [Column("judge", is_text=True)]
    for name in names:
        columns.append(Column(_HEADS.get(name, str(name)), value=str(name), digits=3))
        columns.append(Column("95 % interval", value=f"{name} interval"))
    rows: list[Row] = []
    for agreement in agreements:
        row: Row = {"judge": agreement.judge.name}
        for name in names:
            estimate = agreement.estimates.get(name)
            row[str(name)] = None if estimate is None else estimate.value
            row[f"{name} interval"] = "" if estimate is None else _format_interval(estimate)
        rows.append(row)
    show_table(columns, rows, title=title, below=below)
    print()


def _format_interval(estimate: Estimate, sign: str = "", digits: int = 3) -> str:
    """Format the interval of an estimate."""
    low, high = compute_interval(estimate)
    return _format_range(low, high, sign=sign, digits=digits)


def _format_range(low: float, high: float, *, sign: str, digits: int) -> str:
    if isnan(low):
        return "–"
    return f"{low:{sign}.{digits}f} to {high:{sign}.{digits}f}"


def _show_errors(agreements: Sequence[Agreement]) -> None:
    """Print the mean error of each judge, over all documents and by people's grade."""
    comparable = [
        agreement for agreement in agreements if AgreementName.MEAN_ERROR in agreement.estimates
    ]
    if not comparable:
        return
    grades = sorted({grade for agreement in comparable for grade in agreement.error_by_grade})
    columns = [
        Column("judge", is_text=True),
        Column("error", sign="+", digits=2),
        Column("95 % interval", value="interval"),
    ]
    columns += [
        Column(f"at {grade}", sign="+", digits=2, drop=place + 1)
        for place, grade in enumerate(grades)
    ]
    rows: list[Row] = []
    for agreement in comparable:
        estimate = agreement.estimates[AgreementName.MEAN_ERROR]
        row: Row = {
            "judge": agreement.judge.name,
            "error": estimate.value,
            "interval": _format_interval(estimate, sign="+", digits=2),
        }
        for grade in grades:
            of_grade = agreement.error_by_grade.get(grade)
            row[f"at {grade}"] = None if of_grade is None else of_grade.value
        rows.append(row)
    show_table(
        columns,
        rows,
        title=f"{agreements[0].aspect}: mean error of the expected grade, at each grade of people",
        below=_describe_grades(comparable[0]),
    )
    print()


def _describe_grades(agreement: Agreement) -> list[str]:
    """Return the number of documents with each grade of people."""
    counts = [f"{estimate.n:,} at {grade}" for grade, estimate in agreement.error_by_grade.items()]
    return [f"documents by people's grade: {', '.join(counts)}"]


def _show_confusion(agreement: Agreement) -> None:
    """Print the number of documents by label of people and of the judge."""
    columns = [Column("people", is_text=True)]
    columns += [Column(label) for label in agreement.judge.categories]
    rows: list[Row] = []
    for place, label in enumerate(agreement.people.categories):
        counts = agreement.confusion[place].tolist()
        rows.append({"people": label, **dict(zip(agreement.judge.categories, counts, strict=True))})
    show_table(
        columns,
        rows,
        title=f"{agreement.aspect}: documents by label of people (rows) and of {agreement.judge.name}",
    )
    print()


def _show_probabilities(agreement: Agreement) -> None:
    """Print the Brier score with its parts, and the reliability table, if there are probabilities."""
    if agreement.probabilities is None:
        return
    brier = agreement.probabilities.brier
    parts = f"Brier score {brier.score:.4f} = reliability {brier.reliability:.4f} - resolution {brier.resolution:.4f}"
    rest = (
        f"+ uncertainty {brier.uncertainty:.4f} + within bins {brier.within_bins:.4f}, over "
        f"{agreement.probabilities.documents:,} documents"
    )
    rows = [
        {
            "probability": f"{bin_.low:.1f} to {bin_.high:.1f}",
            "labels": bin_.count,
            "mean": bin_.mean,
            "true": bin_.share,
        }
        for bin_ in agreement.probabilities.reliability
    ]
    columns = [
        Column("probability", is_text=True),
        Column("labels"),
        Column("mean", digits=3),
        Column("share true", value="true", digits=3),
    ]
    show_table(
        columns,
        rows,
        title=f"{agreement.aspect}: probabilities of {agreement.judge.name}",
        below=[parts, rest],
    )
    print()


def _show_differences(study: AspectStudy) -> None:
    """Print the pairs of judges that differ significantly, by measure."""
    by_measure: dict[AgreementName, list[JudgeDifference]] = {}
    for difference in study.differences:
        by_measure.setdefault(difference.measure, []).append(difference)
    columns = [
        Column("judge", is_text=True),
        Column("minus", is_text=True),
        Column("change", sign="+", digits=3),
        Column("95 % interval", value="interval"),
        Column("p Holm"),
    ]
    for measure, differences in by_measure.items():
        significant = [difference for difference in differences if difference.is_significant]
        rows = [
            {
                "judge": difference.judge,
                "minus": difference.other,
                "change": difference.difference,
                "interval": _format_range(difference.low, difference.high, sign="+", digits=3),
                "p Holm": difference.p_holm,
            }
            for difference in significant
        ]
        title = (
            f"{study.aspect}: {measure}: {len(significant)} of {len(differences)} pairs of judges differ "
            f"(p Holm below {LEVEL:g})"
        )
        first = differences[0]
        below = f"{first.documents:,} documents of {first.topics} topics that all judges label"
        if rows:
            show_table(columns, rows, title=title, below=[below])
        else:
            show_lines([title, f"  {below}"])
        print()


def _show_orders(orders: Sequence[SystemOrder]) -> None:
    """Print how far each judge orders the systems as people do."""
    first = orders[0]
    columns = [Column("judge", is_text=True), Column("tau", digits=3), Column("tau_ap", digits=3)]
    columns += [Column(head, value=outcome.name) for outcome, head in _OUTCOME_HEADS.items()]
    columns += [Column("documents", drop=2), Column("topics", drop=1)]
    rows: list[Row] = []
    for order in orders:
        row: Row = {
            "judge": order.judge,
            "tau": order.tau,
            "tau_ap": order.tau_ap,
            "documents": order.documents,
            "topics": order.topics,
        }
        for outcome in PairOutcome:
            row[outcome.name] = order.count_pairs(outcome)
        rows.append(row)
    show_table(
        columns,
        rows,
        title=f"{first.measure}: order of {len(first.by_people)} systems, and significant pairs of them",
        below=[
            f"tau and tau_ap have no interval: {first.topics} topics carry none",
            "people's, judge's: pairs that differ by the grades of one of them alone",
        ],
    )
    print()
    if len(orders) <= _MAX_DETAILED:
        _show_system_values(orders)


def _show_system_values(orders: Sequence[SystemOrder]) -> None:
    """Print the value of each system by people's grades and by each judge's."""
    for order in orders:
        rows = [
            {"system": name, "people": value, "judge": order.by_judge[name]}
            for name, value in sorted(order.by_people.items(), key=lambda item: -item[1])
        ]
        columns = [
            Column("system", is_text=True),
            Column("by people", value="people"),
            Column("by the judge", value="judge"),
        ]
        below = f"{order.documents:,} documents of {order.topics} topics that both grade"
        show_table(columns, rows, title=f"{order.measure}: {order.judge}", below=[below])
        print()


def _show_favours(orders: Sequence[SystemOrder]) -> None:
    """Print the errors of judges on each system's documents; of many judges only significant ones."""
    is_detailed = len(orders) <= _MAX_DETAILED
    rows: list[Row] = []
    for order in orders:
        for bias in order.biases:
            if not is_detailed and not bias.is_significant:
                continue
            row: Row = {
                "judge": order.judge,
                "system": bias.system,
                "own": bias.own_error,
                "others": bias.other_error,
                "difference": bias.difference,
                "interval": _format_range(bias.low, bias.high, sign="+", digits=2),
                "p Holm": format_value(bias.p_holm),
                "documents": bias.documents,
            }
            rows.append(row)
    if not rows:
        return
    columns = [
        Column("judge", is_text=True),
        Column("system", is_text=True),
        Column("own", sign="+", digits=2),
        Column("others", sign="+", digits=2),
        Column("change", value="difference", sign="+", digits=2),
        Column("95 % interval", value="interval", drop=2),
        Column("p Holm"),
        Column("documents", drop=1),
    ]
    cutoff = orders[0].measure.cutoff
    show_table(
        columns,
        rows,
        title=f"mean error on each system's first {cutoff} documents, and on the others'",
        below=["change: own minus others, among documents that people grade the same"],
    )
    print()
