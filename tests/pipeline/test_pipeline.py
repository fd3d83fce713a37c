"""The whole way on the project's sample, against a fake server over real HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from aiohttp import web

from tests.fake_server import FakeServer, fields_in, good, says
from tests.sample_runs import SAMPLE, Silent, config_for, run_lines, run_on, run_scripted
from tests.scripted_engine import Label
from touche_llm.data.files import read_records
from touche_llm.data.records import Failure, Judgment, Objects
from touche_llm.errors import DataError
from touche_llm.evaluation.validation import validate_run
from touche_llm.llm.request import Request
from touche_llm.runs import stages as pipeline
from touche_llm.tasks import get_task


async def test_the_ranking_follows_the_grades_and_carries_the_stances(tmp_path: Path) -> None:
    order = sorted(
        orjson.loads(line)["id"] for line in (SAMPLE / "passages.jsonl").read_bytes().splitlines()
    )

    def script(request: Request) -> Mapping[str, Label | Mapping[Label, float]]:
        if request.origin.document_id is None:
            return {"first": "tea", "second": "coffee"}
        place = order.index(request.origin.document_id) / len(order)
        stance = ("FIRST", "SECOND", "NEUTRAL", "NO")[order.index(request.origin.document_id) % 4]
        return {"relevance": {0: place, 3: 1 - place}, "quality": 1, "stance": stance}

    config = config_for(tmp_path, depth=10, weights__first_stage=0.0)
    lines, _ = await run_scripted(config, tmp_path / "out", script)
    for topic in ("3", "7", "12", "20"):
        ids = [line.document_id for line in lines if line.topic_id == topic]
        assert len(ids) == 10
        assert ids == sorted(ids, key=order.index)
    stances = ("FIRST", "SECOND", "NEUTRAL", "NO")
    assert all(line.stance == stances[order.index(line.document_id) % 4] for line in lines)
    judgments = read_records(tmp_path / "out" / "judgments.jsonl", Judgment, "judgments")
    assert {each.source for each in judgments} == {"probabilities"}
    (found,) = read_records(tmp_path / "out" / "objects.jsonl", Objects, "objects")
    assert (found.topic_id, found.objects) == ("20", ("tea", "coffee"))
    assert found.prompt.startswith("comparative/objects@")


async def test_documents_that_fail_keep_their_first_stage_order_behind_the_judged_ones(
    tmp_path: Path,
) -> None:
    async def fails_on_apps(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if "scooter" in body["messages"][1]["content"].split("Passage:")[-1]:
            return await says("no JSON here")(request, body)
        return await good(request, body)

    out = tmp_path / "out"
    config = config_for(tmp_path, topic=("7",), depth=20)
    outcome = await run_on(FakeServer(rest=fails_on_apps), config, out)
    failures = read_records(out / "failures.jsonl", Failure, "failures")
    failed = {failure.document_id for failure in failures}
    assert outcome.failures == failures and len(failures) > 3
    assert {failure.kind for failure in failures} == {"not_json"}
    assert {failure.attempts[0].text for failure in failures} == {"no JSON here"}
    lines = run_lines(out / "run.txt")
    candidates = [line.document_id for line in run_lines(out / "candidates.run.txt")]
    assert sorted(line.document_id for line in lines) == sorted(candidates)
    behind = [line for line in lines if line.document_id in failed]
    assert lines[-len(behind) :] == behind
    assert [line.document_id for line in behind] == [each for each in candidates if each in failed]
    assert {line.stance for line in behind} == {"NO"}
    # Who scales scores, as `fuse` does, would otherwise scale by marks.
    assert lines[-1].score == pytest.approx(lines[-len(behind) - 1].score, abs=1e-4)
    assert not validate_run(out / "run.txt", get_task("comparative"))
    metadata = yaml.safe_load((out / "ir-metadata.yml").read_text())["stages"]
    assert metadata["rank"]["imputed_stances"] == len(failed)
    assert metadata["judge"]["llm"]["failures"] == {"not_json": len(failed)}


async def test_a_topic_whose_objects_are_not_found_is_not_judged_and_not_lost(
    tmp_path: Path,
) -> None:
    async def no_objects(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if "first" in fields_in(body):
            return await says('{"first":"tea","second":"tea"}')(request, body)
        return await good(request, body)

    out = tmp_path / "out"
    outcome = await run_on(
        FakeServer(rest=no_objects), config_for(tmp_path, topic=("3", "20"), depth=5), out
    )
    (failure,) = read_records(out / "failures.jsonl", Failure, "failures")
    assert (failure.topic_id, failure.document_id, failure.kind) == ("20", None, "outside_schema")
    assert outcome.judgments.requested == 5
    assert [line.topic_id for line in run_lines(out / "run.txt")] == ["3"] * 5 + ["20"] * 5


async def test_requests_go_out_topic_by_topic_and_no_more_at_a_time_than_allowed(
    tmp_path: Path,
) -> None:
    async def slow(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(0.005)
        return await good(request, body)

    server = FakeServer(rest=slow)
    await run_on(
        server,
        config_for(tmp_path, topic=("3", "7", "12"), depth=12, engine__concurrency=4),
        tmp_path / "out",
    )
    assert server.most_open == 4
    titles = [body["messages"][1]["content"].splitlines()[0] for body in server.bodies]
    changes = [n for n in range(1, len(titles)) if titles[n] != titles[n - 1]]
    # Within the four that are under way the order is the network's.
    assert len(titles) == 36 and all(min(abs(n - 12), abs(n - 24)) < 4 for n in changes)


async def test_candidates_of_another_tool_are_judged_as_they_are(tmp_path: Path) -> None:
    ids = ["sample-heating-02___1", "sample-heating-01___3"]
    (tmp_path / "other.txt").write_text(
        "".join(f"3 Q0 {each} {rank} {9 - rank} bm 25\n" for rank, each in enumerate(ids))
    )
    out = tmp_path / "out"
    await run_on(FakeServer(), config_for(tmp_path, candidates=tmp_path / "other.txt"), out)
    assert [line.document_id for line in run_lines(out / "candidates.run.txt")] == ids
    assert [line.document_id for line in run_lines(out / "run.txt")] == ids


async def test_one_field_without_probabilities_makes_the_whole_judgment_plain(
    tmp_path: Path,
) -> None:
    async def partly(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        answer = orjson.loads((await good(request, body)).body)  # type: ignore[attr-defined]
        for token in answer["choices"][0]["logprobs"]["content"][-8:]:
            token["top_logprobs"] = []
        return web.json_response(answer)

    await run_on(
        FakeServer([good], rest=partly),
        config_for(tmp_path, topic=("3",), depth=2),
        tmp_path / "out",
    )
    judgments = read_records(tmp_path / "out" / "judgments.jsonl", Judgment, "judgments")
    (judgment,) = (judgment for judgment in judgments if judgment.source == "value")
    assert set(judgment.readings) == {"relevance", "quality", "stance"}
    assert all(reading.probabilities is None for reading in judgment.readings.values())


@pytest.mark.parametrize("what", ["topics", "corpus", "candidates"])
async def test_a_missing_file_is_reported_before_the_engine_is_opened(
    tmp_path: Path, what: str
) -> None:
    # Nothing listens on that port, which would be reported instead.
    flags: dict[str, Any] = {what: tmp_path / "nowhere", "engine__base_url": "http://127.0.0.1:1"}
    with pytest.raises(DataError, match=f"{tmp_path / 'nowhere'}: "):
        await pipeline.run_all(config_for(tmp_path, **flags), tmp_path / "out", Silent())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("steps", "labels"),
    [
        (("judge", "pairwise:4"), ["A", "B"]),
        (("judge", "pairwise:4", "setwise:4"), ["A", "B", "C"]),
        (("judge", "listwise:4"), None),
    ],
)
async def test_the_server_is_checked_with_the_labels_of_the_comparisons_of_the_run(
    tmp_path: Path, steps: tuple[str, ...], labels: list[str] | None
) -> None:
    checked: list[dict[str, Any]] = []

    async def record(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        checked.append(fields_in(body))
        return await good(request, body)

    config = config_for(tmp_path, topic=("3",), depth=4, rank=steps, ranking__setwise__children=2)
    await run_on(FakeServer(labels=record), config, tmp_path / "out")
    best = [fields["best"]["enum"] for fields in checked if "best" in fields]
    assert best == ([] if labels is None else [labels])
    assert any("relevance" in fields for fields in checked)
