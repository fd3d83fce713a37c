"""The sample of a prompt comparison: how it is drawn, stored and divided by topics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

from touche_llm.data.records import Document, Topic
from touche_llm.errors import DataError
from touche_llm.evaluation.qrels import Grades
from touche_llm.prompt_lab.sample import draw_sample, select_judged


class IncompleteDocuments:
    """Documents without texts, some of them missing."""

    def __init__(self, missing: set[str]) -> None:
        self.missing = missing

    def find_unknown(self, document_ids: Iterable[str]) -> list[str]:
        return [document_id for document_id in document_ids if document_id in self.missing]

    def get(self, document_id: str) -> Document:
        raise AssertionError("no text is needed")


def pool_of(*sizes: int, topics: int = 5) -> Grades:
    """So many documents of the grades 0, 1, … in each topic."""
    return {
        str(topic): {
            f"{topic}-{grade}-{n}": float(grade)
            for grade, size in enumerate(sizes)
            for n in range(size)
        }
        for topic in range(topics)
    }


@pytest.mark.parametrize(
    ("sizes", "size", "expected"),
    [
        ((20, 20, 20), 60, [20, 20, 20]),
        ((50, 2, 9), 100, [45, 10, 45]),
        ((1, 1, 1), 100, [5, 5, 5]),
    ],
)
def test_the_sample_is_as_even_over_grades_as_possible(
    sizes: tuple[int, ...], size: int, expected: list[int]
) -> None:
    sample = draw_sample(pool_of(*sizes), size)
    assert [Counter(item.grade for item in sample)[grade] for grade in range(3)] == expected
    assert len({(item.topic_id, item.document_id) for item in sample}) == sum(expected)


def test_topics_with_enough_judgments_are_drawn_first() -> None:
    enough = {f"enough {topic}": judged for topic, judged in pool_of(10, 10, topics=3).items()}
    few = {f"few {topic}": judged for topic, judged in pool_of(1, 3, topics=40).items()}
    nothing = {f"nothing {topic}": judged for topic, judged in pool_of(30, topics=40).items()}
    assert {item.topic_id for item in draw_sample(nothing | few | enough, 30)} == set(enough)
    # A topic with few judgments does not take the place of one with enough, for which there is no
    # room.
    assert Counter(item.topic_id in enough for item in draw_sample(nothing | few | enough, 25)) == {
        True: 25
    }
    # No topic has a part of its documents only.
    assert len(draw_sample(few, 50)) == 12 * 4
    assert len(draw_sample(enough, 4)) == 4


def test_the_sample_does_not_depend_on_the_order_of_the_file() -> None:
    pool = pool_of(20, 20, 20)
    turned = {topic: dict(reversed(judged.items())) for topic, judged in pool.items()}
    assert draw_sample(pool, 30) == draw_sample(turned, 30)


def test_the_order_of_the_sample_does_not_reveal_the_grade() -> None:
    sample = draw_sample(pool_of(30, 30, topics=1), 60)
    first = Counter(item.grade for item in sample[:30])
    assert min(first.values()) > 5


def test_only_documents_in_the_corpus_of_chosen_topics_are_drawn() -> None:
    topics = [Topic("2", "two"), Topic("1", "one"), Topic("9", "nine")]
    pool = select_judged(
        {"1": {"a": 1.0, "b": 0.0}, "2": {"c": 1.0}, "3": {"d": 2.0}},
        topics,
        IncompleteDocuments({"b"}),
    )
    assert list(pool.grades.items()) == [("2", {"c": 1.0}), ("1", {"a": 1.0})]
    assert pool.notes == [
        "topics without a judged document in the corpus: 9",
        "judged documents that are not in the corpus: 1 of 3",
    ]
    with pytest.raises(DataError, match="topics 1, 2, 9"):
        select_judged({"1": {"a": 1.0}}, topics, IncompleteDocuments({"a"}))
    many = [Topic(str(number), "many") for number in range(1, 7)]
    with pytest.raises(DataError, match=r"topics 1, 2, 3, 4, 5, … \(6 in all\)"):
        select_judged({"1": {"a": 1.0}}, many, IncompleteDocuments({"a"}))
