"""The metadata of a run says what its configuration and its finished stages are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.stage_records import judge_record, retrieve_record
from touche_llm.config.files import load_config
from touche_llm.runs.metadata import build_metadata
from touche_llm.runs.record import RunRecord, StageRecords

RETRIEVED = StageRecords(retrieve=retrieve_record())


def method(folder: Path, stages: StageRecords, **flags: Any) -> dict[str, Any]:
    given = {
        "topics": Path("topics.xml"),
        "corpus": Path("passages.jsonl"),
        "index": folder / "index",
    }
    config = load_config(
        None, given | {name.replace("__", "."): value for name, value in flags.items()}
    )
    found: dict[str, Any] = build_metadata(config, folder, RunRecord(stages=stages))["method"]
    return found


def test_the_first_stage_is_named_with_its_parameters(tmp_path: Path) -> None:
    for retriever, first, names in (
        ("okapi", "rank_bm25.BM25Okapi", set()),
        (
            "hybrid",
            "reciprocal rank fusion of bm25s.BM25 and touche_llm.retrieval.dense",
            {"dense.weight"},
        ),
    ):
        (stage,) = method(tmp_path, RETRIEVED, retriever__name=retriever, expansion__use=True)[
            "retrieval"
        ]
        assert (stage["name"], stage["method"]) == (retriever, first)
        assert {"depth", "retriever.query", "retriever.k1", "expansion.use"} | names < set(
            stage["params"]
        )
        assert not {"topics", "index", "dense.base_url"} & set(stage["params"])


def test_steps_and_model_are_named_once_documents_are_judged(tmp_path: Path) -> None:
    retrieved = method(tmp_path, RETRIEVED, rank="judge,pairwise:3")
    judged = method(tmp_path, RETRIEVED.add(judge_record()), rank="judge,pairwise:3")
    assert "tiny" in judged["description"] and "tiny" not in retrieved["description"]
    assert (retrieved["name"], judged["name"]) == ("bm25", "bm25 > judge > pairwise:3")
    assert [stage.get("reranks") for stage in judged["retrieval"]] == [None, "bm25", "judge"]
    _, judge, pairwise = (set(stage["params"]) for stage in judged["retrieval"])
    assert {
        "sampling.seed",
        "weights.quality",
        "stance.prompt",
    } < judge and "ranking.pairwise.both_orders" in pairwise
