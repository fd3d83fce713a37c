"""The page that compares prompts: documents by variants, disagreements first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import ClassVar

from touche_llm.data.measure import Measure
from touche_llm.data.records import Failure, Judgment, Label, Reading, Topic
from touche_llm.evaluation.agreement import round_grade
from touche_llm.evaluation.judges.labels import find_grade
from touche_llm.evaluation.qrels import STANCE, Qrels
from touche_llm.llm.answer_schema import get_labels
from touche_llm.prompt_lab.comparison import PromptComparison
from touche_llm.prompt_lab.sample import Sampled
from touche_llm.prompt_lab.variants import PartMeasures
from touche_llm.prompts.prompt import Prompt
from touche_llm.report.measures import Change, read_change
from touche_llm.report.page import LETTERS, Page, render
from touche_llm.runs.open_folder import describe_truncation
from touche_llm.tasks.parts import Scale
from touche_llm.tasks.task import Task

# Number of colours for grades above 0.
_HEAT = 5
_PART_TITLES = {"all": "All topics", "choice": "Selection topics", "hold-out": "Held-out topics"}


@dataclass(frozen=True, slots=True)
class VariantView:
    """A compared prompt.

    Attributes:
        index: Index of the variant on the page, which decides on its colour.
        letter: Letter that stands for the variant.
        name: Name or path that it was given by.
        prompt: Label of the prompt.
        examples: Number of its few-shot examples.
        is_best: Whether it is the best variant.
        wording_title: Title of its wording.
        wording: Text of the first variant; differences from it of another one.
    """

    index: int
    letter: str
    name: str
    prompt: str
    examples: int
    is_best: bool
    wording_title: str
    wording: str


@dataclass(frozen=True, slots=True)
class VariantMeasures:
    """Measures and costs of a variant on a part of the sample.

    Attributes:
        variant: The variant.
        values: Value of each measure of the part.
        off_label_mass: Mean probability outside the labels; None if it is unknown.
        failures: Number of documents without a usable answer.
        prompt_tokens: Tokens of all prompts, those of cached answers among them.
        requests: Number of requests that were sent.
        cached: Number of answers from the cache.
    """

    variant: VariantView
    values: list[float]
    off_label_mass: float | None
    failures: int
    prompt_tokens: int
    requests: int
    cached: int


@dataclass(frozen=True, slots=True)
class VariantChange:
    """Difference of a variant from the first one by a measure."""

    variant: VariantView
    change: Change


@dataclass(frozen=True, slots=True)
class MeasureChanges:
    """Differences of the other variants from the first one by one measure."""

    measure: Measure
    variants: list[VariantChange]


@dataclass(frozen=True, slots=True)
class PartView:
    """A part of the sample: the topics to choose on, the held-out ones, or all.

    Attributes:
        title: Title of the part.
        documents: Number of documents.
        topics: Number of topics.
        measures: Measures, nDCG@5 first.
        variants: Measures of each variant that judged the part.
        chance: Expected nDCG@5 of a random order.
        changes: Differences from the first variant, by measure.
    """

    title: str
    documents: int
    topics: int
    measures: list[Measure]
    variants: list[VariantMeasures]
    chance: float
    changes: list[MeasureChanges]


@dataclass(frozen=True, slots=True)
class GradeView:
    """A grade with its colour.

    Attributes:
        name: Name of the aspect.
        value: Grade.
        heat: Index of its colour, higher for a higher grade.
        is_hit: Whether the most probable grade is that of the assessors; None if they cannot be
            compared.
    """

    name: str
    value: float
    heat: int
    is_hit: bool | None


@dataclass(frozen=True, slots=True)
class Cell:
    """The judgment of a document by one variant.

    Attributes:
        grades: Grades; empty without a judgment.
        stance: Stance; empty without a judgment.
        is_stance_hit: Whether the stance equals that of the assessors.
        readings: Readings of the answer, by field.
        truncation: Sentence on how much of the document the model saw; empty if all.
        failure: Failed request, if there is no judgment; None if none was requested.
    """

    grades: list[GradeView]
    stance: str
    is_stance_hit: bool
    readings: Mapping[str, Reading]
    truncation: str
    failure: Failure | None


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """A document with its judgments.

    Attributes:
        topic: Topic of the document.
        document_id: Id of the document.
        text: Text of the document.
        assessments: Grades by assessors.
        label: Stance by assessors; empty if they gave none.
        cells: Judgment of each variant.
        differs: Fields in which the variants disagree.
        spread: Size of the disagreement.
        requested: Number of variants that judged the part.
        misses: Number of these whose first grade is not that of the assessors; 0 if both cannot be
            compared.
    """

    topic: Topic
    document_id: str
    text: str
    assessments: list[GradeView]
    label: str
    cells: list[Cell]
    differs: list[str]
    spread: float
    requested: int
    misses: int

    @property
    def is_judged(self) -> bool:
        """Whether a variant has an answer about the document."""
        return any(cell.grades for cell in self.cells)


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Documents below one title."""

    title: str
    rows: list[MatrixRow]


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixPage(Page):
    """The page of a comparison of prompts.

    Attributes:
        model: Model that judged.
        variants: Compared prompts; the others are compared with the first.
        topics: Sampled topics.
        judged_by: Qrels files by aspect.
        verdict: Sentence on the best variant.
        parts: Parts of the sample with their measures.
        groups: Documents, those that the variants disagree about first.
        fields: Fields of an answer.
        aspect: Aspect that the sample was drawn by.
        failures: Number of failed requests, by kind.
    """

    template: ClassVar[str] = "matrix"

    model: str
    variants: list[VariantView]
    topics: list[Topic]
    judged_by: Mapping[str, Path]
    verdict: str
    parts: list[PartView]
    groups: list[RowGroup]
    fields: list[str]
    aspect: str
    failures: dict[str, int]

    @property
    def documents(self) -> int:
        """Number of all documents."""
        return sum(len(group.rows) for group in self.groups)


