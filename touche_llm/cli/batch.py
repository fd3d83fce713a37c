"""Commands for batch files: export requests, answer them, and import the responses into the cache."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from touche_llm.cli import options as o
from touche_llm.cli import setting_options as s
from touche_llm.cli import stages
from touche_llm.cli.emit import TEXT_WIDTH, Column, Format, FormatOption, emit, print_result, print_rows, say
from touche_llm.cli.setting_options import CommandProgress
from touche_llm.config import Config, is_one_of
from touche_llm.data.io import check_output
from touche_llm.errors import UsageError
from touche_llm.llm.batch_files import answer_file, run_batch
from touche_llm.llm.managed import build_start_options
from touche_llm.llm.settings import EngineConfig, Runner
from touche_llm.pipeline.batch import Batch, import_replies, pending_requests, read_batch, write_requests
from touche_llm.pipeline.run_directory import RunDirectory
from touche_llm.pipeline.stages import StageName

# The stage and the folder stand first in each command; the others are for one call alone.
_NOT_REPEATED = ("stage", "out", "overwrite", "cache__retry_failures", "output", "help_all")
_RESPONSES = "responses.jsonl"

batch_app = typer.Typer(no_args_is_help=True, help="Write, answer and import batch files, with vLLM or Ray Data.")


@batch_app.command()
@s.configured(*s.OF_RUN, without=(*s.DELIVERY, "cache.mode"))
def export(
    config: Config,
    context: typer.Context,
    stage: Annotated[StageName, typer.Argument(help="retrieve, judge or rank.")],
    out: o.OutOption,
    requests: Annotated[
        Path, typer.Option("--requests", "-o", metavar="FILE", help="The file to write.", rich_help_panel="Output")
    ],
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            "--tokenizer",
            metavar="FOLDER",
            help="The model's tokeniser, if a document may be too long.",
            rich_help_panel="Model",
        ),
    ] = None,
    overwrite: o.OverwriteOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Write the requests of a stage that the cache cannot answer; later exports hold those that depend on answers."""
    for name, option in s.OPTIONS.items():
        given = context.params.get(option.parameter_name)
        if given not in (None, (), []) and not is_one_of(name, s.OF_STAGE[stage]):
            raise UsageError(f"{option.flag}: not an option of `touche-llm {stage}`, which does not depend on it")
    progress = CommandProgress()
    if stage == "retrieve":
        out.mkdir(parents=True, exist_ok=True)
    with RunDirectory(out).lock(f"batch export {stage}", progress.warn):
        found = stages.run_requests(config, pending_requests(stage, config, out, tokenizer, progress))
        found = replace(found, batch=found.batch.model_copy(update=_list_given_options(context)))
        is_pending = write_requests(found, out, requests, overwrite=overwrite)
    if output is not Format.TABLE:
        rows = [{"stage": stage, "file": requests, "requests": len(found.requests)}] if is_pending else []
        print_rows(output, rows, ("stage", "file", "requests"))
    if not is_pending:
        _print_end(output, found.batch, out, found.failed)
        return
    for line in (
        f"{len(found.requests):,} requests now, in {requests}; answer them, import the responses, and run export again "
        "until none is pending",
        f"    {_run_command(found.batch, requests, tokenizer)}",
        f"    {shlex.join(('touche-llm', 'batch', 'import', _RESPONSES, '--out', str(out)))}",
        f"    {_export_command(found.batch, out)}",
    ):
        say(output, line)


