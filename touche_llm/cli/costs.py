"""The output of a dry run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from touche_llm.cli.options import CommandProgress
from touche_llm.cli.output import Column, Format, print_rows, say, show_table
from touche_llm.cli.requests import run_requests
from touche_llm.config.configuration import Config
from touche_llm.kinds.known import get_kind
from touche_llm.runs.dry_run import Cost, DryRun, estimate_cost
from touche_llm.runs.record import StageName
from touche_llm.runs.stages import describe_known_failures
from touche_llm.tasks import get_task


def show_cost(
    output: Format,
    config: Config,
    folder: Path,
    stages: Sequence[StageName],
    *,
    overwrite: bool = False,
) -> None:
    """Print what stages would request, see `print_costs`."""
    work = estimate_cost(config, folder, stages, CommandProgress(), overwrite=overwrite)
    result = run_requests(config, work)

    notes: list[str] = []
    if result.has_unknown_queries:
        notes.append("Documents that only queries of the model find are not counted.")
    kind = get_kind(get_task(config.task))
    if kind.dry_run_note is not None and "judge" in stages:
        notes.append(kind.dry_run_note)
    print_costs(output, config, result, notes)


def print_costs(output: Format, config: Config, result: DryRun, further: Sequence[str]) -> None:
    """Print the requests and estimated tokens of each prompt, and what these numbers mean.

    Args:
        output: Form of the output.
        config: Configuration of the run.
        result: Dry run of some stages.
        further: Additional notes.
    """
    rows: list[dict[str, Any]] = []
    for cost in result.costs:
        rows.append({"stage": cost.stage, "prompt": cost.prompt, **_sum_costs([cost])})
    total = {"stage": "all", "prompt": "", **_sum_costs(result.costs)}
    if output is not Format.TABLE:
        print_rows(output, rows, tuple(total))
    elif rows:
        show_table(_COSTS, [*rows, total])
    elif any(result.known.values()):
        print(f"0 requests: no answer is needed that is not in {config.cache.file}")
    else:
        print("0 requests")

    failed = sum(result.failed.values())
    if failed > 0:
        say(output, f"Known failures: {describe_known_failures(failed)}.")
    if rows:
        for note in _explain_costs(result, total, further):
            say(output, note)


def _explain_costs(
    result: DryRun, total: Mapping[str, Any], further: Sequence[str]
) -> Iterator[str]:
    """Yield notes on what the numbers of a dry run mean.

    Args:
        result: Dry run with at least one request.
        total: Sums of all stages.
        further: Additional notes.
    """
    yield (
        "Nothing was sent. A token is estimated as four characters; retries of unusable answers are extra. The "
        f"model writes at most {total['completion_tokens']:,} tokens for these requests, with any reasoning."
    )
    yield "shared: tokens at the start of a prompt that the one before has too; a prefix cache computes them once."
    for step, max_requests in result.max_requests.items():
        yield (
            f"{step} sends at most {max_requests:,} requests; the count is for answers that confirm "
            "the ranking."
        )
    known = sum(result.known.values())
    if known:
        yield f"Answers that need no request: {known:,} (cached, or needed twice)."
    yield from further
    if result.context is None:
        yield "Documents are counted whole: the engine's context is unknown; give it with --context."


_COSTS = (
    Column("stage", is_text=True),
    Column("prompt", is_text=True, value=lambda row: row["prompt"].partition("/")[2]),
    Column("requests"),
    Column("about tokens", value="prompt_tokens"),
    Column("shared", drop=1, value="shared_tokens"),
)


def _sum_costs(costs: Sequence[Cost]) -> dict[str, int]:
    """Return the expected requests and tokens of all costs together."""
    return {
        name: sum(getattr(cost.usage, name) for cost in costs)
        for name in ("requests", "prompt_tokens", "shared_tokens", "completion_tokens")
    }