@dataclass(frozen=True, slots=True)
class _Disagreement:
    """Fields in which variants disagree about a document, and by how much."""

    fields: list[str]
    spread: float


def render_matrix(comparison: PromptComparison, qrels: Qrels, judged_by: Mapping[str, Path]) -> str:
    """Render the page that compares prompts.

    Args:
        comparison: Judged and measured variants.
        qrels: Judgments by assessors.
        judged_by: Qrels files by aspect.
    """
    variants = _view_variants(comparison)
    rows = build_rows(comparison, qrels)
    # The sample is drawn by the grades of the first aspect.
    sampled_aspect = next(iter(qrels.grades))
    failures = Counter(failure.kind for failure in comparison.all_failures())
    page = MatrixPage(
        task=comparison.task,
        notes=list(comparison.notes),
        model=comparison.model,
        variants=variants,
        topics=list(comparison.topics),
        judged_by=judged_by,
        verdict=comparison.verdict.sentence,
        parts=[_view_part(part, comparison, variants) for part in comparison.parts],
        groups=_group_rows(rows),
        fields=list(get_labels(comparison.task.question.answer)),
        aspect=sampled_aspect,
        failures=dict(failures),
    )
    return render(page)


def _view_variants(comparison: PromptComparison) -> list[VariantView]:
    """Return the compared prompts: the wording of the first, and how the others differ from it."""
    first_wording = _format_prompt(comparison.variants[0].prompt)

    views: list[VariantView] = []
    for index, variant in enumerate(comparison.variants):
        if index == 0:
            wording_title = "text"
            wording = first_wording
        else:
            wording_title = f"differences from {LETTERS[0]}"
            wording = _format_changes(first_wording, _format_prompt(variant.prompt))
        view = VariantView(
            index=index,
            letter=LETTERS[index],
            name=variant.name,
            prompt=variant.prompt.label,
            examples=len(variant.prompt.examples),
            is_best=variant.name == comparison.verdict.winner,
            wording_title=wording_title,
            wording=wording,
        )
        views.append(view)
    return views


