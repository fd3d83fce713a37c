"""The section of a run's page on how far its judge agrees with the assessors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from touche_llm.data.records import Judgment
from touche_llm.evaluation.judges.agreement import Agreement, list_common_documents
from touche_llm.evaluation.judges.labels import (
    LabelSet,
    take_judgment_labels,
    take_people_labels,
)
from touche_llm.evaluation.judges.study import JudgeStudy, describe_findings, study_judges
from touche_llm.evaluation.qrels import Qrels
from touche_llm.evaluation.significance import Estimate, compute_interval
from touche_llm.report.measures import Interval
from touche_llm.tasks.task import Task

_JUDGE = "The judge"


@dataclass(frozen=True, slots=True)
class AgreementFigure:
    """A figure of the agreement.

    Attributes:
        name: What is measured.
        value: Value over the documents.
        interval: 95 % interval over topics.
        documents: Number of documents.
        topics: Number of topics.
    """

    name: str
    value: float
    interval: Interval
    documents: int
    topics: int


@dataclass(frozen=True, slots=True)
class AgreementTable:
    """Agreement of a run's judge with the assessors in one aspect.

    Attributes:
        aspect: Judged aspect.
        figures: Measures of agreement, then the mean error by the assessors' grade.
        people_labels: Labels of the assessors, the rows of the table.
        judge_labels: Labels of the judge, its columns.
        rows: Number of documents with each pair of labels.
        is_comparable: Whether both have the same labels.
    """

    aspect: str
    figures: list[AgreementFigure]
    people_labels: tuple[str, ...]
    judge_labels: tuple[str, ...]
    rows: list[list[int]]
    is_comparable: bool


@dataclass(frozen=True, slots=True)
class AgreementSection:
    """Agreement of a run's judge with the assessors.

    Attributes:
        tables: Tables by aspect.
        notes: Findings, and what readers should know about the labels.
    """

    tables: list[AgreementTable]
    notes: list[str]


def describe_agreement(
    judgments: Iterable[Judgment], qrels: Qrels, task: Task
) -> AgreementSection | None:
    """Describe how far judgments agree with qrels; None if they have no document in common."""
    study = study_judgments(list(judgments), qrels, task)
    if not study.aspects:
        return None

    tables: list[AgreementTable] = []
    findings: list[str] = []
    for aspect in study.aspects:
        tables += [_tabulate(agreement) for agreement in aspect.agreements]
        findings += describe_findings(aspect)
    return AgreementSection(tables, [*findings, *study.notes])


def study_judgments(judgments: list[Judgment], qrels: Qrels, task: Task) -> JudgeStudy:
    """Study judgments in the aspects in which the assessors judged one of their documents."""
    people: list[LabelSet] = []
    judges: list[LabelSet] = []
    for aspect in qrels.aspects:
        of_people = take_people_labels(qrels, aspect)
        of_judge = take_judgment_labels(judgments, aspect, task, _JUDGE)
        if list_common_documents(of_people, [of_judge]):
            people.append(of_people)
            judges.append(of_judge)
    return study_judges(people, judges, systems={}, measures={})


def _tabulate(agreement: Agreement) -> AgreementTable:
    """Return the figures and the table of labels of one aspect."""
    figures = [_make_figure(name, estimate) for name, estimate in agreement.estimates.items()]
    for grade, estimate in agreement.error_by_grade.items():
        figures.append(_make_figure(f"mean error at grade {grade}", estimate))
    return AgreementTable(
        aspect=agreement.aspect,
        figures=figures,
        people_labels=agreement.people.categories,
        judge_labels=agreement.judge.categories,
        rows=agreement.confusion.tolist(),
        is_comparable=agreement.has_same_scale,
    )


def _make_figure(name: str, estimate: Estimate) -> AgreementFigure:
    """Return an estimate as a figure of the page, with its interval."""
    low, high = compute_interval(estimate)
    return AgreementFigure(
        name=str(name),
        value=estimate.value,
        interval=Interval(low, high),
        documents=estimate.n,
        topics=len(estimate.topics),
    )
