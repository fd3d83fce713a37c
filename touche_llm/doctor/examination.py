"""Examination of a server: what it can do, and whether a run is possible."""

from __future__ import annotations

from dataclasses import dataclass, replace

from touche_llm.doctor.checks import label_tokens, list_checks, system_message
from touche_llm.doctor.registry import CHECKS, Check, Occasion
from touche_llm.doctor.survey import ServerUnderTest, Survey
from touche_llm.engines.chat import Dialect
from touche_llm.engines.dialects import (
    EnforcedSchema,
    Logprobs,
    NoLogprobs,
    NoTokenCount,
    ProbeClient,
    TokenCount,
    UnenforcedSchema,
    find_constraint_parameter,
    find_counter,
    find_min_alternatives,
    make_vllm_dialect,
    read_logprobs,
)
from touche_llm.engines.identification import (
    Identification,
    ServerCheck,
    describe_failure,
    identify,
)
from touche_llm.errors import EngineError, Rejected, Transient
from touche_llm.llm.protocol import EngineInfo
from touche_llm.llm.request import EMPTY_CHAT, place_system_message


@dataclass(frozen=True, slots=True)
class ExaminedServer:
    """What a run has to know about a server.

    Attributes:
        info: Description of the engine.
        dialect: Dialect in which the server is sent requests.
    """

    info: EngineInfo
    dialect: Dialect


@dataclass(frozen=True, slots=True)
class Examination:
    """Result of the examination of a server.

    Attributes:
        checks: Results of the checks, in order.
        result: What was found out about the server, or the error that ended the examination.
        top_logprobs: Number of alternatives to request; 0 if log-probabilities cannot be read.
    """

    checks: list[ServerCheck]
    result: ExaminedServer | EngineError
    top_logprobs: int = 0


async def connect(subject: ServerUnderTest) -> ExaminedServer:
    """Find out how to send requests to a server, and check that it can do what a run needs.

    Raises:
        EngineError: The server is unreachable, serves other models, or lacks something that a run
            needs.
    """
    examination = await examine(subject)
    if isinstance(examination.result, EngineError):
        raise examination.result

    base_url = subject.server.base_url
    for check in examination.checks:
        if check.is_blocking:
            raise EngineError(f"{base_url}: {check}")
        if _should_warn(check, examination.top_logprobs):
            subject.warn(f"{base_url}: {check.name}: {check}")
    return examination.result


def _should_warn(result: ServerCheck, top_logprobs: int) -> bool:
    """Return whether the start-up warns of a result that does not block."""
    if result.is_ok is None and top_logprobs:
        check = CHECKS.by_name.get(result.name)
        return check is not None and check.warns_if_unknown
    return result.is_ok is False


async def examine(subject: ServerUnderTest, occasion: Occasion = Occasion.START_UP) -> Examination:
    """Find out what a server can do.

    Checks that need the schema or instructions are left out if the server lacks these. Checks
    beyond those of the start-up need schemas of answers with labels alone. If the server fails, the
    examination has the results until then.
    """
    # Filled step by step, so that the results until a failure are kept.
    results: list[ServerCheck] = []
    try:
        identification = await _identify(subject)
        results += _describe_identification(identification)
        survey = await _make_survey(subject, identification.info)
        await _make_checks(survey, occasion, results)
        info = await _complete_info(survey, results)
    except (Transient, Rejected) as error:
        has_replied = bool(results)
        failure = describe_failure(subject.server, error, is_known=has_replied)
        # The caller raises the failure; this sets its cause as `raise failure from error` would.
        failure.__cause__ = error
        return Examination(results, failure)
    except EngineError as error:
        return Examination(results, error)
    return Examination(results, ExaminedServer(info, survey.dialect), survey.top_logprobs)


async def _identify(subject: ServerUnderTest) -> Identification:
    """Return what a server says of itself, and warn if it is busy."""
    server = subject.server
    identification = await identify(server, subject.engine, "engine")
    waiting = await server.count_waiting()
    if waiting:
        subject.warn(f"{server.base_url}: the server is busy: {waiting:,} requests wait")
    return identification