def _format_prompt(prompt: Prompt) -> str:
    """Return the text of a template, followed by the templates that it includes."""
    files = prompt.files
    texts = [files.text]
    for name, text in sorted(files.texts.items()):
        texts.append(f"== {name} ==\n{text}")
    return "\n".join(texts)


def _format_changes(baseline: str, text: str) -> str:
    """Return the differences of a wording from that of the first variant."""
    lines = list(unified_diff(baseline.splitlines(), text.splitlines(), lineterm=""))
    # The first two lines name files.
    return "\n".join(lines[2:]) or "no difference"


def _view_part(
    part: PartMeasures, comparison: PromptComparison, views: Sequence[VariantView]
) -> PartView:
    """Return a part of the sample with the measures of the variants that judged it.

    The first of these variants is the one that the others are compared with.
    """
    names = {variant.name for variant in comparison.variants_in(part)}
    judged = [view for view in views if view.name in names]
    others = judged[1:]
    return PartView(
        title=_PART_TITLES[part.name],
        documents=len(part.sample),
        topics=len(part.topics),
        measures=part.measures,
        variants=[_view_measures(part, comparison, view) for view in judged],
        chance=part.chance,
        changes=_list_changes(part, others),
    )


def _view_measures(
    part: PartMeasures, comparison: PromptComparison, view: VariantView
) -> VariantMeasures:
    """Return the measures and costs of a variant on a part of the sample."""
    estimates = part.estimates[view.name]
    judged = comparison.judged[part.name, view.name]
    counts = judged.counts
    return VariantMeasures(
        variant=view,
        values=[estimates[measure].value for measure in part.measures],
        off_label_mass=part.off_label_mass[view.name],
        failures=len(judged.failures),
        prompt_tokens=counts.prompt_tokens + counts.cached_prompt_tokens,
        requests=counts.requests,
        cached=counts.cache_hits,
    )


def _list_changes(part: PartMeasures, others: Sequence[VariantView]) -> list[MeasureChanges]:
    """Return the differences of the other variants from the first one, by measure."""
    changes: list[MeasureChanges] = []
    for measure in part.measures:
        by_variant: list[VariantChange] = []
        for view in others:
            change = read_change(part.differences[view.name, measure])
            by_variant.append(VariantChange(view, change))
        changes.append(MeasureChanges(measure, by_variant))
    return changes


def _group_rows(rows: Sequence[MatrixRow]) -> list[RowGroup]:
    """Group documents by whether the variants agree; those without any judgment are the last group."""
    judged = [row for row in rows if row.is_judged]
    failed = [row for row in rows if not row.is_judged]
    groups = [
        RowGroup("The variants differ", [row for row in judged if row.differs]),
        RowGroup("The variants agree", [row for row in judged if not row.differs]),
    ]
    if failed:
        groups.append(RowGroup("No variant has an answer", failed))
    return groups


def build_rows(comparison: PromptComparison, qrels: Qrels) -> list[MatrixRow]:
    """Return a row for each judged document, ordered by disagreement, largest first."""
    rows: list[MatrixRow] = []
    for part in comparison.parts:
        rows += [_build_row(part, sampled, comparison, qrels) for sampled in part.sample]
    return sorted(rows, key=lambda row: -row.spread)


def _build_row(
    part: PartMeasures, sampled: Sampled, comparison: PromptComparison, qrels: Qrels
) -> MatrixRow:
    """Return the row of a document, with the judgments of all variants.

    Args:
        part: Part of the sample.
        sampled: Document of the part.
        comparison: Judged variants.
        qrels: Judgments by assessors.
    """
    judgments = _find_judgments(part, sampled, comparison)
    cells = _build_cells(part, sampled, judgments, comparison, qrels)
    disagreement = _measure_disagreement(list(judgments.values()), comparison.task)
    return MatrixRow(
        topic=_find_topic(sampled.topic_id, comparison),
        document_id=sampled.document_id,
        text=comparison.texts.get(sampled.document_id, ""),
        assessments=_list_assessments(sampled, qrels),
        label=_find_label(sampled, qrels) or "",
        cells=cells,
        differs=disagreement.fields,
        spread=disagreement.spread,
        requested=len(judgments),
        misses=_count_misses(cells, len(judgments), comparison.task, qrels),
    )


