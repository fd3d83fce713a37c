"""Formatting of differences for the command line and for tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import unified_diff
from operator import attrgetter
from typing import Any, Literal

from touche_llm.data.trec_runs import ParsedRun
from touche_llm.errors import to_printable
from touche_llm.evaluation.qrels import Qrels
from touche_llm.llm.request import Request
from touche_llm.prompts.prompt import Prompt
from touche_llm.regression.snapshot import RequestSnapshot

Kind = Literal["error", "setting", "prompt", "version", "missing", "rank", "stance", "run", "measure"]
# The diff of a document can have thousands of lines.
_MAX_LINES = 80


@dataclass(frozen=True, slots=True)
class RunDifference:
    """One difference between a recorded run and its replay.

    Attributes:
        run: Name of the recorded run.
        kind: `error`: the run cannot be replayed; `setting`: a value of the configuration; `prompt`: a request of a
            prompt, its messages or parameters; `version`: not raised although the template renders differently;
            `missing`: an answer; `rank` and `stance`: of a document in the run; `run`: any other change of the run
            file; `measure`: a measure of the run.
        name: Name of the setting or measure, or purpose of the prompt.
        topic: Topic id, if the difference concerns one topic.
        document: Document id, if the difference concerns one document.
        old: Recorded value.
        new: Current value.
        count: Number of requests of a changed prompt without an answer; None if the template is as recorded, because
            the program or the data changed. Of scores, number of changed ones.
        of: Number of all scores.
        text: Unified diff of a request, or an error message.
    """

    run: str
    kind: Kind
    name: str = ""
    topic: str | None = None
    document: str | None = None
    old: Any = None
    new: Any = None
    count: int | None = None
    of: int | None = None
    text: str = ""

    def row(self) -> dict[str, Any]:
        """Return the difference as a table row, with lists and sections as text."""
        return {
            name: str(value) if isinstance(value, list | dict | tuple | bool) else value
            for name, value in asdict(self).items()
        }


COLUMNS = tuple(RunDifference.__dataclass_fields__)


def compare_settings(run: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[RunDifference]:
    """Compare settings by name; None stands for a missing one."""
    return [
        RunDifference(run, "setting", name, old=old.get(name), new=new.get(name))
        for name in sorted({**old, **new})
        if old.get(name) != new.get(name)
    ]


def compare_requests(
    run: str,
    old_prompts: Mapping[str, Prompt],
    prompts: Mapping[str, Prompt],
    missing: Mapping[str, Sequence[Request]],
    recorded: Mapping[str, RequestSnapshot],
) -> list[RunDifference]:
    """Return why requests have no recorded answer, and a difference for each of them.

    For each prompt, the recorded example is compared with the present request about the same topic and documents, or
    the templates if that request has an answer or did not change. A changed template whose version was not raised gives
    a second difference.

    Args:
        run: Name of the recorded run.
        old_prompts: Recorded prompts by purpose; empty if the program no longer accepts them.
        prompts: Current prompts by purpose.
        missing: Requests with the current prompts that have no recorded answer, by purpose.
        recorded: Recorded requests by purpose.
    """
    differences = []
    for purpose, requests in missing.items():
        old, new, example = old_prompts.get(purpose), prompts[purpose], recorded.get(purpose)
        is_changed = old is not None and old.hash != new.hash
        shown = next((found for found in requests if example is not None and _is_about(found, example)), requests[0])
        before, now = example.list_lines() if example is not None else [], RequestSnapshot.of(shown).list_lines()
        if example is None or not _is_about(shown, example) or before == now:
            if old is None or not is_changed:
                continue
            before, now = (prompt.path.read_text().splitlines() for prompt in (old, new))
        labels = (None if old is None else old.label, new.label)
        place = (shown.origin.topic_id, shown.origin.document_id)
        count = len(requests) if is_changed or old is None else None
        text = _diff(before, now, new)
        differences.append(RunDifference(run, "prompt", purpose, *place, *labels, count=count, text=text))
        if old is not None and is_changed and old.name == new.name and new.header.version <= old.header.version:
            differences.append(RunDifference(run, "version", purpose, None, None, *labels))
    return differences + [
        RunDifference(run, "missing", purpose, request.origin.topic_id, request.origin.document_id)
        for purpose, requests in missing.items()
        for request in requests
    ]


def _is_about(request: Request, recorded: RequestSnapshot) -> bool:
    """Return whether a request is the first sample about the topic and the documents of a recorded one."""
    about = (request.origin.topic_id, request.origin.document_id, request.sample)
    return about == (recorded.topic, recorded.document, 0)


def compare_rankings(run: str, old: ParsedRun, new: ParsedRun) -> list[RunDifference]:
    """Compare the ranks, largest moves first, then the stances of two runs whose files differ.

    None stands for a document that is missing from a run. If ranks and stances are equal, the first different score is
    returned; if the scores are equal too, a difference of the files.
    """
    ranks_before, ranks = (_by_document(ranked, attrgetter("rank")) for ranked in (old, new))
    moved = _compare_documents(run, "rank", ranks_before, ranks)
    longest = max(map(len, [*old.rankings.values(), *new.rankings.values()]), default=0)
    # A document that only one run has counts as the furthest move.
    moved.sort(key=lambda move: -abs((move.old or 2 * longest + 1) - (move.new or 2 * longest + 1)))
    both = [key for key in ranks_before if key in ranks]
    stances_before, stances = ({key: ranked.stances.get(key) for key in both} for ranked in (old, new))
    if differences := moved + _compare_documents(run, "stance", stances_before, stances):
        return differences
    if scores := _compare_documents(run, "run", *(_by_document(ranked, attrgetter("score")) for ranked in (old, new))):
        return [replace(scores[0], name="score", count=len(scores), of=len(ranks))]
    return [RunDifference(run, "run", "file", text="ranks, stances and scores are equal, the bytes differ: the tag?")]


def compare_measures(run: str, old: ParsedRun, new: ParsedRun, qrels: Qrels) -> list[RunDifference]:
    """Return nDCG@5 of each graded aspect and macro-F1 of the stances in both runs, changed or not."""
    # Imported here because pandas is slow to load.
    from touche_llm.evaluation.measures import evaluate_run, list_headline

    before, now = (evaluate_run(run, ranking, qrels).estimates for ranking in (old, new))
    return [
        RunDifference(run, "measure", name, old=before[name].value, new=now[name].value)
        for name in list_headline(qrels)
    ]


def _diff(old: list[str], new: list[str], prompt: Prompt) -> str:
    lines = list(unified_diff(old, new, "recorded", str(prompt.path), n=2, lineterm=""))
    more = len(lines) - _MAX_LINES
    return "\n".join(lines[:_MAX_LINES] + ([f"… and {more:,} more lines"] if more > 0 else []))


def _compare_documents(
    run: str, kind: Kind, old: Mapping[tuple[str, str], Any], new: Mapping[tuple[str, str], Any]
) -> list[RunDifference]:
    """Compare values by topic and document; None stands for a missing one."""
    return [
        RunDifference(run, kind, "", *key, old.get(key), new.get(key))
        for key in dict.fromkeys([*old, *new])
        if old.get(key) != new.get(key)
    ]


def _by_document(run: ParsedRun, value: Callable[[Any], Any]) -> dict[tuple[str, str], Any]:
    return {
        (topic, candidate.document_id): value(candidate)
        for topic, ranking in run.rankings.items()
        for candidate in ranking
    }


def group_by_kind(differences: Iterable[RunDifference]) -> dict[Kind, list[RunDifference]]:
    """Group differences by kind, each in its given order."""
    groups: dict[Kind, list[RunDifference]] = {}
    for difference in differences:
        groups.setdefault(difference.kind, []).append(difference)
    return groups


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
        what = "another request by a setting or the program, not by its template; see"
    else:
        labels = f" ({change.old} → {change.new})" if change.old else ""
        what = f"{change.count:,} requests render differently{labels}, as that for"
    return [
        f"  prompt {change.name}: {what} {_format_place(change)}:",
        *(f"    {line}" for line in change.text.split("\n")),
    ]


def _list_first(differences: list[RunDifference], describe: Callable[[RunDifference], str]) -> list[str]:
    lines = [f"    {_format_place(difference)}: {describe(difference)}" for difference in differences[:_LISTED]]
    more = len(differences) - _LISTED
    return [*lines, f"    and {more:,} more"] if more > 0 else lines


def _format_place(difference: RunDifference) -> str:
    document = f" document {difference.document}" if difference.document else ""
    return f"topic {difference.topic}{document}"


def _format_rank(rank: int | None) -> str:
    return "not in the run" if rank is None else f"rank {rank}"


def _format_change(change: RunDifference) -> str:
    old, new = ("none" if value is None else f"{value}" for value in (change.old, change.new))
    return f"{old} → {new}"
