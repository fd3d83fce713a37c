"""Requests of a stage as files, replies to them into the cache, and the run that a replay makes of it."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from aiohttp import web
from msgspec.structs import replace

from tests import batch_replies as b
from tests.fake_server import GOOD as GOOD_ANSWER
from tests.fake_server import FakeServer, good, says
from tests.sample_runs import Silent, config_for, run_on
from tests.scripted_engine import FACTS, Label, Script, ScriptedEngine
from tests.write_demo_cassette import script_of
from touche_llm.batch import files as batch_file
from touche_llm.batch.files import Export, Import, import_replies, pending_requests, read_batch, write_requests
from touche_llm.config import Config
from touche_llm.data.files import read_records
from touche_llm.data.records import Failure
from touche_llm.data.trec_runs import read_candidates
from touche_llm.errors import DataError, EngineError, ReplayMiss, UsageError
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.engines.base import Completion
from touche_llm.llm.engines.batch import BatchEngine
from touche_llm.llm.engines.batch_replies import Replies, read_replies
from touche_llm.llm.engines.chat_reply import build_chat_body
from touche_llm.llm.model import MAX_SAMPLES, ModelClient
from touche_llm.llm.request import Message, Request
from touche_llm.llm.tokenizer import ChatTokenizer
from touche_llm.pipeline.candidates import open_corpus
from touche_llm.pipeline.dry_run import StageName
from touche_llm.pipeline.engines import open_model
from touche_llm.pipeline.retrieve import retrieve_stage
from touche_llm.pipeline.run_all import run_all, run_judge, run_rank, run_retrieve, run_stages
from touche_llm.pipeline.run_files import BATCH
from touche_llm.tasks import get_task

STAGES: tuple[StageName, ...] = ("retrieve", "judge", "rank")
SHORT: Mapping[str, Mapping[str, Any]] = {
    "comparative": {"topic": ("3", "20"), "depth": 6, "stance__depth": 3, "expansion__use": True},
    "controversial": {"limit_topics": 1, "depth": 5, "stance__depth": 2},
    "sentence_pairs": {"limit_topics": 1, "depth": 60, "pairs__judged": 6, "pairs__both_orders": 2},
}
STEPS: Mapping[str, tuple[str, ...]] = {
    "comparative": ("judge", "sliding:4", "pairwise:3"),
    "controversial": ("judge", "setwise:5"),
    "sentence_pairs": ("judge", "listwise:5"),
}
COMPARATIVE = script_of("comparative")


def script_for(task: str) -> Script:
    """The answers written for the sample, and other queries."""
    written = script_of(task)

    def script(request: Request) -> Mapping[str, Label | Mapping[Label, float]]:
        if "query1" in request.schema["properties"]:
            return {"query1": "cost and comfort", "query2": "reasons for it", "query3": "what people say"}
        return written(request)

    return script


def short(folder: Path, task: str = "comparative", **flags: Any) -> Config:
    engine = {"engine__model": "scripted", "engine__context": FACTS.context, "ranking__document_tokens": 4000}
    return config_for(folder, **{"task": task, **SHORT[task], "rank": STEPS[task], **engine, **flags})


def simple(folder: Path, **flags: Any) -> Config:
    """One topic, four documents, one question each."""
    return short(folder, topic=("3",), depth=4, stance__depth=0, expansion__use=False, **flags)


async def exported(config: Config, out: Path, stage: StageName = "judge", tokenizer: Path | None = None) -> Export:
    """Export a stage into `requests.jsonl`."""
    found = await pending_requests(stage, config, out, tokenizer, Silent())
    write_requests(found, out, out / "requests.jsonl", 1)
    return found


async def imported(out: Path, *files: Path) -> Import:
    return await import_replies(read_batch(out), out, files, Silent())


async def by_files(
    stage: StageName, config: Config, out: Path, script: Script, tokenizer: Path | None = None
) -> list[list[Request]]:
    """Export and import until nothing is pending; the requests of each round."""
    rounds = []
    while found := (await exported(config, out, stage, tokenizer)).requests:
        rounds.append(found)
        await imported(out, b.write(out / "replies.jsonl", b.answers(found, script)))
    return rounds


def replaying(config: Config) -> Config:
    return config.model_copy(update={"cache": config.cache.model_copy(update={"mode": CacheMode.REPLAY})})


async def replay(stage: StageName, config: Config, out: Path) -> Any:
    """The stage's normal command without a server."""
    alone: Mapping[str, Any] = {"retrieve": run_retrieve, "judge": run_judge, "rank": run_rank}
    return await alone[stage](replaying(config), out, Silent())


async def asked(config: Config, out: Path, engine: ScriptedEngine, facts: Any = FACTS) -> None:
    """The same run with an engine that answers at once, and a cache of its own."""
    with Cache(out.parent / "direct.sqlite") as cache:
        await run_stages(config, out, Silent(), ModelClient(engine_info=facts, engine=engine, cache=cache))


