"""Commands for batch files: export requests, answer them with Ray, and import the responses into the cache."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from touche_llm.cli import options as s
from touche_llm.cli import shared_options as o
from touche_llm.cli.failures import FAILURES_EXIT
from touche_llm.cli.options import CommandProgress
from touche_llm.cli.output import Column, Format, FormatOption, emit, print_result, print_rows, say
from touche_llm.cli.requests import run_requests
from touche_llm.config.configuration import Config
from touche_llm.data.files import check_output
from touche_llm.engines.batch_files import build_run_batch_command
from touche_llm.engines.ray_engine import RayJob
from touche_llm.engines.settings import EngineConfig
from touche_llm.errors import UsageError
from touche_llm.interrupts import run_until_interrupted
from touche_llm.runs.batch import REQUESTS, ExportedRequests, export_requests, import_responses
from touche_llm.runs.directory import RunDirectory
from touche_llm.runs.record import StageName

_RESPONSES = Path("responses.jsonl")


StageArgument = Annotated[StageName, typer.Argument(help="retrieve, judge or rank.")]
TokenizerOption = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer",
        metavar="FOLDER",
        help="The model's tokeniser, if a document may be too long.",
        rich_help_panel="Model",
    ),
]


@s.configured(*s.OF_RUN, without=(*s.DELIVERY, "cache.mode"))
def export(
    config: Config,
    stage: StageArgument,
    out: o.OutOption,
    tokenizer: TokenizerOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Write the requests of a stage that the cache cannot answer, as requests.jsonl in the folder of the run.

    Later exports hold those that depend on answers.
    """
    progress = CommandProgress()
    if stage == "retrieve":
        out.mkdir(parents=True, exist_ok=True)
    with RunDirectory(out).lock(f"batch export {stage}", progress.warn):
        work = export_requests(stage, config, out, tokenizer, progress)
        exported = run_requests(config, work)

    count = len(exported.requests)
    if output is not Format.TABLE:
        row = {"stage": stage, "file": out / REQUESTS, "requests": count}
        print_rows(output, [row] if count > 0 else [], tuple(row))
    if count > 0:
        _print_next_steps(output, out, exported)
    else:
        _print_end(output, stage, out, exported.failed)


def _print_next_steps(output: Format, out: Path, exported: ExportedRequests) -> None:
    """Print how to answer the requests of an export and to import the responses."""
    file = out / REQUESTS
    engine = exported.engine_info
    answer_command = build_run_batch_command(file, _RESPONSES, engine.model, engine.context)
    import_command = ["touche-llm", "batch", "import", str(_RESPONSES), "--out", str(out)]
    next_steps = "answer them, import the responses, and repeat this export until none is pending"
    say(output, f"{len(exported.requests):,} requests now, in {file}; {next_steps}")
    say(output, f"    {shlex.join(answer_command)}")
    say(output, f"    {shlex.join(import_command)}")


RequestsArgument = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="A file of requests, as `batch export` writes it."),
]
ResponsesOption = Annotated[
    Path, typer.Option("--responses", "-o", help="The file to write, responses.jsonl.")
]
ModelOption = Annotated[
    Path,
    typer.Option("--model", metavar="FOLDER", help="Folder of the model, whatever its name."),
]
ContextTokensOption = Annotated[
    int, typer.Option("--context", help="Context in tokens, as of the export.")
]
ValuesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="An option of vLLM or Ray, as engine.options.tensor_parallel_size=2; repeatable.",
    ),
]


def ray(
    requests: RequestsArgument,
    responses: ResponsesOption,
    model: ModelOption,
    context_tokens: ContextTokensOption,
    values: ValuesOption = None,
    overwrite: o.OverwriteOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Answer a file of requests with a Ray Data job, here or on a cluster (RAY_ADDRESS).

    The responses are written whole or not at all; the output of Ray and vLLM goes to a log beside
    them.
    """
    check_output(responses, overwrite, [requests])
    given = {
        "engine.name": "ray",
        "engine.model": str(model),
        "engine.context": context_tokens,
        "engine.options": _read_options(values or []),
    }
    settings = s.read_section(EngineConfig, given, "engine")
    job = RayJob.from_settings(settings, responses.with_name(f"{responses.name}.log"))
    work = job.answer_file(requests, responses)
    count = run_until_interrupted(work, f"{responses} is not written")
    print_result(
        output,
        f"responses: {responses} ({count:,} requests)",
        {"file": responses, "requests": count},
    )


def import_(
    responses: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="Files of responses, one or more.")
    ],
    out: o.OutOption,
    output: FormatOption = Format.TABLE,
) -> None:
    """Store the responses to the last export of a run's folder in its cache.

    Exit code 3 if some hold no usable answer; the next export sends their requests again.
    """
    progress = CommandProgress()
    with RunDirectory(out).lock("batch import", progress.warn):
        work = import_responses(out, responses, progress)
        imported = run_until_interrupted(work, "import the same files again")

    rows: list[dict[str, Any]] = [{"outcome": "stored", "count": imported.stored, "example": None}]
    for kind, reasons in imported.problems.items():
        rows.append({"outcome": kind, "count": len(reasons), "example": reasons[0]})
    columns = (Column("outcome", is_text=True), Column("count"), Column("example", is_cut=True))
    emit(output, rows, columns)

    if imported.is_done:
        _print_end(output, imported.stage, out, imported.failed)
    else:
        say(output, "more is pending: repeat the export")
    if imported.problems:
        raise typer.Exit(FAILURES_EXIT)


def _read_options(values: list[str]) -> dict[str, Any]:
    """Return the options of vLLM and Ray that `--set` gives, by name.

    Raises:
        UsageError: A value sets something else.
    """
    options: dict[str, Any] = {}
    for name, value in s.set_values(values, "batch ray").items():
        section, _, option = name.rpartition(".")
        if section != "engine.options":
            remedy = "give --set engine.options.NAME=VALUE"
            raise UsageError(f"--set {name}: not an option of vLLM or Ray; {remedy}")
        options[option] = value
    return options


def _print_end(output: Format, stage: StageName, out: Path, failed: int) -> None:
    """Print that a stage can be made of the answers in the cache, and how.

    Args:
        output: Form of the output.
        stage: Stage without a pending request.
        out: Folder of the run.
        failed: Number of requests with only unusable answers.
    """
    command = shlex.join(("touche-llm", stage, "--out", str(out), "--cache-mode", "replay"))
    say(
        output,
        f"nothing is pending: the stage needs no server now: {command}, with the options of the export",
    )
    if failed > 0:
        say(
            output,
            f"{failed:,} questions have no usable answer; an export with --retry-failures sends them again",
        )
