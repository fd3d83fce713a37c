"""Formatting of differences for the command line and for tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import unified_diff
from typing import Any, Literal

from touche_llm.data.trec_runs import ParsedRun
from touche_llm.errors import to_printable
from touche_llm.evaluation.qrels import Qrels
from touche_llm.llm.request import Request
from touche_llm.prompts.prompt import Prompt, examples_path
from touche_llm.prompts.templates import read_text

Kind = Literal["error", "setting", "prompt", "missing", "rank", "stance", "run", "measure"]


@dataclass(frozen=True, slots=True)
class RunDifference:
    """One difference between a recorded run and its replay.

    Attributes:
        kind: `error`: the run cannot be replayed; `setting`: a value of the configuration; `prompt`: a template;
            `missing`: an answer; `rank` and `stance`: of a document in the run; `run`: any other change of the run
            file; `measure`: a measure of the run.
        name: Name of the setting or measure, or purpose of the prompt.
        new: Current value, or label of the prompt.
        text: Unified diff of a template, or an error message.
    """

    run: str
    kind: Kind
    name: str = ""
    topic: str | None = None
    document: str | None = None
    old: Any = None
    new: Any = None
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
    templates: Mapping[str, Mapping[str, str]],
    prompts: Mapping[str, Prompt],
    missing: Mapping[str, Sequence[Request]],
) -> list[RunDifference]:
    """Return the templates that changed among those of requests without a recorded answer, and these requests.

    Templates, prompts and missing requests are by purpose.
    """
    differences = []
    for purpose in missing:
        prompt, old, new = prompts[purpose], *map(_list_lines, (templates[purpose], list_texts(prompts[purpose])))
        if old != new:
            text = "\n".join(unified_diff(old, new, "recorded", str(prompt.path), n=2, lineterm=""))
            differences.append(RunDifference(run, "prompt", purpose, new=prompt.label, text=text))
    return differences + list_missing(run, missing)


def list_missing(run: str, missing: Mapping[str, Sequence[Request]]) -> list[RunDifference]:
    """Return a difference for each request without a recorded answer."""
    return [
        RunDifference(run, "missing", purpose, request.origin.topic_id, request.origin.document_id)
        for purpose, requests in missing.items()
        for request in requests
    ]


def list_texts(prompt: Prompt) -> dict[str, str]:
    """Return the texts of the files of a prompt by name, those of its examples included."""
    texts = {prompt.path.name: prompt.files.text, **prompt.files.texts}
    examples = examples_path(prompt.path)
    return texts | ({examples.name: read_text(examples)} if prompt.examples else {})


def _list_lines(texts: Mapping[str, str]) -> list[str]:
    return [line for name in sorted(texts) for line in (f"[{name}]", *texts[name].splitlines())]


def compare_rankings(run: str, old: ParsedRun, new: ParsedRun) -> list[RunDifference]:
    """Compare the ranks, largest moves first, then the stances of two runs whose files differ.

    None stands for a document that is missing from a run.
    """
    before, now = (
        {(topic, each.document_id): each.rank for topic, ranking in ranked.rankings.items() for each in ranking}
        for ranked in (old, new)
    )
    moved = _compare_documents(run, "rank", before, now)
    longest = max(map(len, [*old.rankings.values(), *new.rankings.values()]), default=0)
    # A document that only one run has counts as the furthest move.
    moved.sort(key=lambda move: -abs((move.old or 2 * longest + 1) - (move.new or 2 * longest + 1)))
    both = [key for key in before if key in now]
    stances_before, stances = ({key: ranked.stances.get(key) for key in both} for ranked in (old, new))
    differences = moved + _compare_documents(run, "stance", stances_before, stances)
    return differences or [RunDifference(run, "run", text="ranks and stances are equal, scores or the tag differ")]


def compare_measures(run: str, old: ParsedRun, new: ParsedRun, qrels: Qrels) -> list[RunDifference]:
    """Return nDCG@5 of each graded aspect and macro-F1 of the stances in both runs, changed or not."""
    # Imported here because pandas is slow to load.
    from touche_llm.evaluation.measures import evaluate_run, list_headline

    before, now = (evaluate_run(run, ranking, qrels).estimates for ranking in (old, new))
    return [
        RunDifference(run, "measure", name, old=before[name].value, new=now[name].value)
        for name in list_headline(qrels)
    ]


def _compare_documents(
    run: str, kind: Kind, old: Mapping[tuple[str, str], Any], new: Mapping[tuple[str, str], Any]
) -> list[RunDifference]:
    """Compare values by topic and document; None stands for a missing one."""
    return [
        RunDifference(run, kind, "", *key, old.get(key), new.get(key))
        for key in dict.fromkeys([*old, *new])
        if old.get(key) != new.get(key)
    ]


def group_by_kind(differences: Iterable[RunDifference]) -> dict[Kind, list[RunDifference]]:
    """Group differences by kind, each in its given order."""
    groups: dict[Kind, list[RunDifference]] = {}
    for difference in differences:
        groups.setdefault(difference.kind, []).append(difference)
    return groups


_LISTED = 5


def format_differences(name: str, differences: list[RunDifference]) -> str:
    """Format the differences of a run as text, with the first or largest of each kind."""
    if not differences:
        return f"{name}: as recorded"
    by_kind = group_by_kind(differences)
    lines = [f"{name}: differs"]
    lines += [f"  cannot be replayed: {error.text}" for error in by_kind.get("error", [])]
    lines += [f"  setting {change.name}: {_format_change(change)}" for change in by_kind.get("setting", [])]
    for change in by_kind.get("prompt", []):
        lines += [f"  prompt {change.name} changed:", *(f"    {line}" for line in change.text.split("\n"))]
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
    lines += [f"  run.txt: {change.text}" for change in by_kind.get("run", [])]
    for measure in by_kind.get("measure", []):
        values = f"{measure.old:.4f} → {measure.new:.4f} ({measure.new - measure.old:+.4f})"
        lines.append(f"  {measure.name}, over the recorded topics: {values}")
    return to_printable("\n".join(lines))


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
