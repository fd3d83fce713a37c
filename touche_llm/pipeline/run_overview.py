"""Overviews of finished, unfinished and damaged runs, and the search for run folders."""

from __future__ import annotations

import csv
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from touche_llm.config import Config
from touche_llm.corpus.store import DocumentStore
from touche_llm.data import trec_runs
from touche_llm.data.records import Topic
from touche_llm.data.topics import require_kind
from touche_llm.data.trec_runs import ParsedRun
from touche_llm.errors import DataError, ToucheError, UsageError
from touche_llm.judging.sentence_pairs import PairDocuments
from touche_llm.llm.counts import LabelCounts
from touche_llm.pipeline import run_files
from touche_llm.pipeline.metadata import LABELS
from touche_llm.pipeline.recorded_evaluation import RecordedEvaluation, read_evaluation
from touche_llm.pipeline.run_directory import RunDirectory
from touche_llm.pipeline.run_files import BATCH, LOCK, METADATA, OUTPUTS, RECORDED, RUN, list_result_columns
from touche_llm.tasks import find_dataset_task, get_task
from touche_llm.tasks.task import Task


def find_run_directory(path: Path) -> RunDirectory | None:
    """Return the folder of a run of this program, given as the folder or as its run file; None for other run files.

    Raises:
        DataError: The folder has no run, or its last stage did not finish.
    """
    directory = RunDirectory(path if path.is_dir() else path.parent)
    if path != directory.path and (path.name != run_files.RUN or not directory.config_file.exists()):
        return None
    directory.check_finished("rank")
    if not directory.run_file.exists():
        raise DataError(
            f"{directory}: no {run_files.RUN} in this folder; run `touche-llm rank` for it, or name a run file"
        )
    return directory


def find_run_file(path: Path) -> Path:
    """Return the run file of a run's folder, or the file that was given; see `find_run_directory` for errors."""
    directory = find_run_directory(path) if path.is_dir() else None
    return path if directory is None else directory.run_file


def read_run(path: Path | str, labels: Collection[str] | None = None) -> ParsedRun:
    """Read the run of a folder, given as the folder or as its run file, or the run file of any tool, with its stances.

    A file has columns that are separated by any white space; a `rerank.jsonl` of TIRA has no stances. Only the run of a
    folder has chosen topics (`--topic`, `--limit-topics`).

    Args:
        path: Folder or file.
        labels: Valid stances beside `Q0`; None accepts any word.

    Raises:
        DataError: A line is no run line, a topic repeats a document, scores grow along the ranks, or a stance is not
            one of the labels; for a folder also as `find_run_directory`.
    """
    directory = find_run_directory(Path(path))
    return trec_runs.read_run(path, labels) if directory is None else directory.read_run(labels)


def find_task(name: str | None, runs: Collection[Path], dataset: str | None = None) -> Task:
    """Return the task of this name, or without a name the task of the first run that is a folder of this program.

    Raises:
        UsageError: There is no such task, or no run says which it is.
        DataError: A file is no run; or see `find_run_directory`.
    """
    for path in runs:
        if path.is_file():
            require_kind(path, "run", "rerank")
    if name is not None:
        return get_task(name)
    for path in runs:
        if not path.exists():
            raise DataError(f"{path}: no such file or folder; give a run file or the folder of a run")
        if (directory := find_run_directory(path)) is not None:
            return directory.read_task()
    if dataset is not None:
        return get_task(find_dataset_task(dataset))
    raise UsageError(
        "no run says of which task it is; name the task or its folder (`task: NAME`; see `touche-llm tasks list`)"
    )


# Any of these files marks a folder as a run.
_MARKS = frozenset((METADATA, LOCK, BATCH, *(name for names in OUTPUTS.values() for name in names)))
# The search for runs goes no deeper, and looks at no more folders.
MAX_DEPTH = 6
MAX_FOLDERS = 20_000
COMPLETE = "complete"
BROKEN = "broken"
EMPTY = "empty"
UNFINISHED = "unfinished"
# State of a run whose last finished stage is this one.
_STATES = {"retrieve": "retrieved", "judge": "judged", "rank": COMPLETE}
_TEXT_CHARS = 300
_TEXT_COLUMNS = ("topic", "document", "stance", "stance_source")


