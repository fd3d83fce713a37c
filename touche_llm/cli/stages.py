"""Commands that make a run: the whole pipeline, one stage of it, or the entry point for TIRA."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from touche_llm.cli import options as o
from touche_llm.cli import setting_options as s
from touche_llm.cli.output import (
    Column,
    Format,
    FormatOption,
    print_rows,
    say,
    show_lines,
    show_table,
)
from touche_llm.cli.setting_options import CommandProgress
from touche_llm.config.configuration import Config
from touche_llm.config.files import index_folder, load_config
from touche_llm.data.records import Failure
from touche_llm.errors import UsageError
from touche_llm.integrations.tira import detect_input
from touche_llm.llm.cache import describe_resume
from touche_llm.retrieval.chatnoir import API_KEY_VARIABLE
from touche_llm.runs import directory as run_directory
from touche_llm.runs import stages as pipeline
from touche_llm.runs.directory import RunDirectory
from touche_llm.runs.dry_run import Cost, DryRun, estimate_cost
from touche_llm.runs.facts import format_seconds
from touche_llm.runs.overview import read_overview
from touche_llm.runs.record import StageName
from touche_llm.runs.stages import count_by_kind, describe_known_failures
from touche_llm.tasks import get_task

FAILURES_EXIT = 3
ResultT = TypeVar("ResultT")


@s.configured(*s.OF_STAGE["retrieve"])
def retrieve(
    config: Config,
    out: o.OutOption,
    dry_run: o.DryRunOption = False,
    overwrite: o.OverwriteOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Retrieve the candidates of each topic.

    They are written to candidates.run.txt, or to sentences.run.txt for pairs of sentences. Only
    `--query-expansion` needs the model.
    """
    if dry_run:
        show_cost(output, config, out, ("retrieve",), overwrite=overwrite)
        return
    found = run_requests(
        config, pipeline.run_retrieve(config, out, CommandProgress(), overwrite=overwrite)
    )
    _report(output, "candidates", RunDirectory(out).first_stage_file(found.task), found.failures)


