"""Confirmation and commands: what a view does, as a command line.

The hold-out is judged in a terminal alone.
"""

from __future__ import annotations

import shlex
from typing import Any

from touche_llm.data.files import shorten_path
from touche_llm.data.topics.reading import normalise_title
from touche_llm.errors import UsageError
from touche_llm.lab.bench import Bench, Benches
from touche_llm.prompt_lab.holdout import (
    HOLD_OUT,
    Access,
    access_log,
    describe_accesses,
    find_half,
    read_accesses,
    select_counted,
)


def describe_confirmation(benches: Benches, *, run: str, name: str) -> dict[str, Any]:
    """Return the command that confirms a saved prompt on the held-out topics, and the earlier accesses to these."""
    bench = benches.get(run)
    baseline = bench.find_baseline(name)
    winner = bench.load(name)

    held_out = {
        normalise_title(topic.title)
        for topic in bench.topics.values()
        if find_half(topic.title) == HOLD_OUT
    }
    earlier = [
        access
        for access in read_accesses(access_log(bench.config.cache.file))
        if not held_out.isdisjoint(map(normalise_title, access.topics))
    ]

    command = ""
    counted: list[Access] = []
    if baseline is not None:
        inputs = _list_inputs(benches, bench)
        command = _write("prompts", "compare", baseline, name, *inputs, "--confirm")
        counted = select_counted(earlier, winner.label)

    return {
        "command": command,
        "topics": len(held_out),
        "recorded": describe_accesses(earlier, counted),
        "accesses": [
            _describe_access(access, is_counted=access in counted) for access in reversed(earlier)
        ],
    }


def _describe_access(access: Access, *, is_counted: bool) -> dict[str, Any]:
    """Return the row of an earlier access: its fields, with the number of topics."""
    row = access.model_dump(mode="json")
    row["topics"] = len(access.topics)
    row["counted"] = is_counted
    return row


def write_command(
    benches: Benches,
    *,
    view: str,
    run: str = "",
    prompt: str = "",
    topic: str = "",
    documents: str = "",
    select: str = "",
) -> dict[str, Any]:
    """Return the command that shows in a terminal what a view shows."""
    lab = benches.lab
    if view == "runs":
        runs = [shorten_path(lab.find_run(name).path) for name in select.split("\n") if name]
        return {
            "command": _write("compare", *runs)
            if len(runs) > 1
            else _write("runs", str(lab.inputs.root))
        }
    if view == "documents":
        of_topic = ["--topic", topic] if topic else []
        return {"command": _write("show", shorten_path(lab.find_run(run).path), *of_topic)}
    bench = benches.get(run)
    name = prompt or bench.config.prompts.judge
    if view == "bench":
        pinned = [part for each in documents.split("\n") if each for part in ("--doc", each)]
        return {
            "command": _write(
                "prompts", "try", name, "--topic", topic, *pinned, *_list_inputs(benches, bench)
            )
        }
    if view == "confirm":
        return {"command": describe_confirmation(benches, run=run, name=name)["command"]}
    raise UsageError(f"{view:.40}: no such view")


def _list_inputs(benches: Benches, bench: Bench) -> list[str]:
    """Return the options that give a command the configuration and the qrels of a bench."""
    lab = benches.lab
    file = lab.inputs.config if bench.directory is None else bench.directory.config_file
    qrels = lab.find_qrels([bench.run], bench.context.task, bench.config)
    options = [] if file is None else [("--config", shorten_path(file))]
    options += [("--set", f"{name}={value}") for name, value in lab.inputs.settings.items()]
    options += [("--qrels", f"{aspect}={shorten_path(path)}") for aspect, path in qrels.items()]
    return [part for option in options for part in option]


def _write(*words: str) -> str:
    return shlex.join(("touche-llm", *words))
