"""Label probabilities from the log-probabilities of a constrained answer's tokens."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from functools import lru_cache

from touche_llm.data.records import Reading
from touche_llm.errors import Unusable
from touche_llm.llm.answer import Token
from touche_llm.llm.answer_schema import Layout

Label = int | str
# Probabilities are stored with nine digits, far more than log-probabilities carry; keeps files
# readable and stable.
_BILLION = 1e9
# Max excess of a probability over 1 due to rounding: in bfloat16, values next to 1 are 0.004 to
# 0.008 apart.
LOGPROB_ROUNDING = 0.01


def select_label_tokens(
    text: str, tokens: Sequence[Token], layout: Layout, fields: Container[str]
) -> list[Token]:
    """Return the tokens of an answer that overlap the value of a field, which are all that `read_label` needs."""
    spans = [span for name, span in layout.find_values(text).items() if name in fields]
    return [token for token in tokens if overlaps(token.at, token.token, spans)]


def check_logprobs(text: str, tokens: Iterable[Token]) -> None:
    """Raise Unusable if log-probabilities are not finite or positive, or if probabilities add up to more than 1."""
    for token in tokens:
        logprobs = [logprob for _, logprob in _list_alternatives(token)]
        for logprob in (token.logprob, *logprobs):
            if not (math.isfinite(logprob) and logprob <= LOGPROB_ROUNDING):
                reason = f"a token has the log-probability {logprob:g}; none can be above 0"
                raise Unusable("impossible_logprobs", reason, text)
        total = sum(map(math.exp, logprobs))
        if total > 1.0 + LOGPROB_ROUNDING:
            reason = f"the probabilities of a token and its alternatives add up to {total:g}; they cannot exceed 1"
            raise Unusable("impossible_logprobs", reason, text)


def overlaps(at: int, token: str, spans: Iterable[tuple[int, int]]) -> bool:
    """Return whether a token whose first byte is at `at` shares a byte with one of the spans."""
    end = at + len(token.encode("utf-8", errors="replace"))
    for first, last in spans:
        if at < last and first < end:
            return True
    return False


def read_label(
    text: str,
    tokens: Sequence[Token],
    layout: Layout,
    field: str,
    labels: Sequence[Label],
    answered: Label,
) -> Reading:
    """Return the probabilities of the labels of a field, renormalised over the labels.

    At the token with which the value begins, the probability of each alternative goes to the label
    that the value can become with it. If there are several such labels (`NO` and `NEUTRAL` for
    `N`), the alternative is followed if it is the token of the answer, otherwise split evenly; if
    all labels are possible (white space, a quotation mark), it is ignored. `off_label_mass` is the
    probability of the alternatives that lead to no label and of those not sent.

    No label may begin another one as it is written (1 and 10), since it ends without a token of its
    own; scales and forms of answers with such labels are refused. There are no probabilities if the
    engine sent none that match.
    """
    path, lead = _find_path(text, tokens, layout, field)
    spelled = tuple(lead + layout.spell_value(label) for label in labels)
    mass = [0.0] * len(labels)
    followed, written, shared, ignored = 1.0, "", 0.0, 0.0
    for token in path:
        ambiguous: float | None = None
        if not token.top:
            return Reading(answered=answered)
        # Several tokens can have the same text (a byte and a character, with and without white
        # space): hence sums.
        for alternative, logprob in _list_alternatives(token):
            if not (
                possible := _find_reached(spelled, written + squeeze(alternative), layout.ends)
            ):
                continue
            probability = followed * math.exp(logprob)
            if len(possible) == 1 < len(labels):
                mass[possible[0]] += probability
            elif alternative == token.token:
                ambiguous = (ambiguous or 0.0) + probability
            else:
                shared += probability
                if len(possible) == len(labels):
                    ignored += probability
                else:
                    for place in possible:
                        mass[place] += probability / len(possible)
        if ambiguous is None:
            break
        followed, written = ambiguous, written + squeeze(token.token)
    else:
        # The last token may go on after the value: `"}`.
        complete = [place for place, label in enumerate(spelled) if written.startswith(label)]
        if not complete:
            return Reading(answered=answered)
        mass[complete[0]] += followed
        shared += followed
    total = math.fsum(mass)
    if total <= 0.0:
        return Reading(answered=answered)
    return Reading(
        answered=answered,
        probabilities=dict(
            zip(map(str, labels), [round_nine_digits(value / total) for value in mass], strict=True)
        ),
        off_label_mass=round_nine_digits(max(0.0, 1.0 - total - ignored)),
        shared=round_nine_digits(shared),
    )


def read_fields(
    text: str,
    tokens: Sequence[Token],
    layout: Layout,
    labels: Mapping[str, Sequence[Label]],
    answered: Mapping[str, Label],
) -> dict[str, Reading]:
    """Return the reading of each field that has labels.

    An answer is read in one way only, so that expectations are not mixed with plain labels: if one
    field has no probabilities, none has.

    Args:
        text: Text of the answer.
        tokens: Tokens of its labels.
        layout: Layout of the answer.
        labels: Labels by field.
        answered: Label in the text, by field.
    """
    readings: dict[str, Reading] = {}
    for field_name, allowed in labels.items():
        reading = read_label(text, tokens, layout, field_name, allowed, answered[field_name])
        readings[field_name] = reading

    if have_probabilities(readings.values()):
        return readings
    return {name: Reading(answered=reading.answered) for name, reading in readings.items()}


def have_probabilities(readings: Iterable[Reading]) -> bool:
    """Return whether all readings have label probabilities."""
    return all(reading.probabilities is not None for reading in readings)


def _list_alternatives(token: Token) -> Sequence[tuple[str, float]]:
    """Return the alternatives of a token with their log-probabilities, its own among them."""
    if any(text == token.token for text, _ in token.top):
        return token.top
    return [*token.top, (token.token, token.logprob)]


def _find_path(
    text: str, tokens: Sequence[Token], layout: Layout, field: str
) -> tuple[Sequence[Token], str]:
    """Return the tokens of a field's value, and the text before the value in the first of them.

    White space, which may differ between alternatives, is removed from the text. There are no
    tokens if none match.
    """
    span = layout.find_values(text).get(field)
    if span is None or not tokens:
        return (), ""
    first, _ = span
    path = [token for token in tokens if overlaps(token.at, token.token, (span,))]
    if not path or path[0].at > first:
        return (), ""
    content = text.encode("utf-8", errors="replace")
    return path, squeeze(content[path[0].at : first].decode("utf-8", errors="replace"))


def round_nine_digits(value: float) -> float:
    """Round a non-negative value to nine digits after the point.

    The built-in `round` takes far longer.
    """
    return int(value * _BILLION + 0.5) / _BILLION


# The alternatives of a model are much the same from answer to answer.
@lru_cache(maxsize=100_000)
def _find_reached(spelled: tuple[str, ...], reached: str, ends: str) -> tuple[int, ...]:
    """Return the indices of the labels that a text, without white space, can be or become."""
    return tuple(
        place
        for place, label in enumerate(spelled)
        # The label or its beginning, or the label and the JSON after it.
        if label.startswith(reached) or (reached.startswith(label) and reached[len(label)] in ends)
    )


def squeeze(text: str) -> str:
    """Return a text without white space."""
    return "".join(text.split())
