"""Result of the check of a recorded run, and its text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from touche_llm.errors import shorten, to_printable

# Documents that the text lists under each heading; a changed weight moves most of a run.
_MAX_LISTED = 5


@dataclass(frozen=True, slots=True)
class RankDifference:
    """Document with different ranks in the recorded and the replayed run.

    A rank of None stands for a run without the document.
    """

    topic_id: str
    document_id: str
    recorded: int | None
    replayed: int | None


@dataclass(frozen=True, slots=True)
class LabelDifference:
    """Document with different stance labels in the recorded and the replayed run.

    A label of None stands for a document without a stance.
    """

    topic_id: str
    document_id: str
    recorded: str | None
    replayed: str | None


@dataclass(frozen=True, slots=True)
class MissingAnswer:
    """Request without a recorded answer.

    Attributes:
        document_id: Id of the document, ids of several separated by spaces, or None for a topic
            alone.
    """

    topic_id: str
    document_id: str | None


@dataclass(frozen=True, slots=True)
class PromptDifference:
    """Prompt that is sent in requests without a recorded answer.

    Attributes:
        purpose: Purpose of the prompt, such as `judge`.
        has_changed_template: Whether its template, a file that the template includes, or its
            few-shot examples differ from the recorded ones.
        missing: Its requests without a recorded answer, of those that need no other missing answer.
    """

    purpose: str
    has_changed_template: bool
    missing: tuple[MissingAnswer, ...]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Differences between a recorded run and its replay.

    Attributes:
        topics: Ids of the topics with different lines in the run file, or with missing answers. If
            only the order of the lines differs, all topics.
        ranks: Documents with different ranks, largest moves first.
        labels: Documents of both runs with different stance labels.
        prompts: Prompts with missing answers; there are no ranks and labels then.
        error: Reason why the run cannot be replayed; None if it can.
    """

    topics: tuple[str, ...] = ()
    ranks: tuple[RankDifference, ...] = ()
    labels: tuple[LabelDifference, ...] = ()
    prompts: tuple[PromptDifference, ...] = ()
    error: str | None = None

    @property
    def is_same(self) -> bool:
        """Whether the replay gives the same bytes."""
        return self.error is None and not self.topics


def format_result(name: str, result: CheckResult) -> str:
    """Format the result of a check as text, with the first differences under each heading."""
    if result.is_same:
        return to_printable(f"{name}: as recorded")

    lines = [f"{name}: differs"]
    if result.error is not None:
        lines.append(f"  cannot be replayed: {result.error}")
    if result.topics:
        lines.append(f"  topics: {shorten(result.topics)}")
    if result.ranks:
        lines.append(f"  ranks: {len(result.ranks):,}")
        lines += _list_first(_format_change(rank) for rank in result.ranks)
    if result.labels:
        lines.append(f"  labels: {len(result.labels):,}")
        lines += _list_first(_format_change(label) for label in result.labels)
    for prompt in result.prompts:
        lines += _format_prompt(prompt)
    if _has_only_topics(result):
        lines.append("  ranks and labels are equal; scores, the tag or the order of lines differ")
    return to_printable("\n".join(lines))


def _has_only_topics(result: CheckResult) -> bool:
    """Return whether the run files differ in neither ranks nor labels."""
    has_other_differences = result.ranks or result.labels or result.prompts
    return result.error is None and not has_other_differences


def _format_prompt(prompt: PromptDifference) -> list[str]:
    """Return the lines about a prompt with missing answers."""
    change = ", template changed" if prompt.has_changed_template else ""
    heading = f"  prompt {prompt.purpose}{change}, answers missing: {len(prompt.missing):,}"
    places = (_format_place(answer.topic_id, answer.document_id) for answer in prompt.missing)
    return [heading, *_list_first(places)]


def _list_first(items: Iterable[str]) -> list[str]:
    """Return lines with the first items and the number of the others."""
    all_items = list(items)
    lines = [f"    {item}" for item in all_items[:_MAX_LISTED]]
    omitted = len(all_items) - _MAX_LISTED
    if omitted > 0:
        lines.append(f"    and {omitted:,} more")
    return lines


def _format_change(difference: RankDifference | LabelDifference) -> str:
    place = _format_place(difference.topic_id, difference.document_id)
    recorded = "none" if difference.recorded is None else difference.recorded
    replayed = "none" if difference.replayed is None else difference.replayed
    return f"{place}: {recorded} → {replayed}"


def _format_place(topic_id: str, document_id: str | None) -> str:
    if document_id is None:
        return f"topic {topic_id}"
    return f"topic {topic_id} document {document_id}"