def stored(config: Config, kind: str = "answer") -> set[str]:
    if not config.cache.file.exists():
        return set()
    with Cache(config.cache.file, CacheMode.REPLAY) as cache:
        return {entry.key for entry in cache.find(kind)}


@pytest.mark.parametrize("task", SHORT)
@pytest.mark.slow
async def test_by_files_the_run_is_the_one_of_an_engine_and_no_question_is_asked_in_vain(
    tmp_path: Path, task: str
) -> None:
    config, script = short(tmp_path, task), script_for(task)
    engine = ScriptedEngine(script)
    await asked(config, tmp_path / "direct", engine)
    out, keys, rounds = tmp_path / "out", Counter[str](), {}
    for stage in STAGES:
        found = await by_files(stage, config, out, script)
        await replay(stage, config, out)
        keys.update(request.key for each in found for request in each)
        rounds[stage] = [sorted({request.origin.prompt.split("/")[1] for request in each}) for each in found]
    assert keys == Counter(request.key for request in engine.requests)
    for name in ("run.txt", "judgments.jsonl", "comparisons.jsonl"):
        assert (out / name).read_bytes() == (tmp_path / "direct" / name).read_bytes()
    # What depends on answers comes in a later round.
    of_judge = {
        "comparative": [["objects"], ["judge"], ["stance"]],
        "controversial": [["judge"], ["stance"]],
        "sentence_pairs": [["sentence"], ["judge"], ["judge"]],
    }
    assert rounds["judge"] == of_judge[task]
    assert len(rounds["retrieve"]) == (task == "comparative")
    assert len(rounds["rank"]) > 1 if task != "sentence_pairs" else len(rounds["rank"]) == 1


async def test_a_comparison_that_depends_on_another_waits_for_it(tmp_path: Path) -> None:
    config = simple(tmp_path).model_copy(update={"rank": ("judge", "sliding:4")})
    out = tmp_path / "out"
    await retrieve_stage(config, out, Silent())
    await by_files("judge", config, out, COMPARATIVE)
    await replay("judge", config, out)
    # The last pair, in both orders: which document meets the next one is not known yet.
    assert len((await exported(config, out, "rank")).requests) == 2


async def test_the_lines_are_what_a_server_is_sent(tmp_path: Path) -> None:
    config = simple(tmp_path, engine__model="fake", engine__context=8192, rank=("judge",))
    server = FakeServer()
    await run_on(server, config, tmp_path / "asked")
    elsewhere = config.model_copy(update={"cache": config.cache.model_copy(update={"file": tmp_path / "new.sqlite"})})
    out = tmp_path / "out"
    await retrieve_stage(elsewhere, out, Silent())
    requests = (await exported(elsewhere, out)).requests
    lines = b.read(out / "requests.jsonl")
    assert [line["custom_id"] for line in lines] == [request.key for request in requests]
    assert {(line["method"], line["url"]) for line in lines} == {("POST", "/v1/chat/completions")}
    # A server gets an id for each request besides, which a file has as `custom_id`.
    sent = [{name: value for name, value in each.items() if name != "request_id"} for each in server.asked]
    assert sorted(orjson.dumps(line["body"]) for line in lines) == sorted(map(orjson.dumps, sent))
    assert set(lines[0]) == {"custom_id", "method", "url", "body"}


@pytest.fixture
async def waiting(tmp_path: Path) -> tuple[Config, Path, list[Request]]:
    """A folder with four requests exported."""
    config, out = simple(tmp_path), tmp_path / "out"
    await retrieve_stage(config, out, Silent())
    return config, out, (await exported(config, out)).requests


Waiting = tuple[Config, Path, list[Request]]


async def test_an_export_writes_nothing_but_its_files(waiting: Waiting, tmp_path: Path) -> None:
    config, out, requests = waiting
    assert len(requests) == 4
    assert {path.name for path in out.iterdir()} == {
        *("candidates.run.txt", "config.yaml", "ir-metadata.yml"),
        *("batch.json", "requests.jsonl"),
    }
    assert not config.cache.file.exists()


async def test_an_export_of_an_earlier_version_can_be_imported(waiting: Waiting) -> None:
    config, out, _ = waiting
    text = (out / BATCH).read_text()
    assert '"name":"server"' in text
    (out / BATCH).write_text(text.replace('"name":"server"', '"name":"offline"'))
    managed = config.engine.model_copy(update={"name": "managed"})
    assert read_batch(out).config == config.model_copy(update={"engine": managed})


