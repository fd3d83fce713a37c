"""Check of the schema, which shows the log-probabilities too."""

from __future__ import annotations

from dataclasses import replace

from touche_llm.doctor.card import MAX_UNSEEN, PROBE_ANSWER, PROBE_LAYOUT, PROBE_WORD, Survey
from touche_llm.doctor.checks import white_space
from touche_llm.doctor.registry import Check, Feature, Occasion, register
from touche_llm.engines.chat import DELIVERIES, read_completion
from touche_llm.engines.identification import ServerCheck
from touche_llm.errors import MissingLogprobs, Unusable
from touche_llm.llm.label_probabilities import check_logprobs, read_label, squeeze
from touche_llm.text.quoting import quote

# Both are found in the reply to the check of the schema.
LOGPROBS = Feature(
    name="logprobs",
    remedy=(
        "use a server that sends them, or request plain grades with `sampling.logprobs: false`: whole numbers, "
        "whose ties keep the order of the first stage"
    ),
    is_blocking=True,
)
REASONING = Feature(
    name="reasoning",
    remedy="each answer takes many more tokens; switch it off (`sampling.chat_template_kwargs`)",
)


async def check_schema(survey: Survey) -> list[ServerCheck]:
    """Make the server use the first way of constraining answers that works, and check its log-probabilities."""
    server = survey.server
    problems: list[str] = []
    for delivery in DELIVERIES:
        server.delivery = delivery
        refusal = ""
        reply = await survey.send(survey.build(top_logprobs=survey.sampling.top_logprobs))
        if isinstance(reply, str) and survey.sampling.logprobs:
            refusal = reply
            reply = await survey.send(survey.build())
        if isinstance(reply, str):
            problems.append(f"the server refused the request: {reply}")
            continue
        completion = read_completion(reply)
        written = squeeze(completion.text)
        if written == PROBE_ANSWER:
            survey.probe = reply
            checks = [
                ServerCheck(CHECK.name, True, f"enforced with {delivery}"),
                _check_logprobs(survey, refusal),
            ]
            if completion.reasoning:
                checks.append(REASONING.fail("the model thinks before it answers"))
            return checks
        if (
            completion.finish_reason == "length"
            and PROBE_ANSWER.startswith(written)
            and '{"word"' in written
        ):
            value = f"{server.model} fills its answer with white space until it is cut off"
            return [replace(white_space.CHECK.fail(value), is_blocking=True)]
        hint = " (its reasoning was not empty: switch thinking off)" if completion.reasoning else ""
        problems.append(f"the model answered {quote(completion.text, 80)!r}{hint}")
    value = f"{server.model} does not enforce JSON schemas: restricted to {PROBE_ANSWER}, "
    return [CHECK.fail(value + "; ".join(dict.fromkeys(problems)))]


def _check_logprobs(survey: Survey, refusal: str) -> ServerCheck:
    assert survey.probe is not None
    model = survey.server.model
    if not survey.sampling.logprobs:
        remedy = "grades are whole numbers, and stances certain"
        return ServerCheck(LOGPROBS.name, None, "not requested", remedy)
    if refusal:
        return LOGPROBS.fail(f"{model} refuses log-probabilities ({refusal})")
    try:
        completion = read_completion(survey.probe, PROBE_LAYOUT)
        check_logprobs(completion.text, completion.tokens)
    except MissingLogprobs:
        return LOGPROBS.fail(f"{model} sends no log-probabilities")
    except Unusable as error:
        remedy = "serve it with --logprobs-mode raw_logprobs, the default of vLLM, or set `sampling.logprobs: false`"
        return LOGPROBS.fail(f"{model} sends impossible log-probabilities: {error.reason}", remedy)
    reading = read_label(
        completion.text, completion.tokens, PROBE_LAYOUT, "word", (PROBE_WORD,), PROBE_WORD
    )
    if reading.off_label_mass is None:
        return LOGPROBS.fail(f"{model} sends log-probabilities that do not spell its answer")
    survey.top_logprobs = survey.sampling.top_logprobs
    survey.is_renormalised = reading.off_label_mass <= MAX_UNSEEN
    kind = "renormalised" if survey.is_renormalised else "raw"
    return ServerCheck(LOGPROBS.name, True, f"for each token of an answer, {kind}")


CHECK = register(
    Check(
        name="schema",
        # While thinking is off, a reasoning parser switches schemas off:
        # https://github.com/vllm-project/vllm/issues/39130
        remedy=(
            "use a server that enforces `structured_outputs` or `response_format`, such as vLLM from 0.11 on without "
            "a reasoning parser (--reasoning-parser)"
        ),
        is_blocking=True,
        run=check_schema,
        occasion=Occasion.START_UP,
        order=10,
        needs_answers=False,
    )
)
