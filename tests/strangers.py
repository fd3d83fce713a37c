"""The folder of a run in which every setting that acts has a hostile value, and a watch on what acts."""

from __future__ import annotations

import shutil
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from touche_llm.cli.demo import SAMPLES

SAMPLE = SAMPLES / "comparative"
# A test with a sink puts its address in place of this one, where nothing listens.
SINK = "http://127.0.0.1:9"
# A value for each setting that acts; BAIT stands for a folder outside of the run.
HOSTILE: dict[str, Any] = {
    "task": "BAIT/task",
    "dataset": "argsme/2020-04-01/touche-2020-task-1",
    "topics": "BAIT/topics.xml",
    "corpus": "BAIT/passages.jsonl",
    "index": "BAIT/index",
    "candidates": "BAIT/candidates.txt",
    "retriever.name": "chatnoir",
    "engine.name": "managed",
    "engine.base_url": SINK,
    "engine.model": "BAIT/model",
    "engine.options": {"trust_remote_code": True},
    "engine.revision": "theirs",
    "engine.context": 4096,
    "engine.tokenizer": "BAIT/tokenizer",
    "engine.concurrency": 1,
    "engine.request_timeout": 1.0,
    "engine.retry_for": 1.0,
    "prompts.folder": "BAIT/prompts",
    "prompts.judge": "BAIT/judge.jinja",
    "prompts.objects": "BAIT/objects.jinja",
    "prompts.sentence": "BAIT/sentence.jinja",
    "prompts.stance": "BAIT/stance.jinja",
    "prompts.best": "BAIT/best.jinja",
    "prompts.order": "BAIT/order.jinja",
    "prompts.queries": "BAIT/queries.jinja",
    "ranking.cross_encoder.url": SINK,
    "ranking.cross_encoder.model": "theirs",
    "ranking.cross_encoder.revision": "theirs",
    "ranking.cross_encoder.context": 512,
    "ranking.cross_encoder.batch": 1,
    "ranking.cross_encoder.concurrency": 1,
    "ranking.cross_encoder.request_timeout": 1.0,
    "ranking.cross_encoder.retry_for": 1.0,
    "ranking.cross_encoder.preset": "plain",
    "ranking.cross_encoder.instruction": "theirs",
    "ranking.cross_encoder.query_template": "{query}",
    "ranking.cross_encoder.document_template": "{document}",
    "ranking.cross_encoder.query": ["title"],
    "chatnoir.base_url": SINK,
    "chatnoir.index": "theirs",
    "chatnoir.cache": "BAIT/chatnoir.sqlite",
    "chatnoir.requests_per_second": 1.0,
    "chatnoir.request_timeout": 1.0,
    "chatnoir.retry_for": 1.0,
    "chatnoir.leave_out": "BAIT/leave_out.txt",
    "elasticsearch.url": SINK,
    "elasticsearch.index": "theirs",
    "elasticsearch.request_timeout": 1.0,
    "elasticsearch.retry_for": 1.0,
    "dense.url": SINK,
    "dense.model": "theirs",
    "dense.revision": "theirs",
    "dense.context": 512,
    "dense.batch": 1,
    "dense.concurrency": 1,
    "dense.request_timeout": 1.0,
    "dense.retry_for": 1.0,
    "dense.preset": "plain",
    "dense.instruction": "theirs",
    "dense.query_template": "{query}",
    "dense.document_template": "{document}",
    "dense.dimensions": 8,
    "dense.pool": 10,
    "dense.weight": 1.0,
    "dense.k": 1.0,
    "cache.file": "BAIT/answers.sqlite",
    "cache.mode": "reuse",
    "cache.retry_failures": True,
}
EVENTS = ("open", "socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.posix_spawn")
_watched: list[tuple[str, str]] | None = None


def _record_event(event: str, arguments: tuple[Any, ...]) -> None:
    if _watched is not None and event in EVENTS:
        _watched.append((event, str(arguments[:2])))


# A hook stays until the process ends.
sys.addaudithook(_record_event)


@contextmanager
def watch() -> Iterator[list[tuple[str, str]]]:
    """Record files that are opened, connections, and programs that are started."""
    global _watched
    events: list[tuple[str, str]] = []
    _watched = events
    try:
        yield events
    finally:
        _watched = None


def nest(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of dotted names by section."""
    nested: dict[str, Any] = {}
    for name, value in values.items():
        *sections, key = name.split(".")
        target = nested
        for section in sections:
            target = target.setdefault(section, {})
        target[key] = value
    return nested


def merge(into: dict[str, Any], values: dict[str, Any]) -> None:
    for name, value in values.items():
        if isinstance(value, dict) and isinstance(into.get(name), dict) and name != "options":
            merge(into[name], value)
        else:
            into[name] = value


def make_bait(folder: Path) -> Path:
    """Make a folder with all files that the hostile settings name."""
    for name in ("index", "model", "tokenizer", "prompts/comparative", "task"):
        (folder / name).mkdir(parents=True)
    for name in ("topics.xml", "passages.jsonl"):
        shutil.copy(SAMPLE / name, folder / name)
    shutil.copy(SAMPLES / "example" / "task.yaml", folder / "task" / "task.yaml")
    for value in HOSTILE.values():
        if isinstance(value, str) and value.endswith((".jinja", ".txt", ".sqlite")):
            (folder / value.removeprefix("BAIT/")).write_text("bait")
    return folder


def make_hostile(run: Path, bait: Path, sink: str = SINK) -> None:
    """Give every setting of a run that acts its hostile value."""
    file = run / "config.yaml"
    config = yaml.safe_load(file.read_text())
    merge(config, nest(HOSTILE))
    # The definition of the run's task stays readable.
    config["task"] = "comparative"
    text = yaml.safe_dump(config)
    file.write_text(text.replace("BAIT", str(bait)).replace(SINK, sink))


@dataclass
class Sink:
    """A server that accepts connections, counts them, and answers nothing."""

    url: str
    connections: list[str] = field(default_factory=list)


@contextmanager
def open_sink() -> Iterator[Sink]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sink = Sink(f"http://127.0.0.1:{listener.getsockname()[1]}")
        thread = threading.Thread(target=_accept, args=(listener, sink))
        thread.start()
        try:
            yield sink
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def _accept(listener: socket.socket, sink: Sink) -> None:
    while True:
        try:
            connection, address = listener.accept()
        except OSError:
            return
        sink.connections.append(str(address))
        connection.close()


def add_vllm(folder: Path) -> Path:
    """Write a program `vllm` into a folder; return the file that it writes when it starts."""
    folder.mkdir()
    program = folder / "vllm"
    program.write_text(f"#!/bin/sh\ntouch {folder}/started\n")
    program.chmod(0o755)
    return folder / "started"