async def test_an_answer_is_stored_as_one_of_a_server(waiting: Waiting) -> None:
    config, out, requests = waiting
    done = await imported(out, b.write(out / "r.jsonl", b.answers(requests, COMPARATIVE)))
    assert (done.stored, done.unusable, done.errors, done.repeated, done.done) == (4, {}, {}, [], True)
    engine = ScriptedEngine(COMPARATIVE)
    await asked(config.model_copy(update={"rank": ("judge",)}), out.parent / "direct", engine)
    with Cache(config.cache.file, CacheMode.REPLAY) as cache, Cache(out.parent / "direct.sqlite") as direct:
        found = {entry.key: entry for entry in cache.find("answer")}
        assert found.keys() == {entry.key for entry in direct.find("answer")}
        for entry in direct.find("answer"):
            mine = found[entry.key]
            assert mine.value["tokens"] == entry.value["tokens"] and mine.value["text"] == entry.value["text"]
            assert replace(mine, value={}) == replace(entry, value={})
            assert mine.value["prompt_tokens"] == 100 and mine.value["completion_tokens"] == 9
        (facts,) = cache.find("engine")
    assert facts.value["engine"] == "batch files, vllm-0.32.0-01234567"
    assert (facts.value["model"], facts.value["context"]) == ("scripted", FACTS.context)


async def test_shards_can_be_imported_one_by_one_or_together(waiting: Waiting) -> None:
    config, out, requests = waiting
    lines = b.answers(requests, COMPARATIVE)
    first, second = b.write(out / "1.jsonl", lines[:1]), b.write(out / "2.jsonl", lines[1:])
    done = await imported(out, first)
    assert (done.stored, done.done) == (1, False)
    assert [each.key for each in (await exported(config, out)).requests] == [each.key for each in requests[1:]]
    assert (await imported(out, first, second)).repeated == [f"{first}:1"]
    assert stored(config) == {request.key for request in requests}


UNUSABLE = {
    "cut_off": b.body('{"relevance":2,', finish_reason="length"),
    "refused": b.body("", refusal="I cannot say."),
    "not_json": b.body("Well, I think"),
    "outside_schema": b.body('{"relevance":7,"quality":1,"stance":"NO"}'),
}


@pytest.mark.parametrize("kind", UNUSABLE)
async def test_an_unusable_answer_is_not_stored_and_another_sample_is_asked_for(waiting: Waiting, kind: str) -> None:
    config, out, requests = waiting
    lines = [b.replied(requests[0].key, UNUSABLE[kind]), *b.answers(requests[1:], COMPARATIVE)]
    done = await imported(out, b.write(out / "r.jsonl", lines))
    assert {each: len(reasons) for each, reasons in done.unusable.items()} == {kind: 1}
    assert (done.stored, done.done) == (3, False)
    assert stored(config) == {request.key for request in requests[1:]}
    (again,) = (await exported(config, out)).requests
    assert again == requests[0].resample(1, config.sampling.resample_temperature)
    # Told again, the same reply is a repeated one.
    repeated = await imported(out, out / "r.jsonl")
    assert (repeated.stored, repeated.unusable, len(repeated.repeated)) == (0, {}, 4)
    assert (await imported(out, b.write(out / "s.jsonl", b.answers([again], COMPARATIVE)))).done
    await replay("judge", config, out)


async def test_after_the_last_sample_a_question_has_failed_and_a_replay_names_it(waiting: Waiting) -> None:
    config, out, requests = waiting
    await imported(out, b.write(out / "r.jsonl", b.answers(requests[1:], COMPARATIVE)))
    keys = []
    while found := (await exported(config, out)).requests:
        keys += [each.key for each in found]
        lines = [b.replied(each.key, UNUSABLE["not_json"]) for each in found]
        done = await imported(out, b.write(out / "s.jsonl", lines))
    assert len(set(keys)) == MAX_SAMPLES
    assert (done.done, done.failed) == (True, 1)
    assert (await exported(config, out)).failed == 1
    assert not (out / "requests.jsonl").exists()
    await replay("judge", config, out)
    (failure,) = read_records(out / "failures.jsonl", Failure, "failures")
    assert (failure.document_id, [each.sample for each in failure.attempts]) == (
        requests[0].origin.document_id,
        [0, 1, 2],
    )


async def test_errors_are_counted_by_kind_and_asked_for_again(waiting: Waiting) -> None:
    config, out, requests = waiting
    # As newer and older versions write them, and as the format has it; a status of the request's fault, as text alone,
    # is one that `vllm run-batch` itself makes.
    text, late = {"error": "Request must not be sent in stream mode"}, {"code": "expired", "message": "late"}
    lines = [
        b.refused(requests[0].key, 500),
        b.refused(requests[1].key) | text,
        {"id": "1", "custom_id": requests[2].key, "response": None, "error": late},
        b.replied(requests[3].key, b.body("", finish_reason="abort")),
    ]
    done = await imported(out, b.write(out / "r.jsonl", lines))
    assert (done.stored, done.unusable, done.done, done.refused) == (0, {}, False, 0)
    assert done.errors == {
        "status_500": ["HTTP 500 from /v1/chat/completions: too long"],
        "status_400": ["HTTP 400 from /v1/chat/completions: Request must not be sent in stream mode"],
        "error": ["late"],
        "finish_abort": ["the answer ended with 'abort'"],
    }
    assert [each.key for each in (await exported(config, out)).requests] == [each.key for each in requests]
    assert not config.cache.file.exists()