def _build_cells(
    part: PartMeasures,
    sampled: Sampled,
    judgments: Mapping[str, Judgment | None],
    comparison: PromptComparison,
    qrels: Qrels,
) -> list[Cell]:
    """Return the judgment of a document by each variant, or why there is none.

    Args:
        part: Part of the sample.
        sampled: Document of the part.
        judgments: Judgments of the document, by variant.
        comparison: Judged variants.
        qrels: Judgments by assessors.
    """
    cells: list[Cell] = []
    for variant in comparison.variants:
        judgment = judgments.get(variant.name)
        if judgment is None:
            failure = _find_failure(part, sampled, variant.name, comparison)
            cells.append(_build_empty_cell(failure))
        else:
            cells.append(_build_cell(sampled, judgment, qrels, comparison.task))
    return cells


def _find_topic(topic_id: str, comparison: PromptComparison) -> Topic:
    """Return a sampled topic."""
    return next(topic for topic in comparison.topics if topic.id == topic_id)


def _count_misses(cells: Iterable[Cell], requested: int, task: Task, qrels: Qrels) -> int:
    """Count the variants that do not give a document the grade of the assessors.

    The grade is that of the prompt's first aspect with qrels. A variant without an answer is a
    miss.

    Args:
        cells: Cells of the document, by variant.
        requested: Number of variants that were requested to judge the document.
        task: Task of the prompts.
        qrels: Judgments by assessors.

    Returns:
        Number of variants; 0 if grades of the prompt cannot be compared with those of assessors.
    """
    aspect = next(name for name in task.question.grades if name in qrels.grades)
    if task.qrels_mapping_of(aspect) is None:
        return 0
    hits = sum(_is_hit(cell, aspect) for cell in cells)
    return requested - hits


def _find_judgments(
    part: PartMeasures, sampled: Sampled, comparison: PromptComparison
) -> dict[str, Judgment | None]:
    """Return the judgment of a document by each variant that judged its part; None if it failed."""
    key = (sampled.topic_id, sampled.document_id)
    judgments: dict[str, Judgment | None] = {}
    for variant in comparison.variants_in(part):
        judged = comparison.judged[part.name, variant.name]
        judgments[variant.name] = judged.judgments.get(key)
    return judgments


def _find_failure(
    part: PartMeasures, sampled: Sampled, variant: str, comparison: PromptComparison
) -> Failure | None:
    """Return the last failed request of a variant about a document; None if there is none."""
    judged = comparison.judged.get((part.name, variant))
    if judged is None:
        return None

    for failure in reversed(judged.failures):
        is_of_topic = failure.topic_id == sampled.topic_id
        if is_of_topic and failure.document_id == sampled.document_id:
            return failure
    return None


def _build_cell(sampled: Sampled, judgment: Judgment, qrels: Qrels, task: Task) -> Cell:
    """Return the judgment of a document by a variant, marked where the assessors agree."""
    assessed_grades: dict[str, int] = {}
    for assessment in _list_assessments(sampled, qrels):
        assessed_grades[assessment.name] = round_grade(assessment.value)

    grades: list[GradeView] = []
    for name, value in judgment.grades.items():
        assessed_grade = assessed_grades.get(name)
        # None if grades of the prompt cannot be compared with those of assessors.
        is_hit = _has_same_grade(judgment, name, task, assessed_grade)
        grades.append(_make_grade(name, value, task.aspects[name], is_hit=is_hit))
    return Cell(
        grades=grades,
        stance=judgment.stance,
        is_stance_hit=judgment.stance == _find_label(sampled, qrels),
        readings=judgment.readings,
        truncation=describe_truncation(judgment),
        failure=None,
    )


