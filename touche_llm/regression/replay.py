"""Going the way of a recorded run once more, offline, and keeping account of all that is asked on it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from touche_llm.config import Config
from touche_llm.data.records import Cut
from touche_llm.errors import ToucheError
from touche_llm.llm.answers import Answer, AnswerT, Unanswered, Unusable, parse
from touche_llm.llm.cache import Cache, CacheMode, Form
from touche_llm.llm.cache_file import Entry, ValueT
from touche_llm.llm.counts import Counts
from touche_llm.llm.engines.base import EngineFacts
from touche_llm.llm.model import Answered, LanguageModel
from touche_llm.llm.request import Request
from touche_llm.llm.truncation import Fit, shown
from touche_llm.pipeline.common import prompts_of
from touche_llm.pipeline.dry_run import rename
from touche_llm.pipeline.engines import open_model
from touche_llm.pipeline.judge import judge_stage
from touche_llm.pipeline.rank import rank_stage
from touche_llm.pipeline.run_files import RUN
from touche_llm.prompts.prompt import Prompt
from touche_llm.ranking.expansion import ExpansionSettings
from touche_llm.tasks import get_task
from touche_llm.text.passages import RankedPassages

_TOKEN_CHARS = 4


class Place(NamedTuple):
    """Where a request stands in a run: what it is for, about what, and which of several about the same it is."""

    purpose: str
    topic: str
    document: str | None
    number: int = 0


@dataclass(frozen=True, slots=True)
class Walk:
    """What was seen on the way.

    Attributes:
        folder: of the run that came out.
        prompts: by purpose.
        asked: every request, in the order of asking.
        missing: those of them whose answer, or whose document's length, the cassette does not hold.
        unmeasured: the purposes for which a length is missing, so that documents can be cut otherwise.
        used: the keys of the entries that were read.
        facts: the engine's.
        problem: why the way ended early; empty where it did not. Only where something is missing.
    """

    folder: Path
    prompts: dict[str, Prompt]
    asked: dict[Place, Request]
    missing: list[Place]
    unmeasured: set[str]
    used: set[str]
    facts: EngineFacts
    problem: str = ""

    @property
    def run(self) -> Path:
        """The run that came out; not there where the way ended early."""
        return self.folder / RUN


async def walk(config: Config, first_stage: Path, work: Path, place: Path) -> Walk:
    """Judge and rank from a first stage, with the answers of the configuration's cache alone.

    Where an answer is missing, an answer that the cache holds for the same topic and document stands in, so that the
    way goes on to what is asked after it; the run that comes out then means nothing.

    Args:
        config: what is asked for.
        first_stage: the file of candidates.
        work: an empty folder, for the run and the index of its documents.
        place: what messages name instead of `work`.

    Raises:
        ToucheError: as the stages, where nothing is missing.
    """
    folder = work / "run"
    folder.mkdir()
    shutil.copyfile(first_stage, folder / first_stage.name)
    # The first stage is there: nothing is searched for any more.
    config = config.model_copy(update={"index": work / "index", "expansion": ExpansionSettings()})
    problem = ""
    names = {str(folder): str(place), str(work): str(place)}
    try:
        prompts = prompts_of(config, get_task(config.task))
        async with open_model(config) as opened:
            with closing(_NotingCache(config.cache.file, CacheMode.REPLAY)) as cache:
                model = _StandIn(
                    facts=opened.facts, engine=None, cache=cache, resample_temperature=opened.resample_temperature
                )
                try:
                    await judge_stage(config, folder, _Silent(), model)
                    await rank_stage(config, folder, _Silent(), model)
                except ToucheError as error:
                    if not model.unknown:
                        raise
                    rename(error, names)
                    problem = str(error)
        # Two templates from different folders can have one name.
        purposes = {(prompt.name, prompt.hash): purpose for purpose, prompt in prompts.items()}
        asked, missing = _placed(model, purposes)
        unmeasured = {_purpose(request, purposes) for request in model.unmeasured.values()}
        return Walk(folder, prompts, asked, missing, unmeasured, cache.used, model.facts, problem)
    except ToucheError as error:
        rename(error, names)
        raise


_Purposes = Mapping[tuple[str, str], str]


def _purpose(request: Request, purposes: _Purposes) -> str:
    return purposes[request.origin.prompt, request.origin.prompt_hash]


def _placed(model: _StandIn, purposes: _Purposes) -> tuple[dict[Place, Request], list[Place]]:
    asked: dict[Place, Request] = {}
    missing: list[Place] = []
    for request in model.asked:
        origin = request.origin
        place = Place(_purpose(request, purposes), origin.topic_id, origin.document_id)
        while place in asked:
            place = place._replace(number=place.number + 1)
        asked[place] = request
        if request.key in model.unknown:
            missing.append(place)
    # Lengths alone: a missing answer of the same prompt and topic tells the same. That of a chat template has no topic.
    told = {each[:2] for each in missing} | {(each.purpose, "") for each in missing}
    for request in model.unmeasured.values():
        origin = request.origin
        place = Place(_purpose(request, purposes), origin.topic_id, origin.document_id)
        if place[:2] not in told and place not in missing:
            missing.append(place)
    return asked, missing


class _Silent:
    """Progress that shows nothing: a replay reports differences only."""

    def warn(self, message: str) -> None:
        pass

    @contextmanager
    def stage(self, title: str, total: int, counts: Counts | None = None) -> Iterator[Callable[[], None]]:
        yield lambda: None


class _NotingCache(Cache):
    """A cache that notes which of its entries were read."""

    def __init__(self, path: Path, mode: CacheMode) -> None:
        super().__init__(path, mode)
        self.used: set[str] = set()

    def get(self, key: str, model: Form[ValueT], *, refreshed: bool = False) -> ValueT | None:
        """The value under a key, noted."""
        found = super().get(key, model, refreshed=refreshed)
        if found is not None:
            self.used.add(key)
        return found


@dataclass
class _StandIn(LanguageModel):
    """A model in replay that notes what it is asked, and takes a near answer where the right one is missing."""

    asked: list[Request] = field(default_factory=list)
    unknown: dict[str, Request] = field(default_factory=dict)
    unmeasured: dict[str, Request] = field(default_factory=dict)

    async def ask(self, request: Request, model: type[AnswerT]) -> Answered[AnswerT] | Unanswered:
        """The answer or the failure, or an answer to another question about the same that fits the answer model."""
        self.asked.append(request)
        result = await super().ask(request, model)
        if isinstance(result, Answered) or result.attempts:
            return result
        self.unknown[request.key] = request
        for entry in self._near("answer", request):
            answer = entry.read(Answer)
            try:
                return Answered(parse(answer.text, model), answer, request.key, request.sample)
            except Unusable:
                continue  # of another prompt
        return result

    async def shorten(
        self, request: Callable[[str], Request], whole: Request, document: str | RankedPassages, room: int
    ) -> tuple[str, Cut | None] | Unanswered:
        """The text of the document, cut as it was for the recorded prompt where its length was not measured anew."""
        found = await super().shorten(request, whole, document, room)
        if not isinstance(found, Unanswered):
            return found
        self.unmeasured[whole.key] = whole
        near = self._near("fit", whole)
        return shown(document, near[0].read(Fit) if near else Fit(prompt_tokens=0))

    async def count_tokens(self, request: Request) -> int | Unanswered:
        """The number of prompt tokens, or that of the recorded prompt, or about four characters a token."""
        found = await super().count_tokens(request)
        if not isinstance(found, Unanswered):
            return found
        self.unmeasured[request.key] = request
        near = self._near("fit", request)
        if near:
            return near[0].read(Fit).prompt_tokens
        return self.facts.overhead + sum(len(message.content) for message in request.messages) // _TOKEN_CHARS

    def raise_on_misses(self) -> None:
        """Nothing: the way goes on, and what is missing is told at its end."""

    def _near(self, kind: str, request: Request) -> list[Entry]:
        """What the cache holds about the same, answers to the same prompt first."""
        origin = request.origin
        found = self.cache.find(kind, topic=origin.topic_id, document=origin.document_id)
        return sorted(found, key=lambda entry: entry.prompt != origin.prompt)