@pytest.mark.parametrize("code", [401, 403, 404, 408, 429, 500, 503])
async def test_a_status_that_is_not_the_requests_fault_does_not_give_it_up(waiting: Waiting, code: int) -> None:
    config, out, requests = waiting
    done = await imported(out, b.write(out / "r.jsonl", [b.refused(each.key, code) for each in requests]))
    assert ({kind: len(each) for kind, each in done.errors.items()}, done.refused) == ({f"status_{code}": 4}, 0)
    assert len((await exported(config, out)).requests) == 4


async def test_an_answer_of_another_model_or_without_log_probabilities_is_not_stored(waiting: Waiting) -> None:
    config, out, requests = waiting
    lines = b.answers(requests, COMPARATIVE)
    lines[0]["response"]["body"]["model"] = "other"
    del lines[1]["response"]["body"]["model"]
    lines[2]["response"]["body"]["choices"][0]["logprobs"] = None
    done = await imported(out, b.write(out / "r.jsonl", lines))
    assert (done.stored, {kind: len(each) for kind, each in done.errors.items()}) == (
        1,
        {"other_model": 2, "no_logprobs": 1},
    )
    assert done.errors["other_model"][0].startswith("the answer is of the model 'other', not of scripted")
    assert stored(config) == {requests[3].key}
    assert [each.key for each in (await exported(config, out)).requests] == [each.key for each in requests[:3]]


async def test_without_log_probabilities_none_are_wanted(tmp_path: Path) -> None:
    config, out = simple(tmp_path, sampling__logprobs=False), tmp_path / "out"
    await retrieve_stage(config, out, Silent())
    requests = (await exported(config, out)).requests
    lines = [b.replied(each.key, b.body(GOOD_ANSWER, [])) for each in requests]
    assert (await imported(out, b.write(out / "r.jsonl", lines))).stored == len(requests)


async def test_what_fails_by_files_fails_as_it_does_with_a_server(tmp_path: Path) -> None:
    flags = {"engine__model": "fake", "engine__context": FACTS.context, "rank": ("judge", "pairwise:3")}
    config = simple(tmp_path, **flags)
    out = tmp_path / "out"
    await retrieve_stage(config, out, Silent())
    refused, useless = (each.document_id for each in read_candidates(out / "candidates.run.txt", depth=4)["3"][1:3])
    with open_corpus(config, get_task("comparative"), Silent().warn) as corpus:
        texts = {each: corpus.documents.get(each).text for each in (refused, useless)}

    def fails(body: Mapping[str, Any]) -> str | None:
        """What becomes of a request: a document that the engine refuses, and one that it says nothing usable about."""
        shown = [each for each, text in texts.items() if text in body["messages"][-1]["content"]]
        return "too long" if refused in shown else "Well" if useless in shown else None

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        failed = fails(body)
        if failed == "too long":
            return web.json_response({"error": {"message": failed}}, status=400)
        return await (says(failed) if failed else good)(request, body)

    direct = tmp_path / "direct"
    server = FakeServer(rest=answer, models=[{"id": "fake", "max_model_len": FACTS.context}])
    file = config.cache.model_copy(update={"file": tmp_path / "direct.sqlite"})
    failures = (await run_on(server, config.model_copy(update={"cache": file}), direct)).failures
    assert Counter(len(each.attempts) for each in failures)[MAX_SAMPLES] >= 1

    def line(request: Request) -> dict[str, Any]:
        body = build_chat_body(request)
        failed = fails(body)
        if failed == "too long":
            return b.refused(request.key)
        labels = {name: each["enum"][0] for name, each in request.schema["properties"].items()}
        return b.replied(request.key, b.body(failed or orjson.dumps(labels).decode(), model="fake"))

    came: list[Failure] = []
    for stage in STAGES[1:]:
        while found := (await exported(config, out, stage)).requests:
            await imported(out, b.write(out / "replies.jsonl", map(line, found)))
        came += (await replay(stage, config, out)).failures
    assert sorted(map(repr, came)) == sorted(map(repr, failures))
    for name in ("run.txt", "judgments.jsonl", "failures.jsonl", "comparisons.jsonl", "comparison_failures.jsonl"):
        assert (out / name).read_bytes() == (direct / name).read_bytes()
    # Nor by one command for all the way.
    whole = await run_all(replaying(config), out, Silent())
    assert sorted(map(repr, whole.failures)) == sorted(map(repr, failures))


async def test_where_no_question_has_an_answer_the_replay_says_so_too(waiting: Waiting) -> None:
    config, out, requests = waiting
    done = await imported(out, b.write(out / "r.jsonl", [b.refused(each.key) for each in requests]))
    assert (done.refused, done.failed, done.done) == (4, 4, True)
    assert len((await imported(out, out / "r.jsonl")).repeated) == 4
    await replay("judge", config, out)
    assert len(read_records(out / "failures.jsonl", Failure, "failures")) == 4


async def test_what_is_still_to_be_asked_again_is_a_miss(waiting: Waiting) -> None:
    config, out, requests = waiting
    lines = [b.replied(requests[0].key, UNUSABLE["not_json"]), *b.answers(requests[1:], COMPARATIVE)]
    await imported(out, b.write(out / "r.jsonl", lines))
    with pytest.raises(ReplayMiss, match=f"topic 3 document {requests[0].origin.document_id}"):
        await replay("judge", config, out)


