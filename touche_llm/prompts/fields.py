"""Division of a judge prompt: the text of a template for some fields of its answer alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

from touche_llm.llm.answer_schema import AnswerForm, AnswerModel, abbreviate, get_labels
from touche_llm.tasks.questions import create_answer

# What one request of the judge prompt is about: a document, or one field of the answer about it.
JudgePer = Literal["document", "field"]

_HEADING = re.compile(r"(\d+\.\s+)?(\w+):")


def group_fields(answer: type[AnswerModel]) -> list[tuple[str, ...]]:
    """Group the fields of an answer by request: each alone, but the position with the stance that it belongs to."""
    names = list(answer.model_fields)
    has_position = "position" in names
    return [
        ("position", name) if has_position and name == "stance" else (name,)
        for name in names
        if name != "position"
    ]


def pick_fields(answer: type[AnswerModel], fields: tuple[str, ...]) -> type[AnswerModel]:
    """Return the answer model of some fields of another."""
    labels = get_labels(answer)
    return create_answer(answer.__name__, **{name: labels[name] for name in fields})


# The text is the same for all documents.
@lru_cache(maxsize=256)
def select_fields(
    text: str, whole: type[AnswerModel], answer: type[AnswerModel], form: AnswerForm
) -> str:
    """Return the instructions of a prompt with the answer `whole` for the fields of `answer` alone.

    Kept are the paragraphs before the first field and those of the fields, numbered anew; a
    paragraph that begins with the name of a field and a colon, perhaps after a number, begins those
    of the field. The last paragraph, which says how to answer, is replaced. A field without a
    paragraph or missing from the last is a ValueError.
    """
    *paragraphs, last = re.split(r"\n\s*\n", text)
    names, fields = list(whole.model_fields), list(answer.model_fields)
    common: list[str] = []
    of_field: dict[str, list[str]] = {}
    current = common
    for paragraph in paragraphs:
        heading = _HEADING.match(paragraph)
        if heading is not None and heading[2] in names:
            current = of_field.setdefault(heading[2], [])
            if heading[1] and heading[2] in fields:
                paragraph = f"{fields.index(heading[2]) + 1}. {paragraph[heading.start(2) :]}"
        current.append(paragraph)
    if missing := [name for name in names if name not in of_field]:
        raise ValueError(f"no paragraph begins with `{missing[0]}:`")
    if missing := [name for name in names if not re.search(rf"\b{name}\b", last)]:
        raise ValueError(
            f"the last paragraph does not name {missing[0]}, so it does not say how to answer"
        )
    rules = [paragraph for name in fields for paragraph in of_field[name]]
    return "\n\n".join([*common, *rules, describe_answer(answer, form)])


def describe_answer(answer: type[AnswerModel], form: AnswerForm) -> str:
    """Return the sentence that says how to answer, as the project's prompts have it, for one or two fields."""
    labels = get_labels(answer)
    has_words = any(isinstance(label, str) for allowed in labels.values() for label in allowed)
    if form is AnswerForm.OBJECT:
        order = ", with the keys in this order" if len(labels) > 1 else ""
        fields = ", ".join(f'"{name}": {_list_labels(allowed)}' for name, allowed in labels.items())
        return f"Answer with one JSON object and nothing else{order}: {{{fields}}}"
    is_short = form is AnswerForm.LETTERS and has_words
    fields = ", ".join(
        f"{name} {_list_labels([abbreviate(label) for label in allowed] if is_short else allowed)}"
        for name, allowed in labels.items()
    )
    how = ", each label by its first letter" if is_short else ""
    values = "one value" if len(labels) == 1 else "two values"
    return f"Answer with one JSON array of {values} and nothing else{how}: [{fields}]"


def _list_labels(labels: Sequence[int | str]) -> str:
    if isinstance(labels[0], int):
        return f"{labels[0]} to {labels[-1]}"
    *others, last = (f'"{label}"' for label in labels)
    return f"{', '.join(others)} or {last}" if others else last
