"""Chat completions whose log-probabilities or token counts are malformed or odd."""

from __future__ import annotations

import copy
import math
import random
from typing import Any

import orjson

from tests.faults.reply_kinds import ANSWER, LOST, Good, body_kind

IMPOSSIBLE = frozenset({"impossible_logprobs"})


def _label(rng: random.Random, reply: Good) -> dict[str, Any]:
    """Return one of the tokens that carry a label."""
    return rng.choice([token for token in reply.tokens if len(token["top_logprobs"]) > 1])


def _with_number(reply: Good, place: dict[str, Any], number: str) -> bytes:
    """Return the body with a number that JSON libraries do not write."""
    place["logprob"] = -8888.75
    return orjson.dumps(reply.body).replace(b"-8888.75", number.encode())


@body_kind("log-probabilities", LOST)
def _logprobs_missing(rng: random.Random, reply: Good) -> None:
    match rng.randrange(4):
        case 0:
            del reply.choice["logprobs"]
        case 1:
            reply.choice["logprobs"] = None
        case 2:
            reply.choice["logprobs"] = rng.choice([{}, {"content": None}])
        case _:
            reply.choice["logprobs"] = {"content": []}


@body_kind("log-probabilities", ANSWER, exact=False)
def _tokens_do_not_join(rng: random.Random, reply: Good) -> None:
    token = _label(rng, reply)
    match rng.randrange(4):
        case 0:
            reply.tokens.remove(token)
        case 1:
            reply.tokens.insert(rng.randint(1, 5), copy.deepcopy(token))
        case 2:
            token |= {"token": "7", "bytes": [55]}
        case _:
            reply.tokens[0] |= {"token": "{", "bytes": [123]}


@body_kind("log-probabilities", ANSWER)
def _tokens_around_answer(rng: random.Random, reply: Good) -> None:
    extra = {"token": rng.choice(["<think>", "\n", '{"relevance":3', "</s>"]), "logprob": -0.5, "top_logprobs": []}
    for place in rng.choice([[0], [len(reply.tokens)], [0, len(reply.tokens) + 1]]):
        reply.tokens.insert(place, dict(extra))


@body_kind("log-probabilities", IMPOSSIBLE)
def _positive(rng: random.Random, reply: Good) -> None:
    token = _label(rng, reply)
    high = rng.choice([0.02, 0.5, 5.0, 154.0, 1e308])
    if rng.random() < 0.5:
        token["logprob"] = high
    else:
        rng.choice(token["top_logprobs"])["logprob"] = high


@body_kind("log-probabilities", LOST | IMPOSSIBLE)
def _not_finite(rng: random.Random, reply: Good) -> bytes:
    token = _label(rng, reply)
    place = rng.choice([token, token["top_logprobs"][0]])
    return _with_number(reply, place, rng.choice(["NaN", "Infinity", "-Infinity", "1e400", "nan", "1" + "0" * 400]))


@body_kind("log-probabilities", LOST | IMPOSSIBLE | ANSWER, exact=None)
def _lowest(rng: random.Random, reply: Good) -> bytes:
    token = _label(rng, reply)
    place = rng.choice([token, *token["top_logprobs"]])
    return _with_number(reply, place, rng.choice(["-1e400", "-1e308", "-9999.0", "-5e-324", "-0.0", "-1" + "0" * 400]))


@body_kind("log-probabilities", IMPOSSIBLE)
def _shares_above_one(rng: random.Random, reply: Good) -> None:
    token = _label(rng, reply)
    for each in token["top_logprobs"]:
        each["logprob"] = -rng.uniform(0.0, 0.3)
    token["logprob"] = token["top_logprobs"][0]["logprob"]


@body_kind("log-probabilities", ANSWER, exact=None)
def _rounded_shares(rng: random.Random, reply: Good) -> None:
    for token in reply.tokens:
        for each in (token, *token["top_logprobs"]):
            each["logprob"] = min(0.0, round(each["logprob"], 3))


@body_kind("log-probabilities", ANSWER)
def _no_bytes(rng: random.Random, reply: Good) -> None:
    for token in reply.tokens:
        token["bytes"] = None


@body_kind("log-probabilities", LOST)
def _odd_alternatives(rng: random.Random, reply: Good) -> None:
    odd: list[Any] = [None, {}, ["x"], [{"token": "1"}], [{"logprob": -1.0}], [{"token": 1, "logprob": 0}]]
    _label(rng, reply)["top_logprobs"] = rng.choice(odd)


@body_kind("log-probabilities", LOST)
def _no_alternatives(rng: random.Random, reply: Good) -> None:
    for token in reply.tokens:
        token["top_logprobs"] = []


@body_kind("log-probabilities", ANSWER, exact=None)
def _label_without_alternatives(rng: random.Random, reply: Good) -> None:
    _label(rng, reply)["top_logprobs"] = []


@body_kind("log-probabilities", ANSWER)
def _written_token_not_among_alternatives(rng: random.Random, reply: Good) -> None:
    token = _label(rng, reply)
    token["top_logprobs"] = [each for each in token["top_logprobs"] if each["token"] != token["token"]]


@body_kind("log-probabilities", ANSWER, exact=None)
def _all_mass_elsewhere(rng: random.Random, reply: Good) -> None:
    token = _label(rng, reply)
    token["top_logprobs"] = [{"token": "word", "logprob": math.log(0.99)}]
    token["logprob"] = rng.choice([-20.0, -9999.0])


@body_kind("usage", ANSWER)
def _usage_missing(rng: random.Random, reply: Good) -> None:
    if rng.random() < 0.5:
        del reply.body["usage"]
    else:
        reply.body["usage"] = {}


@body_kind("usage", LOST)
def _usage_negative(rng: random.Random, reply: Good) -> None:
    reply.body["usage"][rng.choice(["prompt_tokens", "completion_tokens"])] = rng.choice([-1, -(2**31), -(2**63)])


@body_kind("usage", LOST)
def _more_cached_than_sent(rng: random.Random, reply: Good) -> None:
    reply.body["usage"]["prompt_tokens_details"] = {"cached_tokens": rng.choice([51, 2**40])}
