"""Import of responses into the answer cache."""

from __future__ import annotations

import orjson
import pytest
from msgspec.structs import replace

from tests import batch_replies as b
from tests.batch.stages import COMPARATIVE, Waiting, export_stage, import_files, stored_keys
from tests.sample_runs import run_directly, with_cache
from tests.scripted_engine import FACTS, ScriptedEngine
from touche_llm.errors import DataError
from touche_llm.llm.cache import Cache, CacheMode


async def test_an_answer_is_stored_like_that_of_a_server(waiting: Waiting) -> None:
    config, out, requests = waiting
    done = await import_files(out, b.write(out / "r.jsonl", b.answers(requests, COMPARATIVE)))
    assert (done.stored, done.problems, done.is_done) == (4, {}, True)
    engine = ScriptedEngine(COMPARATIVE)
    direct_config = with_cache(
        config.model_copy(update={"rank": ("judge",)}), file=out.parent / "direct.sqlite"
    )
    await run_directly(direct_config, out.parent / "direct", engine)
    with (
        Cache(config.cache.file, CacheMode.REPLAY) as cache,
        Cache(out.parent / "direct.sqlite") as direct,
    ):
        found = {entry.key: entry for entry in cache.find("answer")}
        assert found.keys() == {entry.key for entry in direct.find("answer")}
        for entry in direct.find("answer"):
            mine = found[entry.key]
            assert (
                mine.value["tokens"] == entry.value["tokens"]
                and mine.value["text"] == entry.value["text"]
            )
            assert replace(mine, value={}) == replace(entry, value={})
            assert mine.value["prompt_tokens"] == 100 and mine.value["completion_tokens"] == 9
        (facts,) = cache.find("engine")
    assert facts.value["engine"] == "batch files"
    assert (facts.value["model"], facts.value["context"]) == ("scripted", FACTS.context)


async def test_files_can_be_imported_one_by_one_or_together(waiting: Waiting) -> None:
    config, out, requests = waiting
    lines = b.answers(requests, COMPARATIVE)
    first, second = b.write(out / "1.jsonl", lines[:1]), b.write(out / "2.jsonl", lines[1:])
    done = await import_files(out, first)
    assert (done.stored, done.is_done) == (1, False)
    assert [each.key for each in await export_stage(config, out)] == [
        each.key for each in requests[1:]
    ]
    assert (await import_files(out, first, second)).stored == 4
    assert stored_keys(config) == {request.key for request in requests}


async def test_errors_are_counted_by_kind_and_stay_pending(waiting: Waiting) -> None:
    config, out, requests = waiting
    # As newer and older versions write them, and as the format has it; a status of the request's
    # fault, as text alone, is one that `vllm run-batch` itself makes.
    text, late = (
        {"error": "Request must not be sent in stream mode"},
        {"code": "expired", "message": "late"},
    )
    lines = [
        b.refused(requests[0].key, 500),
        b.refused(requests[1].key) | text,
        {"id": "1", "custom_id": requests[2].key, "response": None, "error": late},
        b.replied(requests[3].key, b.body("", finish_reason="abort")),
    ]
    done = await import_files(out, b.write(out / "r.jsonl", lines))
    assert (done.stored, done.is_done) == (0, False)
    assert done.problems == {
        "status_500": ["HTTP 500 from /v1/chat/completions: too long"],
        "status_400": [
            "HTTP 400 from /v1/chat/completions: Request must not be sent in stream mode"
        ],
        "error": ["late"],
        "finish_abort": ["the answer ended with 'abort'"],
    }
    assert [each.key for each in await export_stage(config, out)] == [each.key for each in requests]
    assert stored_keys(config) == set()


async def test_an_answer_without_a_choice_to_read_is_counted_and_stays_pending(
    waiting: Waiting,
) -> None:
    config, out, requests = waiting
    choices: tuple[list[object], ...] = ([], [*b.body("{}")["choices"], *b.body("{}")["choices"]])
    lines = [
        b.replied(request.key, b.body("") | {"choices": choice})
        for request, choice in zip(requests, choices, strict=False)
    ]
    done = await import_files(out, b.write(out / "r.jsonl", lines))
    assert {kind: len(each) for kind, each in done.problems.items()} == {"no_choice": 2}
    assert stored_keys(config) == set()