def _has_same_grade(
    judgment: Judgment, aspect: str, task: Task, assessment: int | None
) -> bool | None:
    """Return whether the most probable grade is that of the assessors.

    None if the task's scales differ and it maps neither to the other.
    """
    if task.qrels_mapping_of(aspect) is None:
        return None
    return find_grade(judgment, aspect, task) == assessment


def _build_empty_cell(failure: Failure | None) -> Cell:
    """Return the cell of a variant that has no judgment of a document."""
    return Cell(
        grades=[],
        stance="",
        is_stance_hit=False,
        readings={},
        truncation="",
        failure=failure,
    )


def _is_hit(cell: Cell, aspect: str) -> bool:
    """Return whether a variant's grade of an aspect is that of the assessors."""
    return any(grade.is_hit for grade in cell.grades if grade.name == aspect)


def _find_label(sampled: Sampled, qrels: Qrels) -> str | None:
    """Return the stance of a document by assessors; None if they gave none."""
    return qrels.stances.get(sampled.topic_id, {}).get(sampled.document_id)


def _list_assessments(sampled: Sampled, qrels: Qrels) -> list[GradeView]:
    """Return the grades of a document by assessors, in each aspect that they judged."""
    assessments: list[GradeView] = []
    for aspect, grades in qrels.grades.items():
        value = grades.get(sampled.topic_id, {}).get(sampled.document_id)
        if value is not None:
            # Only a variant's grade can be a hit: one that equals the grade of the assessors.
            grade = _make_grade(aspect, value, qrels.scales[aspect], is_hit=False)
            assessments.append(grade)
    return assessments


def _make_grade(name: str, value: float, scale: Scale, *, is_hit: bool | None) -> GradeView:
    """Return a grade with the index of its colour, 0 for a grade of 0 and below."""
    share_of_scale = max(scale.to_share(value), 0.0)
    heat = round(share_of_scale * _HEAT)
    return GradeView(name=name, value=value, heat=heat, is_hit=is_hit)


def _measure_disagreement(judgments: Sequence[Judgment | None], task: Task) -> _Disagreement:
    """Return the fields in which variants disagree about a document, and by how much.

    The spread is the largest difference of two grades of the same aspect, plus 1 if stances differ.
    A variant without a judgment disagrees in all fields, and adds the highest grade of the task.

    Args:
        judgments: Judgment of the document by each variant; None if the variant failed.
        task: Task of the judgments.
    """
    judged = [judgment for judgment in judgments if judgment is not None]
    if not judged:
        return _Disagreement(fields=[], spread=0.0)

    aspects = list(judged[0].grades)
    grade_spread = max((_measure_spread(judged, aspect) for aspect in aspects), default=0.0)
    is_missing = len(judged) < len(judgments)
    if is_missing:
        highest_grade = max(scale.highest for scale in task.aspects.values())
        return _Disagreement(fields=[*aspects, STANCE], spread=grade_spread + 1 + highest_grade)

    fields = [aspect for aspect in aspects if _have_different_grades(judged, aspect)]
    spread = grade_spread
    if _differ(judgment.stance for judgment in judged):
        fields.append(STANCE)
        spread += 1
    return _Disagreement(fields, spread)


def _measure_spread(judgments: Iterable[Judgment], aspect: str) -> float:
    """Return the highest grade of an aspect minus the lowest one."""
    grades = [judgment.grades[aspect] for judgment in judgments]
    return max(grades) - min(grades)


def _have_different_grades(judgments: Iterable[Judgment], aspect: str) -> bool:
    """Return whether grades of an aspect differ when they are rounded."""
    return _differ(round_grade(judgment.grades[aspect]) for judgment in judgments)


def _differ(values: Iterable[Label]) -> bool:
    """Return whether there are two different values."""
    return len(set(values)) > 1
