"""Held-out topics: the half of each topic, and the log of accesses to judged topics.

Each earlier access to held-out topics weakens a confirmation on them. The log covers the work on
prompts: `prompts compare`, `prompts try` and the lab. It has their accesses to all judged topics,
so that a change of the split hides none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field

from touche_llm.config.files import UserOptions
from touche_llm.data.files import read_records, sha256, shorten_path, write_records
from touche_llm.data.records import Model, Topic
from touche_llm.data.runs.reading import read_run
from touche_llm.data.topics.reading import normalise_title, read_topics
from touche_llm.errors import DataError, ToucheError, Warn, describe_os_error
from touche_llm.evaluation.qrels import Qrels
from touche_llm.runs.directory import RunDirectory
from touche_llm.settings.yaml_text import read_yaml
from touche_llm.tasks import prompts_folder

# Names of the halves.
CHOICE, HOLD_OUT = "choice", "hold-out"
HALVES_FILE = "halves.yaml"
_LOG = "hold_out_accesses.jsonl"
# Folder of the default cache; the folder of a cassette is read-only data.
_FOLDER_OF_CASSETTES = Path(".touche-llm")
_HASH_DIGITS = 12

_NOT_LOGGED = "is not logged as an access to topics, so that no confirmation will count it"

Kind = Literal["choice", "confirmation", "trial", "evaluation"]


@cache
def _read_published() -> dict[str, str]:
    """Return the half of each normalised title of the project's own tasks."""
    half_by_title: dict[str, str] = {}
    for file in sorted(prompts_folder().glob(f"*/{HALVES_FILE}")):
        halves = read_yaml(file)
        for title in halves["choice"]:
            half_by_title[normalise_title(title)] = CHOICE
        for title in halves["hold_out"]:
            half_by_title[normalise_title(title)] = HOLD_OUT
    return half_by_title


def find_half(title: str) -> str:
    """Return the half of a topic: the published one, otherwise one by the hash of its title."""
    name = normalise_title(title)
    published = _read_published()
    if name in published:
        return published[name]

    first_byte = hashlib.sha256(name.encode()).digest()[0]
    is_in_upper_half = first_byte >= 128
    return HOLD_OUT if is_in_upper_half else CHOICE


class Access(Model):
    """An access to the judgments of some topics, with prompts whose answers were compared with them.

    Attributes:
        kind: `choice` or `confirmation` by `prompts compare`, `trial` by `prompts try` or the
            bench of the lab, or `evaluation` of a run that the lab shows.
        topics: Titles.
        prompts: Labels of the prompts.
        run: Folder of an evaluated run and the beginning of the SHA-256 of its run file, as
            `FOLDER@HASH`.
    """

    time: AwareDatetime = Field(default_factory=lambda: datetime.now(UTC).replace(microsecond=0))
    kind: Kind
    topics: Annotated[list[str], Field(min_length=1)]
    prompts: Annotated[list[str], Field(min_length=1)]
    run: str | None = None


def access_log(cache: Path) -> Path:
    """Return the log beside an answer cache; for a cassette, beside the default cache."""
    is_cassette = cache.suffix == ".jsonl"
    folder = _FOLDER_OF_CASSETTES if is_cassette else cache.parent
    return folder / _LOG


def read_accesses(path: Path) -> list[Access]:
    """Read a log; raise DataError with file and line if it is invalid."""
    if not path.exists():
        return []
    return read_records(path, Access, "accesses to topics, one a line; correct or remove this line")


def check_log(path: Path) -> None:
    """Check that a log can be read and written.

    Raises:
        DataError: The log is malformed; names file and line.
        OSError: The folder of the log cannot be made.
    """
    # Only the folder itself is created: that of a run from another machine may have no parents
    # here.
    path.parent.mkdir(exist_ok=True)
    read_accesses(path)


def record_access(path: Path, access: Access) -> list[Access]:
    """Add an access to a log.

    A trial or an evaluation that only repeats a logged one is not added.

    Args:
        path: File of the log.
        access: Access to add.

    Returns:
        Earlier accesses to any of its topics, of any task and with any judgments.

    Raises:
        DataError: The log is malformed; names file and line.
        OSError: The log cannot be written.
    """
    check_log(path)
    logged = read_accesses(path)
    always_counts = access.kind in ("choice", "confirmation")
    if always_counts or not _is_repeated(access, logged):
        write_records(path, [*logged, access])
    return [past for past in logged if _share_topic(past, access)]


def _is_repeated(access: Access, logged: Iterable[Access]) -> bool:
    """Return whether a logged access differs from this one in its time alone."""
    return any(past.model_copy(update={"time": access.time}) == access for past in logged)


def _share_topic(one: Access, other: Access) -> bool:
    """Return whether two accesses are to one topic, by its title."""
    titles = {normalise_title(title) for title in one.topics}
    return any(normalise_title(title) in titles for title in other.topics)


