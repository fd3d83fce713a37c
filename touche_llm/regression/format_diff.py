"""Formatting of differences for the command line and for tests."""

from __future__ import annotations

from collections.abc import Callable

from touche_llm.errors import to_printable
from touche_llm.regression.differences import RunDifference, group_by_kind

_LISTED = 5


def format_differences(name: str, differences: list[RunDifference]) -> str:
    """Format the differences of a run as text.

    For each kind, gives the count and the first or largest differences; for each prompt, its diff.
    """
    if not differences:
        return f"{name}: as recorded"
    by_kind = group_by_kind(differences)
    lines = [f"{name}: differs"]
    lines += [f"  cannot be replayed: {error.text}" for error in by_kind.get("error", [])]
    lines += [f"  setting {change.name}: {_format_change(change)}" for change in by_kind.get("setting", [])]
    for change in by_kind.get("prompt", []):
        lines += _format_prompt(change)
    lines += [
        f"  version of {change.name} not raised: {change.old} → {change.new}; raise it in the template's front matter"
        for change in by_kind.get("version", [])
    ]
    lines += [f"  request {change.name}: {_format_change(change)}" for change in by_kind.get("request", [])]
    all_missing = by_kind.get("missing", [])
    for purpose in dict.fromkeys(missing.name for missing in all_missing):
        missing = [_format_place(missing) for missing in all_missing if missing.name == purpose]
        more = f" and {len(missing) - _LISTED:,} more" if len(missing) > _LISTED else ""
        lines.append(f"  answers missing: {len(missing):,} of {purpose}: {', '.join(missing[:_LISTED])}{more}")
    if moved := by_kind.get("rank"):
        topics = len({move.topic for move in moved})
        lines.append(f"  ranks moved: {len(moved):,} documents of {topics:,} topics, the furthest first:")
        lines += _list_first(moved, lambda move: f"{_format_rank(move.old)} → {_format_rank(move.new)}")
    if stances := by_kind.get("stance"):
        lines.append(f"  stances changed: {len(stances):,}:")
        lines += _list_first(stances, _format_change)
    for change in by_kind.get("run", []):
        if change.name == "score":
            lines.append(f"  scores changed: {change.count:,} of {change.of:,}, and no rank; the first is")
            lines.append(f"    {_format_place(change)}: {_format_change(change)}")
        else:
            lines.append(f"  run.txt: {change.text}")
    for measure in by_kind.get("measure", []):
        values = f"{measure.old:.4f} → {measure.new:.4f} ({measure.new - measure.old:+.4f})"
        lines.append(f"  {measure.name}, over the recorded topics: {values}")
    return to_printable("\n".join(lines))


def _format_prompt(change: RunDifference) -> list[str]:
    if change.count is None:
        what = "rendered differently by the program, not by its template; see"
    else:
        labels = f" ({change.old} → {change.new})" if change.old else ""
        what = f"{change.count:,} of {change.of:,} requests render differently{labels}, first"
    return [
        f"  prompt {change.name}: {what} {_format_place(change)}:",
        *(f"    {line}" for line in change.text.split("\n")),
    ]


def _list_first(differences: list[RunDifference], describe: Callable[[RunDifference], str]) -> list[str]:
    lines = [f"    {_format_place(difference)}: {describe(difference)}" for difference in differences[:_LISTED]]
    more = len(differences) - _LISTED
    return [*lines, f"    and {more:,} more"] if more > 0 else lines


def _format_place(difference: RunDifference) -> str:
    if not difference.topic:
        return "the length of the chat template"
    document = f" document {difference.document}" if difference.document else ""
    return f"topic {difference.topic}{document}"


def _format_rank(rank: int | None) -> str:
    return "not in the run" if rank is None else f"rank {rank}"


def _format_change(change: RunDifference) -> str:
    old, new = ("none" if value is None else f"{value}" for value in (change.old, change.new))
    return f"{old} → {new}"
