"""The commands for batch files: requests as files, their responses, and these into the cache."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from touche_llm.batch.export import pending_requests, write_requests
from touche_llm.batch.responses import import_replies
from touche_llm.batch.runner import answer_file, run_batch
from touche_llm.batch.stage_run import Batch, read_batch
from touche_llm.cli import options as o
from touche_llm.cli import stages
from touche_llm.cli.output import Format, FormatOption, print_rows, say
from touche_llm.data.files import check_output
from touche_llm.errors import UsageError, to_printable
from touche_llm.llm.engines.vllm_common import build_start_options
from touche_llm.llm.settings import EngineConfig, Runner
from touche_llm.pipeline.progress import ConsoleProgress
from touche_llm.pipeline.run_lock import lock_run
from touche_llm.pipeline.stages import StageName

_STAGES: Mapping[StageName, Callable[..., None]] = {
    "retrieve": stages.retrieve,
    "judge": stages.judge,
    "rank": stages.rank,
}
# A server reports its context; here even the first stage needs it as an option.
_OWN = ("stage", "requests", "shards", "tokenizer", "context_tokens", "overwrite")
# The folder stands first in each command; the others are for one call alone.
_NOT_REPEATED = ("stage", "out", "overwrite", "retry_failures", "output")
_RESPONSES = "responses.jsonl"
# As many files are open at a time.
_MOST_SHARDS = 500

app = typer.Typer(no_args_is_help=True, help="Batch files, for clusters without a server: `vllm run-batch`, Ray Data.")


@app.command()
def export(
    context: typer.Context,
    stage: Annotated[StageName, typer.Argument(help="retrieve (with --query-expansion), judge or rank.")],
    out: o.OutOption,
    requests: Annotated[Path, typer.Option("--requests", "-o", help="The file to write, requests.jsonl.")],
    shards: Annotated[
        int,
        typer.Option("--shards", min=1, max=_MOST_SHARDS, help="Into so many files, requests-00001-of-0000N.jsonl."),
    ] = 1,
    tokenizer: Annotated[
        Path | None,
        typer.Option("--tokenizer", help="Folder with the model's tokeniser, needed where a document may be too long."),
    ] = None,
    topics: o.TopicsOption = None,
    corpus: o.CorpusOption = None,
    task: o.TaskOption = None,
    config: o.ConfigOption = None,
    index: o.IndexOption = None,
    model: o.ModelOption = None,
    revision: o.RevisionOption = None,
    context_tokens: o.ContextOption = None,
    depth: o.DepthOption = None,
    limit_topics: o.LimitOption = None,
    topic: o.TopicOption = None,
    candidates: o.CandidatesOption = None,
    retriever: o.RetrieverOption = None,
    bm25_method: o.MethodOption = None,
    k1: o.K1Option = None,
    b: o.BOption = None,
    query: o.QueryOption = None,
    expand: o.ExpandOption = None,
    skip_bad_lines: o.SkipOption = None,
    prompts_folder: o.PromptsOption = None,
    prompt: o.PromptOption = None,
    objects_prompt: o.ObjectsPromptOption = None,
    sentence_prompt: o.SentencePromptOption = None,
    stance_depth: o.StanceDepthOption = None,
    judge_pairs: o.JudgePairsOption = None,
    both_orders: o.BothOrdersOption = None,
    steps: o.StepsOption = None,
    objective: o.ObjectiveOption = None,
    weight_relevance: o.RelevanceOption = None,
    weight_quality: o.QualityOption = None,
    weight_coherence: o.CoherenceOption = None,
    weight_first_stage: o.FirstStageOption = None,
    thresholds: o.ThresholdsOption = None,
    temperature: o.TemperatureOption = None,
    seed: o.SeedOption = None,
    max_tokens: o.MaxTokensOption = None,
    logprobs: o.LogprobsOption = None,
    cache: o.CacheOption = None,
    retry_failures: o.RetryFailuresOption = None,
    values: o.ValuesOption = None,
    overwrite: o.OverwriteOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Write the requests that a stage would send and the cache cannot answer; with the options of that stage.

    Requests that depend on answers come with a later export. The files of the last export of this folder are replaced,
    and removed when nothing is pending any more.
    """
    _only_of(stage, context)
    settings = o.configure(context)
    progress = ConsoleProgress()
    if stage == "retrieve":
        out.mkdir(parents=True, exist_ok=True)
    with lock_run(out, f"batch export {stage}", progress.warn):
        found = stages.asked(settings, pending_requests(stage, settings, out, tokenizer, progress))
        batch = found.batch.model_copy(update=_options(stage, context))
        found = replace(found, batch=batch)
        files = write_requests(found, out, requests, shards, overwrite=overwrite)
    if output is not Format.TABLE:
        rows = [{"stage": stage, "file": file, "requests": count} for file, count in files]
        print_rows(output, rows, ("stage", "file", "requests"))
    if not files:
        _tell_end(output, batch, out, found.failed)
        return
    first, last = files[0][0], files[-1][0]
    where = f"{first}" if first == last else f"{len(files)} files, {first} to {last}"
    say(output, f"{len(found.requests):,} requests now, in {where}; for each file")
    say(output, f"  {_command(batch, first, tokenizer)}")
    say(output, "then import the responses, and run export again, until none is pending")
    say(output, f"  {_spelled('touche-llm', 'batch', 'import', _RESPONSES, '--out', str(out))}")
    say(output, f"  {_export(batch, out)}")


