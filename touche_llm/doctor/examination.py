"""Examination of a server: requests that show what it can do, and whether a run is possible."""

from __future__ import annotations

from touche_llm.doctor.card import Survey
from touche_llm.doctor.checks import list_checks, system_message
from touche_llm.doctor.registry import CHECKS, Check, Occasion
from touche_llm.engines.identification import ServerCheck, describe_failure, identify
from touche_llm.errors import EngineError, Rejected, Transient
from touche_llm.llm.protocol import EngineInfo
from touche_llm.llm.request import EMPTY_CHAT, place_system_message


async def connect(survey: Survey) -> EngineInfo:
    """Get model and context from a server.

    Raise EngineError if it lacks something that a run needs.
    """
    await examine(survey)
    server = survey.server
    for check in survey.checks:
        if check.is_blocking:
            raise EngineError(f"{server.base_url}: {check}")
        if _should_warn(survey, check):
            survey.warn(f"{server.base_url}: {check.name}: {check}")
    return survey.info


def _should_warn(survey: Survey, result: ServerCheck) -> bool:
    """Return whether the start-up warns of a result that does not block."""
    if result.is_ok is None and survey.top_logprobs:
        check = CHECKS.by_name.get(result.name)
        return check is not None and check.warns_if_unknown
    return result.is_ok is False


async def examine(survey: Survey, occasion: Occasion = Occasion.START_UP) -> None:
    """Find out what a server can do; the survey has the results.

    Checks that need the schema or instructions are left out if the server lacks these. Checks
    beyond those of the start-up need schemas of answers with labels alone. EngineError is raised if
    the server is unreachable or serves other models.
    """
    server = survey.server
    try:
        survey.info, context = await identify(server, survey.engine, "engine")
        server.choose(survey.info.model)
        if waiting := await server.count_waiting():
            survey.warn(f"{server.base_url}: the server is busy: {waiting:,} requests wait")
        survey.checks = [
            ServerCheck("server", True, survey.info.engine),
            ServerCheck("model", True, survey.info.model),
            context,
        ]
        for check in list_checks(occasion):
            if _is_possible(survey, check):
                survey.checks += await _make_check(survey, check)
            survey.step()
        overhead = 0
        if not survey.is_blocked():
            chat = place_system_message(EMPTY_CHAT, survey.sampling.system_message)
            overhead = await server.counter.count_tokens(chat)
    except (Transient, Rejected) as error:
        raise describe_failure(server, error, is_known=bool(survey.checks)) from error
    fingerprint = survey.probe and survey.probe.system_fingerprint
    serving = survey.info.serving | ({"fingerprint": fingerprint} if fingerprint else {})
    survey.info = survey.info.model_copy(update={"overhead": overhead, "serving": serving})


def _is_possible(survey: Survey, check: Check) -> bool:
    """Return whether the server can do what a check needs."""
    if not check.needs_answers:
        return True
    return survey.probe is not None and not survey.is_blocked(system_message.CHECK.name)


async def _make_check(survey: Survey, check: Check) -> list[ServerCheck]:
    """Return the results of a check; an unknown one if the server fails after the start-up.

    Raises:
        Transient: The server did not reply to a check of the start-up.
        Rejected: The server refuses all requests of a check of the start-up.
    """
    try:
        return await check.run(survey)
    except (Transient, Rejected) as error:
        if check.occasion is Occasion.START_UP:
            raise
        return [ServerCheck(check.name, None, f"could not be checked: {error}")]
