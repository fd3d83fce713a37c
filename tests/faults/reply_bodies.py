"""Chat completions whose JSON, choices, labels, log-probabilities or token counts are malformed or odd."""

from __future__ import annotations

import copy
import json
import math
import random
from typing import Any

import orjson

from tests.faults.reply_kinds import ANSWER, ANY, LOST, Good, body_kind

IMPOSSIBLE = frozenset({"impossible_logprobs"})


@body_kind("control", ANSWER)
def _good(rng: random.Random, reply: Good) -> None:
    pass


@body_kind("JSON", LOST)
def _cut_json(rng: random.Random, reply: Good) -> bytes:
    whole = orjson.dumps(reply.body)
    return whole[: rng.randrange(len(whole))]


@body_kind("JSON", ANY, exact=None, named=False)
def _changed_bytes(rng: random.Random, reply: Good) -> bytes:
    reply.body.pop("model", None)  # another name would end the run
    body = bytearray(orjson.dumps(reply.body))
    for _ in range(rng.randint(1, 4)):
        body[rng.randrange(len(body))] = rng.randrange(256)
    return bytes(body)


@body_kind("JSON", LOST)
def _noise(rng: random.Random, reply: Good) -> bytes:
    return rng.randbytes(rng.randrange(2000))


@body_kind("JSON", LOST)
def _other_json(rng: random.Random, reply: Good) -> bytes:
    return rng.choice(
        [
            b"null",
            b"[]",
            b"{}",
            b"0",
            b'""',
            b"true",
            b'{"error": "busy"}',
            b'{"choices": {}}',
            b"[" * 100_000,
        ]
    )


