"""Output of a dry run: the requests of each prompt."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from touche_llm.cli.output import Format, print_rows, say
from touche_llm.cli.tables import Column, show_table
from touche_llm.config import Config
from touche_llm.pipeline.dry_run import Cost, DryRun
from touche_llm.pipeline.stages import StageName, describe_known_failures
from touche_llm.tasks import get_task

_SPENT = ("requests", "prompt_tokens", "shared_tokens")
_ENDS = ("least", "most")
_COLUMNS = ("stage", "prompt", *(f"{name}_{end}" for name in _SPENT for end in _ENDS), "known")


def print_cost(output: Format, config: Config, result: DryRun, stages: Collection[StageName]) -> None:
    """Print the requests and estimated prompt tokens of each prompt of the stages, and what these numbers mean.

    As rows: one for each stage and prompt; and for each stage with `known` answers, which are counted for all its
    prompts together, one without a prompt and without requests. Each column can be added up.
    """
    known, failed = sum(result.known.values()), sum(result.failed.values())
    if output is not Format.TABLE:
        rows: list[dict[str, Any]] = [
            {"stage": cost.stage, "prompt": cost.prompt, **_sum_costs([cost]), "known": None} for cost in result.costs
        ]
        for stage, count in result.known.items():
            if count:
                rows.append({"stage": stage, "prompt": None, **_sum_costs([]), "known": count})
        print_rows(output, rows, _COLUMNS)
    elif not result.costs:
        print(f"0 requests: no answer is needed that is not in {config.cache.file}" if known else "0 requests")
    else:
        _show(result.costs)
    if failed:
        say(output, f"Known failures: {describe_known_failures(failed)}.")
    if not result.costs:
        return
    notes = [
        "Nothing was sent. A token is estimated as four characters; retries of unusable answers are extra.",
        "shared: tokens at the start of a prompt that the previous prompt has too; a prefix cache computes them once.",
    ]
    if known:
        notes.append(f"Answers that need no request: {known:,} (cached, or needed twice).")
    if any(cost.least.requests != cost.most.requests for cost in result.costs):
        notes.append(
            "The number of comparisons depends on the answers: it is smallest if they confirm the previous order."
        )
    if get_task(config.task).sentence_question is not None and "judge" in stages:
        notes.append("The number of sentences and pairs depends on the answers too; here every sentence takes a side.")
    if result.context is None:
        notes.append("Documents are counted whole: the engine's context is unknown; give it with --context.")
    for note in notes:
        say(output, note)


def _show(costs: Sequence[Cost]) -> None:
    columns = (Column("stage", is_text=True), Column("prompt", is_text=True), Column("requests"))
    rows = [(cost.stage, cost.prompt.partition("/")[2], *_spans([cost])) for cost in costs]
    show_table((*columns, Column("about tokens"), Column("shared", drop=1)), [*rows, (), ("all", "", *_spans(costs))])


def _spans(costs: Sequence[Cost]) -> list[str]:
    figures = _sum_costs(costs)
    ends = [(figures[f"{name}_least"], figures[f"{name}_most"]) for name in _SPENT]
    return [f"{least:,}" if least == most else f"{least:,} to {most:,}" for least, most in ends]


def _sum_costs(costs: Sequence[Cost]) -> dict[str, int]:
    """Return the sums of requests, prompt tokens and shared prompt tokens, from the smallest to the largest."""
    figures: dict[str, int] = {}
    for name in _SPENT:
        of_ends = ([each.least for each in costs], [each.most for each in costs])
        sums = sorted(sum(getattr(spent, name) for spent in spents) for spents in of_ends)
        figures |= {f"{name}_{end}": value for end, value in zip(_ENDS, sums, strict=True)}
    return figures