async def test_where_the_stage_ends_early_what_was_reached_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, out = simple(tmp_path, engine__concurrency=1), tmp_path / "out"
    await retrieve_stage(config, out, Silent())
    requests = (await exported(config, out)).requests
    answered = BatchEngine.complete

    async def complete(self: BatchEngine, request: Request) -> Completion:
        if request.key == requests[2].key:
            raise DataError("the third is bad")
        return await answered(self, request)

    monkeypatch.setattr(BatchEngine, "complete", complete)
    progress, path = Silent(), b.write(out / "r.jsonl", b.answers(requests, COMPARATIVE))
    with pytest.raises(DataError, match="the third is bad"):
        await import_replies(read_batch(out), out, [path], progress)
    assert stored(config) == {each.key for each in requests[:2]}
    assert progress.notices == ["2 replies were not reached and are not stored: import them again afterwards"]


async def test_of_two_replies_the_first_answer_stands(waiting: Waiting) -> None:
    config, out, requests = waiting
    first, other, third = requests[:3]
    last = b.answers([first], lambda _: {"relevance": 0, "quality": 0, "stance": "NO"})
    lines = [*b.answers([first], COMPARATIVE), b.refused(other.key), *last, *b.answers([other], COMPARATIVE)]
    path = b.write(out / "r.jsonl", [*lines, b.refused(third.key), b.refused(third.key)])
    done = await imported(out, path)
    assert (done.stored, {kind: len(each) for kind, each in done.errors.items()}) == (2, {"status_400": 1})
    assert sorted(done.repeated) == [f"{path}:2", f"{path}:3", f"{path}:6"]
    with Cache(config.cache.file, CacheMode.REPLAY) as cache:
        texts = {entry.key: entry.value["text"] for entry in cache.find("answer")}
    assert texts[first.key] == lines[0]["response"]["body"]["choices"][0]["message"]["content"]


async def test_an_unknown_id_is_refused_and_nothing_is_stored(waiting: Waiting) -> None:
    config, out, requests = waiting
    lines = [*b.answers(requests, COMPARATIVE), b.replied("0" * 64, b.body("{}"))]
    path = b.write(out / "r.jsonl", lines)
    with pytest.raises(DataError) as caught:
        await imported(out, path)
    assert str(caught.value).startswith(f"{path}:5: {'0' * 64}: no request that was exported for {out}")
    assert not config.cache.file.exists()
    assert not (out / "batch_unusable.jsonl").exists()


def without(line: dict[str, Any], *path: Any) -> dict[str, Any]:
    """A copy of a line that lacks a value."""
    copy: Any = json.loads(json.dumps(line))
    target = copy
    for step in path[:-1]:
        target = target[step]
    del target[path[-1]]
    return copy  # type: ignore[no-any-return]


