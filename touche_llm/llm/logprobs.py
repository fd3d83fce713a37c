"""Label probabilities read from the tokens of a constrained answer."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import orjson

from touche_llm.data.records import HIGHEST_GRADE, Reading
from touche_llm.llm.answers import Token, Unusable

Label = int | str
# Nine digits: far below what log-probabilities carry; keeps files readable and stable.
_BILLION = 1e9
# Probabilities of another precision: in bfloat16 those next to 1 are 0.004 to 0.008 apart. More than this is an error.
LOGPROB_ROUNDING = 0.01
# What `str.split` splits at.
_WHITE_SPACE = (
    "\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
# Characters of a text from outside, and number of such texts, up to which they are remembered.
_SHORT, _MOST_KNOWN = 1000, 20_000


def find_value_spans(text: str, fields: Sequence[str]) -> Mapping[str, tuple[int, int]]:
    """Where the value of each field stands in a flat JSON object, as byte offsets `(first, end)`.

    A field that occurs more than once as a key is left out: its readings cannot be distinguished.
    """
    spans = _value_spans if len(text) <= _SHORT else _value_spans.__wrapped__
    return spans(text, tuple(fields))


# There are few answers of labels, and each is looked at for each of its fields.
@lru_cache(maxsize=1024)
def _value_spans(text: str, fields: tuple[str, ...]) -> Mapping[str, tuple[int, int]]:
    content = text.encode("utf-8", errors="replace")
    spans: dict[str, tuple[int, int]] = {}
    for field in fields:
        matches = list(_value_of(field).finditer(content))
        if len(matches) == 1:
            spans[field] = matches[0].span(1)
    return spans


@lru_cache(maxsize=256)
def _value_of(field: str) -> re.Pattern[bytes]:
    return re.compile(rb'"%s"\s*:\s*("(?:[^"\\]|\\.)*"|[^\s,}]+)' % re.escape(field.encode()))


def select_label_tokens(text: str, tokens: Sequence[Token], fields: Sequence[str]) -> list[Token]:
    """Those of an answer's tokens that overlap the value of a field: all that the readings need."""
    spans = find_value_spans(text, fields).values()
    return [token for token in tokens if overlaps(token.at, token.token, spans)]


def check_logprobs(text: str, tokens: Iterable[Token]) -> None:
    """Raise Unusable for log-probabilities that cannot be: not finite, positive, or of alternatives that exceed 1.

    Args:
        text: the answer.
        tokens: those of its tokens that become probabilities.
    """
    for token in tokens:
        found = [logprob for _, logprob in token.top]
        if all(alternative != token.token for alternative, _ in token.top):
            found.append(token.logprob)
        for logprob in (token.logprob, *found):
            if not (math.isfinite(logprob) and logprob <= LOGPROB_ROUNDING):
                reason = f"a token has the log-probability {logprob:g}; none can be above 0"
                raise Unusable("impossible_logprobs", reason, text)
        total = sum(map(math.exp, found))
        if total > 1.0 + LOGPROB_ROUNDING:
            reason = f"the probabilities of a token and its alternatives add up to {total:g}; they cannot exceed 1"
            raise Unusable("impossible_logprobs", reason, text)


def overlaps(at: int, token: str, spans: Iterable[tuple[int, int]]) -> bool:
    """Whether a token whose first byte is at `at` shares a byte with one of the spans."""
    end = at + len(token.encode("utf-8", errors="replace"))
    for first, last in spans:
        if at < last and first < end:
            return True
    return False


