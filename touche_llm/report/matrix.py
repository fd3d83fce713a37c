"""The page of a comparison of prompts: a row for each document, a column for each variant, disagreements first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Any

from touche_llm.data.records import HIGHEST_GRADE, Failure, Judgment, Topic
from touche_llm.evaluation.agreement import round_grade
from touche_llm.evaluation.qrels import STANCE, Qrels
from touche_llm.prompt_lab.comparison import PromptComparison
from touche_llm.prompt_lab.draw import Sampled
from touche_llm.prompt_lab.measures import named, stance_told
from touche_llm.prompts.prompt import Prompt
from touche_llm.report.figures import LETTERS
from touche_llm.report.records import Said
from touche_llm.report.write import LEAST_CHARS, MOST_BYTES, environment, size_of, text_limit, write_page

# Of the colours of a grade, the highest.
_HEAT = 5


@dataclass(frozen=True, slots=True)
class Grade:
    """A grade that a variant or that people gave; of a variant, whether it is, as a whole grade, that of people."""

    name: str
    value: float
    hit: bool = False

    @property
    def heat(self) -> int:
        """Its colour, from 0 to 5."""
        return round(max(self.value, 0.0) / HIGHEST_GRADE * _HEAT)


@dataclass(frozen=True, slots=True)
class Cell:
    """What one variant said of a document; without a judgment there is neither a grade nor a stance, but a failure."""

    grades: list[Grade]
    stance: str
    hit: bool
    said: list[Said]
    seen: str
    failure: Failure | None


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """A document.

    Attributes:
        topic: it was judged for.
        document_id: its id.
        part: of the sample that it is in.
        text: the document's.
        people: the grades that people gave.
        label: the stance that people gave; empty where they gave none.
        cells: a variant each, in their order.
        differs: the names of grades, and `stance`, in which variants differ: as whole grades, and as labels.
        spread: how far: the largest difference of grades, and one more for a stance.
        asked: how many variants were asked about it.
        misses: how many of these give another first grade than people.
    """

    topic: Topic
    document_id: str
    part: str
    text: str
    people: list[Grade]
    label: str
    cells: list[Cell]
    differs: list[str]
    spread: float
    asked: int
    misses: int


def rows_of(found: PromptComparison, qrels: Qrels) -> list[MatrixRow]:
    """The rows of a comparison, those with the largest disagreement first."""
    topics = {topic.id: topic for topic in found.topics}
    failed = {
        (part, variant, failure.topic_id, failure.document_id): failure
        for (part, variant), said in found.said.items()
        for failure in said.failures
    }
    rows = []
    for part in found.parts:
        for each in part.sample:
            key = (each.topic_id, each.document_id)
            said = {
                variant.name: found.said[part.name, variant.name].judgments.get(key)
                for variant in found.variants_in(part)
            }
            cells = [
                _cell(each, said.get(variant.name), failed.get((part.name, variant.name, *key)), qrels)
                for variant in found.variants
            ]
            differs, spread = _disagreement(list(said.values()))
            rows.append(
                MatrixRow(
                    topics[each.topic_id],
                    each.document_id,
                    part.name,
                    found.texts.get(each.document_id, ""),
                    _people(each, qrels),
                    qrels.stances.get(each.topic_id, {}).get(each.document_id, ""),
                    cells,
                    differs,
                    spread,
                    len(said),
                    len(said) - sum(bool(cell.grades) and _first(cell, qrels).hit for cell in cells),
                )
            )
    return sorted(rows, key=lambda row: -row.spread)


def _wordings(prompts: Iterable[Prompt]) -> list[tuple[str, str]]:
    """Of the first prompt its text, of each other what it has otherwise; each with a title."""
    first, *others = map(_text, prompts)
    changes = [
        "\n".join(list(unified_diff(first.splitlines(), other.splitlines(), lineterm=""))[2:]) or "the same text"
        for other in others
    ]
    return [("its text", first), *((f"how it differs from {LETTERS[0]}", change) for change in changes)]


def _text(prompt: Prompt) -> str:
    """A template and what it pulls in."""
    files = prompt.files
    return "\n".join([files.text, *(f"== {name} ==\n{text}" for name, text in sorted(files.texts.items()))])


def write_matrix(found: PromptComparison, qrels: Qrels, judged_by: Mapping[str, Path], path: Path) -> int:
    """Write the page as one HTML file, whole or not at all; returns its bytes.

    Where it would have more than `write.MOST_BYTES`, texts are cut, but not to less than 400 characters, and where that
    is not enough, the probabilities of the labels are left out.
    """
    return write_page(render(found, qrels, judged_by), path)


def render(found: PromptComparison, qrels: Qrels, judged_by: Mapping[str, Path]) -> str:
    """The page."""
    rows = rows_of(found, qrels)
    # Neither agreed nor differed: nobody has said anything of these.
    lost = [row for row in rows if not any(cell.grades for cell in row.cells)]
    said = [row for row in rows if any(cell.grades for cell in row.cells)]
    groups = [
        ("The variants differ", [row for row in said if row.differs]),
        ("The variants agree", [row for row in said if not row.differs]),
    ]
    if lost:
        groups.append(("No variant has an answer", lost))
    values: dict[str, Any] = {
        "found": found,
        "labels": found.task.stances,
        "letters": LETTERS,
        "wordings": _wordings(each.prompt for each in found.variants),
        "judged_by": judged_by,
        "groups": groups,
        "named": named,
        "told": stance_told(found.task) if qrels.stances else "",
        "fields": [*found.task.question.grades, STANCE],
        "aspect": next(iter(qrels.grades)),
        "failures": Counter(failure.kind for failure in found.all_failures()),
        "documents": len(rows),
        "titles": {"all": "All topics", "choice": "Topics to choose on", "hold-out": "Topics held out"},
    }
    template = environment().get_template("matrix.html.jinja")
    texts = [row.text for row in rows]
    for panels in (True, False):
        room = MOST_BYTES - len(template.render(values, limit=0, panels=panels).encode())
        if room >= size_of(texts, LEAST_CHARS):
            break
    return template.render(values, limit=text_limit(texts, room), panels=panels)


def _cell(each: Sampled, judgment: Judgment | None, failure: Failure | None, qrels: Qrels) -> Cell:
    if judgment is None:
        return Cell([], "", False, [], "", failure)
    truth = {grade.name: round_grade(grade.value) for grade in _people(each, qrels)}
    grades = [Grade(name, value, round_grade(value) == truth.get(name)) for name, value in judgment.grades.items()]
    label = qrels.stances.get(each.topic_id, {}).get(each.document_id)
    cut = judgment.cut
    seen = "" if cut is None else f"the model saw {cut.kept_chars:,} of {cut.of_chars:,} characters"
    said = [Said(name, reading.shares, reading.outside) for name, reading in judgment.readings.items()]
    return Cell(grades, judgment.stance, label == judgment.stance, said, seen, None)


def _people(each: Sampled, qrels: Qrels) -> list[Grade]:
    given = {name: grades.get(each.topic_id, {}).get(each.document_id) for name, grades in qrels.grades.items()}
    return [Grade(name, value) for name, value in given.items() if value is not None]


def _first(cell: Cell, qrels: Qrels) -> Grade:
    """The grade of the aspect that documents were drawn by."""
    return next(grade for grade in cell.grades if grade.name in qrels.grades)


def _disagreement(said: Sequence[Judgment | None]) -> tuple[list[str], float]:
    """In what the variants differ, and how far; a variant without a judgment differs from one that has one in all."""
    judged = [each for each in said if each is not None]
    if not judged:
        return [], 0.0
    lost = len(judged) < len(said)
    differs = [
        name for name in judged[0].grades if lost or len({round_grade(each.grades[name]) for each in judged}) > 1
    ]
    stances = lost or len({each.stance for each in judged}) > 1
    spread = max(_spread(each.grades[name] for each in judged) for name in judged[0].grades)
    return [*differs, *([STANCE] if stances else [])], spread + stances + (HIGHEST_GRADE if lost else 0)


def _spread(values: Iterable[float]) -> float:
    known = list(values)
    return max(known) - min(known)