KEY = "1" * 64
GOOD = b.replied(KEY, b.body('{"relevance":1}'))
HOSTILE = {
    "blank": b"",
    "no JSON": b"{",
    "no object": b"[]",
    "no text": b"\xff\xfe",
    "deep": b"[" * 100_000,
    "deep error": b'{"custom_id": "1", "response": null, "error": ' + b"[" * 100_000,
    "an id that is no text": orjson.dumps(GOOD | {"custom_id": 7}),
    "no id": orjson.dumps(without(GOOD, "custom_id")),
    "no response": orjson.dumps(without(GOOD, "response")),
    "a status that is none": orjson.dumps(GOOD | {"response": {"status_code": "200", "body": {}}}),
    "an answer without a body": orjson.dumps(without(GOOD, "response", "body")),
    "a body without choices": orjson.dumps(without(GOOD, "response", "body", "choices")),
    "choices that are none": orjson.dumps(GOOD | {"response": {"status_code": 200, "body": {"choices": [1]}}}),
    "an endless log-probability": orjson.dumps(GOOD).replace(
        b'"content":[]', b'"content":[{"token":"a","logprob":1e999}]'
    ),
    "an alternative that is none": orjson.dumps(GOOD).replace(
        b'"content":[]', b'"content":[{"token":"a","logprob":-0.1,"top_logprobs":[7]}]'
    ),
    "too long": b'{"custom_id": "' + b"a" * (16 * 2**20) + b'"}',
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_line_that_is_no_reply_is_told_with_its_place_and_nothing_is_stored(
    waiting: Waiting, name: str
) -> None:
    config, out, requests = waiting
    path = b.write(out / "r.jsonl", b.answers(requests, COMPARATIVE))
    path.write_bytes(path.read_bytes() + HOSTILE[name] + b"\n")
    with pytest.raises(DataError) as caught:
        await imported(out, path)
    assert str(caught.value).startswith(f"{path}:5: ")
    assert len(str(caught.value)) < 1000
    assert not config.cache.file.exists()


async def test_a_file_that_is_not_there_is_named(waiting: Waiting) -> None:
    _, out, _ = waiting
    with pytest.raises(DataError, match="nowhere.jsonl: cannot read the responses"):
        await imported(out, out / "nowhere.jsonl")
    with pytest.raises(DataError, match=r"batch.json: not there; run `touche-llm batch export`"):
        read_batch(out / "elsewhere")


async def test_shards_hold_the_requests_in_order_and_replace_those_of_before(waiting: Waiting) -> None:
    config, out, requests = waiting
    found = await pending_requests("judge", config, out, None, Silent())
    path = out / "requests.jsonl"
    assert write_requests(found, out, path, 3) == [
        (out / "requests-00001-of-00003.jsonl", 2),
        (out / "requests-00002-of-00003.jsonl", 1),
        (out / "requests-00003-of-00003.jsonl", 1),
    ]
    files = sorted(out.glob("requests*.jsonl"))
    assert [line["custom_id"] for file in files for line in b.read(file)] == [request.key for request in requests]
    assert not path.exists()
    # No file is empty: a job of the queue would load the model for nothing.
    assert len(write_requests(found, out, path, 9)) == 4
    assert len(list(out.glob("requests*.jsonl"))) == 4
    assert write_requests(Export(found.batch, [], 0), out, path, 2) == []
    assert not list(out.glob("requests*.jsonl"))


async def test_a_file_of_something_else_is_not_overwritten(waiting: Waiting) -> None:
    config, out, _ = waiting
    found = await pending_requests("judge", config, out, None, Silent())
    for name in ("candidates.run.txt", "config.yaml"):
        before = (out / name).read_bytes()
        with pytest.raises(UsageError, match="--overwrite"):
            write_requests(found, out, out / name, 1)
        assert (out / name).read_bytes() == before


async def test_requests_of_another_export_are_replaced_only_when_that_is_asked_for(waiting: Waiting) -> None:
    config, out, requests = waiting
    found = await pending_requests("judge", config, out, None, Silent())
    other = out / "other.jsonl"
    theirs = (out / "requests.jsonl").read_bytes().replace(b'"system"', b'"user"')
    for name in ("other.jsonl", "other-00002-of-00009.jsonl"):
        (out / name).write_bytes(theirs)
        with pytest.raises(UsageError, match="--overwrite"):
            write_requests(found, out, other, 1)
        with pytest.raises(UsageError, match="--overwrite"):
            write_requests(Export(found.batch, [], 0), out, other, 1)
        assert (out / name).read_bytes() == theirs
        assert write_requests(found, out, other, 1, overwrite=True) == [(other, len(requests))]
        assert sorted(out.glob("other*")) == [other]
        other.unlink()


async def test_a_killed_export_leaves_no_file_that_the_next_one_refuses(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, out, _ = waiting
    found = await pending_requests("judge", config, out, None, Silent())
    path = out / "requests.jsonl"
    fewer = Export(found.batch, found.requests[:2], 0)
    assert write_requests(fewer, out, path, 1) == [(path, 2)]
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(os, "replace", killed_after(1, os.replace))
        write_requests(found, out, path, 1)
    assert len(b.read(path)) == 2
    assert write_requests(found, out, path, 1) == [(path, len(found.requests))]


def killed_after(count: int, work: Callable[..., None]) -> Callable[..., None]:
    """Return `work` for `count` calls; the next one raises KeyboardInterrupt."""
    left = iter(range(count))

    def call(*arguments: Any) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        work(*arguments)

    return call


async def test_files_are_written_whole_or_not_at_all(waiting: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
    config, out, requests = waiting
    found = await pending_requests("judge", config, out, None, Silent())
    before = {path.name: path.read_bytes() for path in out.iterdir()}

    def fails(request: Request) -> dict[str, Any]:
        if request.key == requests[-1].key:
            raise OSError("no space left")
        return build_chat_body(request)

    monkeypatch.setattr(batch_file, "build_chat_body", fails)
    with pytest.raises(OSError, match="no space left"):
        write_requests(found, out, out / "requests.jsonl", 3)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


async def test_requests_of_a_topic_stay_together(tmp_path: Path) -> None:
    config, out = short(tmp_path, expansion__use=False, engine__concurrency=2), tmp_path / "out"
    await retrieve_stage(config, out, Silent())
    await by_files("judge", config, out, COMPARATIVE)
    await replay("judge", config, out)
    topics = [each.origin.topic_id for each in (await exported(config, out, "rank")).requests]
    assert len(set(topics)) == 2 and topics == sorted(topics, key=topics.index)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"engine__model": None}, "--model NAME"),
        ({"engine__context": None}, "--context N"),
        ({"cache__mode": "refresh"}, "cache.mode: refresh"),
        ({"cache__mode": "off"}, "cache.mode: off"),
    ],
)
async def test_what_cannot_be_known_without_a_server_has_to_be_given(
    tmp_path: Path, flags: dict[str, Any], said: str
) -> None:
    config = simple(tmp_path, **flags)
    await retrieve_stage(config, tmp_path / "out", Silent())
    with pytest.raises(UsageError, match=said):
        await exported(config, tmp_path / "out")


