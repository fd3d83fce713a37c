"""What the labels of answers say about documents."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from touche_llm.data.records import Reading
from touche_llm.errors import EngineError
from touche_llm.llm.request import Origin

# Fewer readings give no information, and labels with less than the second, in bits, carry none
# worth ranking by.
MIN_READINGS = 50
LOW_INFORMATION = 0.05
# So many answers to a prompt, none of whose labels can be read, are a fault of the server, not of
# the answers.
_MAX_UNREAD = 32


def get_most_probable(reading: Reading) -> str:
    """Return the most probable label: of equally probable ones, the answered one or the first.

    Without probabilities, it is the answered label.
    """
    answered = str(reading.answered)
    probabilities = reading.probabilities
    if not probabilities:
        return answered
    if probabilities[answered] == max(probabilities.values()):
        return answered
    return max(probabilities, key=probabilities.__getitem__)


def _is_overruled(stance: Reading | None) -> bool:
    """Return whether another stance than that in the text of the answer is the most probable one."""
    if stance is None:
        return False
    return get_most_probable(stance) != str(stance.answered)


@dataclass(slots=True)
class LabelInformation:
    """Information that the labels of a field carry about documents: H(mean p) - mean H(p).

    The mutual information of document and label, or generalised Jensen-Shannon divergence of the
    documents' labels (Lin 1991, https://doi.org/10.1109/18.61115): 0 if all documents have the same
    probabilities, at most log2 of the number of labels.
    """

    readings: int = 0
    _sums: dict[str, float] = field(default_factory=dict)
    _entropy: float = 0.0

    def add(self, probabilities: Mapping[str, float]) -> None:
        """Add the label probabilities of one document to the sums from which `bits` is computed."""
        self.readings += 1
        self._entropy += _compute_entropy(probabilities.values())
        for label, share in probabilities.items():
            self._sums[label] = self._sums.get(label, 0.0) + share

    @property
    def bits(self) -> float | None:
        """Information in bits: entropy of the mean distribution minus mean entropy.

        None for fewer than `MIN_READINGS`, where it is mostly the noise of the sample.
        """
        if self.readings < MIN_READINGS:
            return None
        mean_distribution = [total / self.readings for total in self._sums.values()]
        entropy_of_mean = _compute_entropy(mean_distribution)
        mean_entropy = self._entropy / self.readings
        return round(max(0.0, entropy_of_mean - mean_entropy), 6)


def _compute_entropy(shares: Iterable[float]) -> float:
    """Return the entropy of a distribution in bits."""
    return -math.fsum(share * math.log2(share) for share in shares if share > 0.0)


@dataclass(frozen=True, slots=True)
class LabelCounts:
    """Counts of the answers to a prompt whose labels are to be read from log-probabilities.

    Attributes:
        answers: Number of these answers.
        unread: Answers whose log-probabilities do not show the labels, so that the labels in the
            text count.
        first: First unread answer, with the reason; empty if there is none.
        overruled: Answers whose most probable stance is not the one in the text.
        bits: Information of the labels about documents, in bits by field; None for too few answers.
    """

    answers: int = 0
    unread: int = 0
    first: str = ""
    overruled: int = 0
    bits: dict[str, float | None] = field(default_factory=dict)

    def describe_unread(self) -> str:
        """Describe the answers whose labels cannot be read."""
        return (
            f"the labels of {self.unread:,} of {self.answers:,} answers cannot be read from their log-probabilities, "
            f"and those in their texts count as certain; the first is {self.first}"
        )

    def describe_overruled(self) -> list[str]:
        """Return a note on stances that differ from the answers as written, if there are any."""
        if not self.overruled:
            return []
        return [
            f"in {self.overruled:,} of {self.answers:,} answers the stance is another than the written one, since the "
            "probabilities of all labels decide: docs/explanation/stance.md"
        ]

    def list_problems(self) -> list[str]:
        """Return warnings: labels that cannot be read, or say nothing."""
        problems: list[str] = []
        if self.unread:
            problems.append(self.describe_unread())

        low_bits = self._list_low_bits()
        if low_bits:
            fields = ", ".join(f"{name} {bits:.3f} bits" for name, bits in low_bits.items())
            problems.append(
                f"the labels say next to nothing about documents ({fields}; below {LOW_INFORMATION:g}): the model "
                "answers nearly the same for all; try a larger model, few-shot examples with different labels, or one "
                "request for each field (`judge_per: field`)"
            )
        return problems

    def _list_low_bits(self) -> dict[str, float]:
        """Return the information of the fields whose labels say next to nothing."""
        low_bits: dict[str, float] = {}
        for name, bits in self.bits.items():
            if bits is not None and bits < LOW_INFORMATION:
                low_bits[name] = bits
        return low_bits


class LabelTally:
    """Tally of the answers to each prompt whose labels are to be read from log-probabilities."""

    def __init__(self) -> None:
        self._prompts: dict[str, _PromptTally] = {}

    def add_read(self, origin: Origin, readings: Mapping[str, Reading]) -> None:
        """Count an answer whose labels can be read.

        Args:
            origin: Prompt, topic and documents of the request.
            readings: Readings of the labels, by field.

        Raises:
            EngineError: The labels of none of many answers to a prompt can be read.
        """
        tally = self._get_tally(origin)
        tally.add_read(readings)
        self._raise_on_many_unread(tally)

    def add_unread(self, origin: Origin, problem: str) -> None:
        """Count an answer whose labels cannot be read.

        Args:
            origin: Prompt, topic and documents of the request.
            problem: Reason why the labels cannot be read.

        Raises:
            EngineError: The labels of none of many answers to a prompt can be read.
        """
        tally = self._get_tally(origin)
        tally.add_unread(f"{origin.subject}: {problem}")
        self._raise_on_many_unread(tally)

    def summarize(self, prompt: str) -> LabelCounts | None:
        """Return the counts of a prompt by its name; None without an answer."""
        tally = self._prompts.get(prompt)
        return None if tally is None else tally.summarize()

    def raise_on_unread(self) -> None:
        """Raise an error if there are answers to a prompt, but none whose labels can be read.

        Raises:
            EngineError: There is such a prompt.
        """
        for prompt, tally in self._prompts.items():
            if tally.unread == tally.answers:
                counts = tally.summarize()
                raise EngineError(
                    f"prompt {prompt}: {counts.describe_unread()}; request plain grades with "
                    "`sampling.logprobs: false`, or repair the server and request all answers again with "
                    "`cache.mode: refresh`"
                )

    def _get_tally(self, origin: Origin) -> _PromptTally:
        return self._prompts.setdefault(origin.prompt, _PromptTally())

    def _raise_on_many_unread(self, tally: _PromptTally) -> None:
        if tally.unread >= _MAX_UNREAD:
            self.raise_on_unread()


@dataclass(slots=True)
class _PromptTally:
    """Tally of the answers to one prompt; see `LabelCounts`."""

    answers: int = 0
    unread: int = 0
    overruled: int = 0
    first_unread: str = ""
    information: dict[str, LabelInformation] = field(default_factory=dict)

    def add_read(self, readings: Mapping[str, Reading]) -> None:
        """Count an answer whose labels were read, and what they say about its document.

        Args:
            readings: Label of each field, with the probabilities of all its labels.
        """
        self.answers += 1
        if _is_overruled(readings.get("stance")):
            self.overruled += 1
        for name, reading in readings.items():
            if reading.probabilities is not None:
                information = self.information.setdefault(name, LabelInformation())
                information.add(reading.probabilities)

    def add_unread(self, description: str) -> None:
        """Count an answer without readable labels."""
        self.answers += 1
        self.unread += 1
        self.first_unread = self.first_unread or description

    def summarize(self) -> LabelCounts:
        """Return the counts so far."""
        bits = {name: information.bits for name, information in self.information.items()}
        return LabelCounts(
            answers=self.answers,
            unread=self.unread,
            first=self.first_unread,
            overruled=self.overruled,
            bits=bits,
        )
