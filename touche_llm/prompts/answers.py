"""Answer models and template variables of the prompts that every task shares."""

from __future__ import annotations

import string
from collections import Counter
from functools import cache, partial
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, create_model

from touche_llm.llm.answers import AnswerModel
from touche_llm.tasks.base import Question

LABELS = string.ascii_uppercase
MOST_DOCUMENTS = len(LABELS)
ORDER_SEPARATOR = " > "
# Up to so many documents the schema itself keeps a label from being repeated; beyond, its size explodes.
_MOST_IN_SCHEMA = 6
# Characters of a query.
LONGEST_QUERY = 100
_Query = Annotated[str, Field(pattern=rf"^[0-9A-Za-z][0-9A-Za-z ',-]{{2,{LONGEST_QUERY - 1}}}$")]
OBJECTS_VARIABLES = {"topic": True}
QUERIES_VARIABLES = {"topic": True}


class AlternativeQueries(AnswerModel):
    """Three keyword queries."""

    query1: _Query
    query2: _Query
    query3: _Query


def template_variables(question: Question) -> dict[str, bool]:
    """The variables of a template that compares documents, and whether it must use them."""
    return {"topic": True, **question.variables, "aim": False, "documents": True}


@cache
def best_answer(documents: int) -> type[AnswerModel]:
    """The answer that names the best of so many documents."""
    labels: Any = Literal[tuple(LABELS[:documents])]
    return create_model("Best", __base__=AnswerModel, best=(labels, ...))


@cache
def order_answer(documents: int) -> type[AnswerModel]:
    """The answer that orders so many documents, each label once: `C > A > B`."""
    if documents <= _MOST_IN_SCHEMA:
        pattern = _permutations(LABELS[:documents])
    else:
        pattern = f"[A-{LABELS[documents - 1]}](?:{ORDER_SEPARATOR}[A-{LABELS[documents - 1]}]){{{documents - 1}}}"
    # Before the pattern is looked at, which could only say that it does not fit.
    complete = BeforeValidator(partial(_each_once, LABELS[:documents]))
    text: Any = Annotated[str, complete, Field(pattern=f"^{pattern}$")]
    return create_model("Order", __base__=AnswerModel, order=(text, ...))


def _each_once(labels: str, order: Any) -> Any:
    """What was given, unless it is a text that has not each label once: then ValueError names those."""
    if isinstance(order, str):
        found = Counter(order.split(ORDER_SEPARATOR))
        repeated = {label for label, times in found.items() if times > 1}
        parts = {"repeated": repeated, "missing": set(labels) - set(found), "unknown": set(found) - set(labels)}
        wrong = [f"{', '.join(sorted(each))} {what}" for what, each in parts.items() if each]
        if wrong:
            raise ValueError("; ".join(wrong))
    return order


def _permutations(labels: str) -> str:
    if len(labels) == 1:
        return labels
    branches = (label + ORDER_SEPARATOR + _permutations(labels.replace(label, "")) for label in labels)
    return f"(?:{'|'.join(branches)})"