def _describe_identification(identification: Identification) -> list[ServerCheck]:
    """Return what a server says of itself as results of checks."""
    return [
        ServerCheck("server", True, identification.info.engine),
        ServerCheck("model", True, identification.info.model),
        identification.context_check,
    ]


async def _make_survey(subject: ServerUnderTest, info: EngineInfo) -> Survey:
    """Find out the dialect of a server, and what else its replies to test requests show.

    Raises:
        Rejected: The server refuses all requests.
        Transient: There is no reply, or it is malformed.
    """
    client = ProbeClient(subject.server, info.model, subject.sampling)
    vllm_dialect = make_vllm_dialect(subject.server, info.model)
    schema = await find_constraint_parameter(client, vllm_dialect)
    token_count = await find_counter(client, subject.engine.tokenizer)
    dialect = _adapt_dialect(vllm_dialect, schema, token_count)

    logprobs = _read_logprobs(subject, schema)
    has_labels = bool(label_tokens.list_labelled_schemas(subject.schemas))
    if isinstance(logprobs, Logprobs) and has_labels:
        # The request for alternatives has a schema: it needs the constraint parameter found above.
        min_alternatives = await find_min_alternatives(client, dialect, logprobs)
        dialect = replace(dialect, min_alternatives=min_alternatives)

    return Survey(
        subject=subject,
        info=info,
        dialect=dialect,
        schema=schema,
        token_count=token_count,
        logprobs=logprobs,
    )


def _adapt_dialect(
    dialect: Dialect,
    schema: EnforcedSchema | UnenforcedSchema,
    token_count: TokenCount | NoTokenCount,
) -> Dialect:
    """Return a dialect with the constraint parameter and the counter that work, if any do."""
    if isinstance(schema, EnforcedSchema):
        dialect = replace(dialect, constraint_parameter=schema.parameter)
    if isinstance(token_count, TokenCount):
        dialect = replace(dialect, counter=token_count.counter)
    return dialect


def _read_logprobs(
    subject: ServerUnderTest, schema: EnforcedSchema | UnenforcedSchema
) -> Logprobs | NoLogprobs | None:
    """Return the log-probabilities of a server.

    None if the run needs none, or if there is no enforced answer from which to read them.
    """
    if not subject.sampling.logprobs or not isinstance(schema, EnforcedSchema):
        return None
    return read_logprobs(schema, subject.sampling.top_logprobs)


async def _make_checks(survey: Survey, occasion: Occasion, results: list[ServerCheck]) -> None:
    """Make the checks of an occasion that the server allows, and add their results."""
    for check in list_checks(occasion):
        if _is_possible(check, survey, results):
            results += await _make_check(survey, check)
        survey.subject.step()


def _is_possible(check: Check, survey: Survey, results: list[ServerCheck]) -> bool:
    """Return whether a server can do what a check needs.

    Most checks examine answers. These come only if the server enforces a schema, and show something
    only if the model gets to see the instructions in the system message.

    Args:
        check: Check to make.
        survey: What was found out about the server before the checks.
        results: Results of the checks so far.
    """
    if not check.needs_answers:
        return True
    if not isinstance(survey.schema, EnforcedSchema):
        return False
    blocking_names = [result.name for result in results if result.is_blocking]
    return system_message.CHECK.name not in blocking_names


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


async def _complete_info(survey: Survey, results: list[ServerCheck]) -> EngineInfo:
    """Return the description of a server with what only its replies show.

    These are the number of tokens that its chat template adds, and its fingerprint if it sends one.
    """
    template_tokens = 0
    # Only a run needs the tokens of the template. A blocking result prevents it, and can mean that
    # the server cannot count tokens.
    is_blocked = any(result.is_blocking for result in results)
    if not is_blocked:
        chat = place_system_message(EMPTY_CHAT, survey.sampling.system_message)
        template_tokens = await survey.dialect.counter.count_tokens(chat)

    serving = dict(survey.info.serving)
    if isinstance(survey.schema, EnforcedSchema):
        fingerprint = survey.schema.reply.system_fingerprint
        if fingerprint:
            serving["fingerprint"] = fingerprint
    return survey.info.model_copy(update={"overhead": template_tokens, "serving": serving})
