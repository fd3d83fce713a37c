"""Replies whose HTTP is malformed or odd: statuses, headers, transfer, connections."""

from __future__ import annotations

import gzip
import random
import zlib

import orjson

from tests.faults.reply_kinds import ANSWER, LOST, End, Good, Pieces, good, http, wire_kind

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
_WAITS = ["1", "0", "-5", "1e9", "9" * 400, "soon", "", "Wed, 21 Oct 2065 07:28:00 GMT", "1.5", "\u00b2", "nan", "inf"]


def _whole(reply: Good) -> bytes:
    return orjson.dumps(reply.body)


def _end(rng: random.Random) -> End:
    return rng.choice([End.CLOSE, End.RESET])


@wire_kind("statuses", LOST)
def _client_error(rng: random.Random, reply: Good) -> Pieces:
    status = rng.choice([400, 402, 405, 406, 408, 409, 410, 411, 413, 414, 415, 418, 422, 431, 451, 499])
    return [http(rng.choice(_PROBLEMS), status=f"{status} Refused")]


@wire_kind("statuses", LOST)
def _busy(rng: random.Random, reply: Good) -> Pieces:
    wait = f"Retry-After: {rng.choice(_WAITS)}"
    return [http(rng.choice(_PROBLEMS), *rng.choice([[wait], [], [wait, wait]]), status=rng.choice(["429 X", "503 X"]))]


@wire_kind("statuses", LOST)
def _server_error(rng: random.Random, reply: Good) -> Pieces:
    return [http(rng.choice(_PROBLEMS), status=f"{rng.choice([500, 501, 502, 504, 507, 520, 599])} X")]


@wire_kind("statuses", LOST)
def _no_content(rng: random.Random, reply: Good) -> Pieces:
    return [rng.choice([http(b"", status="204 No Content", sized=False), http(b""), http(b"", status="205 Reset")])]


@wire_kind("statuses", LOST | ANSWER)
def _odd_success(rng: random.Random, reply: Good) -> Pieces:
    return [http(_whole(reply), status=f"{rng.choice([201, 202, 203, 206, 207, 226, 299])} X")]


@wire_kind("statuses", LOST)
def _odd_status(rng: random.Random, reply: Good) -> Pieces:
    return [http(_whole(reply), status=rng.choice(["999 X", "20O OK", "2000 OK", "-200 OK", "OK", ""])), End.CLOSE]


