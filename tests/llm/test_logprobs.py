"""Label probabilities from recorded tokens of constrained answers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.answer_models import ComparativeJudgment
from tests.scripted_engine import spell
from touche_llm.data.records import Reading
from touche_llm.judging.grades import compute_expected_grade
from touche_llm.llm.answer import Token
from touche_llm.llm.answer_schema import AnswerForm, Layout, get_labels
from touche_llm.llm.label_probabilities import TokenizedAnswer, read_label, select_label_tokens
from touche_llm.llm.label_statistics import MIN_READINGS, LabelInformation, get_most_probable

LABELS = get_labels(ComparativeJudgment)
LAYOUT = Layout(AnswerForm.OBJECT, (*LABELS, "depth"))
# A token of the answer, or a token with the probabilities of its alternatives.
Piece = str | tuple[str, Mapping[str, float]]


def tokens_of(pieces: Sequence[Piece]) -> tuple[str, list[Token]]:
    text = ""
    tokens = []
    for piece in pieces:
        token, shares = (piece, {piece: 1.0}) if isinstance(piece, str) else piece
        top = [(alternative, math.log(share)) for alternative, share in shares.items()]
        tokens.append(
            Token(at=len(text.encode()), token=token, logprob=math.log(shares[token]), top=top)
        )
        text += token
    return text, tokens


def read(pieces: Sequence[Piece], field: str, answered: int | str) -> Reading:
    text, tokens = tokens_of(pieces)
    return read_label(TokenizedAnswer(text, tokens, LAYOUT), field, LABELS[field], answered)


def test_a_grade_of_one_token() -> None:
    shares = {"2": 0.5, "1": 0.3, "0": 0.15, "3": 0.05}
    reading = read(
        ['{"relevance":', ("2", shares), ',"quality":', "1", ',"stance":"', "NO", '"}'],
        "relevance",
        2,
    )
    assert reading.probabilities == pytest.approx({"0": 0.15, "1": 0.3, "2": 0.5, "3": 0.05})
    assert reading.off_label_mass == pytest.approx(0.0, abs=1e-9)
    assert compute_expected_grade(reading) == pytest.approx(0.3 + 1.0 + 0.15)


def test_probability_on_no_label_is_off_label_mass_and_the_rest_is_renormalised() -> None:
    shares = {"2": 0.4, "1": 0.4, "7": 0.1, "\n": 0.05}
    reading = read(['{"relevance":', ("2", shares), ',"quality":1,"stance":"NO"}'], "relevance", 2)
    assert reading.probabilities == pytest.approx({"0": 0.0, "1": 0.5, "2": 0.5, "3": 0.0})
    # 0.1 on another number, 0.05 that the server did not show; white space may still be followed by
    # any label.
    assert reading.off_label_mass == pytest.approx(0.15)
    assert reading.shared == pytest.approx(0.05)


def test_a_number_that_only_begins_like_a_grade_is_off_label_mass() -> None:
    shares = {"2": 0.5, "25": 0.3, "2.": 0.1, "2-": 0.1}
    reading = read(['{"relevance":', ("2", shares), ',"quality":1,"stance":"NO"}'], "relevance", 2)
    assert reading.probabilities == pytest.approx({"0": 0.0, "1": 0.0, "2": 1.0, "3": 0.0})
    assert reading.off_label_mass == pytest.approx(0.5)


def test_probabilities_of_tokens_with_the_same_text_add_up() -> None:
    """A byte token and a character token can both read `1`."""
    text = '{"relevance":2,"quality":1,"stance":"NO"}'
    top = [("2", math.log(0.4)), ("1", math.log(0.3)), ("1", math.log(0.3))]
    token = Token(at=13, token="2", logprob=math.log(0.4), top=top)
    answer = TokenizedAnswer(text, [token], LAYOUT)
    reading = read_label(answer, "relevance", LABELS["relevance"], 2)
    assert reading.probabilities == pytest.approx({"0": 0.0, "1": 0.6, "2": 0.4, "3": 0.0})
    assert get_most_probable(reading) == "1"


def test_a_label_in_several_tokens_is_followed() -> None:
    pieces: list[Piece] = [
        '{"relevance":1,"quality":1,"stance":',
        '"',
        ("N", {"N": 0.6, "F": 0.3, "SE": 0.1}),
        ("E", {"E": 0.75, "O": 0.25}),
        "UTRAL",
        '"}',
    ]
    reading = read(pieces, "stance", "NEUTRAL")
    assert reading.probabilities == pytest.approx(
        {"FIRST": 0.3, "SECOND": 0.1, "NEUTRAL": 0.45, "NO": 0.15}
    )
    assert reading.shared == 0.0


def test_a_grade_of_two_digits_is_read_at_the_first() -> None:
    # As far as no other grade begins like it.
    for last in (["10"], ["1", "0"]):
        shares = {"7": 0.51, last[0]: 0.49}
        text, tokens = tokens_of(['{"depth":', ("7", shares), "}"])
        reading = read_label(TokenizedAnswer(text, tokens, LAYOUT), "depth", range(2, 11), 7)
        assert compute_expected_grade(reading) == pytest.approx(0.51 * 7 + 0.49 * 10)
        text, tokens = tokens_of(['{"depth":', (last[0], shares), *last[1:], "}"])
        reading = read_label(TokenizedAnswer(text, tokens, LAYOUT), "depth", range(2, 11), 10)
        assert compute_expected_grade(reading) == pytest.approx(0.51 * 7 + 0.49 * 10)


def test_an_alternative_that_begins_several_labels_is_split_evenly() -> None:
    pieces: list[Piece] = [
        '{"relevance":1,"quality":1,"stance":"',
        ("FIRST", {"FIRST": 0.6, "N": 0.4}),
        '"}',
    ]
    reading = read(pieces, "stance", "FIRST")
    assert reading.probabilities == pytest.approx(
        {"FIRST": 0.6, "SECOND": 0.0, "NEUTRAL": 0.2, "NO": 0.2}
    )
    assert reading.shared == pytest.approx(0.4)


def test_the_quote_may_be_merged_with_the_label() -> None:
    pieces: list[Piece] = [
        '{"relevance":1,"quality":1,"stance":',
        ('"NO', {'"NO': 0.5, '"': 0.3, '"F': 0.2}),
        '"}',
    ]
    reading = read(pieces, "stance", "NO")
    # `"` alone may become any of the four and says nothing.
    assert reading.probabilities == pytest.approx(
        {"FIRST": 2 / 7, "SECOND": 0.0, "NEUTRAL": 0.0, "NO": 5 / 7}
    )
    assert reading.shared == pytest.approx(0.3)
    assert reading.off_label_mass == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    "tokens",
    [
        [],
        [Token(at=0, token="{", logprob=0.0, top=[])],
        [Token(at=13, token="x", logprob=-0.1, top=[("y", -0.2)])],
        [Token(at=13, token="2", logprob=-0.1, top=[])],
    ],
)
def test_without_matching_log_probabilities_there_are_no_probabilities(tokens: list[Token]) -> None:
    answer = TokenizedAnswer('{"relevance":2,"quality":1,"stance":"NO"}', tokens, LAYOUT)
    reading = read_label(answer, "relevance", LABELS["relevance"], 2)
    assert reading == Reading(answered=2)
    assert (compute_expected_grade(reading), get_most_probable(reading)) == (2.0, "2")


def test_the_most_probable_label_can_differ_from_the_answered_one_but_not_in_a_tie() -> None:
    assert (
        get_most_probable(Reading(answered="NO", probabilities={"FIRST": 0.6, "NO": 0.4}))
        == "FIRST"
    )
    assert (
        get_most_probable(Reading(answered="NO", probabilities={"FIRST": 0.5, "NO": 0.5})) == "NO"
    )


def test_the_tokens_of_labels_suffice_for_the_readings() -> None:
    pieces: list[Piece] = [
        "{",
        '"relevance',
        '":',
        ("2", {"2": 0.9, "1": 0.1}),
        ',"quality":',
        "1",
        ',"stance":"NO"}',
    ]
    text, tokens = tokens_of(pieces)
    answer = TokenizedAnswer(text, tokens, LAYOUT)
    kept = select_label_tokens(answer, ["relevance"])
    assert [token.token for token in kept] == ["2"]
    arguments = ("relevance", LABELS["relevance"], 2)
    stored = replace(answer, tokens=kept)
    assert read_label(stored, *arguments) == read_label(answer, *arguments)


@st.composite
def split_answers(draw: st.DrawFn) -> tuple[str, list[Token], Mapping[str, int | str]]:
    """Generate an answer split into tokens anywhere, with arbitrary alternatives and probabilities."""
    answered = {field: draw(st.sampled_from(labels)) for field, labels in LABELS.items()}
    text, _ = spell(answered, replace(LAYOUT, fields=tuple(LABELS)))
    tokens, at = [], 0
    while at < len(text):
        end = draw(st.integers(at + 1, len(text)))
        token = text[at:end]
        other = st.tuples(
            st.text(max_size=4) | st.sampled_from([token[:1], "N", '"', "2"]), st.floats(-30, 0)
        )
        tokens.append(
            Token(
                at=at,
                token=token,
                logprob=draw(st.floats(-15, 0)),
                top=[*draw(st.lists(other, max_size=4)), (token, -0.5)],
            )
        )
        at = end
    return text, tokens, answered


@given(split_answers())
@pytest.mark.slow
def test_any_split_gives_a_distribution_over_the_labels(
    case: tuple[str, list[Token], Mapping[str, int | str]],
) -> None:
    text, tokens, answered = case
    answer = TokenizedAnswer(text, tokens, LAYOUT)
    for field, labels in LABELS.items():
        reading = read_label(answer, field, labels, answered[field])
        assert reading.probabilities is not None
        assert sum(reading.probabilities.values()) == pytest.approx(1.0, abs=1e-6)
        assert all(share >= 0 for share in reading.probabilities.values())
        assert reading.probabilities[str(answered[field])] > 0
        assert reading.off_label_mass is not None and reading.off_label_mass >= 0
        # The only label of the start-up check.
        alone = read_label(answer, field, (answered[field],), answered[field])
        assert alone.probabilities == {str(answered[field]): 1.0}


def test_offsets_are_in_bytes() -> None:
    shares = {"2": 0.75, "1": 0.25}
    pieces: list[Piece] = [
        '{"reason":"äöü – 長い","relevance":',
        ("2", shares),
        ',"quality":',
        "1",
        "}",
    ]
    reading = read(pieces, "relevance", 2)
    assert reading.probabilities == pytest.approx({"0": 0.0, "1": 0.25, "2": 0.75, "3": 0.0})
    answer = TokenizedAnswer(*tokens_of(pieces), LAYOUT)
    assert [token.token for token in select_label_tokens(answer, ["relevance", "quality"])] == [
        "2",
        "1",
    ]


def test_a_repeated_field_has_no_probabilities() -> None:
    pieces: list[Piece] = [
        '{"relevance":',
        ("2", {"2": 0.5, "3": 0.5}),
        ',"quality":',
        "1",
        ',"relevance":',
        "3",
        "}",
    ]
    assert read(pieces, "relevance", 3) == Reading(answered=3)
    answer = TokenizedAnswer(*tokens_of(pieces), LAYOUT)
    assert [token.token for token in select_label_tokens(answer, ["relevance", "quality"])] == ["1"]


def compute_information(readings: list[Reading]) -> float | None:
    information = LabelInformation()
    for one in readings:
        if one.probabilities is not None:
            information.add(one.probabilities)
    return information.bits


def share(*shares: float) -> Reading:
    return Reading(answered=0, probabilities=dict(zip("0123", shares, strict=False)))


def test_certain_labels_carry_the_entropy_of_their_distribution() -> None:
    readings = [
        share(1.0, 0.0, 0.0, 0.0),
        share(0.0, 1.0, 0.0, 0.0),
        *[share(0.0, 0.0, 1.0, 0.0)] * 2,
    ] * 25
    assert compute_information(readings) == pytest.approx(1.5)


def test_too_few_readings_with_probabilities_give_none() -> None:
    few = [share(1.0, 0.0)] * (MIN_READINGS - 1)
    assert compute_information([*few, *[Reading(answered=1)] * 10]) is None
    assert compute_information([*few, share(0.0, 1.0)]) is not None
