"""Regression check: replay a recorded run, or take a new one, and list its differences from the recorded run."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, closing
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
    UsageError,
    describe_os_error,
    list_fields,
    to_printable,
)
from touche_llm.evaluation.qrels import Qrels
from touche_llm.llm.cache import Cache, CacheMode, ValueT, ValueType
from touche_llm.llm.engine import EngineInfo
from touche_llm.llm.pooling import PoolingClient
from touche_llm.llm.recorder import (
    EstimatingTokenizer,
    RecordingClient,
    RecordingEngine,
    run_until_pending,
)
from touche_llm.llm.request import Request
from touche_llm.llm.settings import CacheConfig, PoolingConfig, PoolingPurpose
from touche_llm.pipeline.context import RunContext
from touche_llm.pipeline.engines import name_kind, replay_engine_info
from touche_llm.pipeline.progress import SilentProgress
from touche_llm.pipeline.run_directory import RUN, RunDirectory
from touche_llm.pipeline.stages import judge_stage, rank_stage
from touche_llm.prompts.prompt import Prompt, examples_path
from touche_llm.prompts.templates import read_text
from touche_llm.regression.snapshot import Snapshot, open_snapshot, run_settings
from touche_llm.retrieval.base import ExpansionSettings
from touche_llm.tasks import get_task

# Requests by purpose of their prompt.
Requests = Mapping[str, list[Request]]
Kind = Literal["error", "setting", "prompt", "missing", "rank", "stance", "run", "measure"]
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
    """Judge and rank a first stage in the empty folder `work` with cached answers only, as far as these allow.

    Where the length of a prompt is not cached, it is estimated: such a prompt has no cached answer
    either. Error messages name `place` instead of `work`.
    """
    directory = RunDirectory(work / "run")
    directory.path.mkdir(parents=True)
    shutil.copyfile(first_stage, directory.path / first_stage.name)
    # The first stage is given, so no query is expanded.
    config = config.model_copy(update={"index": work / "index", "expansion": ExpansionSettings()})
    engine = RecordingEngine(lambda _: None, EstimatingTokenizer())
    try:
        with RunContext(config, SilentProgress()) as context:
            prompts = context.load_prompts()
            with closing(_RecordingCache(config.cache.file, CacheMode.REPLAY)) as cache:
                facts = replay_engine_info(config.engine, cache)
                resample_temperature = config.sampling.resample_temperature
                context.model = RecordingClient(
                    engine_info=facts,
                    engine=engine,
                    cache=cache,
                    resample_temperature=resample_temperature,
                )
                context.open_pooling = partial(_open_recorded, cache)
                if await run_until_pending(judge_stage(context, directory)):
                    await run_until_pending(rank_stage(context, directory))
    except ToucheError as error:
        # The temporary folder says nothing to a reader.
        error.args = (
            str(error).replace(str(directory), str(place)).replace(str(work), str(place)),
        )
        raise
    # Two templates from different folders can have one name.
    purposes = {(prompt.name, prompt.hash): purpose for purpose, prompt in prompts.items()}
    missing: dict[str, list[Request]] = {}
    for request in engine.pending.values():
        missing.setdefault(purposes[request.origin.prompt, request.origin.prompt_hash], []).append(
            request
        )
    return ReplayResult(directory, prompts, missing, cache.used, facts)


class _RecordingCache(Cache):
    """A cache that records the keys of the entries that were read."""

    def __init__(self, path: Path, mode: CacheMode) -> None:
        super().__init__(path, mode)
        self.used: set[str] = set()

    def get(self, key: str, model: ValueType[ValueT], *, refreshed: bool = False) -> ValueT | None:
        value = super().get(key, model, refreshed=refreshed)
        if value is not None:
            self.used.add(key)
        return value


@asynccontextmanager
async def _open_recorded(
    cache: _RecordingCache, purpose: PoolingPurpose, asked: PoolingConfig, answers: CacheConfig
) -> AsyncIterator[PoolingClient]:
    """Open a cross-encoder whose scores are those of the cache."""
    facts = replay_engine_info(asked, cache, purpose)
    cache.used |= {
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
            run; `run`: any other change of the run file; `measure`: a measure of the run.
        name: Name of the setting or measure, or purpose of the prompt.
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
            case "measure":
                values = f"{self.old:.4f} → {self.new:.4f} ({self.new - self.old:+.4f})"
                return f"{self.name}, over the recorded topics: {values}"
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


@dataclass(frozen=True, slots=True)
class ReplayComparison:
    """A replay or a new run, its differences from the recorded run, and its folder.

    None if the replay failed.
    """

    differences: list[RunDifference]
    config: Config
    run: Path | None


async def check_folder(folder: Path) -> list[RunDifference]:
    """Return how a replay with the current program and templates differs from the recorded run of a folder.

    A run that cannot be read has that error as its only difference.
    """
    try:
        with tempfile.TemporaryDirectory() as name:
            return (await compare_replay(open_snapshot(folder), Path(name))).differences
    except (ToucheError, OSError) as error:
        text = describe_os_error(error) if isinstance(error, OSError) else str(error)
        return [RunDifference("error", text=text)]


async def compare_replay(snapshot: Snapshot, work: Path) -> ReplayComparison:
    """Replay a recorded run in the empty folder `work`, where the run remains, and compare both."""
    config = snapshot.config().model_copy(update={"index": work / "index"})
    settings = _compare_settings(snapshot, config)
    try:
        now = await replay(config, snapshot.first_stage, work, snapshot.folder)
    except ToucheError as error:
        return ReplayComparison([RunDifference("error", text=str(error)), *settings], config, None)
    if now.missing:
        prompts = _compare_prompts(snapshot, now)
        return ReplayComparison([*settings, *prompts, *list_missing(now.missing)], config, None)
    differences = compare_runs(snapshot, now.directory.run_file)
    return ReplayComparison(
        [*settings, *differences] if differences else [], config, now.directory.path
    )


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
    templates = snapshot.read_templates()
    for purpose in now.missing:
        prompt = now.prompts[purpose]
        old, new = (
            [line for name in sorted(texts) for line in (f"[{name}]", *texts[name].splitlines())]
            for texts in (templates[purpose], list_texts(prompt))
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
    examples = examples_path(prompt.path)
    return texts | ({examples.name: read_text(examples)} if prompt.examples else {})


def compare_runs(snapshot: Snapshot, run: Path) -> list[RunDifference]:
    """Compare a run file with the recorded one; include measures if judgments were recorded."""
    if run.read_bytes() == snapshot.run.read_bytes():
        return []
    old, new = (read_run(file, snapshot.task.stances) for file in (snapshot.run, run))
    if not (differences := compare_rankings(old, new)):
        return [RunDifference("run", text="ranks and stances are equal, scores or the tag differ")]
    qrels = snapshot.qrels()
    return differences if qrels is None else [*differences, *compare_measures(old, new, qrels)]


def compare_rankings(old: ParsedRun, new: ParsedRun) -> list[RunDifference]:
    """Compare the ranks, largest moves first, then the stances of two runs.

    None stands for a document that is missing from a run.
    """
    before, now = (
        {
            (topic, each.document_id): each.rank
            for topic, ranking in run.rankings.items()
            for each in ranking
        }
        for run in (old, new)
    )
    moved = [
        RunDifference("rank", "", *key, old=rank, new=new_rank)
        for key, rank, new_rank in _compare(before, now)
    ]
    longest = max(map(len, [*old.rankings.values(), *new.rankings.values()]), default=0)
    # A document that only one run has counts as the furthest move.
    moved.sort(key=lambda move: -abs((move.old or 2 * longest + 1) - (move.new or 2 * longest + 1)))
    stances = ({key: run.stances.get(key) for key in before if key in now} for run in (old, new))
    return moved + [
        RunDifference("stance", "", *key, old=one, new=other)
        for key, one, other in _compare(*stances)
    ]


def compare_measures(old: ParsedRun, new: ParsedRun, qrels: Qrels) -> list[RunDifference]:
    """Return nDCG@5 of each graded aspect and macro-F1 of the stances in both runs, changed or not."""
    # Imported here because pandas is slow to load.
    from touche_llm.evaluation.measures import evaluate_run, list_headline

    before, now = (evaluate_run("run", ranking, qrels).estimates for ranking in (old, new))
    return [
        RunDifference("measure", str(measure), old=before[measure].value, new=now[measure].value)
        for measure in list_headline(qrels)
    ]


def compare_new_run(snapshot: Snapshot, run: Path) -> ReplayComparison:
    """Compare the settings, ranks and measures of a recorded run with those of a new run in the folder `run`."""
    config = load_finished_run(run)
    if (own := get_task(config.task).name) != snapshot.task.name:
        raise UsageError(f"{run}: a run of {own}; {snapshot.folder} is one of {snapshot.task.name}")
    return ReplayComparison(
        [*_compare_settings(snapshot, config), *compare_runs(snapshot, run / RUN)], config, run
    )


def require_run(snapshot: Snapshot, compared: ReplayComparison) -> Path:
    """Return the run that an update would store; raise UsageError if the replay gave none."""
    if compared.run is None:
        raise UsageError(
            f"{snapshot.folder}: the recorded answers no longer suffice; make a new run of its topics, and give its "
            "folder (`run: FOLDER`)"
        )
    return compared.run
