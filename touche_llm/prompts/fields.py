"""Division of a judge prompt: the text of a template for some fields of its answer alone."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from touche_llm.data.records import Label
from touche_llm.llm.answer_schema import AnswerForm, AnswerModel, Layout, abbreviate, get_labels
from touche_llm.llm.parsing import parse_answer
from touche_llm.prompts.few_shot import FewShotExample
from touche_llm.tasks.questions import create_answer

# What one request of the judge prompt is about: a document, or one field of the answer about it.
JudgePer = Literal["document", "field"]

_HEADING = re.compile(r"(?P<number>\d+\.\s+)?(?P<field>\w+):")


def group_fields(answer: type[AnswerModel]) -> list[tuple[str, ...]]:
    """Return the groups of fields that one request each asks for, as `("quality",)`.

    Each field is a group, except that position and stance form one. The position says whether a
    document takes a side at all, and the stance says which side.
    """
    has_position = "position" in answer.model_fields
    groups: list[tuple[str, ...]] = []
    for name in answer.model_fields:
        if name == "position":
            # Its group comes at the place of the stance.
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
        """Return a few-shot example whose answer has the selected fields alone.

        Args:
            example: Example whose answer has all fields of the whole prompt.
            form: Form of the answer, as a JSON object or array.
        """
        all_values = parse_answer(example.answer, self.whole, form).model_dump()
        selected_fields = tuple(self.answer.model_fields)
        # A layout writes the values of its fields, and leaves out all others.
        answer = Layout(form, selected_fields).spell(all_values)
        return replace(example, answer=answer)


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
    """Return the instructions of a prompt for some of the fields of its answer.

    The result has the paragraphs before the first field, then the paragraphs of the kept fields with
    numbers from 1, and last a new paragraph that says how to answer.

    Args:
        text: Instructions of the prompt, whose last paragraph says how to answer.
        whole: Answer model of the prompt.
        answer: Answer model with the fields to keep.
        form: Form of the answer.

    Raises:
        ValueError: A field has no paragraph, or the last paragraph does not name it.
    """
    *paragraphs, how_to_answer = re.split(r"\n\s*\n", text)
    all_fields = list(whole.model_fields)
    paragraphs_by_field = _divide_by_field(paragraphs, all_fields)
    _check_fields(all_fields, paragraphs_by_field, how_to_answer)

    # The paragraphs before the first field belong to none.
    kept_paragraphs = list(paragraphs_by_field[None])
    kept_fields = list(answer.model_fields)
    for name in kept_fields:
        kept_paragraphs.extend(paragraphs_by_field[name])

    texts = [_renumber(paragraph, kept_fields) for paragraph in kept_paragraphs]
    texts.append(describe_answer(answer, form))
    return "\n\n".join(texts)


def _divide_by_field(
    texts: Iterable[str], fields: Sequence[str]
) -> dict[str | None, list[_Paragraph]]:
    """Return the paragraphs about each field; None has those before the first field.

    A paragraph that begins with no field continues the one before.
    """
    field: str | None = None
    sections: dict[str | None, list[_Paragraph]] = {None: []}
    for text in texts:
        paragraph = _parse_paragraph(text, fields)
        if paragraph.field is not None:
            field = paragraph.field
        sections.setdefault(field, []).append(paragraph)
    return sections


def _parse_paragraph(text: str, fields: Sequence[str]) -> _Paragraph:
    """Parse a paragraph, which may begin with a field, as `2. quality: whether the text is clear`.

    Args:
        text: Text of the paragraph.
        fields: Names of the fields; other words before a colon are text.
    """
    heading = _HEADING.match(text)
    if heading is None or heading["field"] not in fields:
        return _Paragraph(field=None, number="", text=text)

    return _Paragraph(
        field=heading["field"],
        number=heading["number"] or "",
        text=text[heading.start("field") :],
    )


def _renumber(paragraph: _Paragraph, fields: Sequence[str]) -> str:
    """Return the text of a paragraph, with the place of its field among `fields` as its number.

    Paragraphs without a number, or of other fields, stay as they are.
    """
    if not paragraph.number or paragraph.field not in fields:
        return paragraph.number + paragraph.text
    return f"{fields.index(paragraph.field) + 1}. {paragraph.text}"


def _check_fields(names: Iterable[str], sections: Container[str | None], last: str) -> None:
    """Raise ValueError if a field has no paragraph, or the last paragraph does not name it."""
    for name in names:
        if name not in sections:
            raise ValueError(f"no paragraph begins with `{name}:`")
    for name in names:
        is_named = re.search(rf"\b{name}\b", last) is not None
        if not is_named:
            raise ValueError(
                f"the last paragraph does not name {name}, so it does not say how to answer"
            )


def describe_answer(answer: type[AnswerModel], form: AnswerForm) -> str:
    """Return the sentence that says how to answer: `Answer with one JSON object and …`.

    Args:
        answer: Answer model with one or two fields.
        form: Form of the answer.
    """
    labels = get_labels(answer)
    if form is AnswerForm.OBJECT:
        return _describe_object(labels)

    is_abbreviated = form is AnswerForm.LETTERS and _have_words(labels.values())
    if not is_abbreviated:
        # An array; grades are the same numbers in the form of letters.
        return _describe_array(labels, spelling="")
    letters = {name: tuple(map(abbreviate, allowed)) for name, allowed in labels.items()}
    return _describe_array(letters, spelling=", each label by its first letter")


def _describe_object(labels: Mapping[str, Sequence[Label]]) -> str:
    """Return how to answer with an object, ending in its fields: `{"quality": 0 to 3}`."""
    order = ", with the keys in this order" if len(labels) > 1 else ""
    fields = [f'"{name}": {_list_labels(allowed)}' for name, allowed in labels.items()]
    return f"Answer with one JSON object and nothing else{order}: {{{', '.join(fields)}}}"


def _describe_array(labels: Mapping[str, Sequence[Label]], spelling: str) -> str:
    """Return how to answer with an array, ending in its fields: `[quality 0 to 3]`.

    Args:
        labels: Labels of each field, as they are written in the answer.
        spelling: Words on how labels are abbreviated, if they are.
    """
    values = "one value" if len(labels) == 1 else "two values"
    fields = [f"{name} {_list_labels(allowed)}" for name, allowed in labels.items()]
    return (
        f"Answer with one JSON array of {values} and nothing else{spelling}: [{', '.join(fields)}]"
    )


def _have_words(labels: Iterable[Sequence[Label]]) -> bool:
    """Return whether any label is a text."""
    for allowed in labels:
        if any(isinstance(label, str) for label in allowed):
            return True
    return False


def _list_labels(labels: Sequence[Label]) -> str:
    """Return labels in words: `0 to 3`, or `"PRO" or "CON"`."""
    if isinstance(labels[0], int):
        return f"{labels[0]} to {labels[-1]}"

    *others, last = [f'"{label}"' for label in labels]
    if not others:
        return last
    return f"{', '.join(others)} or {last}"