@batch_app.command()
def run(
    requests: Annotated[Path, typer.Argument(metavar="FILE", help="A file of requests, as `batch export` writes it.")],
    responses: Annotated[Path, typer.Option("--responses", "-o", help="The file to write, responses.jsonl.")],
    model: Annotated[Path, typer.Option("--model", metavar="FOLDER", help="Folder of the model.")],
    engine: Annotated[
        Runner, typer.Option("--engine", help="vllm: `vllm run-batch`; ray: a Ray Data job, on a cluster or here.")
    ] = Runner.VLLM,
    context_tokens: Annotated[
        int | None, typer.Option("--context", help="Context in tokens, as of the export (default: the model's).")
    ] = None,
    served_name: Annotated[
        str | None,
        typer.Option(
            "--served-model-name", metavar="NAME", help="The model's name in the requests (default: the folder's)."
        ),
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
    options: dict[str, Any] = {}
    for name, value in s.set_values(values or [], "batch run").items():
        section, _, option = name.rpartition(".")
        if section != "engine.options":
            raise UsageError(f"--set {name}: not an option of vLLM or Ray; give --set engine.options.NAME=VALUE")
        options[option] = value
    given = {"name": "batch", "runner": engine, "model": str(model), "context": context_tokens, "options": options}
    settings = s.read_section(EngineConfig, {f"engine.{name}": value for name, value in given.items()}, "engine")
    log = responses.with_name(f"{responses.name}.log")
    work = answer_file(settings, requests, responses, log, served_name=served_name)
    count = stages.until_interrupted(work, lambda: f"{responses} is not written")
    print_result(output, f"responses: {responses} ({count:,} requests)", {"file": responses, "requests": count})


@batch_app.command("import")
def import_(
    responses: Annotated[list[Path], typer.Argument(metavar="FILE", help="Files of responses, one or more.")],
    out: o.OutOption,
    output: FormatOption = Format.TABLE,
) -> None:
    """Store the responses to the last export of a run's folder in its cache.

    Exit code 3 if some hold no usable answer; the next export sends their requests again.
    """
    progress = CommandProgress()
    with RunDirectory(out).lock("batch import", progress.warn):
        batch = read_batch(out)
        done = stages.run_requests(batch.config, import_replies(batch, out, responses, progress))
    kinds = {**done.unusable, **done.errors, **({"repeated": done.repeated} if done.repeated else {})}
    rows = [{"outcome": kind, "count": len(texts), "example": texts[0]} for kind, texts in kinds.items()]
    columns = (Column("outcome", is_text=True), Column("count"), Column("example", cut=TEXT_WIDTH))
    emit(output, [{"outcome": "stored", "count": done.stored, "example": None}, *rows], columns)
    if done.refused:
        say(output, f"{done.refused:,} requests were refused; --retry-failures of an export sends them again, once")
    if done.done:
        _print_end(output, batch, out, done.failed)
    else:
        say(output, f"more is pending: run export again: {_export_command(batch, out)}")
    if done.unusable or done.errors:
        raise typer.Exit(stages.FAILURES_EXIT)


def _list_given_options(context: typer.Context) -> dict[str, tuple[str, ...]]:
    """Return the options that were given: for the next export, and those that the stage's own command takes too."""
    options: dict[str, tuple[str, ...]] = {"export_options": (), "stage_options": ()}
    for parameter in context.command.params:
        name, flag, value = parameter.name, max(parameter.opts, key=len), context.params[str(parameter.name)]
        if name in _NOT_REPEATED or value in (None, (), []):
            continue
        if isinstance(value, bool):
            words = [flag if value else parameter.secondary_opts[0]]
        else:
            values = value if isinstance(value, list | tuple) else [value]
            words = [word for item in values for word in (flag, str(item))]
        for command in options if name not in ("requests", "tokenizer") else ["export_options"]:
            options[command] += tuple(words)
    return options


def _run_command(batch: Batch, file: Path, tokenizer: Path | None) -> str:
    """Return the command with which vLLM answers a file of requests."""
    folders = (folder for folder in (tokenizer, Path(batch.facts.model)) if folder is not None)
    weights = next((str(folder) for folder in folders if (folder / "config.json").is_file()), "FOLDER")
    facts = batch.facts
    return shlex.join(run_batch(file, Path(_RESPONSES), weights, facts.model, facts.context, build_start_options({})))


def _export_command(batch: Batch, out: Path) -> str:
    return shlex.join(("touche-llm", "batch", "export", batch.stage, "--out", str(out), *batch.export_options))


def _print_end(output: Format, batch: Batch, out: Path, failed: int) -> None:
    command = ("touche-llm", batch.stage, "--out", str(out), "--cache-mode", "replay", *batch.stage_options)
    say(output, f"nothing is pending: the stage needs no server now: {shlex.join(command)}")
    if failed:
        say(output, f"{failed:,} questions have no usable answer; an export with --retry-failures sends them again")
