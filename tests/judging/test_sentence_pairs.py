from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from touche_llm.corpus.store import PartPlace
from touche_llm.data.records import Candidate, Judgment, Reading
from touche_llm.kinds.pairs.inheritance import inherit_judgment
from touche_llm.kinds.pairs.pairing import make_pairs
from touche_llm.kinds.pairs.sentences import Sentence, SentenceSelector
from touche_llm.kinds.pairs.settings import PairSettings
from touche_llm.tasks.parts import Scale

SCALES = {name: Scale(0, 3) for name in ("relevance", "quality", "coherence")}
WEIGHTS = {"relevance": 1.0, "quality": 0.5, "coherence": 0.5, "first_stage": 0.05}


def sentence(
    name: str, side: str = "PRO", score: float = 0.5, claim: float = 0.0, rank: int = 1
) -> Sentence:
    """A sentence named `A1_2`: the second of the first argument."""
    argument, place = name[1:].split("_")
    return Sentence(name, int(argument), int(place), side, score, claim, rank)


def judgment(
    name: str,
    stance: Mapping[str, float],
    role: Mapping[str, float] | None = None,
    grades: tuple[float, float] = (3.0, 1.5),
) -> Judgment:
    """A sentence's judgment; the answered labels are the most probable ones."""
    fields = {
        "stance": dict(stance),
        "role": dict(role or {"CLAIM": 1.0, "PREMISE": 0.0, "NONE": 0.0}),
    }
    readings = {
        field: Reading(answered=max(shares, key=shares.__getitem__), probabilities=shares)
        for field, shares in fields.items()
    }
    return Judgment(
        topic_id="1",
        document_id=name,
        grades={"relevance": grades[0], "quality": grades[1]},
        stance=str(readings["stance"].answered),
        readings=readings,
        source="probabilities",
        prompt="sentence_pairs/sentence@1-x",
        answer_keys=["k"],
    )


def sides(judgments: list[Judgment], settings: PairSettings | None = None) -> dict[str, str]:
    candidates = [
        Candidate("1", each.document_id, rank, 1.0) for rank, each in enumerate(judgments, start=1)
    ]
    by_id = {each.document_id: each for each in judgments}
    selector = SentenceSelector(
        locate=lambda name: PartPlace(0, 0),
        settings=settings or PairSettings(),
        weights=WEIGHTS,
        scales=SCALES,
    )
    return {each.id: each.side for each in selector.select(candidates, by_id)}


def test_the_side_is_the_more_probable_one_unless_none_is_probable_enough() -> None:
    assert sides(
        [
            judgment("none", {"PRO": 0.45, "CON": 0.04, "NONE": 0.51}),
            judgment("pro", {"PRO": 0.30, "CON": 0.25, "NONE": 0.45}),
            judgment("con", {"PRO": 0.10, "CON": 0.40, "NONE": 0.50}),
            judgment("tied", {"PRO": 0.30, "CON": 0.30, "NONE": 0.40}),
        ]
    ) == {"pro": "PRO", "con": "CON"}


def test_without_probabilities_the_answered_side_holds() -> None:
    readings = {"stance": Reading(answered="CON"), "role": Reading(answered="CLAIM")}
    plain = replace(judgment("a", {"PRO": 1.0}), readings=readings, source="value")
    none = replace(plain, document_id="b", readings=readings | {"stance": Reading(answered="NONE")})
    assert sides([plain, none]) == {"a": "CON"}
    assert sides([plain, none], PairSettings(no_side_above=1.0)) == {"a": "CON"}


def test_a_sentence_is_worth_its_grades_as_far_as_it_argues() -> None:
    judgments = {
        "good": judgment("good", {"PRO": 1.0, "CON": 0.0, "NONE": 0.0}),
        "talk": judgment(
            "talk",
            {"PRO": 0.6, "CON": 0.3, "NONE": 0.1},
            {"CLAIM": 0.1, "PREMISE": 0.1, "NONE": 0.8},
        ),
    }
    candidates = [
        Candidate("1", "talk", 1, 2.0),
        Candidate("1", "good", 2, 1.0),
        Candidate("1", "unjudged", 3, 0.5),
    ]
    selector = SentenceSelector(
        locate=lambda name: PartPlace(len(name), 7),
        settings=PairSettings(),
        weights=WEIGHTS,
        scales=SCALES,
    )
    good, talk = selector.select(candidates, judgments)
    assert (good.id, good.argument, good.place, good.rank) == ("good", 4, 7, 2)
    assert good.score == pytest.approx((3.0 + 0.5 * 1.5) / 1.5 / 3)
    assert talk.score == pytest.approx(0.2 * 0.6 * good.score)
    assert good.claim == pytest.approx(1.0)
    assert talk.claim == pytest.approx(0.0)