@wire_kind("statuses", ANSWER)
def _early_hints(rng: random.Random, reply: Good) -> Pieces:
    early = [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"]
    return [rng.choice(early) * rng.randint(1, 5) + http(_whole(reply))]


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
    places = [
        "http://127.0.0.1:9/",
        "http://[",
        "/v1/x",
        "",
        "\x7f",
        "file:///etc/passwd",
        "//x",
        "x" * 5000,
        "http://\u00fc",
    ]
    location = [f"Location: {rng.choice(places)}"] if rng.random() < 0.9 else []
    return [http(rng.choice([b"", _whole(reply)]), *location, status=f"{rng.choice([300, 301, 302, 303, 307, 308])} X")]


@wire_kind("statuses that end the run", ENDS)
def _other_model(rng: random.Random, reply: Good) -> Pieces:
    reply.body["model"] = rng.choice(["other", "", "\x1b[31m", "x" * 10_000, "FAKE"])
    return [http(_whole(reply))]


@wire_kind("connections", LOST)
def _disconnect(rng: random.Random, reply: Good) -> Pieces:
    whole = http(_whole(reply))
    at = rng.choice([0, 5, 12, whole.index(b"\r\n\r\n"), whole.index(b"\r\n\r\n") + 4, rng.randrange(len(whole) - 1)])
    return [whole[:at], _end(rng)]


@wire_kind("connections", LOST)
def _no_http(rng: random.Random, reply: Good) -> Pieces:
    odd = [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01",
        _whole(reply),
        b"\r\n" * 99,
    ]
    return [rng.choice([*odd, rng.randbytes(500)]), End.CLOSE]


# Apart from the others: what it sends can be taken for the reply to whatever is sent next on the connection.
@wire_kind("unrequested replies", ANSWER)
def _reply_behind(rng: random.Random, reply: Good) -> Pieces:
    stray = http(_whole(good(rng, "stray")))
    return [http(_whole(reply)) + stray]


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
    lengths = [
        "abc",
        "-5",
        "1e3",
        "0x10",
        "9" * 30,
        f"{len(whole) + 1}",
        f"{len(whole) * 10}",
        f"{len(whole) - 1}",
        "0",
        "1",
    ]
    return [http(whole, f"Content-Length: {rng.choice(lengths)}", sized=False), _end(rng)]


@wire_kind("headers", LOST | ANSWER)
def _two_lengths(rng: random.Random, reply: Good) -> Pieces:
    whole = _whole(reply)
    return [http(whole, f"Content-Length: {rng.choice([0, 5, len(whole), len(whole) + 1])}"), End.CLOSE]


@wire_kind("headers", LOST | ANSWER)
def _odd_headers(rng: random.Random, reply: Good) -> Pieces:
    odd = [
        [f"X-{n}: y" for n in range(20_000)],
        ["X: " + "y" * 2**20],
        ["X" * 2**20 + ": y"],
        ["X: \x00"],
        ["X : y"],
        [": y"],
        ["X"],
        [" folded: y"],
        ["X: \u00ff\u00fe"],
        ["Set-Cookie: a=b; Domain=.."],
        ["Connection: upgrade", "Upgrade: websocket"],
    ]
    return [http(_whole(reply), *rng.choice(odd)), End.CLOSE]


@wire_kind("headers", ANSWER)
def _odd_content_type(rng: random.Random, reply: Good) -> Pieces:
    types = [
        b"text/plain",
        b"",
        b"application/json; charset=utf-16",
        b"application/json; charset=x",
        b"\xff/\xfe",
        b";;",
    ]
    return [http(_whole(reply)).replace(b"application/json", rng.choice(types), 1)]


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


@wire_kind("transfer", LOST)
def _broken_chunks(rng: random.Random, reply: Good) -> Pieces:
    chunked = _chunked(rng, _whole(reply))
    broken = rng.choice(
        [
            chunked[: rng.randrange(len(chunked) - 2)],
            b"zz\r\n" + chunked,
            b"-1\r\n" + chunked,
            b"f" * 40 + b"\r\n" + chunked,
            chunked.replace(b"\r\n", b"\n\n\n"),
            rng.randbytes(300),
            b"1;" + b"x" * 2**20,
        ]
    )
    return [http(b"", "Transfer-Encoding: chunked", sized=False) + broken, _end(rng)]


def _chunked(rng: random.Random, body: bytes) -> bytes:
    size = rng.randint(1, len(body))
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


@wire_kind("transfer", LOST | ANSWER)
def _length_and_chunks(rng: random.Random, reply: Good) -> Pieces:
    chunked = _chunked(rng, _whole(reply))
    return [http(chunked, "Transfer-Encoding: chunked"), End.CLOSE]


@wire_kind("transfer", ANSWER)
def _compressed(rng: random.Random, reply: Good) -> Pieces:
    name, packed = rng.choice([("gzip", gzip.compress(_whole(reply))), ("deflate", zlib.compress(_whole(reply)))])
    return [http(packed, f"Content-Encoding: {name}")]


@wire_kind("transfer", LOST)
def _broken_compression(rng: random.Random, reply: Good) -> Pieces:
    packed = bytearray(gzip.compress(_whole(reply)))
    broken = [_whole(reply), packed[: rng.randrange(1, len(packed) // 2)], b"\x1f\x8b" + rng.randbytes(200)]
    return [http(bytes(rng.choice(broken)), f"Content-Encoding: {rng.choice(['gzip', 'deflate'])}")]


@wire_kind("transfer", LOST | ANSWER)
def _other_encoding(rng: random.Random, reply: Good) -> Pieces:
    return [http(_whole(reply), f"Content-Encoding: {rng.choice(['br', 'zstd', 'x', 'identity', 'gzip, gzip', ''])}")]
