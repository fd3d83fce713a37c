from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ranking.fake_comparer import FakeComparer, at_random, by_worth, ids, names
from touche_llm.data.records import ScoredDocument
from touche_llm.ranking.scores import JudgedRanking, TopicDocuments
from touche_llm.ranking.steps import (
    STEPS,
    RankingSettings,
    Step,
    check_sides,
    count_shown_documents,
    parse_steps,
)
from touche_llm.ranking.topics import rank_topic

SIDES = ("PRO", "CON")
CHAINS = st.lists(
    st.tuples(st.sampled_from(list(STEPS)), st.integers(2, 14)).map(lambda step: Step(*step)),
    min_size=1,
    max_size=4,
)


def scored(documents: list[str]) -> list[ScoredDocument]:
    return [
        ScoredDocument(each, 1.0 - place / max(len(documents), 1))
        for place, each in enumerate(documents)
    ]


class Comparing:
    """Models of the steps: a comparer for each, which also gives the scores of a cross-encoder."""

    def __init__(self, make: Callable[[Step], FakeComparer]) -> None:
        self.make_comparer = make

    async def score(self, documents: Sequence[str]) -> list[float]:
        return await self.make_comparer(Step("cross_encoder"))(documents)


async def rank(
    steps: str | list[Step],
    first: list[ScoredDocument],
    judged: list[ScoredDocument] | JudgedRanking,
    comparer: Callable[[Step], FakeComparer] = lambda step: FakeComparer(),
    stances: Mapping[str, str] | None = None,
    **chosen: object,
) -> list[ScoredDocument]:
    documents = TopicDocuments(
        first_stage=first,
        judged=judged if isinstance(judged, JudgedRanking) else JudgedRanking(judged, [], []),
        stances=stances if stances is not None else {each.document_id: "NO" for each in first},
        sides=SIDES,
    )
    parsed = parse_steps(steps.split(",")) if isinstance(steps, str) else steps
    settings = RankingSettings.model_validate(chosen)
    ranking = await rank_topic(documents, parsed, settings, Comparing(comparer))
    return ranking.fill_scores()


def asking_by(worth: Mapping[str, float]) -> Callable[[Step], FakeComparer]:
    best, order = by_worth(worth)
    return lambda step: FakeComparer(best, order)


@pytest.mark.parametrize(
    ("steps", "shown"),
    [
        ("judge", {}),
        ("judge,fusion:9,balance:9,cross_encoder:9", {}),
        ("judge,pairwise:9", {"best": 2}),
        ("sliding:9,setwise:9", {"best": 6}),
        ("setwise:4,pairwise:9", {"best": 4}),
        ("insertion:9", {"best": 3}),
        ("listwise:9", {"order": 8}),
        ("tournament:9,listwise:3,pairwise:9", {"order": 7, "best": 2}),
    ],
)
def test_each_kind_of_comparison_shows_at_most_as_many_documents_as_its_steps(
    steps: str, shown: Mapping[str, int]
) -> None:
    ranking = RankingSettings.model_validate(
        {
            "setwise": {"children": 5},
            "insertion": {"children": 2},
            "listwise": {"window": 8, "stride": 4},
            "tournament": {"group": 7},
        }
    )
    assert count_shown_documents(parse_steps(steps.split(",")), ranking) == shown


def test_steps_are_read_as_they_are_written() -> None:
    steps = parse_steps(["judge", " pairwise:10", "balance:5"])
    assert steps == (Step("judge"), Step("pairwise", 10), Step("balance", 5))
    assert [str(step) for step in steps] == ["judge", "pairwise:10", "balance:5"]
    assert parse_steps(["sliding:20", "sliding:5"]) == (Step("sliding", 20), Step("sliding", 5))


@pytest.mark.parametrize(
    ("texts", "pattern"),
    [
        ([], "pairwise:10"),
        (["judge", "bubble:10"], "'bubble:10': .*judge.* pairwise, .* balance"),
        (["judge:10"], "'judge:10'"),
        (["judge", "judge"], "^judge "),
        *(
            ([f"pairwise{depth}"], f"'pairwise{depth}.*: .* 2 to 200.*pairwise:10")
            for depth in ("", ":1", ":10:5", ":10001")
        ),
    ],
)
def test_steps_that_cannot_be_carried_out_are_refused(texts: list[str], pattern: str) -> None:
    with pytest.raises(ValueError, match=pattern):
        parse_steps(texts)


@given(
    st.permutations(names(12)),
    st.permutations(names(12)),
    CHAINS,
    st.booleans(),
    st.integers(0, 10**6),
)
@settings(max_examples=30, deadline=None)
async def test_whatever_is_answered_documents_below_a_step_stay_below_and_scores_fall(
    first: list[str], judged: list[str], steps: list[Step], judge: bool, seed: int
) -> None:
    best, order = at_random(seed)
    before = judged if judge else first
    stances = {each: ("PRO", "CON", "NO")[place % 3] for place, each in enumerate(first)}
    for count in range(1, len(steps) + 1):
        ranking = await rank(
            [Step("judge")] * judge + steps[:count],
            scored(first),
            scored(judged),
            lambda step: FakeComparer(best, order),
            stances,
        )
        depth = steps[count - 1].depth
        assert sorted(ids(ranking)[:depth]) == sorted(before[:depth])
        assert ids(ranking)[depth:] == before[depth:]
        scores = [each.score for each in ranking]
        assert scores == sorted(scores, reverse=True)
        before = ids(ranking)