def read_label(text: str, tokens: Sequence[Token], field: str, labels: Sequence[Label], answered: Label) -> Reading:
    """The probabilities of all labels of one field, renormalised over the labels.

    At the token where the field's value begins, each alternative token is given to the labels that the text could
    still become with it. An alternative that can become several (`N` of `NO` and `NEUTRAL`) is followed if it is the
    one that was written, and split evenly otherwise; one that can still become all of them (white space, a quotation
    mark) says nothing and takes no part. What leads to no label is counted as `off_label_mass`, and so is what the
    alternatives do not show.

    Returns:
        a reading without probabilities when the engine sent none, or none that match the text.
    """
    span = find_value_spans(text, [field]).get(field)
    if span is None or not tokens:
        return Reading(answered=answered)
    first, end = span
    content = text.encode("utf-8", errors="replace")
    path = [token for token in tokens if token.at + len(token.token.encode()) > first and token.at < end]
    if not path or path[0].at > first:
        return Reading(answered=answered)
    # White space between key and value may differ from one alternative to the next; labels hold none.
    lead = _squeeze(content[path[0].at : first].decode("utf-8", errors="replace"))
    spelled = _spelled(lead, tuple(labels))
    mass = [0.0] * len(labels)
    followed, written, shared, unsaid = 1.0, "", 0.0, 0.0
    for token in path:
        ambiguous: float | None = None
        if not token.top:
            return Reading(answered=answered)
        alternatives = token.top
        if all(text != token.token for text, _ in alternatives):
            alternatives = [*alternatives, (token.token, token.logprob)]
        # Several tokens can have one text (a byte and a character, with and without white space): their shares add up.
        reached = _reached(spelled, written)
        leading = reached.leading
        for alternative, logprob in alternatives:
            # Most alternatives are words that lead nowhere.
            if alternative[:1] not in leading or not (possible := reached[alternative]):
                continue
            probability = followed * math.exp(logprob)
            if len(possible) == 1 < len(labels):
                mass[possible[0]] += probability
            elif alternative == token.token:
                ambiguous = (ambiguous or 0.0) + probability
            else:
                shared += probability
                if len(possible) == len(labels):
                    unsaid += probability
                else:
                    for place in possible:
                        mass[place] += probability / len(possible)
        if ambiguous is None:
            break
        followed, written = ambiguous, written + _squeeze(token.token)
    else:
        return Reading(answered=answered)
    total = math.fsum(mass)
    if total <= 0.0:
        return Reading(answered=answered)
    return Reading(
        answered=answered,
        probabilities=dict(zip(_names(tuple(labels)), [_rounded(value / total) for value in mass], strict=True)),
        off_label_mass=_rounded(max(0.0, 1.0 - total - unsaid)),
        shared=_rounded(shared),
    )


def compute_expected_grade(reading: Reading) -> float:
    """The mean of the integer grades under their probabilities, or the answered grade where there are none."""
    if reading.probabilities is None:
        return float(reading.answered)
    # Rounded shares can add up to a little more than 1.
    mean = math.fsum([int(grade) * share for grade, share in reading.probabilities.items()])
    return _rounded(min(mean, float(HIGHEST_GRADE)))


def get_most_probable(reading: Reading) -> str:
    """The label of the highest probability; the answered one where there are none or where it is among the highest."""
    probabilities: Mapping[str, float] = reading.probabilities or {}
    highest = max(probabilities.values(), default=0.0)
    if not probabilities or probabilities[str(reading.answered)] == highest:
        return str(reading.answered)
    return next(label for label, share in probabilities.items() if share == highest)


def _rounded(value: float) -> float:
    """A value of at least 0 with nine digits behind the point; `round` takes far longer."""
    return int(value * _BILLION + 0.5) / _BILLION


@lru_cache(maxsize=256)
def _names(labels: tuple[Label, ...]) -> tuple[str, ...]:
    """The labels as texts."""
    return tuple(map(str, labels))


@lru_cache(maxsize=256)
def _spelled(lead: str, labels: tuple[Label, ...]) -> tuple[str, ...]:
    """The labels as JSON, after what stands before the value in its first token."""
    return tuple(lead + orjson.dumps(label).decode() for label in labels)


class _Reached(dict[str, tuple[int, ...]]):
    """By alternative, the places of those labels that the text can be, or become, when it follows what was written.

    Attributes:
        leading: what the first character of an alternative must be for it to lead to a label; "" is for one without.
    """

    def __init__(self, spelled: tuple[str, ...], written: str) -> None:
        super().__init__()
        self._spelled, self._written = spelled, written
        following = {label[len(written) :][:1] for label in spelled if label.startswith(written)}
        # After a label comes what ends its value.
        self.leading = frozenset(_WHITE_SPACE) | following | ({",", "}"} if "" in following else set()) | {""}

    def __missing__(self, alternative: str) -> tuple[int, ...]:
        reached = self._written + _squeeze(alternative)
        places = tuple(
            place
            for place, label in enumerate(self._spelled)
            # The label, or the beginning of it; or the label with JSON after it.
            if label.startswith(reached) or (reached.startswith(label) and reached[len(label)] in ",}")
        )
        if len(alternative) <= _SHORT and len(self) < _MOST_KNOWN:
            self[alternative] = places
        return places


# A model's vocabulary is much the same from answer to answer.
@lru_cache(maxsize=32)
def _reached(spelled: tuple[str, ...], written: str) -> _Reached:
    return _Reached(spelled, written)


def _squeeze(text: str) -> str:
    return "".join(text.split())
