from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ranking.fake_comparer import ids
from touche_llm.data.records import ScoredDocument
from touche_llm.ranking.order import BalanceSettings, balance

SIDES = ("PRO", "CON")
LABELS = ("PRO", "CON", "NEU", "NO")
# In 64ths, so that differences are exact.
SCORES = st.integers(0, 64).map(lambda score: score / 64)


@st.composite
def rankings(draw: st.DrawFn) -> tuple[list[ScoredDocument], dict[str, float], dict[str, str]]:
    """A ranking, and the worth and the stance of its documents; worth need not fall with the score."""
    scores = sorted(draw(st.lists(SCORES, max_size=12)), reverse=True)
    ranking = [ScoredDocument(f"d{place:02}", score) for place, score in enumerate(scores)]
    worth = {each.document_id: draw(SCORES) for each in ranking}
    return ranking, worth, {each.document_id: draw(st.sampled_from(LABELS)) for each in ranking}


def balanced(labels: str, worth: list[float], margin: float, places: int = 9) -> str:
    """The labels in their new order: P, C, and N for no side."""
    names = {"P": "PRO", "C": "CON", "N": "NEU"}
    ranking = [ScoredDocument(f"{place}{label}", 1.0 / (place + 1)) for place, label in enumerate(labels)]
    of_each = {each.document_id: value for each, value in zip(ranking, worth, strict=True)}
    stances = {each.document_id: names[each.document_id[-1]] for each in ranking}
    chosen = BalanceSettings(margin=margin, places=places)
    return "".join(each[-1] for each in ids(balance(ranking, of_each, stances, SIDES, chosen)))


@given(rankings(), SCORES, st.integers(1, 5))
@settings(deadline=None)
def test_no_document_passes_one_that_is_better_by_more_than_the_margin_or_rises_too_far(
    drawn: tuple[list[ScoredDocument], dict[str, float], dict[str, str]], margin: float, places: int
) -> None:
    ranking, worth, stances = drawn
    found = balance(ranking, worth, stances, SIDES, BalanceSettings(margin=margin, places=places))
    before, order = ids(ranking), ids(found)
    assert sorted(order) == sorted(before)
    for place, each in enumerate(order):
        assert before.index(each) - place <= places
        for passed in order[place + 1 :]:
            if before.index(passed) < before.index(each):
                assert worth[passed] - worth[each] <= margin
    # Scores stay with the places.
    assert [each.score for each in found] == [each.score for each in ranking]


@given(rankings(), st.integers(1, 5))
@settings(deadline=None)
def test_documents_of_one_side_and_those_of_none_keep_their_order_where_all_are_about_equal(
    drawn: tuple[list[ScoredDocument], dict[str, float], dict[str, str]], places: int
) -> None:
    ranking, worth, stances = drawn
    order = ids(balance(ranking, worth, stances, SIDES, BalanceSettings(margin=1.0, places=places)))
    for group in (["PRO"], ["CON"], ["NEU", "NO"]):
        same = [each for each in order if stances[each] in group]
        assert same == sorted(same)


@given(st.integers(0, 6), st.integers(0, 6))
@settings(deadline=None)
def test_among_equals_sides_take_turns_for_as_long_as_there_are_both(pro: int, con: int) -> None:
    found = balanced("P" * pro + "C" * con, [0.5] * (pro + con), 0.0)
    turns = found[: 2 * min(pro, con)]
    assert all(one != other for one, other in pairwise(turns))
    assert len(set(found[len(turns) :])) <= 1


def test_a_document_within_the_margin_goes_up_and_one_beyond_it_stays() -> None:
    assert balanced("PPC", [0.75, 0.5, 0.375], 0.125) == "PCP"
    assert balanced("PPC", [0.75, 0.5, 0.25], 0.125) == "PPC"
    # Also where the better one that it would pass does not stand directly above.
    assert balanced("PPPC", [0.5, 0.5, 0.9, 0.5], 0.125) == "PPPC"


def test_a_document_rises_by_so_many_places_at_most() -> None:
    assert balanced("PPPC", [0.5] * 4, 0.0, places=2) == "PCPP"
    assert balanced("PPPPC", [0.5] * 5, 0.0, places=2) == "PPCPP"
