"""A model that always gives the same answer to the same request, on a server that counts requests."""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson
from aiohttp import web

from tests.fake_server import FakeServer, fields_in, reply, spell


async def steady(_: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """An answer drawn from the labels of the schema by the text of the request, so that orders and grades vary."""
    return reply(steady_text(body))


def steady_text(body: dict[str, Any]) -> str:
    """The text of the answer to a request."""
    fields: dict[str, Any] = fields_in(body)
    return spell(body, _drawn(fields, digest(body)))


def _drawn(fields: dict[str, Any], seed: str) -> dict[str, Any]:
    chance = random.Random(seed)
    if "first" in fields:
        # The two objects of a topic: the first and the last word of its title never overlap.
        return {"first": fields["first"]["enum"][0], "second": fields["second"]["enum"][-1]}
    drawn: dict[str, Any] = {}
    for name, schema in fields.items():
        if "enum" in schema:
            drawn[name] = chance.choice(schema["enum"])
        elif name == "order":
            labels = [
                chr(code)
                for code in range(ord("A"), ord(max(re.findall("[A-Z]", schema["pattern"]))) + 1)
            ]
            drawn[name] = " > ".join(chance.sample(labels, len(labels)))
        else:
            drawn[name] = (
                f"query {chance.choice(['heat', 'pump', 'school', 'energy', 'car'])} {name}"
            )
    return drawn


def digest(body: dict[str, Any]) -> str:
    """The identity of a request, however often it is sent."""
    return hashlib.sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).hexdigest()


class Model:
    """The server, in a thread of its own."""

    def __init__(self) -> None:
        self.server = FakeServer(rest=steady)

    @contextmanager
    def running(self) -> Iterator[Model]:
        """Serve until the block ends."""
        with self.server.in_thread():
            yield self

    def take(self) -> Counter[str]:
        """Return how often each request came since the last time."""
        content, self.server.bodies = self.server.bodies, []
        return Counter(map(digest, content))
