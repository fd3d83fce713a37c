"""Label probabilities from the log-probabilities of a constrained answer's tokens."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from touche_llm.data.records import Label, Reading
from touche_llm.errors import Unusable
from touche_llm.llm.answer import Token
from touche_llm.llm.answer_schema import Layout, slice_bytes

# Probabilities are stored with nine digits, far more than log-probabilities carry; keeps files
# readable and stable.
_BILLION = 1e9
# Max excess of a probability over 1 due to rounding: in bfloat16, values next to 1 are 0.004 to
# 0.008 apart.
LOGPROB_ROUNDING = 0.01


@dataclass(frozen=True, slots=True)
class TokenizedAnswer:
    """Answer as a model wrote it.

    Attributes:
        text: Text of the answer.
        tokens: Tokens of the text, at least those that overlap the values with labels.
        layout: Layout of the text.
    """

    text: str
    tokens: Sequence[Token]
    layout: Layout


def select_label_tokens(answer: TokenizedAnswer, fields: Container[str]) -> list[Token]:
    """Return the tokens that overlap the value of a field, which are all that `read_label` needs.

    Args:
        answer: Answer with all its tokens.
        fields: Names of the fields with labels.
    """
    spans: list[tuple[int, int]] = []
    for name, span in answer.layout.find_values(answer.text).items():
        if name in fields:
            spans.append(span)
    return [token for token in answer.tokens if overlaps(token.at, token.token, spans)]


def check_logprobs(text: str, tokens: Iterable[Token]) -> None:
    """Raise an error if the log-probabilities of an answer are impossible.

    Args:
        text: Text of the answer, for the error.
        tokens: Tokens of the answer.

    Raises:
        Unusable: A log-probability is above 0 or no number, or the probabilities of a token and its
            alternatives add up to more than 1.
    """
    for token in tokens:
        logprobs = [logprob for _, logprob in _list_alternatives(token)]
        for logprob in (token.logprob, *logprobs):
            is_possible = math.isfinite(logprob) and logprob <= LOGPROB_ROUNDING
            if not is_possible:
                reason = f"a token has the log-probability {logprob:g}; none can be above 0"
                raise Unusable("impossible_logprobs", reason, text)

        total = sum(math.exp(logprob) for logprob in logprobs)
        if total > 1.0 + LOGPROB_ROUNDING:
            reason = f"the probabilities of a token and its alternatives add up to {total:g}; they cannot exceed 1"
            raise Unusable("impossible_logprobs", reason, text)


def overlaps(at: int, token: str, spans: Iterable[tuple[int, int]]) -> bool:
    """Return whether a token shares a byte with one of some spans.

    Args:
        at: Offset of the first byte of the token.
        token: Text of the token.
        spans: Offsets of the first byte, and of the byte after the last one.
    """
    end = at + len(token.encode("utf-8", errors="replace"))
    for span_start, span_end in spans:
        if at < span_end and span_start < end:
            return True
    return False


def read_label(
    answer: TokenizedAnswer,
    field: str,
    labels: Sequence[Label],
    answered: Label,
) -> Reading:
    """Return the probabilities of the labels of a field, from the tokens of its value.

    Args:
        answer: Answer with the tokens of its labels.
        field: Name of the field.
        labels: Labels of the field. No label may begin with another one, as 10 does with 1: no
            token shows that the shorter one has ended.
        answered: Label in the text.

    Returns:
        Reading of the field; without probabilities if the engine sent none that match the text.
    """
    value = _find_value(answer, field)
    if value is None:
        return Reading(answered=answered)

    # The tokens are compared from the beginning of the first one, so that each label gets its lead.
    spellings = {str(label): value.lead + answer.layout.spell_value(label) for label in labels}
    search = _LabelSearch(tuple(spellings.values()), answer.layout.ends)
    search.read_value(value.tokens)
    if search.label_mass <= 0.0:
        return Reading(answered=answered)
    return _make_reading(search, spellings, answered)


def _make_reading(search: _LabelSearch, spellings: Mapping[str, str], answered: Label) -> Reading:
    """Return the probabilities that a search has found, renormalised over the labels.

    `off_label_mass` is the probability of the alternatives that lead to no label, and of those that
    the engine did not send.

    Args:
        search: Search that has read the tokens of a value.
        spellings: Each label as it is written.
        answered: Label in the text.
    """
    probabilities: dict[str, float] = {}
    for label, spelling in spellings.items():
        probabilities[label] = round_nine_digits(search.masses[spelling] / search.label_mass)
    # What is ignored can become any label, so that it is no evidence of other answers. Rounding can
    # make the difference negative.
    off_label_mass = max(0.0, 1.0 - search.label_mass - search.ignored)
    return Reading(
        answered=answered,
        probabilities=probabilities,
        off_label_mass=round_nine_digits(off_label_mass),
        shared=round_nine_digits(search.shared),
    )


@dataclass(frozen=True, slots=True)
class _ValueTokens:
    """Tokens of a field's value.

    Attributes:
        tokens: Tokens that overlap the value, at least one.
        lead: Text before the value in the first of them, without white space, which may differ
            between alternatives.
    """

    tokens: Sequence[Token]
    lead: str


def _find_value(answer: TokenizedAnswer, field: str) -> _ValueTokens | None:
    """Return the tokens of a field's value; None if the engine did not send its first one.

    The first token can begin before the value: the token `:"P` has the lead `:`.
    """
    span = answer.layout.find_values(answer.text).get(field)
    if span is None:
        return None
    tokens = [token for token in answer.tokens if overlaps(token.at, token.token, (span,))]
    if not tokens:
        return None

    value_start, _ = span
    first_token = tokens[0]
    if first_token.at > value_start:
        return None
    lead = slice_bytes(answer.text, first_token.at, value_start)
    return _ValueTokens(tokens, squeeze(lead))


class _LabelSearch:
    """Search for the label that a value becomes, token by token.

    The probability of each alternative of a token goes to the label that the value can become with
    it: with the labels PRO, NO and NEUTRAL, that of `"P` to PRO. `"N` can become two of them. If it
    is the token of the answer, the next token decides; otherwise its probability is split evenly.
    An alternative that can become any label, such as a quotation mark, is ignored.

    White space is not compared: tokens of one text can differ in it.

    Attributes:
        masses: Probability of each label, by how it is written.
        label_mass: Probability of all labels; 0 if the tokens do not show it.
        shared: Probability of the alternatives that can become several labels, but are not the
            token of the answer.
        ignored: The part of it that can become any label, which no label gets.
        is_decided: Whether the value can become no other label than one, or none.
    """

    __slots__ = (
        "_ends",
        "_prefix",
        "_prefix_probability",
        "_spellings",
        "ignored",
        "is_decided",
        "label_mass",
        "masses",
        "shared",
    )

    def __init__(self, spellings: tuple[str, ...], ends: str) -> None:
        """Begin at the first token of a value.

        Args:
            spellings: Labels as they are written.
            ends: Characters that can follow a value.
        """
        self._spellings = spellings
        self._ends = ends

        # Text of the tokens read so far, and the probability that a value begins with it.
        self._prefix = ""
        self._prefix_probability = 1.0
        self.is_decided = False

        # Probabilities of the values that became a label, and of those that are still ambiguous.
        self.masses = dict.fromkeys(spellings, 0.0)
        self.label_mass = 0.0
        self.shared = 0.0
        self.ignored = 0.0

    def read_value(self, tokens: Iterable[Token]) -> None:
        """Read tokens of a value until they decide its label, and sum up the masses if they do."""
        for token in tokens:
            has_alternatives = bool(token.top)
            if not has_alternatives:
                return
            self._read_token(token)
            # Later tokens only complete the label.
            if self.is_decided:
                break

        if not self.is_decided:
            self._decide_by_end()
        if self.is_decided:
            self.label_mass = math.fsum(self.masses.values())

    def _read_token(self, token: Token) -> None:
        """Give the probability of each alternative to the labels that the value can become with it.

        The probability of the answer's own token is kept for the alternatives of the next token if
        it does not decide the label: of the labels NO and NEUTRAL, `N` can become both.
        """
        next_prefix = self._prefix + squeeze(token.token)
        next_candidates = self._find_candidates(next_prefix)
        self.is_decided = not next_candidates or self._is_single(next_candidates)

        next_probability = 0.0
        for text, logprob in _list_alternatives(token):
            probability = self._prefix_probability * math.exp(logprob)
            is_continued = text == token.token and not self.is_decided
            if is_continued:
                # A sum, since several tokens can have one text: a byte and a character, with and
                # without white space.
                next_probability += probability
            else:
                self._share_out(self._prefix + squeeze(text), probability)

        self._prefix = next_prefix
        self._prefix_probability = next_probability

    def _decide_by_end(self) -> None:
        """Give the probability of all tokens to the label that they spell, if they spell one.

        The last token may go on after the value, as `"}` does.
        """
        for spelling in self._spellings:
            if self._prefix.startswith(spelling):
                self.masses[spelling] += self._prefix_probability
                self.shared += self._prefix_probability
                self.is_decided = True
                return

    def _share_out(self, beginning: str, probability: float) -> None:
        """Give the probability of a value's beginning to the labels that the value can become.

        - One label gets the whole probability.
        - Several labels get equal parts of it, and it counts as shared.
        - If the value can become any label, as after a quotation mark, no label gets a part: the
          probability counts as shared and as ignored.
        """
        candidates = self._find_candidates(beginning)
        if not candidates:
            return
        if self._is_single(candidates):
            self.masses[candidates[0]] += probability
            return

        self.shared += probability
        can_become_any = len(candidates) == len(self._spellings)
        if can_become_any:
            self.ignored += probability
            return
        share = probability / len(candidates)
        for spelling in candidates:
            self.masses[spelling] += share

    def _is_single(self, candidates: Sequence[str]) -> bool:
        """Return whether only one of several labels is left."""
        return len(candidates) == 1 and len(self._spellings) > 1

    def _find_candidates(self, prefix: str) -> tuple[str, ...]:
        """Return the labels, as they are written, that a text can be or become."""
        return _find_candidates(self._spellings, prefix, self._ends)


# The alternatives of a model are much the same from answer to answer.
@lru_cache(maxsize=100_000)
def _find_candidates(spellings: tuple[str, ...], prefix: str, ends: str) -> tuple[str, ...]:
    """Return the labels, as they are written, that a text without white space can be or become."""
    candidates: list[str] = []
    for spelling in spellings:
        is_beginning = spelling.startswith(prefix)
        if is_beginning or _is_label_with_end(prefix, spelling, ends):
            candidates.append(spelling)
    return tuple(candidates)


def _is_label_with_end(text: str, spelling: str, ends: str) -> bool:
    """Return whether a text is a label with a character after it that can follow a value."""
    return text.startswith(spelling) and text[len(spelling)] in ends


def read_fields(
    answer: TokenizedAnswer,
    labels: Mapping[str, Sequence[Label]],
    answered: Mapping[str, Label],
) -> dict[str, Reading]:
    """Return the reading of each field that has labels.

    If one field has no probabilities, none has: expectations of one field would not be comparable
    with plain labels of another.

    Args:
        answer: Answer with the tokens of its labels.
        labels: Labels by field.
        answered: Label in the text, by field.
    """
    readings: dict[str, Reading] = {}
    for field, field_labels in labels.items():
        readings[field] = read_label(answer, field, field_labels, answered[field])

    if have_probabilities(readings.values()):
        return readings
    return {field: Reading(answered=answered[field]) for field in labels}


def have_probabilities(readings: Iterable[Reading]) -> bool:
    """Return whether all readings have label probabilities."""
    return all(reading.probabilities is not None for reading in readings)


def _list_alternatives(token: Token) -> Sequence[tuple[str, float]]:
    """Return the alternatives of a token with their log-probabilities, its own among them."""
    if any(text == token.token for text, _ in token.top):
        return token.top
    return [*token.top, (token.token, token.logprob)]


def round_nine_digits(value: float) -> float:
    """Round a non-negative value to nine digits after the point.

    The built-in `round` takes far longer.
    """
    return int(value * _BILLION + 0.5) / _BILLION


def squeeze(text: str) -> str:
    """Return a text without white space, also inside it."""
    return "".join(text.split())
