"""Command that examines a server."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from touche_llm.cli import setting_options as s
from touche_llm.cli.output import Format, FormatOption, print_rows, say
from touche_llm.cli.progress import CommandProgress
from touche_llm.cli.stages import until_interrupted
from touche_llm.cli.tables import Column, show_lines, show_table
from touche_llm.llm.engines.server_checks import ServerCheck
from touche_llm.llm.settings import EngineConfig, SamplingConfig
from touche_llm.pipeline.context import list_schemas
from touche_llm.prompts.catalog import load_named
from touche_llm.tasks import DEFAULT_TASK, get_task

_MARKS = {True: "yes", False: "no", None: "?"}


@s.takes_settings(
    *(f"engine.{name}" for name in ("model", "context", "tokenizer", "request_timeout")),
    "sampling.logprobs",
    "sampling.system_message",
)
def doctor(
    given: s.Given,
    url: Annotated[str, typer.Argument(metavar="URL", help="Address of the server, as http://127.0.0.1:8000.")],
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Also repeat a request sixty times, to see if its answers differ.")
    ] = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Check what a server can do, and name the options for the rest.

    Sends about fifteen short requests. Exit code 1 if a run is impossible.
    """
    engine = s.validate(EngineConfig, {**given, "engine.base_url": url}, "engine")
    sampling = s.validate(SamplingConfig, given, "sampling")
    checks = until_interrupted(_examine(engine, sampling, thorough), lambda: "nothing was stored")
    if output is Format.TABLE:
        _show(checks)
    else:
        print_rows(output, [asdict(check) | {"remedy": s.name_options(check.remedy)} for check in checks])
    if any(check.is_blocking for check in checks):
        say(output, f"{url}: a run could not be made")
        raise typer.Exit(1)
    say(output, f"{url}: a run can be made")


async def _examine(engine: EngineConfig, sampling: SamplingConfig, is_thorough: bool) -> list[ServerCheck]:
    # Imported here because the HTTP libraries are slow to load.
    from touche_llm.llm.engines.conformance import count_steps, examine
    from touche_llm.llm.engines.server import ChatServer

    async with ChatServer(
        engine.base_url,
        concurrency=engine.concurrency,
        request_timeout=engine.request_timeout,
        chat_template_kwargs=sampling.chat_template_kwargs,
    ) as server:
        _, prompt = load_named(get_task(DEFAULT_TASK), "judge")
        schemas, progress = list_schemas([prompt]), CommandProgress()
        with progress.stage("checking the server", count_steps(is_thorough=is_thorough)) as step:
            return await examine(server, engine, sampling, schemas, progress.warn, step, is_thorough=is_thorough)


def _show(checks: list[ServerCheck]) -> None:
    columns = [Column("check", is_text=True), Column("ok", is_text=True), Column("found", cut=16)]
    show_table(columns, [(check.name, _MARKS[check.is_ok], check.value) for check in checks], width=80)
    for check in checks:
        if not check.is_ok:
            parts = [check.value, check.cost, s.name_options(check.remedy)]
            show_lines([f"{check.name}: {'; '.join(part for part in parts if part)}"], indent=2)