async def test_model_and_context_are_taken_from_the_cache_where_it_knows_them(waiting: Waiting) -> None:
    config, out, requests = waiting
    await imported(out, b.write(out / "r.jsonl", b.answers(requests[:1], COMPARATIVE)))
    unnamed = config.model_copy(update={"engine": config.engine.model_copy(update={"model": None, "context": None})})
    assert [each.key for each in (await exported(unnamed, out)).requests] == [each.key for each in requests[1:]]


async def test_a_stage_that_asks_nothing_has_nothing_pending(tmp_path: Path) -> None:
    config = simple(tmp_path, rank=("judge", "fusion:4"))
    for stage in ("retrieve", "rank"):
        assert (await exported(config, tmp_path / "out", stage)).requests == []
    assert not (tmp_path / "out").exists()


class Tokens(ScriptedEngine):
    """Counts as the scripted engine does, in place of a tokeniser."""

    folders: list[Path] = []

    def __init__(self, folder: Path, chat_template_kwargs: Mapping[str, Any]) -> None:
        self.folders.append(folder)

    def count_tokens(self, messages: tuple[Message, ...]) -> int:  # type: ignore[override]
        return sum(len(message.content) for message in messages) // 4

    def truncate(self, text: str, max_tokens: int) -> str:  # type: ignore[override]
        return text[: max_tokens * 4]


@pytest.mark.parametrize(("task", "context"), [("comparative", 850), ("controversial", 1100)])
async def test_documents_are_cut_as_an_engine_with_this_tokeniser_cuts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, context: int
) -> None:
    flags = {"depth": 4, "stance__depth": 1, "expansion__use": False, "engine__context": context}
    config = short(tmp_path, task, **{**flags, "ranking__document_tokens": 40})
    facts = FACTS.model_copy(update={"context": context, "overhead": 0})
    script = script_for(task)
    engine = ScriptedEngine(script)
    await asked(config, tmp_path / "direct", engine, facts)
    out = tmp_path / "out"
    await retrieve_stage(config, out, Silent())
    with pytest.raises(UsageError, match=r"topic \S+, document \S+: may have more than .* \(--tokenizer FOLDER\)"):
        await by_files("judge", config, out, script)
    monkeypatch.setattr(batch_file, "ChatTokenizer", Tokens)
    for stage in STAGES[1:]:
        await by_files(stage, config, out, script, tmp_path)
        await replay(stage, config, out)
    assert stored(config) == {request.key for request in engine.requests}
    assert (out / "run.txt").read_bytes() == (tmp_path / "direct" / "run.txt").read_bytes()
    assert b'"kept_chars"' in (out / "judgments.jsonl").read_bytes()
    assert stored(config, "fit")


async def test_an_import_needs_no_tokeniser_where_the_next_question_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The objects are found first; the documents, which have to be measured, are asked about afterwards.
    config = short(tmp_path, topic=("20",), depth=3, expansion__use=False, engine__context=700)
    out = tmp_path / "out"
    await retrieve_stage(config, out, Silent())
    found = (await exported(config, out)).requests
    assert {each.origin.prompt for each in found} == {"comparative/objects"}
    done = await imported(out, b.write(out / "r.jsonl", b.answers(found, COMPARATIVE)))
    assert (done.stored, done.done) == (1, False)
    with pytest.raises(UsageError, match="--tokenizer FOLDER"):
        await exported(config, out)


async def test_the_tokeniser_of_another_model_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, out = simple(tmp_path), tmp_path / "out"
    await retrieve_stage(config, out, Silent())
    from touche_llm.pipeline.engines import store_engine_info

    with Cache(config.cache.file) as cache:
        store_engine_info(FACTS, cache)
    monkeypatch.setattr(batch_file, "ChatTokenizer", Tokens)
    with pytest.raises(UsageError, match="adds 0 tokens, that of scripted in .* adds 32: it is another model's"):
        await exported(config, out, tokenizer=tmp_path)


async def test_replay_finds_the_facts_of_a_batch(waiting: Waiting) -> None:
    config, out, requests = waiting
    await imported(out, b.write(out / "r.jsonl", b.answers(requests, COMPARATIVE)))
    mode = config.cache.model_copy(update={"mode": CacheMode.REPLAY})
    engine = config.engine.model_copy(update={"model": None, "context": None})
    async with open_model(config.model_copy(update={"cache": mode, "engine": engine})) as model:
        assert (model.engine_info.model, model.engine_info.context) == ("scripted", FACTS.context)


