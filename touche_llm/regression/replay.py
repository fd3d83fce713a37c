"""Offline replay of a recorded run that collects its requests and missing answers."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from touche_llm.config import Config
from touche_llm.data.records import Cut
from touche_llm.errors import ToucheError
from touche_llm.llm.answers import Answer, AnswerT, FailedRequest, Unusable
from touche_llm.llm.cache import Cache, CacheMode, Entry, ValueT, ValueType
from touche_llm.llm.engine import EngineInfo
from touche_llm.llm.model import AnsweredRequest, ModelClient
from touche_llm.llm.pooling import PoolingClient
from touche_llm.llm.recorder import TOKEN_CHARS
from touche_llm.llm.request import Request
from touche_llm.llm.settings import CacheConfig, PoolingConfig, Purpose
from touche_llm.llm.truncation import Truncation, apply_truncation
from touche_llm.pipeline.context import RunContext
from touche_llm.pipeline.engines import OpenPooling, name_kind, open_model, replay_engine_info
from touche_llm.pipeline.progress import SilentProgress
from touche_llm.pipeline.run_directory import RunDirectory
from touche_llm.pipeline.stages import judge_stage, rank_stage
from touche_llm.prompts.prompt import Prompt
from touche_llm.ranking.expansion import ExpansionSettings
from touche_llm.text.passages import RankedPassages


class RequestId(NamedTuple):
    """Identity of a request within a run; `number` separates requests about the same topic and document."""

    purpose: str
    topic: str
    document: str | None
    number: int = 0


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Result of a replay.

    Attributes:
        directory: Folder of the replayed run; without a run file if the replay ended early.
        prompts: Prompts by purpose.
        requests: All requests, in the order in which they were made.
        missing: Requests whose answer or document length is not in the cassette.
        unmeasured: Purposes for which a length is missing, so that truncation can differ.
        used_keys: Keys of the cache entries that were read.
        facts: Facts about the engine.
        problem: Why the replay ended early; empty if it did not. Only set if answers are missing.
    """

    directory: RunDirectory
    prompts: dict[str, Prompt]
    requests: dict[RequestId, Request]
    missing: list[RequestId]
    unmeasured: set[str]
    used_keys: set[str]
    facts: EngineInfo
    problem: str = ""


async def replay(config: Config, first_stage: Path, work: Path, place: Path) -> ReplayResult:
    """Judge and rank a first stage with cached answers only.

    A missing answer is replaced by another cached answer for the same topic and document, so that later requests are
    reached; the resulting run is then meaningless.

    Args:
        config: Configuration of the replay.
        first_stage: File of candidates.
        work: Empty folder for the run and the index of its documents.
        place: Folder that error messages name instead of `work`.

    Raises:
        ToucheError: As the stages, if no answer is missing.
    """
    directory = RunDirectory(work / "run")
    directory.create()
    shutil.copyfile(first_stage, directory.path / first_stage.name)
    # The first stage is given, so no query is expanded.
    config = config.model_copy(update={"index": work / "index", "expansion": ExpansionSettings()})
    problem = ""
    try:
        with RunContext(config, SilentProgress()) as context:
            prompts = context.load_prompts()
            async with open_model(config.engine, config.sampling, config.cache) as opened:
                with closing(_RecordingCache(config.cache.file, CacheMode.REPLAY)) as cache:
                    model = context.model = _SubstitutingClient(
                        engine_info=opened.engine_info,
                        engine=None,
                        cache=cache,
                        resample_temperature=opened.resample_temperature,
                    )
                    context.open_pooling = _make_opener(cache)
                    try:
                        await judge_stage(context, directory)
                        await rank_stage(context, directory)
                    except ToucheError as error:
                        if not model.unknown:
                            raise
                        _replace_paths(error, directory, work, place)
                        problem = str(error)
        # Two templates from different folders can have one name.
        purposes = {(prompt.name, prompt.hash): purpose for purpose, prompt in prompts.items()}
        requests, missing = _identify_requests(model, purposes)
        unmeasured = {_purpose(request, purposes) for request in model.unmeasured.values()}
        return ReplayResult(directory, prompts, requests, missing, unmeasured, cache.used, model.engine_info, problem)
    except ToucheError as error:
        _replace_paths(error, directory, work, place)
        raise


def _replace_paths(error: ToucheError, directory: RunDirectory, work: Path, place: Path) -> None:
    """Let the message of an error name `place` instead of temporary folders."""
    error.args = (str(error).replace(str(directory), str(place)).replace(str(work), str(place)),)


_Purposes = Mapping[tuple[str, str], str]


