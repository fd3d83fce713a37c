"""PyTerrier's frames as records of this program."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from touche_llm.integrations.pyterrier import read_candidates, read_judgments
from touche_llm.tasks import get_task


def frame_of(*rows: tuple[str, str], **columns: list[Any]) -> pd.DataFrame:
    """Rows of topic and document, whose texts are their ids."""
    qids, docnos = zip(*rows, strict=True)
    return pd.DataFrame(
        {"qid": qids, "query": "Is tea good?", "docno": docnos, "text": docnos, **columns}
    )


FOUR = (("1", "a"), ("1", "b"), ("1", "c"), ("2", "a"))


@pytest.mark.parametrize(
    ("columns", "documents"),
    [
        ({}, ["a", "b", "c"]),
        ({"score": [1.0, 3.0, 2.0, 1.0]}, ["b", "c", "a"]),
        ({"rank": [2, 0, 1, 0]}, ["b", "c", "a"]),
        ({"score": [1.0, 3.0, 2.0, 1.0], "rank": [0, 1, 2, 0]}, ["b", "c", "a"]),
        # Ties keep the order of the ranks, or without these that of the rows.
        ({"score": [2.0, 2.0, 3.0, 1.0], "rank": [2, 1, 0, 0]}, ["c", "b", "a"]),
        ({"score": [2.0, 2.0, 3.0, 1.0]}, ["c", "a", "b"]),
    ],
    ids=["rows", "scores", "ranks", "both", "ties", "ties without ranks"],
)
def test_candidates_are_in_the_order_of_scores_ranks_or_rows(
    columns: dict[str, list[Any]], documents: list[str]
) -> None:
    candidates = read_candidates(frame_of(*FOUR, **columns), "controversial")
    first, second = candidates.list_rankings()
    assert [candidate.document_id for candidate in first] == documents
    assert [candidate.rank for candidate in first] == [1, 2, 3]
    assert [(candidate.document_id, candidate.rank) for candidate in second] == [("a", 1)]


@pytest.mark.parametrize(
    ("task", "grades", "stances"),
    [
        ("controversial", ("relevance", "quality"), ["PRO", "NO"]),
        ("arguments_2020", ("relevance",), ["Q0", "Q0"]),
    ],
)
def test_rows_without_grades_have_no_judgment(
    task: str, grades: tuple[str, ...], stances: list[str]
) -> None:
    values = {name: [None, 2.0, float("nan"), 1.0] for name in grades}
    frame = frame_of(*FOUR, stance=["CON", "PRO", "CON", "NO"], **values)
    judgments = read_judgments(frame, get_task(task))
    assert [(judgment.topic_id, judgment.document_id) for judgment in judgments] == [
        ("1", "b"),
        ("2", "a"),
    ]
    assert [dict(judgment.grades) for judgment in judgments] == [
        dict.fromkeys(grades, grade) for grade in (2.0, 1.0)
    ]
    assert [judgment.stance for judgment in judgments] == stances
