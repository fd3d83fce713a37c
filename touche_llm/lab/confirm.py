"""Confirmation and commands: what a view does, as a command line; the hold-out is judged in a terminal alone."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from touche_llm.data.io import shorten_path
from touche_llm.data.topics import normalise_title
from touche_llm.errors import UsageError
from touche_llm.lab.bench import PURPOSE, Bench, Benches
from touche_llm.prompt_lab.holdout import HOLD_OUT, access_log, find_half, read_accesses, select_counted


def describe_confirmation(benches: Benches, *, run: str, name: str) -> dict[str, Any]:
    """Return the command that confirms a saved prompt on the held-out topics, and the earlier accesses to these."""
    bench = benches.get(run)
    baseline, winner = _find_baseline(bench, name), bench.load(name)
    held_out = {normalise_title(each.title) for each in bench.topics.values() if find_half(each.title) == HOLD_OUT}
    earlier = [
        access
        for access in read_accesses(access_log(bench.config.cache.file))
        if not held_out.isdisjoint(map(normalise_title, access.topics))
    ]
    counted = [] if baseline is None else select_counted(earlier, bench.load(baseline).label, winner.label)
    return {
        "command": "" if baseline is None else _compare(benches, bench, [baseline, name], "--confirm"),
        "topics": len(held_out),
        "counted": len(counted),
        "accesses": [
            {
                "time": access.time.isoformat(),
                "kind": access.kind,
                "topics": len(access.topics),
                "prompts": access.prompts,
                "run": access.run,
                "counted": access in counted,
            }
            for access in reversed(earlier)
        ],
    }


def _find_baseline(bench: Bench, name: str) -> str | None:
    """Return the prompt that another one is compared with: the run's, or else the task's own; None if it is that."""
    path = bench.find_prompt(name).path.resolve()
    prompts = bench.list_prompts()
    names = [each for each in (bench.config.prompts.judge, PURPOSE) if each in prompts]
    return next((each for each in names if prompts[each].path.resolve() != path), None)


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
        return {"command": _write("compare", *runs) if len(runs) > 1 else _write("runs", str(lab.inputs.root))}
    if view == "documents":
        of_topic = ["--topic", topic] if topic else []
        return {"command": _write("show", shorten_path(lab.find_run(run).path), *of_topic)}
    bench = benches.get(run)
    name = prompt or bench.config.prompts.judge
    if view == "bench":
        pinned = [part for each in documents.split("\n") if each for part in ("--doc", each)]
        inputs = [*_list_settings(benches, bench), *_list_qrels(benches, bench)]
        return {"command": _write("prompts", "try", name, "--topic", topic, *pinned, *inputs)}
    if view == "confirm":
        return {"command": describe_confirmation(benches, run=run, name=name)["command"]}
    raise UsageError(f"{view:.40}: no such view")


def _compare(benches: Benches, bench: Bench, names: Sequence[str], *options: str) -> str:
    inputs = [*_list_settings(benches, bench), *_list_qrels(benches, bench)]
    return _write("prompts", "compare", *names, *inputs, *options)


def _list_settings(benches: Benches, bench: Bench) -> list[str]:
    """Return the options that give a command the configuration of a bench."""
    file = benches.lab.inputs.config if bench.directory is None else bench.directory.config_file
    settings = [f"{name}={value}" for name, value in benches.lab.inputs.settings.items()]
    given = [part for setting in settings for part in ("--set", setting)]
    return [*([] if file is None else ["--config", shorten_path(file)]), *given]


def _list_qrels(benches: Benches, bench: Bench) -> list[str]:
    files = benches.lab.find_qrels([bench.run], bench.context.task, bench.config)
    return [part for aspect, path in files.items() for part in ("--qrels", f"{aspect}={shorten_path(path)}")]


def _write(*words: str) -> str:
    return shlex.join(("touche-llm", *words))
