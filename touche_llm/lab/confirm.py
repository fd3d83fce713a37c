"""Confirmation and commands: what a view does, as a command line.

The hold-out is judged in a terminal alone. The records are sent to the page as JSON; their
attributes are the names that its scripts read.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from touche_llm.config.own_folders import is_own
from touche_llm.data.files import shorten_path
from touche_llm.data.topics.reading import normalise_title
from touche_llm.errors import UsageError
from touche_llm.lab.bench import Bench, Benches
from touche_llm.lab.runs_of_lab import Workplace
from touche_llm.prompt_lab.holdout import (
    HOLD_OUT,
    Access,
    Kind,
    access_log,
    describe_accesses,
    find_half,
    read_accesses,
    select_counted,
)


@dataclass(frozen=True, slots=True)
class AccessEntry:
    """An earlier access to held-out topics.

    Attributes:
        time: When it was, in ISO 8601.
        kind: What the access was for.
        topics: Number of topics.
        prompts: Labels of the prompts.
        run: Folder and hash of an evaluated run; None for other accesses.
        counted: Whether it weakens the confirmation.
    """

    time: str
    kind: Kind
    topics: int
    prompts: list[str]
    run: str | None
    counted: bool


@dataclass(frozen=True, slots=True)
class Confirmation:
    """How a prompt is confirmed on the held-out topics.

    Attributes:
        command: Command that confirms it; empty without a prompt to compare it with.
        topics: Number of held-out topics.
        recorded: Sentence on the earlier accesses.
        accesses: Earlier accesses, the latest first.
    """

    command: str
    topics: int
    recorded: str
    accesses: list[AccessEntry]


@dataclass(frozen=True, slots=True)
class ViewCommand:
    """Command that shows in a terminal what a view shows; empty if there is none."""

    command: str


def describe_confirmation(benches: Benches, *, run: str, name: str) -> Confirmation:
    """Return how a saved prompt is confirmed on held-out topics, with earlier accesses to them.

    Args:
        benches: Benches.
        run: Name of the run.
        name: Name of the prompt.
    """
    bench = benches.get(run)
    prompt = bench.load(name)
    titles = _list_held_out_titles(bench)
    accesses = read_accesses(access_log(bench.config.cache.file))
    earlier = [access for access in accesses if _has_topic(access, titles)]

    command = ""
    # Accesses that weaken a confirmation; none if there is nothing to confirm.
    counted: list[Access] = []
    baseline = bench.find_baseline(name)
    if baseline is not None:
        inputs = _list_inputs(benches.lab, bench)
        command = _write("prompts", "compare", baseline, name, *inputs, "--confirm")
        counted = select_counted(earlier, prompt.label)

    latest_first = reversed(earlier)
    return Confirmation(
        command=command,
        topics=len(titles),
        recorded=describe_accesses(earlier, counted),
        accesses=[
            _describe_access(access, is_counted=access in counted) for access in latest_first
        ],
    )


def _list_held_out_titles(bench: Bench) -> set[str]:
    """Return the normalised titles of the held-out topics, by which accesses name them."""
    titles: set[str] = set()
    for topic in bench.topics.values():
        if find_half(topic.title) == HOLD_OUT:
            titles.add(normalise_title(topic.title))
    return titles


def _has_topic(access: Access, titles: set[str]) -> bool:
    """Return whether an access was to one of the topics with these normalised titles."""
    return any(normalise_title(title) in titles for title in access.topics)


def _describe_access(access: Access, *, is_counted: bool) -> AccessEntry:
    """Return the entry of an earlier access."""
    return AccessEntry(
        time=access.time.isoformat(),
        kind=access.kind,
        topics=len(access.topics),
        prompts=access.prompts,
        run=access.run,
        counted=is_counted,
    )


def write_command(
    benches: Benches,
    *,
    view: str,
    run: str = "",
    prompt: str = "",
    topic: str = "",
    documents: str = "",
    select: str = "",
) -> ViewCommand:
    """Return the command that shows in a terminal what a view shows.

    Args:
        benches: Benches.
        view: Name of the view.
        run: Name of the run.
        prompt: Name of the prompt; empty for that of the run.
        topic: Id of the topic; empty for all.
        documents: Ids of the pinned documents, one a line.
        select: Names of the selected runs, one a line.

    Raises:
        UsageError: There is no such view.
    """
    match view:
        case "runs":
            command = _write_runs(benches.lab, select.split("\n"))
        case "documents":
            command = _write_documents(benches.lab, run, topic)
        case "bench":
            command = _write_trial(benches, run, prompt, topic, documents.split("\n"))
        case "confirm":
            name = prompt or benches.get(run).config.prompts.judge
            command = describe_confirmation(benches, run=run, name=name).command
        case _:
            raise UsageError(f"{view:.40}: no such view")
    return ViewCommand(command)


def _write_runs(lab: Workplace, selected: Sequence[str]) -> str:
    """Return the command that compares the selected runs; with fewer than two, that lists all runs."""
    folders = [shorten_path(lab.find_run(name).path) for name in selected if name]
    if len(folders) > 1:
        return _write("compare", *folders)
    return _write("runs", str(lab.inputs.root))


def _write_documents(lab: Workplace, run: str, topic: str) -> str:
    """Return the command that shows the documents of a run, of all topics or of one."""
    words = ["show", shorten_path(lab.find_run(run).path)]
    if topic:
        words += ["--topic", topic]
    return _write(*words)


def _write_trial(
    benches: Benches, run: str, prompt: str, topic: str, documents: Sequence[str]
) -> str:
    """Return the command that tries a prompt on the pinned documents."""
    bench = benches.get(run)
    name = prompt or bench.config.prompts.judge
    words = ["prompts", "try", name, "--topic", topic]
    for document in documents:
        if document:
            words += ["--doc", document]
    words += _list_inputs(benches.lab, bench)
    return _write(*words)


def _list_inputs(lab: Workplace, bench: Bench) -> list[str]:
    """Return the options of a command with the configuration and the qrels of a bench."""
    options: list[str] = []
    file = _find_config(lab, bench)
    if file is not None:
        options += ["--config", shorten_path(file)]
    for name, value in _list_settings(lab, bench, file).items():
        options += ["--set", f"{name}={value}"]

    qrels = lab.find_qrels([bench.run], bench.context.task, bench.config)
    for aspect, path in qrels.items():
        options += ["--qrels", f"{aspect}={shorten_path(path)}"]
    return options


def _list_settings(lab: Workplace, bench: Bench, file: Path | None) -> Mapping[str, object]:
    """Return the settings to write in a command beside the configuration file, by dotted name.

    They are always those that the lab was started with. A run in a folder that somebody else wrote
    has no file in the command, so its task and the settings that the user chose from its folder are
    written too.

    Args:
        lab: Workplace of the lab.
        bench: Bench of the run.
        file: Configuration file in the command; None without one.
    """
    is_written_elsewhere = file is None and bench.directory is not None
    if not is_written_elsewhere:
        return lab.inputs.settings
    chosen = lab.list_used(bench.run)
    return {"task": bench.config.task, **chosen, **lab.inputs.settings}


def _find_config(lab: Workplace, bench: Bench) -> Path | None:
    """Return the configuration of a bench; None without one.

    None too for a folder that somebody else wrote: on a command line, all its settings would act.
    """
    if bench.directory is None:
        return lab.inputs.config
    file = bench.directory.config_file
    return file if is_own(file) else None


def _write(*words: str) -> str:
    """Return a command line of this program."""
    return shlex.join(("touche-llm", *words))
