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
MAX_DOCUMENTS = len(LABELS)
ORDER_SEPARATOR = " > "
# For up to this many documents the schema itself forbids repeated labels; beyond, the schema becomes too large.
_MAX_IN_SCHEMA = 6
# In characters.
MAX_QUERY_LENGTH = 100
_Query = Annotated[str, Field(pattern=rf"^[0-9A-Za-z][0-9A-Za-z ',-]{{2,{MAX_QUERY_LENGTH - 1}}}$")]
OBJECTS_VARIABLES = {"topic": True}
QUERIES_VARIABLES = {"topic": True}


class AlternativeQueries(AnswerModel):
    """Three keyword queries."""

    query1: _Query
    query2: _Query
    query3: _Query


def list_template_variables(question: Question) -> dict[str, bool]:
    """Return the variables of a template that compares documents; True for those that it must use."""
    return {"topic": True, **question.variables, "aim": False, "documents": True}


@cache
def build_best_answer(documents: int) -> type[AnswerModel]:
    """Build the answer model that names the best of `documents` documents."""
    labels: Any = Literal[tuple(LABELS[:documents])]
    return create_model("Best", __base__=AnswerModel, best=(labels, ...))


@cache
def build_order_answer(documents: int) -> type[AnswerModel]:
    """Build the answer model that orders `documents` documents, each label once: `C > A > B`."""
    if documents <= _MAX_IN_SCHEMA:
        pattern = _permutations(LABELS[:documents])
    else:
        pattern = f"[A-{LABELS[documents - 1]}](?:{ORDER_SEPARATOR}[A-{LABELS[documents - 1]}]){{{documents - 1}}}"
    # Runs before the pattern, whose error could not name the wrong labels.
    complete = BeforeValidator(partial(_require_each_label, LABELS[:documents]))
    text: Any = Annotated[str, complete, Field(pattern=f"^{pattern}$")]
    return create_model("Order", __base__=AnswerModel, order=(text, ...))


def _require_each_label(labels: str, order: Any) -> Any:
    """Return `order`; raise ValueError if it is a text with repeated, missing or unknown labels."""
    if isinstance(order, str):
        found = Counter(order.split(ORDER_SEPARATOR))
        repeated = {label for label, times in found.items() if times > 1}
        wrong = {"repeated": repeated, "missing": set(labels) - set(found), "unknown": set(found) - set(labels)}
        problems = [f"{', '.join(sorted(names))} {problem}" for problem, names in wrong.items() if names]
        if problems:
            raise ValueError("; ".join(problems))
    return order


def _permutations(labels: str) -> str:
    """Return a regular expression for all orders of the labels."""
    if len(labels) == 1:
        return labels
    branches = (label + ORDER_SEPARATOR + _permutations(labels.replace(label, "")) for label in labels)
    return f"(?:{'|'.join(branches)})"