def _purpose(request: Request, purposes: _Purposes) -> str:
    return purposes[request.origin.prompt, request.origin.prompt_hash]


def _identify_requests(
    model: _SubstitutingClient, purposes: _Purposes
) -> tuple[dict[RequestId, Request], list[RequestId]]:
    """Return the requests by their identity, and the identities of those with missing entries."""
    requests: dict[RequestId, Request] = {}
    missing: list[RequestId] = []
    for request in model.requests:
        key = _request_id(request, purposes)
        while key in requests:
            key = key._replace(number=key.number + 1)
        requests[key] = request
        if request.key in model.unknown:
            missing.append(key)
    # A missing length adds nothing to a missing answer of the same prompt and topic, nor does that of the chat
    # template, which has no topic.
    reported = {key[:2] for key in missing} | {(key.purpose, "") for key in missing}
    for request in model.unmeasured.values():
        key = _request_id(request, purposes)
        if key[:2] not in reported and key not in missing:
            missing.append(key)
    return requests, missing


def _request_id(request: Request, purposes: _Purposes) -> RequestId:
    return RequestId(_purpose(request, purposes), request.origin.topic_id, request.origin.document_id)


class _RecordingCache(Cache):
    """A cache that records the keys of the entries that were read."""

    def __init__(self, path: Path, mode: CacheMode) -> None:
        super().__init__(path, mode)
        self.used: set[str] = set()

    def get(self, key: str, model: ValueType[ValueT], *, refreshed: bool = False) -> ValueT | None:
        """Return the value of a key and record the key."""
        value = super().get(key, model, refreshed=refreshed)
        if value is not None:
            self.used.add(key)
        return value


def _make_opener(cache: _RecordingCache) -> OpenPooling:
    """Return a function that opens cross-encoders whose scores are those of the cache."""

    @asynccontextmanager
    async def open_recorded(
        purpose: Purpose, asked: PoolingConfig, answers: CacheConfig
    ) -> AsyncIterator[PoolingClient]:
        facts = replay_engine_info(asked, cache, purpose)
        cache.used |= {entry.key for entry in cache.find(name_kind(purpose)) if entry.read(EngineInfo) == facts}
        yield PoolingClient(engine_info=facts, engine=None, cache=cache, purpose=purpose)

    return open_recorded


@dataclass
class _SubstitutingClient(ModelClient):
    """A replaying model that records requests and substitutes a similar answer for a missing one."""

    requests: list[Request] = field(default_factory=list)
    unknown: dict[str, Request] = field(default_factory=dict)
    unmeasured: dict[str, Request] = field(default_factory=dict)

    async def request_one(self, request: Request, model: type[AnswerT]) -> AnsweredRequest[AnswerT] | FailedRequest:
        """Return the result, or an answer about the same document that fits the answer model."""
        self.requests.append(request)
        result = await super().request_one(request, model)
        if isinstance(result, AnsweredRequest) or result.attempts:
            return result
        self.unknown[request.key] = request
        for entry in self._find_similar("answer", request):
            answer = entry.read(Answer)
            try:
                return AnsweredRequest.read(answer, request, model)
            except Unusable:
                continue  # an answer to another prompt
        return result

    async def truncate_document(
        self, request: Callable[[str], Request], whole: Request, document: str | RankedPassages, room: int
    ) -> tuple[str, Cut | None] | FailedRequest:
        """Truncate the document; if its length is not cached, as for the recorded prompt."""
        found = await super().truncate_document(request, whole, document, room)
        if not isinstance(found, FailedRequest):
            return found
        self.unmeasured[whole.key] = whole
        near = self._find_similar("fit", whole)
        return apply_truncation(document, near[0].read(Truncation) if near else Truncation(prompt_tokens=0))

    async def count_tokens(self, request: Request) -> int | FailedRequest:
        """Return the prompt tokens; if not cached, those of the recorded prompt or an estimate."""
        found = await super().count_tokens(request)
        if not isinstance(found, FailedRequest):
            return found
        self.unmeasured[request.key] = request
        near = self._find_similar("fit", request)
        if near:
            return near[0].read(Truncation).prompt_tokens
        return self.engine_info.overhead + sum(len(message.content) for message in request.messages) // TOKEN_CHARS

    def raise_on_misses(self) -> None:
        """Do nothing: the replay continues and reports missing answers at its end."""

    def _find_similar(self, kind: str, request: Request) -> list[Entry]:
        """Find entries about the same topic and document, those of the same prompt first."""
        origin = request.origin
        found = self.cache.find(kind, topic=origin.topic_id, document=origin.document_id)
        return sorted(found, key=lambda entry: entry.prompt != origin.prompt)
