"""A server that sends given bytes over real connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import orjson

from tests.fake_server import fields_in, spell
from tests.faults.reply_kinds import End, Pieces

# What to send for a path and a body.
Plan = Callable[[str, bytes], Pieces]
CONTEXT = 8192


def honest(path: str, body: bytes) -> bytes:
    """Return the JSON of every endpoint but that of completions."""
    request = orjson.loads(body) if body else {}
    if path == "/v1/models":
        return orjson.dumps({"data": [{"id": "fake", "max_model_len": CONTEXT}]})
    if path == "/version":
        return b'{"version": "0.0-fake"}'
    if path == "/tokenize" and "messages" in request:
        contents = [each["content"] for each in request["messages"]]
        tokens = list("".join(contents).encode())
        return orjson.dumps({"count": 10 + sum(map(len, contents)) // 4, "tokens": tokens})
    if path == "/tokenize":
        return orjson.dumps(
            {"count": len(request["prompt"]), "tokens": list(request["prompt"].encode())}
        )
    if path == "/detokenize":
        return orjson.dumps({"prompt": bytes(request["tokens"]).decode(errors="replace")})
    return b"vllm:num_requests_waiting 0\nvllm:num_requests_running 1\n"


@dataclass
class FuzzServer:
    """Answers as `plan` says; counts replies and the bytes that a client took."""

    plan: Plan
    url: str = ""
    replies: int = 0
    sent: int = 0
    _open: set[asyncio.Task[None]] = field(default_factory=set)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[FuzzServer]:
        """Serve on a free port of this machine."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=2**24)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for task in self._open:
                task.cancel()
            await asyncio.gather(*self._open, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            while await self._reply(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client left, or the test is over
        finally:
            writer.transport.abort()
            self._open.discard(task)

    async def _reply(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; returns whether the connection stays open."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        lengths = [
            line.partition(":")[2]
            for line in head.split("\r\n")
            if line.lower().startswith("content-length:")
        ]
        body = await reader.readexactly(int(lengths[0]) if lengths else 0)
        self.replies += 1
        for piece in self.plan(head.split(" ")[1], body):
            if isinstance(piece, End):
                if piece is End.CLOSE:
                    writer.close()
                    await writer.wait_closed()
                return False
            if isinstance(piece, float):
                await asyncio.sleep(piece)
            else:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)  # lets the client read, whose loop this is too
                self.sent += len(piece)
        return True


def probe(body: bytes) -> bytes | None:
    """Return the JSON that answers the start-up check; None for other requests."""
    request = orjson.loads(body)
    fields = fields_in(request)
    if list(fields) != ["word"]:
        return None
    text = spell(request, {"word": fields["word"]["enum"][0]})
    tokens = [
        {"token": c, "logprob": -0.1, "top_logprobs": [{"token": c, "logprob": -0.1}]} for c in text
    ]
    choice = {
        "message": {"content": text},
        "finish_reason": "stop",
        "logprobs": {"content": tokens},
    }
    words = sum(len(message["content"].split()) for message in request["messages"])
    usage = {"prompt_tokens": words, "completion_tokens": 9}
    return orjson.dumps({"id": "chatcmpl-1", "model": "fake", "choices": [choice], "usage": usage})
