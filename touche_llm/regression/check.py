"""Regression check: replay a recorded run, and compare both runs."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from touche_llm.api.opening import open_client
from touche_llm.api.progress import SilentProgress
from touche_llm.config.configuration import Config
from touche_llm.config.files import NO_USER_OPTIONS, UserOptions
from touche_llm.data.files import open_private_folder
from touche_llm.data.runs.reading import ParsedRun, read_run
from touche_llm.engines.cached_info import name_kind, replay_engine_info
from touche_llm.engines.pooling import PoolingClient
from touche_llm.engines.recording import RecordingEngine, run_until_pending
from touche_llm.engines.settings import PoolingConfig, PoolingPurpose
from touche_llm.engines.token_estimates import EstimatingTokenizer
from touche_llm.errors import DataError, ToucheError, describe_os_error
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.protocol import EngineInfo
from touche_llm.llm.request import Request
from touche_llm.llm.settings import CacheConfig
from touche_llm.prompts.prompt import Prompt, examples_path
from touche_llm.prompts.template_text import read_text
from touche_llm.regression.result import (
    CheckResult,
    LabelDifference,
    MissingAnswer,
    PromptDifference,
    RankDifference,
)
from touche_llm.regression.snapshot import Snapshot, open_snapshot
from touche_llm.retrieval.settings import ExpansionSettings
from touche_llm.runs.context import RunContext
from touche_llm.runs.directory import RunDirectory
from touche_llm.runs.stages import judge_stage, rank_stage

# Requests by purpose of their prompt.
Requests = Mapping[str, list[Request]]


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Result of a replay.

    Attributes:
        directory: Folder of the replayed run; without a run file if answers are missing.
        prompts: Prompts by purpose.
        missing: Requests whose answer is not in the cassette, of those that need no other missing
            answer.
        used_keys: Keys of the cache entries that were read.
    """

    directory: RunDirectory
    prompts: dict[str, Prompt]
    missing: Requests
    used_keys: set[str]
    facts: EngineInfo


async def replay(config: Config, first_stage: Path, work: Path, place: Path) -> ReplayResult:
    """Judge and rank a first stage with cached answers only, as far as these allow.

    Where the length of a prompt is not cached, it is estimated: such a prompt has no cached answer
    either.

    Args:
        config: Configuration of the run, with the cache of its answers.
        first_stage: Run file of the first stage.
        work: Empty folder, where the replayed run remains.
        place: Folder that error messages name instead of `work`.
    """
    directory = RunDirectory(work / "run")
    directory.path.mkdir(parents=True)
    shutil.copyfile(first_stage, directory.path / first_stage.name)
    # The first stage is given, so no query is expanded.
    values = {"index": work / "index", "expansion": ExpansionSettings()}
    config = config.model_copy(update=values)

    engine = RecordingEngine(EstimatingTokenizer())
    used_keys: set[str] = set()
    opening = open_client(
        config.engine,
        config.sampling,
        config.cache.model_copy(update={"mode": CacheMode.REPLAY}),
        answers=engine,
        observe=used_keys.add,
    )
    with (
        _naming_place(place, directory.path, work),
        RunContext(config, SilentProgress()) as context,
    ):
        prompts = context.load_prompts()
        async with opening as model:
            engine_info = replay_engine_info(config.engine, model.cache)
            context.model = model
            context.open_pooling = partial(_open_recorded, model.cache, used_keys)
            await _run_stages(context, directory)

    return ReplayResult(
        directory=directory,
        prompts=prompts,
        missing=_group_by_purpose(engine.pending.values(), prompts),
        used_keys=used_keys,
        facts=engine_info,
    )


@contextmanager
def _naming_place(place: Path, *folders: Path) -> Iterator[None]:
    """Replace temporary folders in error messages, where they say nothing to a reader.

    Args:
        place: Folder to name instead.
        folders: Temporary folders, inner ones first.
    """
    try:
        yield
    except ToucheError as error:
        message = str(error)
        for folder in folders:
            message = message.replace(str(folder), str(place))
        error.args = (message,)
        raise


async def _run_stages(context: RunContext, directory: RunDirectory) -> None:
    """Judge, then rank; stop after a stage that waits for missing answers."""
    is_judged = await run_until_pending(judge_stage(context, directory))
    if is_judged:
        await run_until_pending(rank_stage(context, directory))