class RunUsage(NamedTuple):
    """Costs of a stage or of a run.

    Tokens are those of requests, not of answers from the cache; `unread` answers have labels that were to be read from
    log-probabilities and could not be.
    """

    requests: int = 0
    cached: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    failures: int = 0
    unread: int = 0
    overruled: int = 0


@dataclass(frozen=True, slots=True)
class RunOverview:
    """State, settings and costs of a run.

    Attributes:
        directory: The run's folder.
        state: "complete"; the last finished stage ("empty", "retrieved", "judged"); "unfinished" while a stage replaces
            its outputs or after it was interrupted; or "broken".
        problem: What is wrong with an unfinished or broken run.
        config: Configuration; None if it cannot be read.
        stages: Facts of each finished stage, from the metadata.
        evaluation: Last evaluation of the present run file.
        changed: When the metadata or, without it, the folder was last written.
    """

    directory: RunDirectory
    state: str
    problem: str
    config: Config | None
    stages: Mapping[str, Mapping[str, Any]]
    evaluation: RecordedEvaluation | None
    changed: datetime

    @property
    def model(self) -> str:
        """Model of the judgments; empty if there are none."""
        return str(self.stages.get("judge", {}).get("model", ""))

    @property
    def prompt(self) -> str:
        """Judge prompt, as NAME@VERSION-HASH; empty before the judge stage."""
        prompts = self.stages.get("judge", {}).get("prompts")
        return str(prompts.get("judge", "")).partition("/")[2] if isinstance(prompts, Mapping) else ""

    @property
    def topics(self) -> int | None:
        """Number of topics of the first stage."""
        topics = self.stages.get("retrieve", {}).get("topics")
        return topics if isinstance(topics, int) else None

    @property
    def usage(self) -> RunUsage:
        """Costs of all finished stages."""
        costs = [sum_usage(facts) for facts in self.stages.values()]
        return RunUsage(*map(sum, zip(RunUsage(), *costs, strict=True)))


def sum_usage(facts: Mapping[str, Any]) -> RunUsage:
    """Return the costs of a stage from its metadata; 0 for unknown ones."""
    counts, failures = facts.get("requests"), facts.get("failures")
    counts = counts if isinstance(counts, Mapping) else {}
    names = ("requests", "cache_hits", "prompt_tokens", "completion_tokens")
    numbers = [value if isinstance(value := counts.get(name), int) else 0 for name in names]
    kinds = failures.values() if isinstance(failures, Mapping) else ()
    failed = sum(count for count in kinds if isinstance(count, int))
    labels = read_label_counts(facts).values()
    return RunUsage._make((*numbers, failed, sum(of.unread for of in labels), sum(of.overruled for of in labels)))


def read_label_counts(facts: Mapping[str, Any]) -> dict[str, LabelCounts]:
    """Return the counts of answers whose labels are read from log-probabilities, by prompt, from a stage's metadata."""
    try:
        return msgspec.convert(facts.get(LABELS, {}), dict[str, LabelCounts])
    except msgspec.ValidationError:
        return {}


def format_seconds(seconds: float) -> str:
    """Return a duration as every command and page writes it."""
    return f"{seconds:,.1f} s"


def read_seconds(facts: Mapping[str, Any]) -> float:
    """Return the duration of a stage from its metadata; 0 if unknown."""
    seconds = facts.get("seconds")
    return float(seconds) if isinstance(seconds, int | float) else 0.0


