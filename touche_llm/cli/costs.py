"""How a dry run is printed: what stages would send, prompt by prompt."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

from rich.table import Column, Table

from touche_llm.cli.output import Format, plain, print_rows, say, show_table
from touche_llm.config import Config
from touche_llm.pipeline.common import describe_known_failures
from touche_llm.pipeline.dry_run import Cost, DryRun, StageName
from touche_llm.tasks import get_task

_SPENT = ("requests", "prompt_tokens", "shared_tokens")
_ENDS = ("least", "most")
_COLUMNS = ("stage", "prompt", *(f"{name}_{end}" for name in _SPENT for end in _ENDS), "known")


def print_cost(output: Format, config: Config, result: DryRun, stages: Collection[StageName]) -> None:
    """Print for each prompt of the stages the requests and about how many prompt tokens, and what these figures mean.

    As rows: one for each stage and prompt; and one without a prompt, in which nothing is sent, for each stage with
    `known` answers, which are counted for all its prompts together. So each column can be added up.
    """
    known, failed = sum(result.known.values()), sum(result.failed.values())
    if output is not Format.TABLE:
        rows: list[dict[str, Any]] = [
            {"stage": cost.stage, "prompt": cost.prompt, **_figures([cost]), "known": None} for cost in result.costs
        ]
        for stage, count in result.known.items():
            if count:
                rows.append({"stage": stage, "prompt": None, **_figures([]), "known": count})
        print_rows(output, rows, _COLUMNS)
    elif not result.costs:
        print(f"0 requests: no answer is needed that is not in {config.cache.file}" if known else "0 requests")
    else:
        _show(result.costs)
    if failed:
        say(output, f"Questions that need no request: {describe_known_failures(failed)}.")
    if not result.costs:
        return
    notes = [
        "Nothing was sent. A token is taken for four characters; unusable answers that are asked again come on top.",
        "Shared is what a prompt begins with as the one before it did: a prefix cache need not compute it again.",
    ]
    if known:
        notes.append(f"Answers that need no request: {known:,}, since they are in the cache or needed twice.")
    if any(cost.least.requests != cost.most.requests for cost in result.costs):
        notes.append(
            "How often documents are compared depends on the answers: least where they confirm the order so far."
        )
    if get_task(config.task).sentence_question is not None and "judge" in stages:
        notes.append(
            "How many sentences and pairs are judged depends on the answers too: here every sentence takes a side."
        )
    if result.context is None:
        notes.append("Documents are counted whole, since the engine's context is not known: name it with --context.")
    for note in notes:
        say(output, note)


def _show(costs: Sequence[Cost]) -> None:
    number = partial(Column, justify="right")
    names = ("requests", "prompt tokens, about", "of them shared")
    table = Table(Column("stage", no_wrap=True), Column("prompt", no_wrap=True), *map(number, names))
    for cost in costs:
        table.add_row(cost.stage, plain(cost.prompt.partition("/")[2]), *_spans([cost]))
    table.add_section()
    table.add_row("all", "", *_spans(costs))
    show_table(table)


def _spans(costs: Sequence[Cost]) -> list[str]:
    figures = _figures(costs)
    ends = [(figures[f"{name}_least"], figures[f"{name}_most"]) for name in _SPENT]
    return [f"{least:,}" if least == most else f"{least:,} to {most:,}" for least, most in ends]


def _figures(costs: Sequence[Cost]) -> dict[str, int]:
    """Requests, their prompt tokens and the shared ones of them, each added up, from the least to the most."""
    figures: dict[str, int] = {}
    for name in _SPENT:
        of_ends = ([each.least for each in costs], [each.most for each in costs])
        sums = sorted(sum(getattr(spent, name) for spent in spents) for spents in of_ends)
        figures |= {f"{name}_{end}": value for end, value in zip(_ENDS, sums, strict=True)}
    return figures
