"""Division of a judge prompt: the text of a template for some fields of its answer alone."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from touche_llm.llm.answer_schema import AnswerForm, AnswerModel, Layout, abbreviate, get_labels
from touche_llm.llm.parsing import parse_answer
from touche_llm.prompts.few_shot import FewShotExample
from touche_llm.tasks.questions import create_answer

# What one request of the judge prompt is about: a document, or one field of the answer about it.
JudgePer = Literal["document", "field"]

_HEADING = re.compile(r"(\d+\.\s+)?(\w+):")


def group_fields(answer: type[AnswerModel]) -> list[tuple[str, ...]]:
    """Group the fields of an answer by request: each alone, but the position with the stance."""
    has_position = "position" in answer.model_fields
    groups: list[tuple[str, ...]] = []
    for name in answer.model_fields:
        if name == "position":
            continue
        if name == "stance" and has_position:
            groups.append(("position", "stance"))
        else:
            groups.append((name,))
    return groups


def pick_fields(answer: type[AnswerModel], fields: tuple[str, ...]) -> type[AnswerModel]:
    """Return the answer model of some fields of another."""
    labels = get_labels(answer)
    return create_answer(answer.__name__, **{name: labels[name] for name in fields})


@dataclass(frozen=True, slots=True)
class FieldSelection:
    """Selection of some fields of an answer, for a prompt that requests these alone.

    Attributes:
        whole: Answer model of the whole prompt.
        answer: Answer model of the selected fields.
    """

    whole: type[AnswerModel]
    answer: type[AnswerModel]

    @property
    def name(self) -> str:
        """Name of the selected field; `stance` for the position and the stance."""
        return list(self.answer.model_fields)[-1]

    def select_instructions(self, text: str, form: AnswerForm) -> str:
        """Return the instructions of the whole prompt for the selected fields alone.

        Args:
            text: Instructions of the whole prompt.
            form: Form of the answer.

        Raises:
            ValueError: A field has no paragraph, or the last paragraph does not name it.
        """
        return _select_fields(text, self.whole, self.answer, form)

    def select_example(self, example: FewShotExample, form: AnswerForm) -> FewShotExample:
        """Return an example of the whole prompt with the selected fields of its answer.

        Args:
            example: Example with the whole answer.
            form: Form of the answer.
        """
        values = parse_answer(example.answer, self.whole, form).model_dump()
        layout = Layout(form, tuple(self.answer.model_fields))
        return replace(example, answer=layout.spell(values))


@dataclass(frozen=True, slots=True)
class _Paragraph:
    """Paragraph of instructions.

    Attributes:
        field: Field that the paragraph begins to describe; None if it begins with no field.
        number: Number before the name of the field, with the white space after it; empty without.
        text: Text without the number.
    """

    field: str | None
    number: str
    text: str


# The text is the same for all documents.
@lru_cache(maxsize=256)
def _select_fields(
    text: str, whole: type[AnswerModel], answer: type[AnswerModel], form: AnswerForm
) -> str:
    """Return the instructions of a prompt with the answer `whole` for the fields of `answer` alone.

    Kept are the paragraphs before the first field and those of the fields, numbered anew. The last
    paragraph, which says how to answer, is replaced.

    Raises:
        ValueError: A field has no paragraph, or the last paragraph does not name it.
    """
    *paragraphs, last = re.split(r"\n\s*\n", text)
    names = list(whole.model_fields)
    fields = list(answer.model_fields)

    common: list[str] = []
    by_field: dict[str, list[str]] = {}
    current = common
    for content in paragraphs:
        paragraph = _parse_paragraph(content, names)
        if paragraph.field is not None:
            current = by_field.setdefault(paragraph.field, [])
        current.append(_renumber(paragraph, fields))

    _check_fields(names, by_field, last)
    kept = list(common)
    for name in fields:
        kept.extend(by_field[name])
    kept.append(describe_answer(answer, form))
    return "\n\n".join(kept)


def _parse_paragraph(text: str, names: Sequence[str]) -> _Paragraph:
    """Parse a paragraph; it begins a field with its name and a colon, perhaps after a number."""
    heading = _HEADING.match(text)
    if heading is None or heading[2] not in names:
        return _Paragraph(field=None, number="", text=text)
    return _Paragraph(field=heading[2], number=heading[1] or "", text=text[heading.start(2) :])


def _renumber(paragraph: _Paragraph, fields: Sequence[str]) -> str:
    """Return the text of a paragraph, with the place of its field among `fields` as its number.

    Paragraphs without a number, or of other fields, stay as they are.
    """
    if not paragraph.number or paragraph.field not in fields:
        return paragraph.number + paragraph.text
    return f"{fields.index(paragraph.field) + 1}. {paragraph.text}"


def _check_fields(names: Iterable[str], by_field: Container[str], last: str) -> None:
    """Raise ValueError if a field has no paragraph, or the last paragraph does not name it."""
    for name in names:
        if name not in by_field:
            raise ValueError(f"no paragraph begins with `{name}:`")
    for name in names:
        if not re.search(rf"\b{name}\b", last):
            raise ValueError(
                f"the last paragraph does not name {name}, so it does not say how to answer"
            )


def describe_answer(answer: type[AnswerModel], form: AnswerForm) -> str:
    """Return the sentence that says how to answer, as the project's prompts have it.

    Args:
        answer: Answer model with one or two fields.
        form: Form of the answer.
    """
    labels = get_labels(answer)
    if form is AnswerForm.OBJECT:
        order = ", with the keys in this order" if len(labels) > 1 else ""
        fields = ", ".join(f'"{name}": {_list_labels(allowed)}' for name, allowed in labels.items())
        return f"Answer with one JSON object and nothing else{order}: {{{fields}}}"

    values = "one value" if len(labels) == 1 else "two values"
    how = ""
    if form is AnswerForm.LETTERS and _have_words(labels.values()):
        how = ", each label by its first letter"
        labels = {name: tuple(map(abbreviate, allowed)) for name, allowed in labels.items()}
    fields = ", ".join(f"{name} {_list_labels(allowed)}" for name, allowed in labels.items())
    return f"Answer with one JSON array of {values} and nothing else{how}: [{fields}]"


def _have_words(labels: Iterable[Sequence[int | str]]) -> bool:
    """Return whether any label is a text."""
    for allowed in labels:
        if any(isinstance(label, str) for label in allowed):
            return True
    return False


def _list_labels(labels: Sequence[int | str]) -> str:
    """Return labels in words: `0 to 3`, or `"PRO" or "CON"`."""
    if isinstance(labels[0], int):
        return f"{labels[0]} to {labels[-1]}"

    *others, last = [f'"{label}"' for label in labels]
    if not others:
        return last
    return f"{', '.join(others)} or {last}"