async def test_an_answer_of_another_model_or_without_log_probabilities_is_not_stored(
    waiting: Waiting,
) -> None:
    config, out, requests = waiting
    lines = b.answers(requests, COMPARATIVE)
    lines[0]["response"]["body"]["model"] = "other"
    del lines[1]["response"]["body"]["model"]
    lines[2]["response"]["body"]["choices"][0]["logprobs"] = None
    done = await import_files(out, b.write(out / "r.jsonl", lines))
    assert (done.stored, {kind: len(each) for kind, each in done.problems.items()}) == (
        1,
        {"other_model": 2, "no_logprobs": 1},
    )
    assert done.problems["other_model"][0].startswith(
        "the answer is of the model 'other', not of scripted"
    )
    assert stored_keys(config) == {requests[3].key}
    assert [each.key for each in await export_stage(config, out)] == [
        each.key for each in requests[:3]
    ]


async def test_of_two_responses_the_first_answer_is_stored(waiting: Waiting) -> None:
    config, out, requests = waiting
    first, other, third = requests[:3]
    last = b.answers([first], lambda _: {"relevance": 0, "quality": 0, "stance": "NO"})
    lines = [
        *b.answers([first], COMPARATIVE),
        b.refused(other.key),
        *last,
        *b.answers([other], COMPARATIVE),
    ]
    path = b.write(out / "r.jsonl", [*lines, b.refused(third.key), b.refused(third.key)])
    done = await import_files(out, path)
    assert (done.stored, {kind: len(each) for kind, each in done.problems.items()}) == (
        2,
        {"status_400": 1},
    )
    with Cache(config.cache.file, CacheMode.REPLAY) as cache:
        texts = {entry.key: entry.value["text"] for entry in cache.find("answer")}
    assert texts[first.key] == lines[0]["response"]["body"]["choices"][0]["message"]["content"]


async def test_an_unknown_id_is_an_error_and_the_others_are_stored(waiting: Waiting) -> None:
    config, out, requests = waiting
    lines = [*b.answers(requests, COMPARATIVE), b.replied("0" * 64, b.body("{}"))]
    path = b.write(out / "r.jsonl", lines)
    with pytest.raises(DataError) as caught:
        await import_files(out, path)
    assert caught.value.location == f"{path}:5"
    assert "0" * 64 in str(caught.value) and str(out) in str(caught.value)
    assert stored_keys(config) == {request.key for request in requests}


KEY = "1" * 64


GOOD = b.replied(KEY, b.body('{"relevance":1}', []))
HOSTILE = {
    "blank": b"",
    "no JSON": b"{",
    "deep": b"[" * 100_000,
    "no id": orjson.dumps({name: value for name, value in GOOD.items() if name != "custom_id"}),
    "choices that are none": orjson.dumps(
        GOOD | {"response": {"status_code": 200, "body": {"choices": [1]}}}
    ),
    "an endless log-probability": orjson.dumps(GOOD).replace(
        b'"content":[]', b'"content":[{"token":"a","logprob":1e999}]'
    ),
    "too long": b'{"custom_id": "' + b"a" * (16 * 2**20) + b'"}',
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_malformed_line_is_named_and_nothing_is_stored(waiting: Waiting, name: str) -> None:
    config, out, requests = waiting
    path = b.write(out / "r.jsonl", b.answers(requests, COMPARATIVE))
    path.write_bytes(path.read_bytes() + HOSTILE[name] + b"\n")
    with pytest.raises(DataError) as caught:
        await import_files(out, path)
    assert caught.value.location == f"{path}:5"
    # A well-formed line would be refused for its unknown id.
    assert KEY not in str(caught.value) and len(str(caught.value)) < 1000
    assert stored_keys(config) == set()
