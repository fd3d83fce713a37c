"""The differences of a recorded run in words, as the command line and the tests print them."""

from __future__ import annotations

from collections.abc import Iterable

from touche_llm.errors import to_printable
from touche_llm.regression.differences import Finding, by_kind

_LISTED = 5


def told(name: str, findings: list[Finding]) -> str:
    """What differs, for people: counts, the first or largest of each, and a diff for each prompt."""
    if not findings:
        return f"{name}: as recorded"
    found = by_kind(findings)
    lines = [f"{name}: differs"]
    lines += [f"  cannot be replayed: {each.text}" for each in found.get("error", [])]
    lines += [f"  setting {each.name}: {_value(each.old)} → {_value(each.new)}" for each in found.get("setting", [])]
    for each in found.get("prompt", []):
        if each.count is None:
            what = "the program renders it otherwise, not by its template; as for"
        else:
            labels = f" ({each.old} → {each.new})" if each.old else ""
            what = f"{each.count:,} of {each.of:,} requests render otherwise{labels}, first"
        lines.append(f"  prompt {each.name}: {what} {_place(each)}:")
        lines += [f"    {line}" for line in each.text.split("\n")]
    lines += [
        f"  version of {each.name} not raised: {each.old} → {each.new}; raise it in the template's front matter"
        for each in found.get("version", [])
    ]
    lines += [f"  request {each.name}: {_value(each.old)} → {_value(each.new)}" for each in found.get("request", [])]
    for purpose, of_purpose in _grouped(found.get("missing", [])).items():
        lines.append(f"  answers missing: {len(of_purpose):,} of {purpose}: {_first(of_purpose)}")
    if moved := found.get("rank"):
        topics = len({each.topic for each in moved})
        lines.append(f"  ranks moved: {len(moved):,} documents of {topics:,} topics, the furthest first:")
        lines += [f"    {_place(each)}: {_rank(each.old)} → {_rank(each.new)}" for each in moved[:_LISTED]]
        lines += _more(moved)
    if turned := found.get("stance"):
        lines.append(f"  stances changed: {len(turned):,}:")
        lines += [f"    {_place(each)}: {_value(each.old)} → {_value(each.new)}" for each in turned[:_LISTED]]
        lines += _more(turned)
    for each in found.get("run", []):
        if each.name == "score":
            lines.append(f"  scores changed: {each.count:,} of {each.of:,}, and no rank; the first is")
            lines.append(f"    {_place(each)}: {_value(each.old)} → {_value(each.new)}")
        else:
            lines.append(f"  run.txt: {each.text}")
    for each in found.get("measure", []):
        change = f"{each.old:.4f} → {each.new:.4f} ({each.new - each.old:+.4f})"
        lines.append(f"  {each.name}, over the recorded topics: {change}")
    return to_printable("\n".join(lines))


def _grouped(findings: Iterable[Finding]) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {}
    for each in findings:
        found.setdefault(each.name, []).append(each)
    return found


def _first(findings: list[Finding]) -> str:
    more = len(findings) - _LISTED
    return ", ".join(map(_place, findings[:_LISTED])) + (f" and {more:,} more" if more > 0 else "")


def _more(findings: list[Finding]) -> list[str]:
    more = len(findings) - _LISTED
    return [f"    and {more:,} more"] if more > 0 else []


def _place(finding: Finding) -> str:
    if not finding.topic:
        return "the length of the chat template"
    return f"topic {finding.topic}" + (f" document {finding.document}" if finding.document else "")


def _rank(rank: int | None) -> str:
    return "not in the run" if rank is None else f"rank {rank}"


def _value(value: object) -> str:
    return "none" if value is None else f"{value}"
