"""What differs between a recorded run and its replay, finding by finding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from difflib import unified_diff
from typing import Any, Literal

from touche_llm.data.trec_runs import ParsedRun
from touche_llm.evaluation.qrels import STANCE, Qrels
from touche_llm.llm.request import Request
from touche_llm.prompts.prompt import Prompt
from touche_llm.regression.replay import Place, Walk
from touche_llm.regression.snapshot import Example, parameters_of

Kind = Literal["error", "setting", "prompt", "version", "request", "missing", "rank", "stance", "run", "measure"]
Messages = list[tuple[str, str]]
# A document that is shown otherwise can have thousands of lines.
_MOST_LINES = 80
_CONTEXT = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference.

    Attributes:
        run: the name of the recorded run.
        kind: `error`: it cannot be replayed; `setting`: a value of the configuration; `prompt`: it renders otherwise;
            `version`: not raised, though the template renders otherwise; `request`: a schema or a parameter;
            `missing`: an answer; `rank` and `stance`: of a document in the run; `run`: the run file in another way;
            `measure`: a figure of the run.
        name: of the setting, the purpose of the prompt, the parameter or the measure.
        topic: which, where it is about one.
        document: which, where it is about one.
        old: what was recorded.
        new: what it is now.
        count: of requests that render otherwise with the current template than with the recorded one; None where they
            render otherwise with the recorded one too, by a change of the program.
        of: all requests of the prompt.
        text: the unified diff of a prompt, or the message of an error.
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
        """The finding as a row, with lists and sections as text."""
        return {
            name: str(value) if isinstance(value, list | dict | tuple | bool) else value
            for name, value in asdict(self).items()
        }


COLUMNS = tuple(Finding.__dataclass_fields__)


def values(run: str, kind: Kind, old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[Finding]:
    """The values that differ, by name; None stands for one that is not there."""
    return [
        Finding(run, kind, f"{prefix}{name}", old=old.get(name), new=new.get(name))
        for name in sorted({**old, **new})
        if old.get(name) != new.get(name)
    ]


def prompts(run: str, before: Walk | None, now: Walk, examples: Mapping[str, Example]) -> list[Finding]:
    """For each prompt that renders otherwise one diff, for the first topic and document where it does.

    Beside it stands whether the template's version was not raised.

    Args:
        run: the name of the recorded run.
        before: the way with the recorded templates; None where those cannot be used any more.
        now: the way with the current ones.
        examples: requests as they were recorded: they show a change that is not in the template but in the program.
    """
    findings = []
    for purpose in now.prompts:
        asked = {place: _messages(request) for place, request in now.asked.items() if place.purpose == purpose}
        old: dict[Place, Messages] = {}
        if before is not None:
            old = {place: _messages(request) for place, request in before.asked.items() if place in asked}
        changed = [place for place in asked if place in old and old[place] != asked[place]]
        count: int | None = len(changed)
        if not changed and purpose in examples and (before is None or purpose not in now.unmeasured):
            example = examples[purpose]
            place = Place(purpose, example.topic, example.document)
            if place in asked and example.messages != asked[place]:
                old, changed, count = {place: example.messages}, [place], None
        if not changed:
            continue
        first = changed[0]
        was, current = before.prompts.get(purpose) if before is not None else None, now.prompts[purpose]
        findings.append(
            Finding(
                run,
                "prompt",
                purpose,
                first.topic,
                first.document,
                old=was.label if was is not None else None,
                new=current.label,
                count=count,
                of=len(asked),
                text=_diff(old[first], asked[first], str(current.path)),
            )
        )
        if was is not None and count is not None and _not_raised(was, current):
            findings.append(Finding(run, "version", purpose, old=was.label, new=current.label))
    return findings


def parameters(run: str, now: Walk, examples: Mapping[str, Example]) -> list[Finding]:
    """What requests ask for otherwise beside their messages: schema, sampling, model, switches of the chat template."""
    findings = []
    for purpose, example in examples.items():
        request = now.asked.get(Place(purpose, example.topic, example.document))
        if request is not None:
            findings += values(run, "request", example.parameters, parameters_of(request), f"{purpose}.")
    return findings


def missing(run: str, now: Walk) -> list[Finding]:
    """The answers that are not there."""
    return [Finding(run, "missing", each.purpose, each.topic, each.document) for each in now.missing]


def moves(run: str, old: ParsedRun, new: ParsedRun) -> list[Finding]:
    """The documents with another rank, the largest moves first, then those with another stance.

    None stands for a document that is not in the run. Where neither differs, but the files do, scores or tags differ.
    """
    ranks_before, ranks = _ranks(old), _ranks(new)
    keys = list(dict.fromkeys([*ranks_before, *ranks]))
    moved = [
        Finding(run, "rank", "", *key, ranks_before.get(key), ranks.get(key))
        for key in keys
        if ranks_before.get(key) != ranks.get(key)
    ]
    longest = max(map(len, [*old.rankings.values(), *new.rankings.values()]), default=0)
    # A document that is only in one of the runs has moved further than any other.
    moved.sort(key=lambda each: -abs((each.old or 2 * longest + 1) - (each.new or 2 * longest + 1)))
    turned = [
        Finding(
            run, "stance", "", topic, document, old.stances.get((topic, document)), new.stances.get((topic, document))
        )
        for topic, document in keys
        if (topic, document) in ranks_before
        and (topic, document) in ranks
        and old.stances.get((topic, document)) != new.stances.get((topic, document))
    ]
    scores_before, scores = _scores(old), _scores(new)
    apart = [key for key in keys if scores_before.get(key) != scores.get(key)]
    if moved or turned:
        return moved + turned
    if apart:
        topic, document = apart[0]
        return [
            Finding(
                run, "run", "score", topic, document, scores_before[apart[0]], scores[apart[0]], len(apart), len(keys)
            )
        ]
    return [Finding(run, "run", "file", text="ranks, stances and scores are the same, but not the bytes: the tag?")]


def measures(run: str, old: ParsedRun, new: ParsedRun, qrels: Qrels) -> list[Finding]:
    """nDCG@5 of each graded aspect and the macro-F1 of the stances, before and now, also where they stay."""
    # Only where they are asked for: pandas takes a while to load.
    from touche_llm.evaluation.measures import NDCG, evaluate_run

    before, now = (evaluate_run(run, each, qrels).estimates for each in (old, new))
    names = [f"{aspect} {NDCG}" for aspect in qrels.grades] + ([f"{STANCE} macro-F1"] if qrels.stances else [])
    return [Finding(run, "measure", name, old=before[name].value, new=now[name].value) for name in names]


def _not_raised(was: Prompt, now: Prompt) -> bool:
    """Whether another text goes by the same name and version, or by an older one."""
    return was.hash != now.hash and was.name == now.name and now.header.version <= was.header.version


def _messages(request: Request) -> Messages:
    return [(message.role, message.content) for message in request.messages]


def _diff(old: Messages, new: Messages, path: str) -> str:
    before, now = ([line for role, text in each for line in (f"[{role}]", *text.splitlines())] for each in (old, new))
    lines = list(unified_diff(before, now, "recorded", path, n=_CONTEXT, lineterm=""))
    more = len(lines) - _MOST_LINES
    return "\n".join(lines[:_MOST_LINES] + ([f"… and {more:,} more lines"] if more > 0 else []))


def _ranks(run: ParsedRun) -> dict[tuple[str, str], int]:
    return _by_document(run, lambda each: each.rank)


def _scores(run: ParsedRun) -> dict[tuple[str, str], float]:
    return _by_document(run, lambda each: each.score)


def _by_document(run: ParsedRun, value: Callable[[Any], Any]) -> dict[tuple[str, str], Any]:
    return {(topic, each.document_id): value(each) for topic, ranking in run.rankings.items() for each in ranking}


def by_kind(findings: Iterable[Finding]) -> dict[Kind, list[Finding]]:
    """The findings of each kind, in their order."""
    found: dict[Kind, list[Finding]] = {}
    for each in findings:
        found.setdefault(each.kind, []).append(each)
    return found
