"""Cutting, counting, replaying: what the stages rely on beside the answers themselves."""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.scripted_engine import FACTS, Label, ScriptedEngine
from touche_llm.errors import DataError, PromptError, ReplayMiss
from touche_llm.llm.answer import Answer, schema_of
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.concurrency import in_order
from touche_llm.llm.language_model import Answered, LanguageModel, Unanswered
from touche_llm.llm.request import Message, Origin, Request, Sampling
from touche_llm.records import Cut
from touche_llm.tasks.comparative import ComparativeJudgment

ANSWER: Mapping[str, Label] = {"relevance": 2, "quality": 1, "stance": "NO"}
SENTENCES = " ".join(f"This is sentence number {n} of the passage." for n in range(200))


def request_about(document: str) -> Request:
    return Request(
        messages=(Message("system", "Judge." * 20), Message("user", f"Passage: {document}")),
        schema=schema_of(ComparativeJudgment),
        sampling=Sampling(max_tokens=50),
        model="scripted",
        revision="",
        chat_template_kwargs={},
        origin=Origin("comparative/judge", 1, "aaaa", "7", "doc"),
    )


def model_with(cache: Cache, context: int = 32768, engine: bool = True) -> tuple[LanguageModel, ScriptedEngine]:
    scripted = ScriptedEngine(lambda _: ANSWER)
    facts = FACTS.model_copy(update={"context": context, "overhead": 0})
    return LanguageModel(facts=facts, engine=scripted if engine else None, cache=cache), scripted


async def test_a_document_that_must_fit_is_not_measured(tmp_path: Path) -> None:
    with Cache(tmp_path / "c.sqlite") as cache:
        model, engine = model_with(cache)
        engine.count_tokens = None  # type: ignore[method-assign, assignment]
        result, cut = await model.ask_about(request_about, "short", ComparativeJudgment)
    assert isinstance(result, Answered)
    assert cut is None


async def test_a_document_that_fits_after_counting_is_whole(tmp_path: Path) -> None:
    with Cache(tmp_path / "c.sqlite") as cache:
        # 8,600 bytes could be 8,600 tokens, but are 2,200 here.
        model, engine = model_with(cache, context=4096)
        _, cut = await model.ask_about(request_about, SENTENCES, ComparativeJudgment)
    assert cut is None
    assert engine.requests[0].messages[1].content == f"Passage: {SENTENCES}"


@pytest.mark.parametrize("context", [150, 333, 1000, 2000])
async def test_a_long_document_is_cut_at_a_sentence_end_within_the_context(tmp_path: Path, context: int) -> None:
    with Cache(tmp_path / "c.sqlite") as cache:
        model, engine = model_with(cache, context)
        _, cut = await model.ask_about(request_about, SENTENCES, ComparativeJudgment)
    assert isinstance(cut, Cut)
    (sent,) = engine.requests
    kept = sent.messages[1].content.removeprefix("Passage: ").removesuffix(" …")
    assert SENTENCES.startswith(kept) and kept.endswith(".")
    assert (cut.kept_chars, cut.of_chars) == (len(kept), len(SENTENCES))
    assert cut.prompt_tokens == await engine.count_tokens(sent.messages) <= context - 50
    # Not more is lost than a fifth for the sentence end.
    assert cut.prompt_tokens > 0.7 * (context - 50)
    assert model.counts.cut == 1


class ComposingEngine(ScriptedEngine):
    """Its tokeniser composes characters, as NFC normalisers do: text does not come back as it went in."""

    async def count_tokens(self, messages: tuple[Message, ...]) -> int:
        return sum(len(unicodedata.normalize("NFC", message.content)) for message in messages) // 4

    async def head(self, text: str, tokens: int) -> str:
        return text[: len(unicodedata.normalize("NFC", text)[: tokens * 4])]


async def test_a_text_that_the_tokeniser_normalises_is_cut_where_it_is_too_long(tmp_path: Path) -> None:
    decomposed = unicodedata.normalize("NFD", "É un café. " * 800)
    with Cache(tmp_path / "c.sqlite") as cache:
        model, _ = model_with(cache, 1000)
        model.engine = engine = ComposingEngine(lambda _: ANSWER)
        _, cut = await model.ask_about(request_about, decomposed, ComparativeJudgment)
    assert cut is not None
    assert cut.prompt_tokens == await engine.count_tokens(engine.requests[0].messages) <= 950
    assert cut.kept_chars > 2500


