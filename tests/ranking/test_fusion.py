from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.expect import raises_at
from tests.ranking.fake_comparer import ids
from touche_llm.data.records import Candidate, ScoredDocument
from touche_llm.data.runs.reading import ParsedRun
from touche_llm.errors import UsageError
from touche_llm.ranking.fusion import FusionFormula, WeightedRanking, fuse
from touche_llm.ranking.run_fusion import fuse_runs
from touche_llm.tasks import get_task

RRF, SCORES = FusionFormula(), FusionFormula(method="interpolation")
METHODS = [RRF, SCORES]


def ranking(*documents: str, scores: Sequence[float] | None = None) -> list[ScoredDocument]:
    falling = scores if scores is not None else [float(-n) for n in range(len(documents))]
    return [
        ScoredDocument(document, score) for document, score in zip(documents, falling, strict=True)
    ]


@st.composite
def rankings(draw: st.DrawFn) -> list[ScoredDocument]:
    documents = draw(st.lists(st.sampled_from("abcdefghij"), unique=True))
    scores = draw(
        st.lists(st.floats(-1e30, 1e30), min_size=len(documents), max_size=len(documents))
    )
    return ranking(*documents, scores=sorted(scores, reverse=True))


def fuse_weighted(
    rankings: Sequence[list[ScoredDocument]], weights: Sequence[float], method: FusionFormula
) -> list[ScoredDocument]:
    pairs = zip(rankings, weights, strict=True)
    return fuse([WeightedRanking(ranking, weight) for ranking, weight in pairs], method)


weighted = st.lists(st.tuples(rankings(), st.floats(0, 1e300)), min_size=1, max_size=4).filter(
    lambda pairs: any(weight for _, weight in pairs)
)
methods = st.sampled_from(METHODS)


def test_reciprocal_ranks_add_up_and_the_best_possible_sum_is_one() -> None:
    fused = fuse_weighted([ranking("a", "b", "c"), ranking("b", "d")], [1, 1], FusionFormula(k=1))
    # b: 1/3 + 1/2; a: 1/2; d: 1/3; c: 1/4; the best possible: 1/2 + 1/2.
    assert ids(fused) == ["b", "a", "d", "c"]
    assert [each.score for each in fused] == pytest.approx([5 / 6, 1 / 2, 1 / 3, 1 / 4])


def test_interpolation_is_the_weighted_mean_of_scaled_scores() -> None:
    one = ranking("a", "b", "c", scores=[30, 20, 10])
    other = ranking("c", "d", "e", scores=[0.9, 0.7, 0.5])
    fused = fuse_weighted([one, other], [3, 1], SCORES)
    # a: 3·1; b: 3·½; c: 3·0 + 1·1; d: 1·½; e: 0; each through 4.
    assert ids(fused) == ["a", "b", "c", "d", "e"]
    assert [each.score for each in fused] == pytest.approx([0.75, 0.375, 0.25, 0.125, 0.0])


@pytest.mark.parametrize("method", METHODS)
def test_ties_go_to_the_better_rank_in_the_first_ranking_that_has_the_document(
    method: FusionFormula,
) -> None:
    assert ids(fuse_weighted([ranking("a", "b"), ranking("b", "a")], [1, 1], method)) == ["a", "b"]
    assert ids(fuse_weighted([ranking("b", "a"), ranking("a", "b")], [1, 1], method)) == ["b", "a"]
    # Each is last in its ranking and scores nothing by interpolation; f stands higher in its own.
    one, other = ranking("x", "y", "l", scores=[2, 1, 0]), ranking("x", "f", scores=[1, 0])
    assert ids(fuse_weighted([one, other], [1, 1], SCORES))[-2:] == ["f", "l"]


@given(methods, weighted, st.data())
@settings(max_examples=50)
def test_all_documents_come_back_once_with_scores_that_do_not_depend_on_the_order_of_the_rankings(
    method: FusionFormula, pairs: list[tuple[list[ScoredDocument], float]], data: st.DataObject
) -> None:
    def fused(pairs: list[tuple[list[ScoredDocument], float]]) -> list[ScoredDocument]:
        return fuse_weighted([one for one, _ in pairs], [weight for _, weight in pairs], method)

    found = fused(pairs)
    assert sorted(ids(found)) == sorted({each.document_id for one, _ in pairs for each in one})
    assert all(0.0 <= each.score <= 1.0 for each in found)
    assert all(above.score >= below.score for above, below in pairwise(found))
    permuted = fused(data.draw(st.permutations(pairs)))
    assert {each.document_id: each.score for each in found} == {
        each.document_id: each.score for each in permuted
    }