@s.configured(*s.OF_STAGE["judge"])
def judge(
    config: Config,
    out: o.OutOption,
    dry_run: o.DryRunOption = False,
    overwrite: o.OverwriteOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Judge the candidates of a run with the model. Exit code 3 if some have no usable answer."""
    if dry_run:
        show_cost(output, config, out, ("judge",))
        return
    outcome = run_requests(
        config, pipeline.run_judge(config, out, CommandProgress(), overwrite=overwrite)
    )
    _report(output, "judgments", out / run_directory.JUDGMENTS, outcome.failures)


@s.configured(*s.OF_STAGE["rank"])
def rank(
    config: Config,
    out: o.OutOption,
    dry_run: o.DryRunOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Write run.txt from the candidates and judgments of a run. Exit code 3 if some are missing.

    Needs the model only if a step of `--rank` compares documents.
    """
    if dry_run:
        show_cost(output, config, out, ("rank",))
        return
    ranking = run_requests(config, pipeline.run_rank(config, out, CommandProgress()))
    _report(output, "run", out / run_directory.RUN, ranking.failures, imputed=ranking.imputed)
    if ranking.imputed:
        raise typer.Exit(FAILURES_EXIT)


@s.configured(*s.OF_RUN)
def run(
    config: Config,
    out: o.OutOption,
    dry_run: o.DryRunOption = False,
    overwrite: o.OverwriteOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Run the pipeline: retrieve, judge, rank. A stopped run resumes.

    Exit codes: 0 all judged; 1 data, prompt or engine error; 2 wrong usage; 3 some answers
    unusable, see failures.jsonl; 130 interrupted.
    """
    task = get_task(config.task)
    show_lines([f"task: {task.name} ({task.title})"], sys.stderr)
    if dry_run:
        show_cost(output, config, out, ("retrieve", "judge", "rank"), overwrite=overwrite)
        return
    _run_all(output, config, out, overwrite=overwrite)


def _run_all(output: Format, config: Config, out: Path, *, overwrite: bool) -> None:
    started = time.monotonic()
    outcome = run_requests(
        config, pipeline.run_all(config, out, CommandProgress(), overwrite=overwrite)
    )
    seconds = format_seconds(time.monotonic() - started)
    totals = read_overview(out).totals
    say(
        output,
        f"{seconds}, {totals['requests']:,} requests, {totals['cached']:,} answers from the cache, "
        f"{totals['prompt_tokens']:,} prompt and {totals['completion_tokens']:,} answer tokens; "
        f"next: touche-llm show {out}",
    )
    overruled = totals["overruled"]
    if overruled:
        why = "the probabilities of all labels decide"
        say(output, f"stances that differ from the answers as written: {overruled:,}, since {why}")
    _report(
        output,
        "run",
        out / run_directory.RUN,
        outcome.failures,
        judgments=outcome.judgments.requested,
    )


def _report(
    output: Format, name: str, file: Path, failures: Sequence[Failure], **counts: int
) -> None:
    """Print the file that a stage has written, with counts, and its failures.

    Exit with code 3 if there are any.
    """
    counts |= {"failures": len(failures)}
    if output is Format.TABLE:
        shown = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
        print(f"{name}: {file}" + (f" ({shown})" if shown else ""))
    else:
        print_rows(output, [{"file": file, **counts}])
    if failures:
        written = (file.parent / of_stage for of_stage in run_directory.ALL_FAILURES)
        files = [str(path) for path in written if path.exists() and path.stat().st_size]
        print_failures(
            output, failures, f"the answers of all attempts are in {' and '.join(files)}"
        )
        raise typer.Exit(FAILURES_EXIT)


def run_requests(config: Config, work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run work that sends requests.

    Ctrl-C, SIGTERM and SIGHUP end it with exit code 130 and a note on the cache.
    """
    return until_interrupted(work, lambda: describe_resume(config.cache.file, config.cache.mode))


def until_interrupted(work: Coroutine[Any, Any, ResultT], note: Callable[[], str]) -> ResultT:
    """Run a coroutine; Ctrl-C, SIGTERM and SIGHUP end it with exit code 130 and print `note`."""

    def stop(*_: object) -> None:
        # A second Ctrl-C should not interrupt closing.
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    ending = [signal.SIGINT, signal.SIGTERM]
    # Under nohup the run survives its terminal.
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        ending.append(signal.SIGHUP)
    before = {number: signal.signal(number, stop) for number in ending}
    try:
        return asyncio.run(_quietly(work))
    except KeyboardInterrupt:
        print(f"interrupted; {note()}", file=sys.stderr)
        raise typer.Exit(130) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def _quietly(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Await the work without messages of the single tasks that Ctrl-C cancels."""

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), KeyboardInterrupt):
            loop.default_exception_handler(context)

    asyncio.get_running_loop().set_exception_handler(handle)
    return await work


def print_failures(output: Format, failures: Sequence[Failure], note: str) -> None:
    """Print the failures by kind, with the most frequent reason and a note."""
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in count_by_kind(failures).items())
    reasons = Counter(failure.attempts[-1].reason for failure in failures)
    say(output, f"failures: {kinds}; most often: {reasons.most_common(1)[0][0]}")
    say(output, note)


def show_cost(
    output: Format,
    config: Config,
    folder: Path,
    stages: Sequence[StageName],
    *,
    overwrite: bool = False,
) -> None:
    """Print what stages would request, see `print_costs`."""
    result = run_requests(
        config, estimate_cost(config, folder, stages, CommandProgress(), overwrite=overwrite)
    )
    notes = []
    if result.has_unknown_queries:
        notes.append("Documents that only queries of the model find are not counted.")
    if get_task(config.task).sentence_question is not None and "judge" in stages:
        notes.append(
            "The number of sentences and pairs depends on the answers too; here every sentence takes a side."
        )
    print_costs(output, config, result, notes)


def print_costs(output: Format, config: Config, result: DryRun, further: Sequence[str]) -> None:
    """Print the requests and estimated prompt tokens of each prompt of the stages, and what these numbers mean."""
    rows: list[dict[str, Any]] = [
        {"stage": cost.stage, "prompt": cost.prompt, **_sum_costs([cost])} for cost in result.costs
    ]
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
    if failed:
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


# Where vLLM and its libraries write by default, and what keeps them from using the network.
_WRITES = {
    "VLLM_CACHE_ROOT": "vllm",
    "VLLM_CONFIG_ROOT": "vllm",
    "HF_HOME": "huggingface",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
}
_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}


@s.takes_settings("prompts.folder", "cache.mode", "skip_bad_lines")
def tira(
    given: s.GivenSettings,
    input_folder: Annotated[
        Path | None,
        typer.Option(
            "-i",
            "--input",
            envvar="TIRA_INPUT_DATASET",
            metavar="FOLDER",
            help="Folder with topics and corpus.",
        ),
    ] = None,
    output_folder: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            envvar="TIRA_OUTPUT_DIR",
            metavar="FOLDER",
            help="Folder for run.txt and the rest.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            envvar="TOUCHE_LLM_MODEL",
            metavar="FOLDER",
            help="Folder of the model's weights.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            envvar="TOUCHE_LLM_CONFIG",
            help="YAML file with any of the values of a run.",
        ),
    ] = None,
    cache_folder: Annotated[
        Path | None,
        typer.Option(
            "--cache-folder",
            envvar="TOUCHE_LLM_CACHE",
            metavar="FOLDER",
            help="For index, answers, and vLLM's files and log (default: touche-llm in $XDG_CACHE_HOME or ~/.cache).",
        ),
    ] = None,
    overwrite: o.OverwriteOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Make the run for an input folder of TIRA, without a network.

    The files there determine the task. A vLLM server is started and stopped for the run. Writes to
    the output folder and the cache folder only. Exit codes as `run`.
    """
    if input_folder is None or output_folder is None:
        raise UsageError(
            "tira: missing folders; give -i INPUT -o OUTPUT, or set TIRA_INPUT_DATASET and TIRA_OUTPUT_DIR"
        )
    found = detect_input(input_folder)
    try:
        cache = (
            cache_folder
            or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "touche-llm"
        )
    except RuntimeError as error:
        raise UsageError(
            f"--cache-folder: no default ({error}); give a folder, or set TOUCHE_LLM_CACHE"
        ) from error
    flags: dict[str, Any] = {
        "task": found.task.name,
        "topics": found.topics,
        "corpus": found.corpus,
        "candidates": found.candidates,
        "index": cache / "index" / index_folder(found.corpus).name if found.corpus else None,
        "engine.name": "managed",
        "engine.model": model,
        "cache.file": cache / "answers.sqlite",
        **given,
    }
    if found.corpus is None:
        if not os.environ.get(API_KEY_VARIABLE):
            raise UsageError(
                f"{input_folder}: no corpus; add one as published or as corpus.jsonl, or set {API_KEY_VARIABLE} to "
                "search ChatNoir"
            )
        flags |= {"retriever.name": "chatnoir", "chatnoir.cache": cache / "chatnoir.sqlite"}
    settings = load_config(config, flags)
    for name, place in _WRITES.items():
        os.environ.setdefault(name, str(cache.absolute() / place))
    for name, value in _OFFLINE.items():
        os.environ.setdefault(name, value)
    _run_all(output, settings, output_folder, overwrite=overwrite)
