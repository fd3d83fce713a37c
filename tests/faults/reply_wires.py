"""Replies whose HTTP is malformed or odd: statuses, headers, transfer, connections."""

from __future__ import annotations

import gzip
import random
import zlib

import orjson

from tests.faults.reply_kinds import ANSWER, LOST, End, Good, Pieces, http, wire_kind

ENDS = frozenset({"ends"})
_PROBLEMS = [
    b'{"error": {"message": "busy", "code": 1}}',
    b'{"error": null}',
    b"<html><body><h1>Bad gateway</h1></body></html>",
    b"",
    b"\x1b[31m\x00\xff",
    b"x" * 100_000,
    b"[" * 100_000,
]
_WAITS = [
    "1",
    "0",
    "-5",
    "1e9",
    "9" * 400,
    "soon",
    "",
    "Wed, 21 Oct 2065 07:28:00 GMT",
    "1.5",
    "\u00b2",
    "nan",
    "inf",
]


def _whole(reply: Good) -> bytes:
    return orjson.dumps(reply.body)


def _end(rng: random.Random) -> End:
    return rng.choice([End.CLOSE, End.RESET])


@wire_kind("statuses", LOST)
def _client_error(rng: random.Random, reply: Good) -> Pieces:
    status = rng.choice(
        [400, 402, 405, 406, 408, 409, 410, 411, 413, 414, 415, 418, 422, 431, 451, 499]
    )
    return [http(rng.choice(_PROBLEMS), status=f"{status} Refused")]


@wire_kind("statuses", LOST)
def _busy(rng: random.Random, reply: Good) -> Pieces:
    wait = f"Retry-After: {rng.choice(_WAITS)}"
    return [
        http(
            rng.choice(_PROBLEMS),
            *rng.choice([[wait], [], [wait, wait]]),
            status=rng.choice(["429 X", "503 X"]),
        )
    ]


@wire_kind("statuses", LOST)
def _server_error(rng: random.Random, reply: Good) -> Pieces:
    return [
        http(rng.choice(_PROBLEMS), status=f"{rng.choice([500, 501, 502, 504, 507, 520, 599])} X")
    ]


@wire_kind("statuses", LOST)
def _page(rng: random.Random, reply: Good) -> Pieces:
    return [
        http(b"<!DOCTYPE html><title>Sign in</title>" + b"x" * rng.randrange(9999)).replace(
            b"application/json", b"text/html"
        )
    ]


@wire_kind("statuses that end the run", ENDS)
def _not_served(rng: random.Random, reply: Good) -> Pieces:
    return [http(rng.choice(_PROBLEMS), status=f"{rng.choice([401, 403, 404])} X")]


@wire_kind("statuses that end the run", ENDS)
def _redirect(rng: random.Random, reply: Good) -> Pieces:
    places = ["http://127.0.0.1:9/", "http://[", "/v1/x", ""]
    location = [f"Location: {rng.choice(places)}"] if rng.random() < 0.9 else []
    return [
        http(
            rng.choice([b"", _whole(reply)]),
            *location,
            status=f"{rng.choice([300, 301, 302, 303, 307, 308])} X",
        )
    ]


@wire_kind("statuses that end the run", ENDS)
def _other_model(rng: random.Random, reply: Good) -> Pieces:
    reply.body["model"] = rng.choice(["other", "", "\x1b[31m", "x" * 10_000, "FAKE"])
    return [http(_whole(reply))]


@wire_kind("connections", LOST)
def _disconnect(rng: random.Random, reply: Good) -> Pieces:
    whole = http(_whole(reply))
    at = rng.choice(
        [
            0,
            5,
            12,
            whole.index(b"\r\n\r\n"),
            whole.index(b"\r\n\r\n") + 4,
            rng.randrange(len(whole) - 1),
        ]
    )
    return [whole[:at], _end(rng)]


@wire_kind("connections", ANSWER)
def _in_pieces(rng: random.Random, reply: Good) -> Pieces:
    whole = http(_whole(reply))
    size = len(whole) // rng.randint(2, 30) + 1
    pieces: list[bytes | float | End] = []
    for start in range(0, len(whole), size):
        pieces += [whole[start : start + size], 0.001]
    return pieces


@wire_kind("headers", LOST)
def _odd_length(rng: random.Random, reply: Good) -> Pieces:
    whole = _whole(reply)
    lengths = ["abc", "-5", f"{len(whole) + 1}", f"{len(whole) * 10}", f"{len(whole) - 1}", "0"]
    return [http(whole, f"Content-Length: {rng.choice(lengths)}", sized=False), _end(rng)]


@wire_kind("headers", LOST)
def _event_stream(rng: random.Random, reply: Good) -> Pieces:
    body = b"data: " + _whole(reply) + b"\n\ndata: [DONE]\n\n"
    return [http(body).replace(b"application/json", b"text/event-stream", 1)]


@wire_kind("transfer", ANSWER)
def _until_close(rng: random.Random, reply: Good) -> Pieces:
    return [http(_whole(reply), "Connection: close", sized=False), End.CLOSE]


@wire_kind("transfer", ANSWER)
def _chunks(rng: random.Random, reply: Good) -> Pieces:
    return [http(b"", "Transfer-Encoding: chunked", sized=False) + _chunked(rng, _whole(reply))]


def _chunked(rng: random.Random, body: bytes) -> bytes:
    size = rng.randint(1, len(body))
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


@wire_kind("transfer", ANSWER)
def _compressed(rng: random.Random, reply: Good) -> Pieces:
    name, packed = rng.choice(
        [("gzip", gzip.compress(_whole(reply))), ("deflate", zlib.compress(_whole(reply)))]
    )
    return [http(packed, f"Content-Encoding: {name}")]