def _walk(value: Any, inside: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Return every place in a JSON value, as container and key."""
    for key in (
        list(value)
        if isinstance(value, dict)
        else range(len(value))
        if isinstance(value, list)
        else []
    ):
        inside.append((value, key))
        _walk(value[key], inside)
    return inside


@body_kind("JSON", ANY, exact=None, named=False)
def _missing_field(rng: random.Random, reply: Good) -> None:
    reply.body.pop("model", None)
    container, key = rng.choice(_walk(reply.body, []))
    del container[key]


@body_kind("JSON", ANY, exact=None, named=False)
def _wrong_type(rng: random.Random, reply: Good) -> bytes:
    reply.body.pop("model", None)
    odd: list[Any] = [
        None,
        True,
        0,
        -1,
        1.5,
        2**62,
        "",
        "x",
        [],
        {},
        [[]],
        {"a": None},
        "\x00",
        "ﬁ",
        -1e300,
    ]
    container, key = rng.choice(_walk(reply.body, []))
    container[key] = rng.choice(odd)
    return orjson.dumps(reply.body)


@body_kind("choices", LOST)
def _no_choices(rng: random.Random, reply: Good) -> None:
    reply.body["choices"] = rng.choice([[], None])


@body_kind("choices", {"not_json"})
def _content_null(rng: random.Random, reply: Good) -> None:
    reply.say(rng.choice([None, "", " ", "\n"]))
    reply.choice["message"]["reasoning"] = rng.choice([None, "", "I think"])


@body_kind("choices", {"refused"})
def _refusal(rng: random.Random, reply: Good) -> None:
    if rng.random() < 0.5:
        reply.say(None)
    reply.choice["message"]["refusal"] = rng.choice(["I cannot", "\x1b[31m", "x" * 100_000])


@body_kind("choices", LOST)
def _finish_odd(rng: random.Random, reply: Good) -> None:
    reply.choice["finish_reason"] = rng.choice(
        ["abort", "error", "tool_calls", "", "STOP", "stop ", None, 7, {}]
    )


def _answer(relevance: str = "1", stance: str = "NO") -> str:
    return f'{{"relevance":{relevance},"quality":1,"stance":"{stance}"}}'


@body_kind("labels", {"outside_schema"})
def _outside_schema(rng: random.Random, reply: Good) -> None:
    answer: dict[str, Any] = {"relevance": 1, "quality": 2, "stance": "NO"}
    field = rng.choice(list(answer))
    odd: list[Any] = [4, -1, 10**30, 1.0, False, None, "1", "no", "NO ", [0], {}, "PRO"]
    match rng.randrange(4):
        case 0:
            answer[field] = rng.choice(odd)
        case 1:
            del answer[field]
        case 2:
            answer[rng.choice(["Relevance", "x", "", "relevance ", "stance\x00"])] = 1
    others = [[answer], {"answer": answer}, [], {}, "NO", 3, None, True]
    unchanged = {"relevance": 1, "quality": 2, "stance": "NO"}
    reply.say(json.dumps(rng.choice(others) if answer == unchanged else answer, ensure_ascii=False))


@body_kind("labels", {"outside_schema"})
def _repeated_key(rng: random.Random, reply: Good) -> None:
    reply.say(_answer(rng.choice(["0", "3"]) + ',"relevance":3'))


@body_kind("labels", {"not_json"})
def _not_a_number(rng: random.Random, reply: Good) -> None:
    word = rng.choice(
        ["NaN", "Infinity", "-Infinity", "nan", "00", "+1", "1.", "0x1", "1_0", "undefined", "١"]
    )
    reply.say(_answer(word))


@body_kind("labels", {"not_json"})
def _text_around_answer(rng: random.Random, reply: Good) -> None:
    text = reply.choice["message"]["content"]
    reply.say(
        rng.choice(
            [
                f"```json\n{text}\n```",
                f"Sure: {text}",
                f"{text} I hope so",
                f"{text}{text}",
                text[:-1],
            ]
        )
    )


@body_kind("labels", {"not_json", "answer"}, exact=None)
def _white_space(rng: random.Random, reply: Good) -> None:
    text = reply.choice["message"]["content"]
    reply.say(
        rng.choice(
            [" " * 2**20 + text, text + "\n" * 2**20, text.replace(":", " : "), "\u00a0" + text]
        )
    )


def _label(rng: random.Random, reply: Good) -> dict[str, Any]:
    """Return one of the tokens that carry a label."""
    return rng.choice([token for token in reply.tokens if len(token["top_logprobs"]) > 1])


def _with_number(reply: Good, place: dict[str, Any], number: str) -> bytes:
    """Return the body with a number that JSON libraries do not write."""
    place["logprob"] = -8888.75
    return orjson.dumps(reply.body).replace(b"-8888.75", number.encode())


@body_kind("log-probabilities", LOST)
def _logprobs_missing(rng: random.Random, reply: Good) -> None:
    del reply.choice["logprobs"]
    if rng.random() < 0.75:
        reply.choice["logprobs"] = rng.choice([None, {}, {"content": None}, {"content": []}])


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
    extra = {
        "token": rng.choice(["<think>", "\n", '{"relevance":3', "</s>"]),
        "logprob": -0.5,
        "top_logprobs": [],
    }
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
    return _with_number(
        reply, place, rng.choice(["NaN", "Infinity", "-Infinity", "1e400", "nan", "1" + "0" * 400])
    )


@body_kind("log-probabilities", LOST | IMPOSSIBLE | ANSWER, exact=None)
def _lowest(rng: random.Random, reply: Good) -> bytes:
    token = _label(rng, reply)
    place = rng.choice([token, *token["top_logprobs"]])
    return _with_number(
        reply,
        place,
        rng.choice(["-1e400", "-1e308", "-9999.0", "-5e-324", "-0.0", "-1" + "0" * 400]),
    )


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
def _no_alternatives(rng: random.Random, reply: Good) -> None:
    for token in reply.tokens:
        token["top_logprobs"] = []


@body_kind("log-probabilities", ANSWER, exact=None)
def _label_without_alternatives(rng: random.Random, reply: Good) -> None:
    _label(rng, reply)["top_logprobs"] = []


@body_kind("log-probabilities", ANSWER)
def _written_token_not_among_alternatives(rng: random.Random, reply: Good) -> None:
    token = _label(rng, reply)
    token["top_logprobs"] = [
        each for each in token["top_logprobs"] if each["token"] != token["token"]
    ]


@body_kind("log-probabilities", ANSWER, exact=None)
def _all_mass_elsewhere(rng: random.Random, reply: Good) -> None:
    token = _label(rng, reply)
    token["top_logprobs"] = [{"token": "word", "logprob": math.log(0.99)}]
    token["logprob"] = rng.choice([-20.0, -9999.0])


@body_kind("usage", ANSWER)
def _usage_missing(rng: random.Random, reply: Good) -> None:
    del reply.body["usage"]
    if rng.random() < 0.5:
        reply.body["usage"] = {}
