"""The HTML page that compares prompts: documents by prompt variants, disagreements first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from difflib import unified_diff
from pathlib import Path
from types import SimpleNamespace

from touche_llm.data.records import Failure, Judgment
from touche_llm.evaluation.agreement import round_grade
from touche_llm.evaluation.judges.labels import find_grade
from touche_llm.evaluation.qrels import STANCE, Qrels
from touche_llm.llm.answer_schema import get_labels
from touche_llm.prompt_lab.comparison import PromptComparison
from touche_llm.prompt_lab.sample import Sampled
from touche_llm.prompt_lab.variants import Variant
from touche_llm.prompts.prompt import Prompt
from touche_llm.report.page import LETTERS, render
from touche_llm.runs.open_folder import describe_truncation
from touche_llm.tasks.parts import Scale
from touche_llm.tasks.task import Task

# Number of colours for grades above 0.
_HEAT = 5


def build_rows(found: PromptComparison, qrels: Qrels) -> list[SimpleNamespace]:
    """Return a row for each judged document of a comparison, ordered by disagreement, largest first."""
    topics = {topic.id: topic for topic in found.topics}
    failed = {
        (part, variant, failure.topic_id, failure.document_id): failure
        for (part, variant), said in found.judged.items()
        for failure in said.failures
    }
    sampled_by = next(name for name in found.task.question.grades if name in qrels.grades)
    are_comparable = found.task.qrels_mapping_of(sampled_by) is not None
    rows: list[SimpleNamespace] = []
    for part in found.parts:
        for item in part.sample:
            key = (item.topic_id, item.document_id)
            said = {
                variant.name: found.judged[part.name, variant.name].judgments.get(key)
                for variant in found.variants_in(part)
            }
            cells = [
                _build_cell(
                    item,
                    said.get(variant.name),
                    failed.get((part.name, variant.name, *key)),
                    qrels,
                    found.task,
                )
                for variant in found.variants
            ]
            differs, spread = _measure_disagreement(
                list(said.values()), max(scale.highest for scale in found.task.aspects.values())
            )
            hits = sum(
                bool(grade.hit)
                for cell in cells
                for grade in cell.grades
                if grade.name == sampled_by
            )
            rows.append(
                SimpleNamespace(
                    topic=topics[item.topic_id],
                    document_id=item.document_id,
                    text=found.texts.get(item.document_id, ""),
                    assessments=_list_assessments(item, qrels),
                    label=qrels.stances.get(item.topic_id, {}).get(item.document_id, ""),
                    cells=cells,
                    differs=differs,
                    spread=spread,
                    # The variants that judged the part, and those whose first grade is not that of
                    # the assessors, where both can be compared.
                    requested=len(said),
                    misses=len(said) - hits if are_comparable else 0,
                )
            )
    return sorted(rows, key=lambda row: -row.spread)


def _describe_wordings(variants: Iterable[Variant]) -> list[tuple[str, str]]:
    """Return a title and a text for each variant: the first in full, then the differences of the others."""
    first, *others = (_format_prompt(variant.prompt) for variant in variants)
    changes = [
        "\n".join(list(unified_diff(first.splitlines(), other.splitlines(), lineterm=""))[2:])
        or "no difference"
        for other in others
    ]
    return [("text", first), *((f"differences from {LETTERS[0]}", change) for change in changes)]


def _format_prompt(prompt: Prompt) -> str:
    """Return the text of a template, followed by the templates that it includes."""
    files = prompt.files
    return "\n".join(
        [files.text, *(f"== {name} ==\n{text}" for name, text in sorted(files.texts.items()))]
    )


def render_matrix(found: PromptComparison, qrels: Qrels, judged_by: Mapping[str, Path]) -> str:
    """Render the page that compares prompts."""
    rows = build_rows(found, qrels)
    # Without any judgment there is neither agreement nor disagreement.
    failed = [row for row in rows if not any(cell.grades for cell in row.cells)]
    judged = [row for row in rows if any(cell.grades for cell in row.cells)]
    groups = [
        ("The variants differ", [row for row in judged if row.differs]),
        ("The variants agree", [row for row in judged if not row.differs]),
    ]
    if failed:
        groups.append(("No variant has an answer", failed))
    page = SimpleNamespace(
        template="matrix",
        found=found,
        labels=found.task.stances,
        letters=LETTERS,
        wordings=_describe_wordings(found.variants),
        judged_by=judged_by,
        groups=groups,
        fields=list(get_labels(found.task.question.answer)),
        aspect=next(iter(qrels.grades)),
        failures=Counter(failure.kind for failure in found.all_failures()),
        documents=len(rows),
        titles={"all": "All topics", "choice": "Selection topics", "hold-out": "Held-out topics"},
    )
    return render(page)


def _build_cell(
    item: Sampled,
    judgment: Judgment | None,
    failure: Failure | None,
    qrels: Qrels,
    task: Task,
) -> SimpleNamespace:
    """Return the judgment of a document by one variant.

    Without a judgment, grades and stance are empty.
    """
    if judgment is None:
        return SimpleNamespace(
            grades=[], stance="", hit=False, readings={}, truncation="", failure=failure
        )
    truth = {grade.name: round_grade(grade.value) for grade in _list_assessments(item, qrels)}
    label = qrels.stances.get(item.topic_id, {}).get(item.document_id)
    return SimpleNamespace(
        grades=[
            _make_grade(
                name,
                value,
                task.aspects[name],
                hit=_has_same_grade(judgment, name, task, truth.get(name)),
            )
            for name, value in judgment.grades.items()
        ],
        stance=judgment.stance,
        hit=label == judgment.stance,
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


def _make_grade(
    name: str, value: float, scale: Scale, *, hit: bool | None = False
) -> SimpleNamespace:
    """Return a grade with the index of its colour.

    `hit` is whether it is that of the assessors; None if they cannot be compared.
    """
    heat = round(max(scale.to_share(value), 0.0) * _HEAT)
    return SimpleNamespace(name=name, value=value, heat=heat, hit=hit)


def _list_assessments(item: Sampled, qrels: Qrels) -> list[SimpleNamespace]:
    given = {
        name: grades.get(item.topic_id, {}).get(item.document_id)
        for name, grades in qrels.grades.items()
    }
    return [
        _make_grade(name, value, qrels.scales[name])
        for name, value in given.items()
        if value is not None
    ]


def _measure_disagreement(
    judgments: Sequence[Judgment | None], highest: int
) -> tuple[list[str], float]:
    """Return the fields in which variants disagree, and by how much.

    A missing judgment disagrees in every field.
    """
    judged = [judgment for judgment in judgments if judgment is not None]
    if not judged:
        return [], 0.0
    is_incomplete = len(judged) < len(judgments)
    differs = [
        name
        for name in judged[0].grades
        if is_incomplete or len({round_grade(cell.grades[name]) for cell in judged}) > 1
    ]
    stances = is_incomplete or len({cell.stance for cell in judged}) > 1
    values = ([cell.grades[name] for cell in judged] for name in judged[0].grades)
    spread = max(max(grades) - min(grades) for grades in values)
    return [*differs, *([STANCE] if stances else [])], spread + stances + (
        highest if is_incomplete else 0
    )
