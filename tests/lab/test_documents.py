from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fake_server import FakeServer
from tests.lab.labs import make_config, open_lab, reading
from tests.own_runs import rewrite
from tests.prompt_variants import wording
from tests.sample_runs import Silent, run_on
from touche_llm.data.measure import make_headline_ndcg
from touche_llm.data.runs.reading import read_run
from touche_llm.evaluation.measures import evaluate_run
from touche_llm.evaluation.qrels import read_qrels
from touche_llm.prompt_lab.holdout import access_log, read_accesses

RUN = {"run": "first"}


async def test_rows_hold_what_model_and_assessors_said(
    folder: Path, qrels: dict[str, Path]
) -> None:
    async with open_lab(folder / "runs", qrels=qrels) as lab:
        about = await lab.get("/api/topics", **RUN)
        assert [topic["half"] for topic in about["topics"]] == ["choice", "hold-out"] * 8
        assert [field["name"] for field in about["fields"]] == ["relevance", "quality", "stance"]
        found = await lab.get("/api/documents", **RUN, topic="1")
        run = read_run(folder / "runs" / "first" / "run.txt").rankings["1"]
        assert [row["document"] for row in found["rows"]] == [each.document_id for each in run]
        best = found["rows"][0]
        assert (
            best["assessors"] == {"relevance": "2", "quality": "2", "stance": "NEUTRAL"}
            and best["differs"] == []
        )
        assert best["grades"]["relevance"] == pytest.approx(1.867, abs=0.001)
        assert (best["stance"], best["p"]) == ("NEUTRAL", pytest.approx(0.7))
        assert best["snippet"].startswith(f"passage {best['document']}")


async def test_a_stance_without_logprobs_has_no_probability(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = make_config(tmp_path, topics=1, sampling__logprobs=False)
    server = FakeServer(rest=reading({}))
    await run_on(server, config, tmp_path / "runs" / "first", progress=Silent())
    async with open_lab(tmp_path / "runs") as lab:
        best = (await lab.get("/api/documents", **RUN, topic="1"))["rows"][0]
        assert (best["stance"], best["p"], best["confidence"]) == ("NEUTRAL", None, None)


async def test_a_document_shows_its_request_as_it_was_sent(
    folder: Path, qrels: dict[str, Path]
) -> None:
    async with open_lab(folder / "runs", qrels=qrels) as lab:
        found = await lab.get("/api/document", **RUN, topic="1", document="1-2")
        assert found["text"] == "passage 1-2 " and found["seen"] is None
        assert found["fields"]["relevance"]["probabilities"]["2"] == pytest.approx(0.8)
        (request,) = found["requests"]
        assert (
            "passage 1-2" in request["messages"][-1]["text"]
            and request["answer"] == '[2,2,"Y","N"]'
        )
        assert len(request["key"]) == 64 and found["failures"] == []


async def test_a_prompt_that_changed_since_the_run_is_not_shown_as_sent(
    folder: Path, qrels: dict[str, Path]
) -> None:
    config = folder / "runs" / "first" / "config.yaml"
    mine = folder / "mine.jinja"
    wording(mine, "OTHER")
    rewrite(config, config.read_text().replace("judge: judge", f"judge: {mine}"))
    async with open_lab(folder / "runs", qrels=qrels) as lab:
        found = await lab.get("/api/document", **RUN, topic="1", document="1-2")
        assert found["requests"] == [] and len(found["notes"]) == 1


async def test_judgments_of_held_out_topics_are_hidden_until_an_access_is_logged(
    folder: Path, qrels: dict[str, Path]
) -> None:
    log = access_log(folder / "answers.sqlite")
    async with open_lab(folder / "runs", qrels=qrels) as lab:
        found = await lab.get("/api/documents", **RUN, topic="2")
        assert found["hidden"] and not any(row["assessors"] for row in found["rows"])
        assert (await lab.get("/api/document", **RUN, topic="2", document="2-2"))["assessors"] == {}
        assert read_accesses(log) == []
        await lab.post("/api/reveal", **RUN, topics=["2"])
        (access,) = read_accesses(log)
        assert access.kind == "evaluation" and len(access.topics) == 1
        found = await lab.get("/api/documents", **RUN, topic="2")
        assert not found["hidden"] and all(row["assessors"] for row in found["rows"])
        assert (await lab.get("/api/documents", **RUN, topic="4"))["hidden"]
        # An access that cannot be logged shows nothing.
        log.unlink()
        log.mkdir()
        status, content = await lab.send("POST", "/api/reveal", {**RUN, "topics": ["4"]})
        assert status == 400 and "hold_out_accesses" in content["error"]
        assert (await lab.get("/api/documents", **RUN, topic="4"))["hidden"]


async def test_labels_are_stored_beside_the_run_and_exported_as_qrels(folder: Path) -> None:
    async with open_lab(folder / "runs") as lab:
        run = read_run(folder / "runs" / "first" / "run.txt")
        for topic in ("1", "3"):
            for each in run.rankings[topic]:
                labels = {"relevance": int(each.document_id[-1]) % 3, "stance": "FIRST"}
                where = {**RUN, "topic": topic, "document": each.document_id}
                assert (await lab.put("/api/labels", **where, labels=labels, note=""))[
                    "own"
                ] == labels
        where = {**RUN, "topic": "3", "document": "3-0"}
        await lab.put("/api/labels", **where, labels={"relevance": 0}, note=" unclear ")
        for field in ("relevance", "stance"):
            (folder / f"own-{field}.txt").write_text(
                await lab.get("/api/qrels", **RUN, field=field)
            )
    async with open_lab(folder / "runs") as again:
        found = await again.get("/api/document", **where)
        assert (found["own"], found["note"]) == ({"relevance": 0}, "unclear")
    own = read_qrels(
        {field: folder / f"own-{field}.txt" for field in ("relevance", "stance")}, "comparative"
    )
    assert sum(map(len, own.stances.values())) == 11
    evaluation = evaluate_run("run", run, own.restrict_to({"1", "3"}))
    assert evaluation.estimates[make_headline_ndcg("relevance")].value == pytest.approx(1.0)


async def test_a_wrong_label_is_refused(folder: Path) -> None:
    right = {**RUN, "topic": "1", "document": "1-0", "labels": {"relevance": 1}, "note": ""}
    wrong: list[dict[str, Any]] = [
        {"document": "9-9"},
        {"topic": "99"},
        {"note": 1},
        {"labels": {"stance": "MAYBE"}},
    ]
    wrong += [
        {"labels": labels}
        for labels in ({"relevance": 4}, {"relevance": "2"}, {"relevance": None}, {"b": 1})
    ]
    async with open_lab(folder / "runs") as lab:
        for each in wrong:
            status, content = await lab.send("PUT", "/api/labels", right | each)
            assert status == 400 and content["error"], each
    assert not (folder / "runs" / "first" / "labels.jsonl").exists()
