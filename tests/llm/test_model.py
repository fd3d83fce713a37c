"""Model client: truncation, token counts, replay, shared requests."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.answer_models import ComparativeJudgment, judge_request
from tests.scripted_engine import FACTS, Label, ScriptedEngine
from touche_llm.data.records import Cut, Topic
from touche_llm.errors import DataError, PromptError, Rejected, ReplayMiss
from touche_llm.judging.requests import make_failure
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.client import FailedRequest, UncachedRequest
from touche_llm.llm.model import AnsweredRequest, ModelClient
from touche_llm.llm.protocol import Completion
from touche_llm.llm.request import Message, Origin, Request, Sampling
from touche_llm.llm.settings import SamplingConfig
from touche_llm.prompts.purposes import load_named
from touche_llm.tasks import get_task
from touche_llm.text.analysis import Analyzer
from touche_llm.text.passages import rank_passages

ANSWER: Mapping[str, Label] = {"relevance": 2, "quality": 1, "stance": "NO"}
SENTENCES = " ".join(f"This is sentence number {n} of the passage." for n in range(200))


def request_about(document: str) -> Request:
    messages = (Message("system", "Judge." * 20), Message("user", f"Passage: {document}"))
    origin = Origin("comparative/judge", 1, "aaaa", "7", "doc")
    return judge_request(
        "", messages=messages, sampling=Sampling(max_tokens=50), model="scripted", origin=origin
    )


def model_with(
    cache: Cache, context: int = 32768, engine: bool = True
) -> tuple[ModelClient, ScriptedEngine]:
    scripted = ScriptedEngine(lambda _: ANSWER)
    info = FACTS.model_copy(update={"context": context, "overhead": 0})
    return ModelClient(
        engine_info=info,
        engine=scripted if engine else None,
        cache=cache,
        sampling=SamplingConfig(),
    ), scripted


async def test_a_long_document_is_truncated_at_a_sentence_end(tmp_path: Path) -> None:
    context = 150
    with Cache(tmp_path / "c.sqlite") as cache:
        model, engine = model_with(cache, context)
        _, cut = await model.request_truncated(request_about, SENTENCES, ComparativeJudgment)
    assert isinstance(cut, Cut)
    (sent,) = engine.requests
    kept = sent.messages[1].content.removeprefix("Passage: ").removesuffix(" …")
    assert SENTENCES.startswith(kept) and kept.endswith(".")
    assert (cut.kept_chars, cut.of_chars) == (len(kept), len(SENTENCES))
    assert cut.prompt_tokens == await engine.count_tokens(sent.messages) <= context - 50
    # Not more is lost than a fifth for the sentence end.
    assert cut.prompt_tokens > 0.7 * (context - 50)
    assert model.counts.cut == 1


class ByteEngine(ScriptedEngine):
    """An engine with a byte for each token, and forty tokens for the chat template."""

    async def count_tokens(self, messages: tuple[Message, ...]) -> int:
        return 40 + sum(len(message.content.encode()) for message in messages)

    async def truncate(self, text: str, max_tokens: int) -> str:
        return text[:max_tokens]


@pytest.mark.parametrize("example", [(), (Message("user", "Q"), Message("assistant", "A"))])
async def test_the_chat_template_counts_for_whether_a_whole_document_fits(
    tmp_path: Path, example: tuple[Message, ...]
) -> None:
    engine, room = ByteEngine(lambda _: ANSWER), 250

    def build_request(document: str) -> Request:
        request = request_about(document)
        system, user = request.messages
        return replace(request, messages=(system, *example, user))

    without_document = await engine.count_tokens(build_request("").messages)
    fitting = room - without_document
    info = FACTS.model_copy(update={"context": room + 50, "overhead": 40})
    with Cache(tmp_path / "c.sqlite") as cache:
        model = ModelClient(engine_info=info, engine=engine, cache=cache, sampling=SamplingConfig())
        # Without the template, documents with up to forty bytes more would fit.
        for size in (fitting - 1, fitting, fitting + 1, fitting + 39):
            document = SENTENCES[:size]
            _, cut = await model.request_truncated(build_request, document, ComparativeJudgment)
            sent = engine.requests[-1]
            assert (cut is None) is (size <= fitting)
            assert await engine.count_tokens(sent.messages) <= room


async def test_refresh_forgets_old_samples_so_that_a_replay_finds_what_the_run_used(
    tmp_path: Path,
) -> None:
    request = request_about("x")
    with Cache(tmp_path / "c.sqlite") as cache:
        await model_with(cache)[0].request(request, ComparativeJudgment)
    new: Mapping[str, Label] = {"relevance": 0, "quality": 0, "stance": "FIRST"}
    with Cache(tmp_path / "c.sqlite", CacheMode.REFRESH) as cache:
        model, _ = model_with(cache)
        model.engine = ScriptedEngine(
            lambda sent: new if sent.sample else {**new, "stance": "NONE"}
        )
        refreshed = await model.request(request, ComparativeJudgment)
    assert isinstance(refreshed, AnsweredRequest) and refreshed.sample == 1
    with Cache(tmp_path / "c.sqlite", CacheMode.REPLAY) as cache:
        assert (
            await model_with(cache, engine=False)[0].request(request, ComparativeJudgment)
            == refreshed
        )


async def test_a_prompt_that_leaves_no_room_is_an_error(tmp_path: Path) -> None:
    with Cache(tmp_path / "c.sqlite") as cache:
        model, _ = model_with(cache, 80)
        with pytest.raises(PromptError, match=r"\b30\b.*`engine.context`") as raised:
            await model.request_truncated(request_about, SENTENCES, ComparativeJudgment)
    assert raised.value.location == "prompt comparative/judge, topic 7, document doc"


TOPIC = Topic(
    "7",
    "Is vaping safe?",
    "A user wonders about risks.",
    "Arguments name effects of nicotine on the health.",
)
ARGUMENT = "Vaping is safer than smoking, since nicotine harms the health less than tar does."
PAGE = "Home\nLog in\nAbout us\nSitemap\n" + "\n".join(
    [*(f"The fair of {n} was held on the green near the mill." for n in range(400)), ARGUMENT]
    + [f"The choir sang song number {n} on that day, and everybody liked it." for n in range(400)]
)


def sent_about(engine: ScriptedEngine) -> str:
    return engine.requests[0].messages[1].content.removeprefix("Passage: ")


@pytest.mark.parametrize("context", [300, 1000])
async def test_an_argument_in_the_middle_of_a_long_page_is_kept_if_the_context_is_small(
    tmp_path: Path, context: int
) -> None:
    document = rank_passages(PAGE, TOPIC, Analyzer())
    with Cache(tmp_path / "c.sqlite") as cache:
        model, engine = model_with(cache, context)
        result, cut = await model.request_truncated(request_about, document, ComparativeJudgment)
        (fit,) = cache.find("fit")
    assert isinstance(result, AnsweredRequest) and cut is not None and cut.parts is not None
    text = sent_about(engine)
    assert ARGUMENT in text and "Sitemap" not in text
    # Line feeds of the page are kept.
    assert [PAGE[start:end] for start, end in cut.parts] == [
        each.strip() for each in text.split("…") if each.strip()
    ]
    assert (cut.kept_chars, cut.of_chars) == (
        sum(end - start for start, end in cut.parts),
        len(PAGE),
    )
    assert (
        cut.prompt_tokens == await engine.count_tokens(engine.requests[0].messages) <= context - 50
    )
    more = request_about(document.best(fit.value["passages"] + 1).text)
    assert await engine.count_tokens(more.messages) > context - 50
    assert model.counts.cut == 1


@pytest.mark.parametrize("context", [150, 400])
async def test_a_replay_keeps_the_same_passages_without_an_engine(
    tmp_path: Path, context: int
) -> None:
    document = rank_passages(PAGE, TOPIC, Analyzer())
    with Cache(tmp_path / "c.sqlite") as cache:
        before = await model_with(cache, context)[0].request_truncated(
            request_about, document, ComparativeJudgment
        )
    with Cache(tmp_path / "c.sqlite", CacheMode.REPLAY) as cache:
        model, _ = model_with(cache, context, engine=False)
        again = rank_passages(PAGE, TOPIC, Analyzer())
        assert await model.request_truncated(request_about, again, ComparativeJudgment) == before
        model.raise_on_misses()
        # The truncation of a text, or of other passages of it, is cached under another key.
        for other in (
            document.whole.text,
            rank_passages(PAGE, TOPIC, Analyzer(), passage_chars=300),
        ):
            await model.request_truncated(request_about, other, ComparativeJudgment)
        assert len(model.misses) == 2


async def test_a_replay_miss_names_the_first_request(tmp_path: Path) -> None:
    request = request_about("x")
    Cache(tmp_path / "c.sqlite").close()
    with Cache(tmp_path / "c.sqlite", CacheMode.REPLAY) as cache:
        model, _ = model_with(cache, engine=False)
        for missing in (request, request_about("y")):
            assert await model.request(missing, ComparativeJudgment) == UncachedRequest(missing)
        with pytest.raises(
            ReplayMiss, match=r"lacks 2 .*scripted .*judge version 1 \(aaaa\) .*document doc"
        ) as raised:
            model.raise_on_misses()
    assert raised.value.location == str(cache.path)


@pytest.mark.parametrize("damaged", ["text", "probabilities"])
async def test_an_unusable_cached_answer_is_an_error_with_its_key(
    tmp_path: Path, damaged: str
) -> None:
    request = request_about("x")
    with Cache(tmp_path / "c.sqlite") as cache:
        model, _ = model_with(cache)
        await model.request(request, ComparativeJudgment)
        (entry,) = cache.iterate_entries()
        cache.forget([entry.key])
        # Probabilities exceed 1 in sum.
        tokens = [{**token, "top": [["2", -0.1], ["1", -0.1]]} for token in entry.value["tokens"]]
        value: dict[str, object] = {"text": "{}"} if damaged == "text" else {"tokens": tokens}
        cache.put(msgspec.structs.replace(entry, value={**entry.value, **value}))
        with pytest.raises(DataError, match=request.key):
            await model.request(request, ComparativeJudgment)


class Held(ScriptedEngine):
    """Answers once `let` is set."""

    def __init__(self) -> None:
        super().__init__(lambda _: ANSWER)
        self.let = asyncio.Event()

    async def complete(self, request: Request) -> Completion:
        completion = await super().complete(request)
        await self.let.wait()
        return completion


async def test_when_a_request_is_cancelled_no_task_waits_forever_and_it_can_be_sent_again(
    tmp_path: Path,
) -> None:
    engine = Held()
    with Cache(tmp_path / "c.sqlite") as cache:
        model = ModelClient(
            engine_info=FACTS, engine=engine, cache=cache, sampling=SamplingConfig()
        )
        first, waiter = (
            asyncio.create_task(model.request(request_about("tea"), ComparativeJudgment))
            for _ in range(2)
        )
        while not engine.requests:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        first.cancel()
        ended = await asyncio.wait_for(
            asyncio.gather(first, waiter, return_exceptions=True), timeout=60
        )
        assert [type(each) for each in ended] == [asyncio.CancelledError] * 2
        engine.let.set()
        assert isinstance(
            await model.request(request_about("tea"), ComparativeJudgment), AnsweredRequest
        )
    assert len(engine.requests) == 2


async def test_the_kind_of_a_failure_is_that_of_its_last_attempt(tmp_path: Path) -> None:
    class Fickle(ScriptedEngine):
        async def complete(self, request: Request) -> Completion:
            if request.sample:
                raise Rejected(400, "too long")
            return Completion(
                text="no JSON",
                finish_reason="stop",
                prompt_tokens=9,
                completion_tokens=2,
                tokens=[],
            )

    with Cache(tmp_path / "c.sqlite") as cache:
        model = ModelClient(
            engine_info=FACTS,
            engine=Fickle(lambda _: ANSWER),
            cache=cache,
            sampling=SamplingConfig(),
        )
        result = await model.request(request_about("tea"), ComparativeJudgment)
    assert isinstance(result, FailedRequest)
    assert [(each.sample, each.kind) for each in result.attempts] == [
        (0, "not_json"),
        (1, "server_error"),
    ]
    failed = make_failure(TOPIC, "d", load_named(get_task("comparative"), "judge")[1], result)
    assert failed is not None
    assert (failed.kind, failed.attempts) == ("server_error", result.attempts)
