"""The metadata of a run says what its configuration and its finished stages are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from touche_llm.pipeline.config_file import load_config
from touche_llm.pipeline.provenance import build_metadata

JUDGED: dict[str, Any] = {"retrieve": {}, "judge": {"model": "tiny"}}


def described(folder: Path, stages: dict[str, Any], **flags: Any) -> dict[str, Any]:
    given = {"topics": Path("topics.xml"), "corpus": Path("passages.jsonl"), "index": folder / "index"}
    config = load_config(None, given | {name.replace("__", "."): value for name, value in flags.items()})
    return build_metadata(config, folder, stages)


def method(folder: Path, stages: dict[str, Any], **flags: Any) -> dict[str, Any]:
    found: dict[str, Any] = described(folder, stages, **flags)["method"]
    return found


@pytest.mark.parametrize(
    ("retriever", "first", "names"),
    [
        ("bm25", "bm25s.BM25", {"variant"}),
        ("okapi", "rank_bm25.BM25Okapi", set()),
        ("dense", "touche_llm.retrieval.dense", {"vectors"}),
        ("hybrid", "reciprocal rank fusion of bm25s.BM25 and touche_llm.retrieval.dense", {"variant", "vectors"}),
    ],
)
def test_the_first_stage_is_named_with_its_parameters(
    retriever: str, first: str, names: set[str], tmp_path: Path
) -> None:
    (stage,) = method(tmp_path, {"retrieve": {}}, retriever__name=retriever)["retrieval"]
    assert (stage["name"], stage["method"]) == ("first stage", first)
    assert set(stage["params"]) == {"query", "depth", "k1", "b"} | names


def test_an_expansion_is_among_the_parameters_only_if_it_is_used(tmp_path: Path) -> None:
    (own,) = method(tmp_path, {"retrieve": {}})["retrieval"]
    (expanded,) = method(tmp_path, {"retrieve": {}}, expansion__use=True, expansion__weight=0.25)["retrieval"]
    others = {"weight": 0.25, "k": expanded["params"]["other queries"]["k"]}
    assert expanded["params"] == own["params"] | {"other queries": others}


def test_steps_and_model_are_named_once_documents_are_judged(tmp_path: Path) -> None:
    retrieved = method(tmp_path, {"retrieve": {}}, rank="judge,pairwise:3")
    judged = method(tmp_path, JUDGED, rank="judge,pairwise:3")
    assert (retrieved["name"], judged["name"]) == ("bm25", "bm25 > judge > pairwise:3")
    assert [all(text in run["description"] for text in ("tiny", "pairwise:3")) for run in (retrieved, judged)] == [
        False,
        True,
    ]
    reranked = {stage["name"]: stage.get("reranks") for stage in judged["retrieval"]}
    assert list(reranked) == ["first stage", "judge", "pairwise:3", "stance"]
    assert (reranked["judge"], reranked["pairwise:3"]) == ("first stage", "judge")


def test_pairs_are_made_once_their_sentences_are_judged(tmp_path: Path) -> None:
    def names(stages: dict[str, Any]) -> list[str]:
        return [stage["name"] for stage in method(tmp_path, stages, task="sentence_pairs", rank="judge")["retrieval"]]

    assert names({"retrieve": {}}) == ["first stage"]
    assert names(JUDGED) == ["first stage", "pairs", "judge"]