def _group_by_purpose(requests: Iterable[Request], prompts: Mapping[str, Prompt]) -> Requests:
    """Return requests by the purpose of their prompt.

    Args:
        requests: Requests to group.
        prompts: Prompts of the run, by purpose.
    """
    # Two templates from different folders can have one name.
    purposes = {(prompt.name, prompt.hash): purpose for purpose, prompt in prompts.items()}

    grouped: dict[str, list[Request]] = {}
    for request in requests:
        purpose = purposes[request.origin.prompt, request.origin.prompt_hash]
        grouped.setdefault(purpose, []).append(request)
    return grouped


@asynccontextmanager
async def _open_recorded(
    cache: Cache,
    used_keys: set[str],
    purpose: PoolingPurpose,
    asked: PoolingConfig,
    answers: CacheConfig,
) -> AsyncIterator[PoolingClient]:
    """Open a cross-encoder whose scores are those of the cache.

    Args:
        cache: Cache of the recorded run.
        used_keys: Receives the keys of the model's description.
        purpose: What the model is for.
        asked: Settings of the model.
        answers: Cache of the settings, which is not used.
    """
    info = replay_engine_info(asked, cache, purpose)
    for entry in cache.find(name_kind(purpose)):
        if cache.read(entry, EngineInfo) == info:
            used_keys.add(entry.key)
    yield PoolingClient(engine_info=info, engine=None, cache=cache, purpose=purpose)


def load_finished_run(run: Path, user_options: UserOptions = NO_USER_OPTIONS) -> Config:
    """Load the configuration of a finished run whose answers were kept.

    Args:
        run: Folder of the run.
        user_options: Settings that the user gives, and whether the user trusts the folder.

    Raises:
        DataError: The run is not finished, its answers are gone, or it was not written here.
    """
    directory = RunDirectory(run)
    loaded = directory.read_with_origins(user_options)
    if loaded.unused is not None:
        raise DataError(loaded.unused.describe_input("answers"))
    config = loaded.config
    directory.check_finished("rank")
    if not directory.run_file.is_file():
        raise DataError(f"{directory.run_file}: no such file; give the folder of a finished run")
    if config.cache.mode is CacheMode.OFF or not config.cache.file.is_file():
        raise DataError(
            f"{config.cache.file}: no answers of {run}; if the file moved, name it in {directory.config_file} "
            "(`cache.file`), relative to that folder"
        )
    return config


async def check_folder(folder: Path) -> CheckResult:
    """Replay a recorded run with the current program and templates, and compare both.

    A run that cannot be read or replayed has the error in its result.
    """
    try:
        with open_private_folder() as work:
            snapshot = open_snapshot(folder)
            replayed = await replay(
                config=snapshot.config(),
                first_stage=snapshot.first_stage,
                work=work,
                place=folder,
            )
            return compare_replay(snapshot, replayed)
    except ToucheError as error:
        return CheckResult(error=str(error))
    except OSError as error:
        return CheckResult(error=describe_os_error(error))


def compare_replay(snapshot: Snapshot, replayed: ReplayResult) -> CheckResult:
    """Compare a replay with the recorded run.

    Raises:
        DataError: The run files differ, and one of them is not a valid run.
    """
    if not replayed.missing:
        return compare_runs(
            recorded=snapshot.run,
            replayed=replayed.directory.run_file,
            labels=snapshot.task.stances,
        )

    prompts = [_describe_missing(snapshot, replayed, purpose) for purpose in replayed.missing]
    topics = [missing.topic_id for prompt in prompts for missing in prompt.missing]
    return CheckResult(topics=tuple(dict.fromkeys(topics)), prompts=tuple(prompts))


def _describe_missing(snapshot: Snapshot, replayed: ReplayResult, purpose: str) -> PromptDifference:
    """Describe a prompt whose requests have no recorded answer."""
    missing: list[MissingAnswer] = []
    for request in replayed.missing[purpose]:
        missing.append(MissingAnswer(request.origin.topic_id, request.origin.document_id))

    template = list_texts(replayed.prompts[purpose])
    return PromptDifference(
        purpose=purpose,
        has_changed_template=template != snapshot.read_template(purpose),
        missing=tuple(missing),
    )