async def test_without_judge_the_first_stage_is_what_is_put_in_order_and_with_judge_the_judgments() -> (
    None
):
    first, judged = scored(names(6)), scored(names(6)[::-1])
    assert await rank("judge", first, judged) == judged
    assert ids(await rank("pairwise:2", first, judged)) == names(6)
    assert ids(await rank("judge,pairwise:2", first, judged)) == names(6)[::-1]


async def test_fusion_puts_the_first_stage_and_every_step_together() -> None:
    # First stage a b c d, judgments b a d c, comparisons of the best three the other way round: d a
    # b.
    worth = {"d": 3.0, "a": 2.0, "b": 1.0}
    ranking = await rank(
        "judge,pairwise:3,fusion:4",
        scored(list("abcd")),
        scored(list("badc")),
        asking_by(worth),
        fusion={"k": 0},
    )
    # a: 1 + 1/2 + 1/2; b: 1/2 + 1 + 1/3; d: 1/4 + 1/3 + 1; c: 1/3 + 1/4 + 1/4.
    assert ids(ranking) == ["a", "b", "d", "c"]


def test_a_task_without_sides_has_nothing_to_balance() -> None:
    with pytest.raises(ValueError, match="^rank: "):
        check_sides(parse_steps(["judge", "balance:5"]), (), "rank")


async def test_a_document_without_a_judgment_changes_nothing_among_the_interpolated_ones() -> None:
    first, known = scored(list("cfbaed")), {"a": 0.9, "b": 0.8, "c": 0.3, "d": 0.2}
    orders = []
    for unjudged, inherited in ((["e"], ["f"]), (["b", "e"], ["f"])):
        lacking = {*unjudged, *inherited}
        scored_ones = [
            ScoredDocument(document, score)
            for document, score in known.items()
            if document not in lacking
        ]
        judged = JudgedRanking(scored_ones, inherited, unjudged)
        orders.append(
            ids(await rank("judge,fusion:6", first, judged, fusion={"method": "interpolation"}))
        )
    # Those without a judgment are the last, in the order of the first stage among those of a kind.
    assert [document for document in orders[0][:4] if document != "b"] == orders[1][:3]
    assert (orders[0][4:], orders[1][3:]) == (["f", "e"], ["f", "b", "e"])


async def test_a_fusion_weighs_rankings_by_the_names_of_their_steps() -> None:
    worth = dict(zip("abcd", [1.0, 4.0, 2.0, 3.0], strict=True))
    for only, order in (
        ("first_stage", "abcd"),
        ("judge", "dcba"),
        ("pairwise", "bdca"),
        ("sliding", "badc"),
    ):
        weights = dict.fromkeys(("first_stage", "judge", "pairwise", "sliding"), 0.0) | {only: 1.0}
        ranking = await rank(
            "judge,pairwise:4,sliding:4,fusion:4",
            scored(list("abcd")),
            scored(list("dcba")),
            lambda step: asking_by(
                worth if step.name == "pairwise" else {"b": 4, "a": 3, "d": 2, "c": 1}
            )(step),
            fusion={"weights": weights},
        )
        assert ids(ranking) == list(order)
    with pytest.raises(ValueError, match=r"fusion\.weights: judgments: .*first_stage"):
        RankingSettings.model_validate({"fusion": {"weights": {"judgments": 1.0}}})


async def test_balance_goes_by_the_judgments_whatever_scores_a_step_gave() -> None:
    stances = dict(zip("abcd", ["PRO", "PRO", "CON", "CON"], strict=True))
    asking = asking_by(dict(zip("abcd", [4.0, 3.0, 2.0, 1.0], strict=True)))
    equal = [ScoredDocument(each, 1.0) for each in "abcd"]
    later = asking_by(dict(zip("abcd", [1.0, 2.0, 3.0, 4.0], strict=True)))
    assert ids(await rank("judge,balance:4,pairwise:2", equal, equal, later, stances)) == list(
        "cabd"
    )
    unequal = [
        ScoredDocument(each, score)
        for each, score in zip("abcd", [0.9, 0.8, 0.7, 0.6], strict=True)
    ]
    for steps in ("judge,balance:3", "judge,pairwise:2,balance:3", "pairwise:3,balance:3"):
        assert ids(await rank(steps, equal, equal, asking, stances)) == list("acbd")
        assert ids(await rank(steps, equal, unequal, asking, stances)) == list("abcd")
        assert ids(
            await rank(steps, equal, unequal, asking, stances, balance={"margin": 0.2})
        ) == list("acbd")
