"""The command that checks a server."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from touche_llm.cli import options as s
from touche_llm.cli.options import CommandProgress
from touche_llm.cli.output import Column, Format, FormatOption, emit, say, show_lines
from touche_llm.engines.settings import EngineConfig
from touche_llm.errors import EngineError
from touche_llm.interrupts import run_until_interrupted
from touche_llm.llm.settings import SamplingConfig
from touche_llm.prompts.purposes import load_named
from touche_llm.runs.context import list_schemas
from touche_llm.tasks import DEFAULT_TASK, get_task

if TYPE_CHECKING:  # takes a while to load
    from touche_llm.doctor.examination import Examination


UrlArgument = Annotated[
    str, typer.Argument(metavar="URL", help="Address of the server, as http://127.0.0.1:8000.")
]
ThoroughOption = Annotated[
    bool,
    typer.Option(
        "--thorough", help="Also repeat a request sixteen times, to see if its answers differ."
    ),
]


@s.takes_settings(
    *(f"engine.{name}" for name in ("model", "context", "tokenizer", "request_timeout")),
    *(f"sampling.{name}" for name in ("logprobs", "system_message", "thinking")),
)
def doctor(
    given: s.GivenSettings,
    url: UrlArgument,
    thorough: ThoroughOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Check what a server can do, and name the options for the rest.

    Sends about fifteen short requests. Exit code 1 if a run is impossible.
    """
    engine = s.read_section(EngineConfig, {**given, "engine.base_url": url}, "engine")
    sampling = s.read_section(SamplingConfig, given, "sampling")
    work = _examine(engine, sampling, thorough)
    examination = run_until_interrupted(work, "nothing was stored")

    # An examination ends with its result, or with the error of the server that ended it early.
    failure = examination.result if isinstance(examination.result, EngineError) else None
    has_passed_a_check = any(check.is_ok for check in examination.checks)
    if failure is not None and not has_passed_a_check:
        # No check passed, so a table of checks would say nothing.
        raise failure

    # The table is printed before the error: the checks until then help to find its cause.
    checks = [replace(check, remedy=s.name_options(check.remedy)) for check in examination.checks]
    emit(output, [asdict(check) for check in checks], _CHECKS)
    if output is Format.TABLE:
        show_lines(f"{check.name}: {check}" for check in checks if not check.is_ok)
    if failure is not None:
        raise failure

    if any(check.is_blocking for check in checks):
        say(output, f"{url}: a run could not be made")
        raise typer.Exit(1)
    say(output, f"{url}: a run can be made")


_CHECKS = (
    Column("check", is_text=True, value="name"),
    Column("ok", is_text=True, value=lambda row: "?" if row["is_ok"] is None else row["is_ok"]),
    Column("found", is_cut=True, value="value"),
)


async def _examine(
    engine: EngineConfig, sampling: SamplingConfig, is_thorough: bool
) -> Examination:
    """Check a server with requests as the judge prompt of the default task makes them.

    Args:
        engine: Settings of the server.
        sampling: Settings of the requests.
        is_thorough: Whether to make the checks of many requests, too.
    """
    # Imported here because the HTTP libraries are slow to load.
    from touche_llm.doctor.checks import list_checks
    from touche_llm.doctor.examination import examine
    from touche_llm.doctor.registry import Occasion
    from touche_llm.doctor.survey import ServerUnderTest
    from touche_llm.engines.chat import ChatServer

    occasion = Occasion.THOROUGH if is_thorough else Occasion.DOCTOR
    progress = CommandProgress()
    async with ChatServer(
        engine.base_url,
        concurrency=engine.concurrency,
        request_timeout=engine.request_timeout,
        chat_template_kwargs=sampling.chat_template_kwargs,
        address="URL",
        patience=1,
    ) as server:
        _, prompt = load_named(get_task(DEFAULT_TASK), "judge")
        with progress.stage("checking the server", len(list_checks(occasion))) as step:
            subject = ServerUnderTest(
                server=server,
                engine=engine,
                sampling=sampling,
                schemas=list_schemas([prompt]),
                warn=progress.warn,
                step=step,
            )
            return await examine(subject, occasion)
