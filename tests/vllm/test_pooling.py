"""Cross-encoders and embedding models on a real vLLM, on all 50 real topics if available."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fake_server import FakeServer
from tests.vllm.command import touche
from tests.vllm.conftest import Tell
from tests.vllm.real_data import TaskInput
from tests.vllm.server import make_model, vllm_server
from touche_llm.llm.cache import Cache

pytestmark = pytest.mark.vllm
DEPTH = 6
NOWHERE = "http://127.0.0.1:1"


@pytest.fixture
def data(inputs: Callable[[str], TaskInput]) -> TaskInput:
    return inputs("comparative")


@pytest.fixture(scope="module")
def reranker_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL of a cross-encoder with random weights."""
    folder = tmp_path_factory.mktemp("reranker")
    with vllm_server(
        make_model(folder, "classifier"), folder / "server.log", runner="pooling"
    ) as url:
        yield url


@pytest.fixture(scope="module")
def embeddings_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL of an embedding model with random weights."""
    folder = tmp_path_factory.mktemp("embeddings")
    with vllm_server(
        make_model(folder, "embedding"), folder / "server.log", runner="pooling"
    ) as url:
        yield url


def stages_of(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((out / "ir-metadata.yml").read_text())["stages"]
    return found


def test_a_cross_encoder_ranks_and_is_replayed_without_its_server(
    data: TaskInput, reranker_url: str, tmp_path: Path, tell: Tell
) -> None:
    command = ["run", *data.options, "--depth", DEPTH, "--cache", tmp_path / "answers.sqlite"]
    command += ["--stance-depth", 0, "--rank", f"judge,cross_encoder:{DEPTH}"]
    asked, replayed = tmp_path / "asked", tmp_path / "replayed"
    # The judgments are not what is tried here, and another start of vLLM takes a minute.
    with FakeServer().in_thread() as judge:
        done = touche(
            *command, "--base-url", judge.url, "--reranker-url", reranker_url, "--out", asked
        )
    tell(done.stderr.splitlines()[-1])
    found = stages_of(asked)["rank"]["cross_encoder"]
    with Cache(tmp_path / "answers.sqlite") as cache:
        scores = {
            (entry.topic, entry.document): entry.value["score"] for entry in cache.find("score")
        }
    assert (found["model"]["name"], found["model"]["context"]) == ("classifier", 2048)
    assert found["counts"]["cache_hits"] == 0
    assert found["counts"]["requests"] == stages_of(asked)["retrieve"]["topics"]
    assert len(scores) == stages_of(asked)["retrieve"]["candidates"] > 0
    # Clearly different documents have different scores, and the run is in their order.
    assert len(set(scores.values())) > len(scores) // 2
    ranked: dict[str, list[float]] = {}
    for line in (asked / "run.txt").read_text().splitlines():
        topic, _, document, *_ = line.split()
        ranked.setdefault(topic, []).append(scores[topic, document])
    assert all(of_topic == sorted(of_topic, reverse=True) for of_topic in ranked.values())

    touche(*command, "--base-url", NOWHERE, "--cache-mode", "replay", "--out", replayed)
    assert (replayed / "run.txt").read_bytes() == (asked / "run.txt").read_bytes()
    assert stages_of(replayed)["rank"]["cross_encoder"]["counts"]["requests"] == 0
    # A step that reads the stored scores needs no address either.
    touche("rank", "--out", asked, "--rank", f"cross_encoder:{DEPTH}")


@pytest.mark.parametrize("retriever", ["dense", "hybrid"])
def test_vectors_find_candidates_and_are_replayed_without_their_server(
    data: TaskInput, embeddings_url: str, tmp_path: Path, tell: Tell, retriever: str
) -> None:
    command = ["retrieve", *data.options, "--retriever", retriever, "--depth", DEPTH]
    command += ["--cache", tmp_path / "answers.sqlite", "--embeddings-preset", "e5"]
    asked, replayed = tmp_path / "asked", tmp_path / "replayed"
    tell(
        touche(*command, "--embeddings-url", embeddings_url, "--out", asked).stderr.splitlines()[-1]
    )
    facts = stages_of(asked)["retrieve"]
    found = facts["dense"]
    assert (found["model"]["name"], found["dimensions"], facts["candidates"]) == (
        "embedding",
        64,
        DEPTH * facts["topics"],
    )
    with Cache(tmp_path / "answers.sqlite") as cache:
        assert len(cache.find("embedding")) == facts["topics"]
    touche(*command, "--embeddings-url", NOWHERE, "--cache-mode", "replay", "--out", replayed)
    assert (replayed / "candidates.run.txt").read_bytes() == (
        asked / "candidates.run.txt"
    ).read_bytes()
    assert stages_of(replayed)["retrieve"]["dense"]["counts"]["requests"] == 0
    # Every document has its vector by now.
    server = ("--embeddings-preset", "e5", "--embeddings-url", embeddings_url)
    touche("index", *data.options[:2], *data.options[4:], "--retriever", retriever, *server)