def record_evaluations(runs: Mapping[Path, UserOptions], qrels: Qrels, warn: Warn) -> None:
    """Log that the lab shows measures or judgments of runs, as accesses to their judged topics.

    Warn if one cannot be logged. A run without prompts, or without judged topics, is not logged.

    Args:
        runs: What the user says about each run, by folder.
        qrels: Judgments that are shown.
        warn: Receives the warnings.
    """
    for folder, user_options in runs.items():
        with _warn_of_errors(f"{folder}: its evaluation", warn):
            _record_evaluation(RunDirectory(folder), user_options, qrels)


def record_trial(
    cache: Path, topic: Topic, documents: Collection[str], qrels: Qrels, prompt: str, warn: Warn
) -> None:
    """Log a trial as an access to its topic if one of the documents is judged.

    Args:
        cache: Answer cache of the trial.
        topic: Topic of the trial.
        documents: Ids of its documents.
        qrels: Human judgments that the trial shows.
        prompt: Label of the prompt.
        warn: Called with a warning if the topic is held out, or the trial cannot be logged.
    """
    judged_documents = set(qrels.stances.get(topic.id, {}))
    for aspect_grades in qrels.grades.values():
        judged_documents.update(aspect_grades.get(topic.id, {}))
    if judged_documents.isdisjoint(documents):
        return

    if find_half(topic.title) == HOLD_OUT:
        warn(
            f"topic {topic.id} is held out: that you see its judgments is logged, and weakens a confirmation"
        )
    access = Access(kind="trial", topics=[topic.title], prompts=[prompt])
    with _warn_of_errors(f"topic {topic.id}: this trial", warn):
        record_access(access_log(cache), access)


@contextmanager
def _warn_of_errors(what: str, warn: Warn) -> Iterator[None]:
    """Warn of an error instead of raising it, since logging is not the command's task."""
    try:
        yield
    except OSError as error:
        warn(f"{what} {_NOT_LOGGED}: {describe_os_error(error)}")
    except ToucheError as error:
        warn(f"{what} {_NOT_LOGGED}: {error}")


def _record_evaluation(directory: RunDirectory, user_options: UserOptions, qrels: Qrels) -> None:
    """Log the evaluation of a run; nothing if it has no prompts or no judged topics.

    Raises:
        DataError: A file of the run is invalid, or its topics cannot be found.
    """
    prompts = directory.read_metadata().stages.prompts.values()
    judged_topics = _list_judged_topics(directory, qrels)
    if not prompts or not judged_topics:
        return

    loaded = directory.read_with_origins(user_options)
    if loaded.unused is not None and loaded.is_without("topics"):
        raise DataError(loaded.unused.describe_input("topics"))

    config = loaded.config
    titles = [topic.title for topic in read_topics(config.topics) if topic.id in judged_topics]
    if not titles:
        raise DataError(
            f"{config.topics}: has none of the judged topics; restore the topics of the run"
        )

    run_hash = sha256(directory.run_file)[:_HASH_DIGITS]
    access = Access(
        kind="evaluation",
        topics=titles,
        prompts=list(dict.fromkeys(prompts)),
        run=f"{shorten_path(directory.path)}@{run_hash}",
    )
    record_access(access_log(config.cache.file), access)


def _list_judged_topics(directory: RunDirectory, qrels: Qrels) -> set[str]:
    """Return the topics of a run that have human judgments, by id."""
    judged_topics = set(qrels.stances)
    for aspect_grades in qrels.grades.values():
        judged_topics.update(aspect_grades)
    return judged_topics & read_run(directory.run_file).rankings.keys()


def select_counted(earlier: Iterable[Access], winner: str) -> list[Access]:
    """Return the accesses that weaken the confirmation of a prompt.

    All do but evaluations of runs with other prompts. A prompt of the same name is an earlier
    wording.

    Args:
        earlier: Accesses to the topics of the confirmation.
        winner: Label of the prompt.
    """
    winner_name = _get_name(winner)
    counted: list[Access] = []
    for access in earlier:
        names = [_get_name(label) for label in access.prompts]
        is_of_other_prompts = access.kind == "evaluation" and winner_name not in names
        if not is_of_other_prompts:
            counted.append(access)
    return counted


def _get_name(label: str) -> str:
    """Return the name in the label of a prompt, without version and hash."""
    name, _, _ = label.rpartition("@")
    return name


def describe_accesses(earlier: Sequence[Access], counted: Sequence[Access]) -> str:
    """Return how many earlier accesses the log has, by what, and how many weaken a confirmation.

    Args:
        earlier: Logged accesses to the topics of the confirmation.
        counted: Those of them that `select_counted` selects.
    """
    if len(earlier) == 1:
        looks = "1 earlier look"
        verb = "is"
    else:
        looks = f"{len(earlier):,} earlier looks"
        verb = "are"
    covered = "by `prompts compare`, `prompts try` or the lab"
    return f"{looks} {covered} {verb} recorded here; {len(counted):,} count against a confirmation"