def test_a_tokeniser_is_loaded_from_a_folder_alone_and_runs_no_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="no tokeniser"):
        ChatTokenizer(tmp_path, {})
    (tmp_path / "tokenizer_config.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(EngineError, match="pip install transformers"):
        ChatTokenizer(tmp_path, {})
    given: dict[str, Any] = {}

    class Loaded:
        chat_template: str | None = "…"

        def apply_chat_template(self, messages: list[dict[str, str]], **options: Any) -> str:
            given["template"] = options
            return "".join(f"<{each['role']}>{each['content']}" for each in messages) + "<answer>"

        def encode(self, text: str, **options: Any) -> list[int]:
            assert options == {"add_special_tokens": False, "verbose": False}
            return list(text.encode())

        def decode(self, tokens: list[int]) -> str:
            return bytes(tokens).decode(errors="replace")

    def load(folder: str, **options: Any) -> Loaded:
        given["load"] = (folder, options)
        return Loaded()

    fake = SimpleNamespace(AutoTokenizer=SimpleNamespace(from_pretrained=load))
    monkeypatch.setitem(sys.modules, "transformers", fake)
    tokenizer = ChatTokenizer(tmp_path, {"thinking": False})
    assert tokenizer.count_tokens((Message("system", "ab"), Message("user", "c"))) == len("<system>ab<user>c<answer>")
    assert (tokenizer.truncate("aéb", 2), tokenizer.truncate("aéb", 9)) == ("a", "aéb")
    assert given["load"][0] == str(tmp_path)
    assert given["load"][1] | {"local_files_only": True, "trust_remote_code": False} == given["load"][1]
    assert given["template"] == {"tokenize": False, "add_generation_prompt": True, "thinking": False}
    monkeypatch.setattr(Loaded, "chat_template", None)
    with pytest.raises(UsageError, match="no chat template"):
        ChatTokenizer(tmp_path, {})


async def test_the_folder_and_the_cache_can_be_elsewhere_between_export_and_import(waiting: Waiting) -> None:
    config, out, requests = waiting
    moved = out.with_name("moved")
    shutil.move(out, moved)
    done = await imported(moved, b.write(moved / "r.jsonl", b.answers(requests, COMPARATIVE)))
    assert done.stored == 4


async def test_answers_that_lead_to_no_run_are_kept_all_the_same(tmp_path: Path) -> None:
    config, out, written = short(tmp_path, "sentence_pairs"), tmp_path / "out", script_of("sentence_pairs")
    await retrieve_stage(config, out, Silent())
    with pytest.raises(DataError, match="no topic has two sentences on one side"):
        await by_files("judge", config, out, lambda request: {**written(request), "stance": "NONE"})
    last = {line["custom_id"] for line in b.read(out / "requests.jsonl")}
    assert last and last <= stored(config)


@pytest.mark.parametrize(
    ("count", "shards"), [(5, 2), (5, 3), (7, 3), (7, 4), (8, 3), (10, 4), (11, 7), (12, 4), (3, 3)]
)
async def test_every_request_is_in_one_shard_and_shards_differ_by_one_request(
    waiting: Waiting, count: int, shards: int
) -> None:
    config, out, requests = waiting
    found = await pending_requests("judge", config, out, None, Silent())
    many = [replace_origin(requests[n % len(requests)], n) for n in range(count)]
    files = write_requests(Export(found.batch, many, 0), out, out / "many.jsonl", shards)
    held = [[line["custom_id"] for line in b.read(file)] for file, _ in files]
    assert [key for of_file in held for key in of_file] == [request.key for request in many]
    assert [len(of_file) for of_file in held] == [size for _, size in files]
    assert len(files) == shards and max(map(len, held)) - min(map(len, held)) <= 1


def replace_origin(request: Request, number: int) -> Request:
    """A request of a key of its own."""
    user = Message("user", f"{request.messages[-1].content} {number}")
    return dataclasses.replace(request, messages=(*request.messages[:-1], user))


@pytest.mark.parametrize("change", ["swapped", "emptied", "another model's refusal"])
async def test_a_replies_file_that_changes_while_it_is_read_stores_nothing(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    config, out, requests = waiting
    lines = b.answers(requests, COMPARATIVE)
    path = b.write(out / "r.jsonl", lines)
    changed: dict[str, list[b.Line]] = {
        "swapped": lines[::-1],
        "emptied": [],
        "another model's refusal": [b.refused(request.key) for request in requests],
    }

    def read_and_change(*args: Any, **options: Any) -> Replies:
        replies = read_replies(*args, **options)
        b.write(path, changed[change])
        return replies

    monkeypatch.setattr(batch_file, "read_replies", read_and_change)
    with pytest.raises(DataError, match=r"r\.jsonl:\d"):
        await imported(out, path)
    assert stored(config) == set()


async def test_an_import_reads_so_many_replies_and_names_the_next(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, out, requests = waiting
    file = b.write(out / "r.jsonl", b.answers(requests, COMPARATIVE))
    monkeypatch.setattr("touche_llm.llm.engines.batch_replies.MAX_REPLIES", len(requests) - 1)
    with pytest.raises(DataError, match=rf"r\.jsonl:{len(requests)}: more than"):
        await imported(out, file)
    assert not config.cache.file.exists()
    monkeypatch.setattr("touche_llm.llm.engines.batch_replies.MAX_REPLIES", len(requests))
    assert (await imported(out, file)).stored == len(requests)