async def test_refresh_forgets_old_samples_so_that_a_replay_finds_what_the_run_used(tmp_path: Path) -> None:
    request = request_about("x")
    with Cache(tmp_path / "c.sqlite") as cache:
        await model_with(cache)[0].ask(request, ComparativeJudgment)
    new: Mapping[str, Label] = {"relevance": 0, "quality": 0, "stance": "FIRST"}
    with Cache(tmp_path / "c.sqlite", CacheMode.REFRESH) as cache:
        model, _ = model_with(cache)
        model.engine = ScriptedEngine(lambda asked: new if asked.sample else {**new, "stance": "NONE"})
        refreshed = await model.ask(request, ComparativeJudgment)
    assert isinstance(refreshed, Answered) and refreshed.sample == 1
    with Cache(tmp_path / "c.sqlite", CacheMode.REPLAY) as cache:
        assert await model_with(cache, engine=False)[0].ask(request, ComparativeJudgment) == refreshed


async def test_text_without_sentences_is_cut_at_a_word(tmp_path: Path) -> None:
    words = "lorem ipsum dolor " * 500
    with Cache(tmp_path / "c.sqlite") as cache:
        model, engine = model_with(cache, 500)
        _, cut = await model.ask_about(request_about, words, ComparativeJudgment)
    assert cut is not None
    assert engine.requests[0].messages[1].content.removesuffix(" …").split()[-1] in ("lorem", "ipsum", "dolor")


async def test_a_prompt_that_leaves_no_room_is_never_cut_itself(tmp_path: Path) -> None:
    with Cache(tmp_path / "c.sqlite") as cache:
        model, _ = model_with(cache, 80)
        with pytest.raises(
            PromptError, match="topic 7, document doc: the prompt needs .* tokens without the document, 30 are left"
        ):
            await model.ask_about(request_about, SENTENCES, ComparativeJudgment)


async def test_replay_cuts_as_the_run_did_without_an_engine(tmp_path: Path) -> None:
    with Cache(tmp_path / "c.sqlite") as cache:
        model, _ = model_with(cache, 1000)
        asked = await model.ask_about(request_about, SENTENCES, ComparativeJudgment)
    with Cache(tmp_path / "c.sqlite", CacheMode.REPLAY) as cache:
        model, _ = model_with(cache, 1000, engine=False)
        assert await model.ask_about(request_about, SENTENCES, ComparativeJudgment) == asked
        model.raise_on_misses()


async def test_a_miss_in_replay_says_what_is_missing_and_why(tmp_path: Path) -> None:
    request = request_about("x")
    with Cache(tmp_path / "c.sqlite") as cache:
        await model_with(cache)[0].ask(request, ComparativeJudgment)
    changed = replace(request.origin, prompt_version=2, prompt_hash="bbbb")
    messages = (*request.messages[:1], Message("user", "Another wording: x"))
    cases = {
        r"version 2 \(bbbb\): the prompt changed, the cache has comparative/judge version 1 \(aaaa\)": replace(
            request, origin=changed, messages=messages
        ),
        "the cache has answers of scripted, not of other": replace(request, model="other"),
        "the topic, the document or a setting changed": replace(request, sampling=Sampling(max_tokens=51)),
        r"no usable answer is stored \(never asked, or it failed\)": replace(
            request, messages=messages, origin=replace(request.origin, document_id="new")
        ),
    }
    with Cache(tmp_path / "c.sqlite", CacheMode.REPLAY) as cache:
        for message, miss in cases.items():
            model, _ = model_with(cache, engine=False)
            assert await model.ask(miss, ComparativeJudgment) == Unanswered([])
            with pytest.raises(
                ReplayMiss, match=rf"1 of the answers that the run needs\n  prompt .*{message}: topic 7"
            ):
                model.raise_on_misses()


async def test_a_cached_answer_that_cannot_be_used_is_an_error_that_names_it(tmp_path: Path) -> None:
    request = request_about("x")
    with Cache(tmp_path / "c.sqlite") as cache:
        model, _ = model_with(cache)
        await model.ask(request, ComparativeJudgment)
        (entry,) = cache.entries()
        cache.forget([entry.key])
        cache.put(entry.model_copy(update={"value": {**entry.value, "text": "{}"}}), Answer)
        with pytest.raises(DataError, match=f"cached answer {request.key} cannot be used"):
            await model.ask(request, ComparativeJudgment)


async def test_results_come_in_the_order_asked_and_no_call_waits_for_a_slow_one() -> None:
    release = asyncio.Event()
    finished: list[int] = []

    async def call(item: int) -> int:
        if item == 0:
            await release.wait()
        finished.append(item)
        if len(finished) == 9:
            release.set()
        return item * item

    assert await in_order(call, range(10), concurrency=2) == [n * n for n in range(10)]
    assert finished[-1] == 0


async def test_the_first_error_ends_the_rest() -> None:
    started: list[int] = []

    async def call(item: int) -> None:
        started.append(item)
        if item == 3:
            raise DataError("the third")
        await asyncio.sleep(0.001)

    with pytest.raises(DataError, match="the third"):
        await in_order(call, range(1000), concurrency=2)
    assert len(started) < 10
