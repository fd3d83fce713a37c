"""Check of the schema, which shows the log-probabilities too."""

from __future__ import annotations

from dataclasses import replace

from touche_llm.doctor.card import MAX_UNSEEN, PROBE_ANSWER, PROBE_LAYOUT, PROBE_WORD, Survey, fail
from touche_llm.engines.chat import DELIVERIES, read_completion
from touche_llm.engines.identification import ServerCheck
from touche_llm.llm.label_probabilities import check_logprobs, read_label, squeeze
from touche_llm.llm.parsing import Unusable
from touche_llm.llm.protocol import MissingLogprobs


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
                ServerCheck("schema", True, f"enforced with {delivery}"),
                _check_logprobs(survey, refusal),
            ]
            if completion.reasoning:
                checks.append(fail("reasoning", "the model thinks before it answers"))
            return checks
        if (
            completion.finish_reason == "length"
            and PROBE_ANSWER.startswith(written)
            and '{"word"' in written
        ):
            value = f"{server.model} fills its answer with white space until it is cut off"
            return [replace(fail("white space", value), is_blocking=True)]
        hint = " (its reasoning was not empty: switch thinking off)" if completion.reasoning else ""
        problems.append(f"the model answered {completion.text[:80]!r}{hint}")
    value = f"{server.model} does not enforce JSON schemas: restricted to {PROBE_ANSWER}, "
    return [fail("schema", value + "; ".join(dict.fromkeys(problems)))]


def _check_logprobs(survey: Survey, refusal: str) -> ServerCheck:
    assert survey.probe is not None
    model = survey.server.model
    if not survey.sampling.logprobs:
        remedy = "grades are whole numbers, and stances certain"
        return ServerCheck("logprobs", None, "not requested", remedy)
    if refusal:
        return fail("logprobs", f"{model} refuses log-probabilities ({refusal})")
    try:
        completion = read_completion(survey.probe, PROBE_LAYOUT)
        check_logprobs(completion.text, completion.tokens)
    except MissingLogprobs:
        return fail("logprobs", f"{model} sends no log-probabilities")
    except Unusable as error:
        remedy = "serve it with --logprobs-mode raw_logprobs, the default of vLLM, or set `sampling.logprobs: false`"
        return fail(
            "logprobs", f"{model} sends impossible log-probabilities: {error.reason}", remedy
        )
    reading = read_label(
        completion.text, completion.tokens, PROBE_LAYOUT, "word", (PROBE_WORD,), PROBE_WORD
    )
    if reading.off_label_mass is None:
        return fail("logprobs", f"{model} sends log-probabilities that do not spell its answer")
    survey.top_logprobs = survey.sampling.top_logprobs
    survey.is_renormalised = reading.off_label_mass <= MAX_UNSEEN
    kind = "renormalised" if survey.is_renormalised else "raw"
    return ServerCheck("logprobs", True, f"for each token of an answer, {kind}")