@pytest.mark.parametrize(
    ("weights", "values"),
    [
        ([1.0], ["1.0", "2 runs"]),
        ([1.0, float("nan")], ["1.0, nan"]),
        ([0.0, 0.0], ["0"]),
    ],
)
def test_weights_that_mean_nothing_are_refused(weights: list[float], values: list[str]) -> None:
    with raises_at(UsageError, "weights", *values):
        fuse_runs([run({"1": ["a"]})] * 2, weights, RRF, task=None, depth=9, tag="t")
    with raises_at(UsageError, "topic 2"):
        fuse_runs(
            [run({"1": ["a"]}), run({"1": ["a"], "2": ["b"]})],
            [1, 0],
            RRF,
            task=None,
            depth=9,
            tag="t",
        )


def run(topics: dict[str, list[str]], **stances: str) -> ParsedRun:
    """A run of documents by topic; stances by document, the same in all topics."""
    return ParsedRun(
        {
            topic: [
                Candidate(topic, document, n, 10.0 - n)
                for n, document in enumerate(documents, start=1)
            ]
            for topic, documents in topics.items()
        },
        {
            (topic, each): stances[each]
            for topic, documents in topics.items()
            for each in documents
            if each in stances
        },
    )


def test_topics_are_fused_from_the_runs_that_have_them_in_the_order_first_met() -> None:
    runs = [
        run({"9": ["a", "b"], "1": ["a"]}),
        run({"4": ["c"], "1": ["b", "a"]}),
        run({"9": ["b"], "4": ["d", "c"]}),
    ]
    fused = fuse_runs(runs, [1, 1, 1], RRF, task=None, depth=10, tag="t")
    assert list(dict.fromkeys(line.topic_id for line in fused.lines)) == ["9", "1", "4"]
    assert fused.partial == ["9", "1", "4"]
    assert [(line.document_id, line.rank) for line in fused.lines] == list(
        zip("baabcd", [1, 2] * 3, strict=True)
    )
    # First in each of the two runs that have the topic, or in one of them and second in the other.
    alone = fuse_runs([runs[0]], [1], RRF, task=None, depth=10, tag="t")
    assert (alone.partial, alone.lines[0].score) == ([], 1.0)
    assert all(line.stance == "Q0" for line in fused.lines)
    # Scores fall strictly, also with a k so large that ranks hardly differ.
    documents = [f"d{n}" for n in range(50)]
    fused = fuse_runs(
        [run({"1": documents})] * 2, [1, 1], FusionFormula(k=1e9), task=None, depth=40, tag="t"
    )
    assert [line.document_id for line in fused.lines] == documents[:40]
    assert all(above.score > below.score for above, below in pairwise(fused.lines))


def test_a_document_has_the_stance_of_the_first_run_that_gives_one() -> None:
    documents = {"1": ["a", "b", "c"]}
    runs = [
        run(documents),
        run(documents, a="PRO", c="NEU"),
        run(documents, a="CON", b="CON", c="NEU"),
    ]
    fused = fuse_runs(runs, [1, 1, 1], RRF, task=None, depth=10, tag="t")
    assert {line.document_id: line.stance for line in fused.lines} == {
        "a": "PRO",
        "b": "CON",
        "c": "NEU",
    }
    assert (fused.disagreeing, fused.imputed, fused.left_out) == (1, 0, 0)


def test_no_q0_is_mixed_into_a_run_with_stances() -> None:
    runs = [run({"1": ["a", "b", "c"]}, a="PRO"), run({"1": ["c", "d"], "2": ["e"]})]

    def stances(name: str, depth: int = 10) -> tuple[list[tuple[str, str]], int, int]:
        fused = fuse_runs(runs, [1, 1], RRF, task=get_task(name), depth=depth, tag="t")
        return (
            [(line.document_id, line.stance) for line in fused.lines],
            fused.imputed,
            fused.left_out,
        )

    assert stances("controversial") == (
        [("c", "NO"), ("a", "PRO"), ("b", "NO"), ("d", "NO"), ("e", "NO")],
        4,
        0,
    )
    assert stances("sentence_pairs") == ([("a", "PRO")], 0, 4)
    # What is left out takes no place, and what the depth cuts off is not counted.
    assert stances("sentence_pairs", 1) == ([("a", "PRO")], 0, 2)
    with raises_at(UsageError, "topic 1, document c", "`task: NAME`"):
        fuse_runs(runs, [1, 1], RRF, task=None, depth=10, tag="t")
