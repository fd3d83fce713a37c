"""Probes of a complete examination, besides those of the start-up check."""

from __future__ import annotations

import asyncio
import json
import math
import re
from dataclasses import replace
from uuid import uuid4

import orjson

from touche_llm.llm.answers import count_alternatives
from touche_llm.llm.chat import read_completion
from touche_llm.llm.checks import ServerCheck, Survey
from touche_llm.llm.engine import Completion
from touche_llm.llm.probes import check_all_delimiters
from touche_llm.llm.request import Message, Request, Sampling

# Times that one request is sent alone, and again among others.
_REPEATS = 20
# Tokens for which the requests are made if the context is unknown.
_SHORT_CONTEXT = 2048
# Logarithm of a probability below which a token counts as forbidden; vLLM sends -9999 for those.
_MIN_LOGPROB = -100.0
# White space that no compact grammar allows.
_FREE_WHITE_SPACE = re.compile(r"[\n\r\t]|\s\s")
_INSTRUCTIONS = "Judge how relevant the passage is to the question, from 0 to 3, and which side it takes."
_PASSAGE = "Question: are heat pumps better than gas boilers?\nPassage: heat pumps are cheaper to run, boilers to buy."


def _build(survey: Survey, text: str, system: str = _INSTRUCTIONS) -> Request:
    schema = survey.schemas[0]
    sampling = Sampling(top_logprobs=min(survey.top_logprobs, count_alternatives(schema)))
    return survey.server.build_check((Message("system", system), Message("user", text)), schema, sampling)


async def check_white_space(survey: Survey) -> list[ServerCheck]:
    """Check whether a schema allows white space between the tokens of an answer."""
    name = "white space"
    reply = await survey.server.exchange(_build(survey, _PASSAGE))
    completion = read_completion(reply)
    if completion.finish_reason == "length":
        return [survey.fail(name, f"an answer was cut off after {completion.completion_tokens} tokens")]
    try:
        values = orjson.loads(completion.text)
    except orjson.JSONDecodeError:
        return [ServerCheck(name, None, f"could not be checked: the answer is {completion.text[:40]!r}")]
    # A compact grammar may require one space after `,`, as Python's json writes it.
    if completion.text not in (orjson.dumps(values).decode(), json.dumps(values)):
        return [survey.fail(name, "written between tokens")]
    if not survey.is_renormalised:
        return [replace(survey.fail(name, "none in one answer; raw log-probabilities show no more"), is_ok=None)]
    alternatives = (pair for token in reply.choices[0].tokens for pair in token.alternatives)
    if any(logprob > _MIN_LOGPROB and _FREE_WHITE_SPACE.search(text) for text, logprob in alternatives):
        return [survey.fail(name, "allowed between tokens")]
    return [ServerCheck(name, True, "not allowed between tokens")]


async def check_prefix_cache(survey: Survey) -> list[ServerCheck]:
    """Check whether a second prompt reuses its common beginning with the first."""
    name, words = "prefix cache", min(600, (survey.info.context or _SHORT_CONTEXT) // 5)
    # New in each examination; longer than the blocks of a cache, and short enough for the context.
    beginning = f"Session {uuid4().hex}. " + "word " * words
    for text in ("First passage.", "Second passage."):
        usage = (await survey.server.exchange(_build(survey, text, system=beginning))).usage
    if usage.cached_tokens is None:
        unseen = survey.fail(name, "not reported")
        return [replace(unseen, is_ok=None, cost="its use cannot be seen in a run's metadata")]
    value = f"{usage.cached_tokens} of {usage.prompt_tokens} prompt tokens reused from the request before"
    return [ServerCheck(name, True, value) if usage.cached_tokens else survey.fail(name, value)]


async def check_determinism(survey: Survey) -> list[ServerCheck]:
    """Check whether answers to a request that is repeated alone and among others differ."""
    name, server, request = "determinism", survey.server, _build(survey, _PASSAGE)
    answers = [await server.complete(request) for _ in range(_REPEATS)]
    others = [_build(survey, f"{_PASSAGE} " * (1 + number % 3) + str(number)) for number in range(_REPEATS)]
    sent = [each for other in others for each in (request, other)]
    answers += (await asyncio.gather(*map(server.complete, sent)))[::2]
    flips = sum(answer.text != answers[0].text for answer in answers)
    # Later tokens depend on those before, so that only equal answers are compared token by token.
    same = [_list_probabilities(answer) for answer in answers if answer.text == answers[0].text]
    differences = (abs(share - other.get(key, 0.0)) for other in same for key, share in same[0].items())
    value = f"{flips} of {len(answers)} repeats differ, probabilities by up to {max(differences, default=0.0):.2g}"
    return [survey.fail(name, value) if flips else ServerCheck(name, True, value)]


def _list_probabilities(answer: Completion) -> dict[tuple[int, str], float]:
    return {(token.at, text): math.exp(logprob) for token in answer.tokens for text, logprob in token.top}


# By the name of the check; "thinking" is in place of that of a run.
FURTHER = {
    "thinking": check_all_delimiters,
    "white space": check_white_space,
    "prefix cache": check_prefix_cache,
}
THOROUGH = {"determinism": check_determinism}