def test_pairs_stand_on_one_side_and_the_claim_comes_first() -> None:
    sentences = [
        sentence("A1_1", claim=-0.9, score=0.9, rank=1),
        sentence("A2_1", claim=0.8, score=0.8, rank=2),
        sentence("A3_1", "CON", score=0.7, rank=3),
        sentence("A4_1", "CON", score=0.6, rank=4),
    ]
    pairs = make_pairs("7", sentences, PairSettings(), min_pairs=0)
    assert [(each.topic_id, each.document_id, each.rank) for each in pairs] == [
        ("7", "A2_1,A1_1", 1),
        ("7", "A3_1,A4_1", 2),
    ]
    assert [each.score for each in pairs] == pytest.approx([0.85, 0.65])


def test_sentences_of_one_argument_are_preferred_by_the_bonus() -> None:
    sentences = [
        sentence("A1_1", score=0.8),
        sentence("A2_1", score=0.75),
        sentence("A1_2", score=0.7),
    ]
    settings = PairSettings(most_share=1.0)
    near = make_pairs("1", sentences, settings, min_pairs=0)
    assert near[0].document_id == "A1_1,A1_2"
    far = make_pairs(
        "1", sentences, settings.model_copy(update={"same_argument": 0.0}), min_pairs=0
    )
    assert far[0].document_id == "A1_1,A2_1"


@given(
    st.lists(
        st.tuples(st.sampled_from(["PRO", "CON"]), st.floats(0, 1), st.floats(-1, 1)), max_size=40
    ),
    st.sampled_from([0.02, 0.1, 0.3, 1.0]),
    st.sampled_from([5, 30, 1000]),
    st.sampled_from([0, 20, 100]),
)
def test_no_pair_is_made_twice_and_no_sentence_is_in_too_many(
    made: list[tuple[str, float, float]], share: float, most: int, least: int
) -> None:
    sentences = [
        Sentence(f"S{n}", n % 3, n, side, score, claim, n)
        for n, (side, score, claim) in enumerate(made)
    ]
    sentences.sort(key=lambda each: (-each.score, each.rank))
    pairs = make_pairs("1", sentences, PairSettings(most_share=share, most=most), least)
    by_id = {each.id: each for each in sentences}
    ids = [each.document_id.split(",") for each in pairs]
    assert all(one != other and by_id[one].side == by_id[other].side for one, other in ids)
    assert len({frozenset(pair) for pair in ids}) == len(ids) <= most
    for one, other in ((by_id[one], by_id[other]) for one, other in ids):
        assert one.claim >= other.claim or (
            one.argument == other.argument and one.place < other.place
        )
    counts = Counter(name for pair in ids for name in pair)
    limit = max(1, int(share * len(ids)))
    possible = sum(n * (n - 1) // 2 for n in Counter(each.side for each in sentences).values())
    if len(ids) > min(least, possible, most):
        assert max(counts.values(), default=0) <= limit
    assert len(ids) >= min(least, possible, most)


def largest_share(pairs: list[Candidate]) -> float:
    counts = Counter(name for pair in pairs for name in pair.document_id.split(","))
    return max(counts.values()) / len(pairs)


@pytest.mark.parametrize(
    ("claims", "first"), [((0.0, 0.4), "A1_1"), ((0.4, 0.0), "A1_1"), ((0.0, 0.6), "A1_2")]
)
def test_an_argument_keeps_its_order_unless_the_later_sentence_is_clearly_its_claim(
    claims: tuple[float, float], first: str
) -> None:
    sentences = [
        sentence("A1_1", claim=claims[0], rank=2),
        sentence("A1_2", claim=claims[1], rank=1),
    ]
    (pair,) = make_pairs("1", sentences, PairSettings(), min_pairs=0)
    assert pair.document_id.split(",")[0] == first


def test_no_sentence_takes_more_than_its_share_of_the_pairs_that_are_judged() -> None:
    best = sentence("A0_1", score=0.98, rank=1)
    sentences = [
        best,
        *(sentence(f"A{n}_1", score=0.7 - n / 1000, rank=n + 1) for n in range(1, 60)),
    ]
    pairs = make_pairs("1", sentences, PairSettings(judged=50, most_share=0.1), min_pairs=100)
    judged = [each.document_id.split(",") for each in pairs[:50]]
    assert sum(best.id in pair for pair in judged) == 5
    assert largest_share(pairs[:50]) == 0.1


def test_a_pair_inherits_the_mean_grades_and_the_side() -> None:
    settings = PairSettings()
    judgments = {
        "a": judgment("a", {"PRO": 0.1, "CON": 0.6, "NONE": 0.3}, grades=(3.0, 1.0)),
        "b": judgment("b", {"PRO": 0.2, "CON": 0.3, "NONE": 0.5}, grades=(2.0, 2.0)),
    }
    made = inherit_judgment(Candidate("1", "a,b", 4, 0.3), judgments, settings)
    assert (made.document_id, made.stance, made.source, made.answer_keys) == (
        "a,b",
        "CON",
        "inherited",
        [],
    )
    assert made.grades == {"relevance": 2.5, "quality": 1.5}