@app.command()
def run(
    requests: Annotated[Path, typer.Argument(help="A file of requests, as `batch export` writes it.")],
    responses: Annotated[Path, typer.Option("--responses", "-o", help="The file to write, responses.jsonl.")],
    model: Annotated[Path, typer.Option("--model", help="Folder of the model.")],
    engine: Annotated[
        Runner, typer.Option("--engine", help="vllm: `vllm run-batch`; ray: a Ray Data job, on a cluster or here.")
    ] = Runner.VLLM,
    context_tokens: Annotated[
        int | None, typer.Option("--context", help="Context in tokens, as of the export (default: the model's).")
    ] = None,
    served_name: Annotated[
        str | None,
        typer.Option("--served-model-name", help="The model's name in the requests (default: the folder's)."),
    ] = None,
    values: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="An option of vLLM or Ray, as engine.options.tensor_parallel_size=2; repeatable.",
        ),
    ] = None,
    overwrite: o.OverwriteOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Answer a file of requests with vLLM, here or on a Ray cluster (RAY_ADDRESS).

    The responses are written whole or not at all; the output of vLLM and Ray goes to a log beside them.
    """
    check_output(responses, overwrite, [requests])
    options = {}
    for name, value in o.set_values(values or [], "batch run").items():
        section, _, option = name.rpartition(".")
        if section != "engine.options":
            raise UsageError(f"--set {name}: not an option of vLLM or Ray; give --set engine.options.NAME=VALUE")
        options[option] = value
    given = {"name": "batch", "runner": engine.value, "model": str(model), "context": context_tokens}
    settings = o.checked(EngineConfig, given | {"options": options}, {"options": "--set engine.options"})
    log = responses.with_name(f"{responses.name}.log")
    work = answer_file(settings, requests, responses, log, served_name=served_name)
    count = stages.until_interrupted(work, lambda: f"{responses} is not written")
    if output is Format.TABLE:
        print(f"responses: {responses} ({count:,} requests)")
    else:
        print_rows(output, [{"file": responses, "requests": count}])


@app.command("import")
def import_(
    responses: Annotated[list[Path], typer.Argument(help="Files of responses, one or more.")],
    out: o.OutOption,
    output: FormatOption = Format.TABLE,
) -> None:
    """Store the responses to the last export of a run's folder in its cache: those of all files, or none.

    Exit code 3 if some hold no usable answer; the next export sends their requests again.
    """
    progress = ConsoleProgress()
    with lock_run(out, "batch import", progress.warn):
        batch = read_batch(out)
        done = stages.asked(batch.config, import_replies(batch, out, responses, progress))
    kinds = {**done.unusable, **done.errors, **({"repeated": done.repeated} if done.repeated else {})}
    found = [("stored", done.stored, ""), *((kind, len(all_), all_[0]) for kind, all_ in kinds.items())]
    if output is Format.TABLE:
        for name, count, example in found:
            print(f"{count:>8,} {name}" + (f": as {to_printable(example)}" if example else ""))
    else:
        print_rows(output, [{"outcome": name, "count": count, "example": one or None} for name, count, one in found])
    if done.refused:
        say(
            output,
            f"{done.refused:,} requests were refused and are not sent again; where vLLM's settings were the cause, "
            "mend them and run export again, once with --retry-failures",
        )
    if done.done:
        _tell_end(output, batch, out, done.failed)
    else:
        say(output, f"more is pending: run export again: {_export(batch, out)}")
    if done.unusable or done.errors:
        raise typer.Exit(stages.FAILURES_EXIT)


def _only_of(stage: StageName, context: typer.Context) -> None:
    """Raise UsageError for an option that the stage's own command does not take."""
    known = {*inspect.signature(_STAGES[stage]).parameters, *_OWN}
    flags = {each.name: each.opts[0] for each in context.command.params}
    for name, value in context.params.items():
        if name not in known and value not in (None, (), []):
            raise UsageError(f"{flags[name]}: no option of `touche-llm {stage}`, which does not go by it")


def _options(stage: StageName, context: typer.Context) -> dict[str, tuple[str, ...]]:
    """Return the options that were given: for the next export, and for the stage's own command."""
    of_stage = inspect.signature(_STAGES[stage]).parameters
    again: list[str] = []
    replay: list[str] = []
    for parameter in context.command.params:
        name = str(parameter.name)
        source = context.get_parameter_source(name)
        if name in _NOT_REPEATED or source is None or source.name != "COMMANDLINE":
            continue
        value = context.params[name]
        flag = max(parameter.opts, key=len)
        if isinstance(value, bool):
            spelled = [flag if value else parameter.secondary_opts[0]]
        else:
            values = value if isinstance(value, list | tuple) else [value]
            spelled = [part for each in values for part in (flag, str(each))]
        again += spelled
        replay += spelled if name in of_stage else []
    return {"export_options": tuple(again), "stage_options": tuple(replay)}


def _command(batch: Batch, file: Path, tokenizer: Path | None) -> str:
    """Return the command with which vLLM answers a file of requests."""
    known = (each for each in (tokenizer, Path(batch.facts.model)) if each is not None)
    weights = next((str(each) for each in known if (each / "config.json").is_file()), "FOLDER")
    facts = batch.facts
    return _spelled(*run_batch(file, Path(_RESPONSES), weights, facts.model, facts.context, build_start_options({})))


def _export(batch: Batch, out: Path) -> str:
    return _spelled("touche-llm", "batch", "export", batch.stage, "--out", str(out), *batch.export_options)


def _spelled(*command: str) -> str:
    return to_printable(shlex.join(command))


def _tell_end(output: Format, batch: Batch, out: Path, failed: int) -> None:
    command = ("touche-llm", batch.stage, "--out", str(out), "--cache-mode", "replay", *batch.stage_options)
    say(output, f"nothing is pending: the stage needs no server now: {_spelled(*command)}")
    if failed:
        say(
            output,
            f"{failed:,} questions have no usable answer: the replay goes on without and names them (exit code 3); "
            "an export with --retry-failures sends them again",
        )