def read_overview(folder: Path) -> RunOverview:
    """Read the overview of a run; a damaged file makes the run "broken" instead of raising an error."""
    directory = RunDirectory(folder)
    state, problem, config = BROKEN, "", None
    stages: Mapping[str, Mapping[str, Any]] = {}
    evaluation = None
    try:
        metadata = directory.read_metadata()
        stages = metadata.stages
        config = directory.read_config()
        state = next((_STATES[stage] for stage in reversed(list(OUTPUTS)) if stage in stages), EMPTY)
        if metadata.unfinished is not None:
            state, problem = UNFINISHED, f"`touche-llm {metadata.unfinished}` was interrupted or is running"
        elif state == COMPLETE and not directory.run_file.is_file():
            state, problem = BROKEN, f"no {RUN}"
        evaluation = read_evaluation(directory)
        if evaluation is not None and not evaluation.is_current(directory):
            evaluation = None
    except ToucheError as error:
        state, problem = BROKEN, str(error)
        # The configuration is written after start-up, before which there is the lock alone.
        if _list_marks(folder) == {LOCK} and not directory.config_file.exists():
            state, problem = EMPTY, f"{folder}: stopped during start-up, or starting now; give the command again"
    except OSError as error:
        state, problem = BROKEN, f"cannot be read: {error.strerror}"
    marked = directory.metadata_file if directory.metadata_file.is_file() else folder
    changed = datetime.fromtimestamp(marked.stat().st_mtime)
    return RunOverview(directory, state, problem, config, stages, evaluation, changed)


def _list_marks(folder: Path) -> set[str]:
    return {name for name in _MARKS if (folder / name).exists()}


class FoundRuns(NamedTuple):
    """Folders of runs.

    Attributes:
        folders: The folders, sorted.
        is_complete: Whether no part of the tree was left out because of its size or depth.
    """

    folders: list[Path]
    is_complete: bool


def find_runs(root: Path, max_folders: int = MAX_FOLDERS) -> FoundRuns:
    """Find the folders of runs in a folder and below, but not within runs, recorded ones, hidden folders and links.

    Raises:
        DataError: There is no such folder.
    """
    if not root.is_dir():
        raise DataError(f"{root}: no such folder")
    found, waiting, seen, is_complete = list[Path](), [(root, 0)], 0, True
    while waiting:
        folder, depth = waiting.pop()
        seen += 1
        if seen > max_folders:
            is_complete = False
            break
        try:
            with os.scandir(folder) as entries:
                listed = list(entries)
        except OSError:
            is_complete = False
            continue
        names = {entry.name for entry in listed}
        if RECORDED in names:
            continue
        if names & _MARKS:
            found.append(folder)
            continue
        below = [entry for entry in listed if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)]
        if depth < MAX_DEPTH:
            waiting += ((folder / entry.name, depth + 1) for entry in below)
        elif below:
            is_complete = False
    return FoundRuns(sorted(found), is_complete)


def read_results(directory: RunDirectory, task: Task) -> Iterator[dict[str, Any]]:
    """Yield the lines of `results.tsv` as mappings with numbers; None for unknown ones.

    Raises:
        DataError: The file is missing or was not written by this program.
    """
    path = directory.results_file
    names = list_result_columns(task)
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            for row in csv.DictReader(stream, delimiter="\t", strict=True):
                numbers = {name: _to_number(row[name]) for name in names if name not in _TEXT_COLUMNS}
                yield {name: row[name] for name in names} | numbers | {"rank": int(row["rank"])}
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file; run `touche-llm rank` for this folder first") from error
    except (csv.Error, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: not results of this program ({error!s:.100}); run `touche-llm rank` again") from error


def _to_number(text: str) -> float | None:
    return float(text) if text else None


def read_texts(config: Config, task: Task, documents: Iterable[tuple[Topic, str]]) -> dict[tuple[str, str], str]:
    """Return the beginning of documents as the model saw them, by topic and document, from the local index of a run.

    White space is collapsed. Documents that the index lacks are left out; without an index, all.
    """
    if config.index is None or not (config.index / "manifest.json").is_file():
        return {}
    requested, texts = list(documents), dict[tuple[str, str], str]()
    try:
        with DocumentStore(config.index) as store:
            source = store if task.sentence_question is None else PairDocuments(store.parts)
            unknown = set(source.find_unknown(dict.fromkeys(name for _, name in requested)))
            for topic, name in requested:
                if name in unknown:
                    continue
                # The names of the objects are no part of the text.
                known = replace(topic, objects=topic.objects or ("", ""))
                seen = task.question.render(known, source.get(name)).document
                text = seen if isinstance(seen, str) else seen.passage
                texts[topic.id, name] = " ".join(text.split())[:_TEXT_CHARS]
    except ToucheError:
        # The texts are an extra; the commands that need the index report what is wrong with it.
        return {}
    return texts
