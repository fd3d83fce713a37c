"""Runs of stages by export and import, compared with runs with an engine."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests import batch_replies as b
from tests.batch.stages import (
    COMPARATIVE,
    SHORT,
    UNUSABLE,
    TokenCounter,
    Waiting,
    answer_by_files,
    export_stage,
    import_files,
    replay,
    short_config,
    stored_keys,
)
from tests.sample_runs import Silent, retrieve_stage, run_directly, with_cache
from tests.scripted_engine import FACTS, ScriptedEngine
from tests.write_demo_cassette import script_with_queries
from touche_llm.data.files import read_records
from touche_llm.data.records import Failure
from touche_llm.errors import UsageError
from touche_llm.llm.request import MAX_SAMPLES
from touche_llm.runs import batch


@pytest.mark.parametrize("task", SHORT)
@pytest.mark.slow
async def test_a_run_by_files_sends_the_requests_and_gives_the_files_of_a_direct_run(
    tmp_path: Path, task: str
) -> None:
    config, script = short_config(tmp_path, task), script_with_queries(task)
    engine = ScriptedEngine(script)
    await run_directly(
        with_cache(config, file=tmp_path / "direct.sqlite"), tmp_path / "direct", engine
    )
    out, keys, rounds = tmp_path / "out", Counter[str](), {}
    for stage in ("retrieve", "judge", "rank"):
        found = await answer_by_files(stage, config, out, script)
        await replay(stage, config, out)
        keys.update(request.key for each in found for request in each)
        rounds[stage] = [
            sorted({request.origin.prompt.split("/")[1] for request in each}) for each in found
        ]
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


async def test_a_replay_reports_refused_requests_as_failures(waiting: Waiting) -> None:
    config, out, requests = waiting
    done = await import_files(
        out, b.write(out / "r.jsonl", [b.refused(each.key) for each in requests])
    )
    assert (len(done.problems["status_400"]), done.failed, done.is_done) == (4, 4, True)
    await replay("judge", config, out)
    assert len(read_records(out / "failures.jsonl", Failure, "failures")) == 4


async def test_a_request_fails_after_its_last_sample_and_a_replay_names_it(
    waiting: Waiting,
) -> None:
    config, out, requests = waiting
    await import_files(out, b.write(out / "r.jsonl", b.answers(requests[1:], COMPARATIVE)))
    keys = []
    while found := await export_stage(config, out):
        keys += [each.key for each in found]
        lines = [b.replied(each.key, UNUSABLE["not_json"]) for each in found]
        done = await import_files(out, b.write(out / "s.jsonl", lines))
    assert len(set(keys)) == MAX_SAMPLES
    assert (done.is_done, done.failed) == (True, 1)
    assert not (out / "requests.jsonl").exists()
    await replay("judge", config, out)
    (failure,) = read_records(out / "failures.jsonl", Failure, "failures")
    assert (failure.document_id, [each.sample for each in failure.attempts]) == (
        requests[0].origin.document_id,
        [0, 1, 2],
    )


@pytest.mark.parametrize("kind", UNUSABLE)
async def test_an_unusable_answer_leads_to_another_sample(waiting: Waiting, kind: str) -> None:
    config, out, requests = waiting
    lines = [b.replied(requests[0].key, UNUSABLE[kind]), *b.answers(requests[1:], COMPARATIVE)]
    done = await import_files(out, b.write(out / "r.jsonl", lines))
    assert {each: len(reasons) for each, reasons in done.problems.items()} == {kind: 1}
    assert (done.stored, done.is_done) == (3, False)
    assert stored_keys(config) == {request.key for request in requests[1:]}
    (again,) = await export_stage(config, out)
    assert again == requests[0].resample(1, config.sampling.resample_temperature)
    # Imported again, the same responses have the same outcome.
    assert await import_files(out, out / "r.jsonl") == done
    assert (
        await import_files(out, b.write(out / "s.jsonl", b.answers([again], COMPARATIVE)))
    ).is_done
    await replay("judge", config, out)


async def test_documents_are_truncated_as_by_an_engine_with_this_tokeniser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, context = "controversial", 1100
    flags = {"depth": 4, "stance__depth": 1, "expansion__use": False, "engine__context": context}
    config = short_config(tmp_path, task, **{**flags, "ranking__document_tokens": 40})
    facts = FACTS.model_copy(update={"context": context, "overhead": 0})
    script = script_with_queries(task)
    engine = ScriptedEngine(script)
    await run_directly(
        with_cache(config, file=tmp_path / "direct.sqlite"), tmp_path / "direct", engine, facts
    )
    out = tmp_path / "out"
    await retrieve_stage(config, out, Silent())
    with pytest.raises(UsageError, match=r"^engine\.tokenizer"):
        await answer_by_files("judge", config, out, script)
    monkeypatch.setattr(batch, "ChatTokenizer", TokenCounter)
    for stage in ("judge", "rank"):
        await answer_by_files(stage, config, out, script, tmp_path)
        await replay(stage, config, out)
    assert stored_keys(config) == {request.key for request in engine.requests}
    assert (out / "run.txt").read_bytes() == (tmp_path / "direct" / "run.txt").read_bytes()
    assert b'"kept_chars"' in (out / "judgments.jsonl").read_bytes()
    assert stored_keys(config, "fit")
