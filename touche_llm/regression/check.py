"""Regression check: replay a recorded run, and list the differences from it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from difflib import unified_diff
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from touche_llm.config import Config, flatten
from touche_llm.data.trec_runs import ParsedRun, read_run
from touche_llm.errors import (
    DataError,
    ToucheError,
    describe_os_error,
    list_fields,
    to_printable,
)
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.engine import EngineInfo
from touche_llm.llm.pooling import PoolingClient
from touche_llm.llm.recorder import (
    EstimatingTokenizer,
    RecordingEngine,
    run_until_pending,
)
from touche_llm.llm.request import Request
from touche_llm.llm.settings import CacheConfig, PoolingConfig, PoolingPurpose
from touche_llm.pipeline.context import RunContext
from touche_llm.pipeline.engines import name_kind, open_client, replay_engine_info
from touche_llm.pipeline.progress import SilentProgress
from touche_llm.pipeline.run_directory import RunDirectory
from touche_llm.pipeline.stages import judge_stage, rank_stage
from touche_llm.prompts.prompt import Prompt, examples_path
from touche_llm.prompts.templates import read_text
from touche_llm.regression.snapshot import Snapshot, open_snapshot, run_settings
from touche_llm.retrieval.base import ExpansionSettings

# Requests by purpose of their prompt.
Requests = Mapping[str, list[Request]]
Kind = Literal["error", "setting", "prompt", "missing", "rank", "stance", "run"]
KeyT = TypeVar("KeyT")
# Number of differences of these kinds that are printed, and the heading above them.
_LISTED = 5
_HEADINGS: Mapping[Kind, str] = {
    "missing": "answers missing",
    "rank": "ranks moved",
    "stance": "stances changed",
}


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
    config = config.model_copy(update={"index": work / "index", "expansion": ExpansionSettings()})
    engine = RecordingEngine(lambda _: None, EstimatingTokenizer())
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
    """Open a cross-encoder whose scores are those of the cache."""
    facts = replay_engine_info(asked, cache, purpose)
    used_keys |= {
        entry.key for entry in cache.find(name_kind(purpose)) if entry.read(EngineInfo) == facts
    }
    yield PoolingClient(engine_info=facts, engine=None, cache=cache, purpose=purpose)


def load_finished_run(run: Path) -> Config:
    """Load the configuration of a finished run whose answers were kept."""
    directory = RunDirectory(run)
    config = directory.read_config()
    directory.check_finished("rank")
    if not directory.run_file.is_file():
        raise DataError(f"{directory.run_file}: no such file; give the folder of a finished run")
    if config.cache.mode is CacheMode.OFF or not config.cache.file.is_file():
        raise DataError(
            f"{config.cache.file}: no answers of {run}; if the file moved, name it in {directory.config_file} "
            "(`cache.file`), relative to that folder"
        )
    return config


@dataclass(frozen=True, slots=True)
class RunDifference:
    """One difference between a recorded run and its replay.

    Attributes:
        kind: `error`: the run cannot be replayed; `setting`: a value of the configuration;
            `prompt`: a template; `missing`: an answer; `rank` and `stance`: of a document in the
            run; `run`: any other change of the run file.
        name: Name of the setting, or purpose of the prompt.
        new: Current value, or label of the prompt.
        text: Unified diff of a template, or an error message.
    """

    kind: Kind
    name: str = ""
    topic: str | None = None
    document: str | None = None
    old: Any = None
    new: Any = None
    text: str = ""

    def row(self, run: str) -> dict[str, Any]:
        """Return the difference as a table row, with lists and sections as text."""
        values = {"run": run, **asdict(self)}
        return {
            name: str(value) if isinstance(value, list | dict | bool) else value
            for name, value in values.items()
        }

    def __str__(self) -> str:
        place = f"topic {self.topic}" + (f" document {self.document}" if self.document else "")
        change = f"{'none' if self.old is None else self.old} → {'none' if self.new is None else self.new}"
        match self.kind:
            case "error":
                return f"cannot be replayed: {self.text}"
            case "prompt":
                return f"prompt {self.name} changed:\n{self.text}".replace("\n", "\n    ")
            case "missing":
                return f"{self.name}: {place}"
            case "run":
                return f"run.txt: {self.text}"
            case "setting":
                return f"setting {self.name}: {change}"
            case _:
                return f"{place}: {self.kind} {change}"


COLUMNS = ("run", *RunDifference.__dataclass_fields__)


def format_differences(name: str, differences: Iterable[RunDifference]) -> str:
    """Format the differences of a run as text, with the first or largest of each kind."""
    by_kind: dict[Kind, list[RunDifference]] = {}
    for difference in differences:
        by_kind.setdefault(difference.kind, []).append(difference)
    lines = [f"{name}: differs" if by_kind else f"{name}: as recorded"]
    for kind, found in by_kind.items():
        if kind not in _HEADINGS:
            lines += [f"  {difference}" for difference in found]
            continue
        lines.append(f"  {_HEADINGS[kind]}: {len(found):,}")
        lines += [f"    {difference}" for difference in found[:_LISTED]]
        lines += [f"    and {len(found) - _LISTED:,} more"] if len(found) > _LISTED else []
    return to_printable("\n".join(lines))


async def check_folder(folder: Path) -> list[RunDifference]:
    """Return how a replay with the current program and templates differs from the recorded run of a folder.

    A run that cannot be read has that error as its only difference.
    """
    try:
        with tempfile.TemporaryDirectory() as work:
            return await _compare_replay(open_snapshot(folder), Path(work))
    except (ToucheError, OSError) as error:
        text = describe_os_error(error) if isinstance(error, OSError) else str(error)
        return [RunDifference("error", text=text)]


async def _compare_replay(snapshot: Snapshot, work: Path) -> list[RunDifference]:
    """Replay a recorded run in the empty folder `work`, and compare both."""
    config = snapshot.config().model_copy(update={"index": work / "index"})
    settings = _compare_settings(snapshot, config)
    try:
        replayed = await replay(config, snapshot.first_stage, work, snapshot.folder)
    except ToucheError as error:
        return [RunDifference("error", text=str(error)), *settings]

    if replayed.missing:
        prompts = _compare_prompts(snapshot, replayed)
        return [*settings, *prompts, *list_missing(replayed.missing)]

    differences = compare_runs(snapshot, replayed.directory.run_file)
    return [*settings, *differences] if differences else []


def _compare_settings(snapshot: Snapshot, config: Config) -> list[RunDifference]:
    """Compare the settings with the recorded ones.

    A default that the program did not have then is no difference.
    """
    recorded, now = snapshot.manifest.settings, run_settings(config)
    defaults = flatten({name: field.default for name, field in list_fields(Config)})
    new = {
        name: value
        for name, value in now.items()
        if name in recorded or value != defaults.get(name)
    }
    return [
        RunDifference("setting", name, old=old, new=value)
        for name, old, value in sorted(_compare(recorded, new))
    ]


def _compare(old: Mapping[KeyT, Any], new: Mapping[KeyT, Any]) -> Iterator[tuple[KeyT, Any, Any]]:
    """Yield the keys with different values, and these; None stands for a missing one."""
    for key in dict.fromkeys([*old, *new]):
        if old.get(key) != new.get(key):
            yield key, old.get(key), new.get(key)


def _compare_prompts(snapshot: Snapshot, now: ReplayResult) -> Iterator[RunDifference]:
    """Yield the changed templates among those of requests without a recorded answer."""
    for purpose in now.missing:
        prompt = now.prompts[purpose]
        old, new = (
            [line for name in sorted(texts) for line in (f"[{name}]", *texts[name].splitlines())]
            for texts in (snapshot.read_template(purpose), list_texts(prompt))
        )
        if old != new:
            text = "\n".join(unified_diff(old, new, "recorded", str(prompt.path), n=2, lineterm=""))
            yield RunDifference("prompt", purpose, new=prompt.label, text=text)


def list_missing(missing: Requests) -> list[RunDifference]:
    """Return a difference for each request without a recorded answer."""
    return [
        RunDifference("missing", purpose, request.origin.topic_id, request.origin.document_id)
        for purpose, requests in missing.items()
        for request in requests
    ]


def list_texts(prompt: Prompt) -> dict[str, str]:
    """Return the texts of the files of a prompt by name, those of its examples included."""
    texts = {prompt.path.name: prompt.files.text, **prompt.files.texts}
    if prompt.examples:
        examples = examples_path(prompt.path)
        texts[examples.name] = read_text(examples)
    return texts


def compare_runs(snapshot: Snapshot, run: Path) -> list[RunDifference]:
    """Compare a run file with the recorded one."""
    if run.read_bytes() == snapshot.run.read_bytes():
        return []
    old, new = (read_run(file, snapshot.task.stances) for file in (snapshot.run, run))
    if not (differences := compare_rankings(old, new)):
        return [RunDifference("run", text="ranks and stances are equal, scores or the tag differ")]
    return differences


def compare_rankings(old: ParsedRun, new: ParsedRun) -> list[RunDifference]:
    """Compare the ranks, largest moves first, then the stances of two runs.

    None stands for a document that is missing from a run.
    """
    return [*_compare_ranks(old, new), *_compare_stances(old, new)]


def _compare_ranks(old: ParsedRun, new: ParsedRun) -> list[RunDifference]:
    """Return the documents with different ranks, largest moves first."""
    differences: list[RunDifference] = []
    for key, old_rank, new_rank in _compare(_list_ranks(old), _list_ranks(new)):
        topic_id, document_id = key
        difference = RunDifference(
            kind="rank",
            topic=topic_id,
            document=document_id,
            old=old_rank,
            new=new_rank,
        )
        differences.append(difference)

    # A document that only one run has counts as the furthest move.
    rankings = [*old.rankings.values(), *new.rankings.values()]
    longest = max(map(len, rankings), default=0)
    missing_rank = 2 * longest + 1

    def distance(difference: RunDifference) -> int:
        old_rank: int = difference.old or missing_rank
        new_rank: int = difference.new or missing_rank
        return abs(old_rank - new_rank)

    return sorted(differences, key=distance, reverse=True)


def _compare_stances(old: ParsedRun, new: ParsedRun) -> list[RunDifference]:
    """Return the documents of both runs with different stances."""
    new_ranks = _list_ranks(new)
    shared = [key for key in _list_ranks(old) if key in new_ranks]
    old_stances = {key: old.stances.get(key) for key in shared}
    new_stances = {key: new.stances.get(key) for key in shared}

    differences: list[RunDifference] = []
    for key, old_stance, new_stance in _compare(old_stances, new_stances):
        topic_id, document_id = key
        difference = RunDifference(
            kind="stance",
            topic=topic_id,
            document=document_id,
            old=old_stance,
            new=new_stance,
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
