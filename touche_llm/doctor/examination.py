"""Examination of a server: requests that show what it can do, and whether a run is possible.

All probes raise Transient if the server did not reply, and Rejected if it refuses all requests.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from touche_llm.doctor.card import Survey
from touche_llm.doctor.checks.determinism import check_determinism
from touche_llm.doctor.checks.label_tokens import check_labels
from touche_llm.doctor.checks.open_thought import check_open_thought
from touche_llm.doctor.checks.prefix_cache import check_prefix_cache
from touche_llm.doctor.checks.schema import check_schema
from touche_llm.doctor.checks.system_message import check_system_message
from touche_llm.doctor.checks.thinking import check_thinking
from touche_llm.doctor.checks.tokens import check_tokens
from touche_llm.doctor.checks.white_space import check_white_space
from touche_llm.engines.identification import ServerCheck, describe_failure, identify
from touche_llm.errors import EngineError
from touche_llm.llm.protocol import EngineInfo, Rejected, Transient
from touche_llm.llm.request import EMPTY_CHAT, place_system_message

Probes = Mapping[str, Callable[[Survey], Awaitable[list[ServerCheck]]]]
# By the name of the check, in the order in which they are sent: those of each run, of `doctor`, of
# `--thorough`.
RUN_PROBES: Probes = {
    "schema": check_schema,
    "tokens": check_tokens,
    "system message": check_system_message,
    "label tokens": check_labels,
    "open thought": check_open_thought,
    "thinking": check_thinking,
}
DOCTOR_PROBES: Probes = {
    **RUN_PROBES,
    "white space": check_white_space,
    "prefix cache": check_prefix_cache,
}
THOROUGH_PROBES: Probes = {**DOCTOR_PROBES, "determinism": check_determinism}


async def connect(survey: Survey) -> EngineInfo:
    """Get model and context from a server.

    Raise EngineError if it lacks something that a run needs.
    """
    await examine(survey)
    server = survey.server
    for check in survey.checks:
        if check.is_blocking:
            raise EngineError(f"{server.base_url}: {check}")
        if check.is_ok is False or (
            check.name == "label tokens" and not check.is_ok and survey.top_logprobs
        ):
            survey.warn(f"{server.base_url}: {check.name}: {check}")
    return survey.info


async def examine(survey: Survey, probes: Probes = RUN_PROBES) -> None:
    """Find out what a server can do; the survey has the checks.

    Probes that need the schema or instructions are left out if the server lacks these. Probes
    beyond those of a run need schemas of answers with labels alone. EngineError is raised if the
    server is unreachable or serves other models.
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
        for name, probe in probes.items():
            is_possible = survey.probe is not None and not survey.is_blocked("system message")
            if is_possible or name in ("schema", "tokens"):
                try:
                    survey.checks += await probe(survey)
                except (Transient, Rejected) as error:
                    if name in RUN_PROBES:
                        raise
                    survey.checks.append(ServerCheck(name, None, f"could not be checked: {error}"))
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