def list_texts(prompt: Prompt) -> dict[str, str]:
    """Return the texts of the files of a prompt by name, those of its examples included."""
    texts = {prompt.path.name: prompt.files.text, **prompt.files.texts}
    if prompt.examples:
        examples = examples_path(prompt.path)
        texts[examples.name] = read_text(examples)
    return texts


def compare_runs(recorded: Path, replayed: Path, labels: Collection[str]) -> CheckResult:
    """Compare two run files.

    Args:
        recorded: Run file of the recording.
        replayed: Run file of the replay.
        labels: Valid stance labels.

    Raises:
        DataError: The files differ, and one of them is not a valid run.
    """
    if recorded.read_bytes() == replayed.read_bytes():
        return CheckResult()

    recorded_run = read_run(recorded, labels)
    replayed_run = read_run(replayed, labels)
    return CheckResult(
        topics=tuple(_list_differing_topics(recorded, replayed)),
        ranks=tuple(compare_ranks(recorded_run, replayed_run)),
        labels=tuple(compare_labels(recorded_run, replayed_run)),
    )


def _list_differing_topics(recorded: Path, replayed: Path) -> list[str]:
    """Return the topics whose lines differ; if only the order of the topics differs, all."""
    recorded_lines = _group_lines(recorded)
    replayed_lines = _group_lines(replayed)
    topics = list(dict.fromkeys([*recorded_lines, *replayed_lines]))
    differing = [
        topic for topic in topics if recorded_lines.get(topic) != replayed_lines.get(topic)
    ]
    return differing or topics


def _group_lines(run: Path) -> dict[str, list[bytes]]:
    """Return the lines of a valid run file by topic."""
    lines: dict[str, list[bytes]] = {}
    for line in run.read_bytes().splitlines(keepends=True):
        columns = line.split()
        if columns:
            lines.setdefault(columns[0].decode(), []).append(line)
    return lines


def compare_ranks(recorded: ParsedRun, replayed: ParsedRun) -> list[RankDifference]:
    """Return the documents with different ranks, largest moves first."""
    recorded_ranks = _list_ranks(recorded)
    replayed_ranks = _list_ranks(replayed)

    differences: list[RankDifference] = []
    for key in dict.fromkeys([*recorded_ranks, *replayed_ranks]):
        topic_id, document_id = key
        recorded_rank = recorded_ranks.get(key)
        replayed_rank = replayed_ranks.get(key)
        if recorded_rank != replayed_rank:
            difference = RankDifference(
                topic_id=topic_id,
                document_id=document_id,
                recorded=recorded_rank,
                replayed=replayed_rank,
            )
            differences.append(difference)

    # A document that only one run has counts as the furthest move.
    rankings = [*recorded.rankings.values(), *replayed.rankings.values()]
    longest = max(map(len, rankings), default=0)
    missing_rank = 2 * longest + 1

    def distance(difference: RankDifference) -> int:
        recorded_rank = difference.recorded or missing_rank
        replayed_rank = difference.replayed or missing_rank
        return abs(recorded_rank - replayed_rank)

    return sorted(differences, key=distance, reverse=True)


def compare_labels(recorded: ParsedRun, replayed: ParsedRun) -> list[LabelDifference]:
    """Return the documents of both runs with different stance labels."""
    replayed_ranks = _list_ranks(replayed)
    shared = [key for key in _list_ranks(recorded) if key in replayed_ranks]

    differences: list[LabelDifference] = []
    for key in shared:
        topic_id, document_id = key
        recorded_label = recorded.stances.get(key)
        replayed_label = replayed.stances.get(key)
        if recorded_label != replayed_label:
            difference = LabelDifference(
                topic_id=topic_id,
                document_id=document_id,
                recorded=recorded_label,
                replayed=replayed_label,
            )
            differences.append(difference)
    return differences


def _list_ranks(run: ParsedRun) -> dict[tuple[str, str], int]:
    """Return the ranks of a run by topic and document."""
    ranks: dict[tuple[str, str], int] = {}
    for topic_id, ranking in run.rankings.items():
        for candidate in ranking:
            ranks[topic_id, candidate.document_id] = candidate.rank
    return ranks
