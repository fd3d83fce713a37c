"""The library: the same runs as the command line, in scripts, notebooks and running event loops."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import touche_llm as tl
from tests.sample_runs import TASK_OF_EACH_KIND, Silent, config_for, run_directly
from tests.scripted_engine import ScriptedEngine
from tests.write_demo_cassette import script_with_queries
from touche_llm.cli.demo import SAMPLES, sample_config
from touche_llm.config.configuration import Config
from touche_llm.integrations.tira import detect_input
from touche_llm.runs.stages import run_all


def replayed(task: str) -> tl.LanguageModel:
    return tl.LanguageModel(cache=SAMPLES / task / "cassette.jsonl", cache_mode="replay")


@pytest.fixture
def corpus(tmp_path: Path) -> Iterator[Any]:
    with tl.open_corpus(
        SAMPLES / "comparative/passages.jsonl", task="comparative", index=tmp_path / "index"
    ) as opened:
        yield opened


@pytest.fixture
def topics() -> list[tl.Topic]:
    return tl.read_topics(SAMPLES / "comparative/topics.xml")


def run_library(task: str, config: Config, index: Path) -> tl.Ranking:
    """The demo of a task, as a notebook would make it."""
    sample = detect_input(SAMPLES / task)
    with (
        tl.open_corpus(sample.corpus, task=task, index=index) as corpus,
        replayed(task) as model,
    ):
        candidates = tl.retrieve(tl.read_topics(sample.topics), corpus, depth=config.depth)
        judgments = tl.judge(
            candidates, model, stance=config.stance, judging_settings=config.judging_settings
        )
        options = tl.RankOptions(settings=config.ranking)
        return tl.rank(candidates, judgments, steps=config.rank, model=model, options=options)


@pytest.mark.parametrize("task", TASK_OF_EACH_KIND)
@pytest.mark.filterwarnings("ignore::touche_llm.errors.ToucheWarning")
def test_the_library_makes_the_run_of_the_command_line(task: str, tmp_path: Path) -> None:
    config = sample_config(task, tmp_path / "out", {})
    asyncio.run(run_all(config, tmp_path / "out", Silent()))
    ranking = run_library(task, config, tmp_path / "index")
    ranking.write(tmp_path / "run.txt", tag=config.tag)
    assert (tmp_path / "run.txt").read_bytes() == (tmp_path / "out/run.txt").read_bytes()
    results = pd.read_csv(tmp_path / "out/results.tsv", sep="\t", dtype={"topic": str})
    pd.testing.assert_frame_equal(ranking.to_frame(), results, check_dtype=False)
    read = tl.read_run(tmp_path / "out")
    assert read.rankings == ranking.rankings and read.stances == ranking.stances


async def test_the_functions_work_inside_a_running_event_loop(
    topics: list[tl.Topic], corpus: Any
) -> None:
    candidates = tl.retrieve(topics, corpus)
    with replayed("comparative") as model:
        judged = tl.judge(candidates, model, stance=tl.StanceSettings(depth=100))
        ranked = tl.rank(candidates, judged, steps=["judge", "pairwise:5"], model=model)
    assert len(judged.judgments) > 0 and len(ranked.comparisons) > 0


def test_frames_of_candidates_go_both_ways(
    topics: list[tl.Topic], corpus: Any, tmp_path: Path
) -> None:
    candidates = tl.retrieve(topics, corpus, depth=5)
    frame = candidates.to_frame()
    shuffled = frame.sample(frac=1, random_state=1)
    assert tl.Candidates.from_frame(shuffled, topics, corpus).rankings == candidates.rankings
    assert (
        tl.Candidates.from_frame(shuffled.drop(columns="rank"), topics, corpus).rankings
        == candidates.rankings
    )
    candidates.write(tmp_path / "first.txt", tag="first")
    assert (
        tl.Candidates.from_run(tmp_path / "first.txt", topics, corpus).rankings
        == candidates.rankings
    )
    by_rank = tl.Candidates.from_frame(frame.drop(columns="score"), topics, corpus).rankings
    documents = {
        topic: [each.document_id for each in ranking]
        for topic, ranking in candidates.rankings.items()
    }
    assert {
        topic: [each.document_id for each in ranking] for topic, ranking in by_rank.items()
    } == documents


def test_a_malformed_frame_is_refused(topics: list[tl.Topic], corpus: Any) -> None:
    frame = tl.retrieve(topics, corpus, depth=3).to_frame()
    for bad in (
        frame.drop(columns="document"),
        frame.drop(columns=["rank", "score"]),
        pd.concat([frame, frame]),
        frame.assign(rank="first"),
        frame.assign(score=float("nan")),
        frame.assign(topic="99"),
        frame.assign(score=-frame["score"]),
    ):
        with pytest.raises(tl.DataError) as caught:
            tl.Candidates.from_frame(bad, topics, corpus)
        assert caught.value.location == "frame"


def test_wrong_use_is_named(topics: list[tl.Topic], corpus: Any) -> None:
    candidates = tl.retrieve(topics, corpus, depth=3)
    with pytest.raises(tl.UsageError):
        tl.judge(candidates, replayed("comparative"))
    with replayed("comparative") as model:
        judgments = tl.judge(candidates, model, stance=tl.StanceSettings(depth=0))
        for options, location in (
            ({"steps": ["judge", "pairwise:5"]}, "model"),
            ({"steps": ["guess"]}, "steps"),
            ({"options": tl.RankOptions(weights={"beauty": 1.0})}, "weights"),
            (
                {"steps": ["pairwise:5"], "model": model, "prompts": {"worst": "mine.jinja"}},
                "prompts",
            ),
        ):
            with pytest.raises(tl.UsageError) as caught:
                tl.rank(candidates, judgments, **options)
            assert caught.value.location == location
        with pytest.raises(tl.UsageError, match="controversial"):
            tl.rank(replace(candidates, task=tl.get_task("controversial")), judgments)
        frame = pd.DataFrame([{"topic": topics[0].id, "document": "nowhere", "rank": 1}])
        with pytest.raises(tl.DataError, match="nowhere"):
            tl.judge(tl.Candidates.from_frame(frame, topics, corpus), model)
    with pytest.raises(tl.UsageError):
        model.info  # noqa: B018
    with pytest.raises(tl.UsageError) as caught:
        tl.LanguageModel(cache_mode="sometimes")
    assert caught.value.location == "cache.mode"
    with pytest.raises(tl.UsageError):
        tl.open_corpus(task="comparative")
    with pytest.raises(tl.UsageError) as caught:
        tl.rank(candidates, judgments).write("nowhere.txt", tag="two words")
    assert caught.value.location == "tag" and not Path("nowhere.txt").exists()


def test_an_existing_file_is_replaced_only_on_demand(
    topics: list[tl.Topic], corpus: Any, tmp_path: Path
) -> None:
    candidates = tl.retrieve(topics, corpus, depth=3)
    file = tmp_path / "mine.txt"
    file.write_text("precious")
    with pytest.raises(tl.UsageError) as caught:
        candidates.write(file)
    assert caught.value.location == str(file) and file.read_text() == "precious"
    candidates.write(file, overwrite=True)
    assert len(file.read_text().splitlines()) == sum(map(len, candidates.rankings.values()))


def test_a_topic_given_twice_and_a_closed_corpus_are_refused(
    topics: list[tl.Topic], corpus: Any
) -> None:
    with pytest.raises(tl.DataError) as caught:
        tl.retrieve([*topics, topics[0]], corpus)
    assert caught.value.location == "topics"
    candidates = tl.retrieve(topics, corpus, depth=2)
    corpus.close()
    with pytest.raises(tl.UsageError), replayed("comparative") as model:
        tl.judge(candidates, model)
    with pytest.raises(tl.UsageError):
        tl.retrieve(topics, corpus)


def test_unjudged_documents_give_a_typed_warning(
    topics: list[tl.Topic], corpus: Any, tmp_path: Path
) -> None:
    candidates = tl.retrieve(topics, corpus, depth=4)
    with replayed("comparative") as model:
        judgments = tl.judge(candidates, model, stance=tl.StanceSettings(depth=0))
    some = tl.Candidates.from_frame(tl.retrieve(topics, corpus, depth=6).to_frame(), topics, corpus)
    with pytest.warns(tl.ToucheWarning) as caught:
        ranking = tl.rank(some, judgments)
    assert {warning.filename for warning in caught} == {__file__}
    assert ranking.imputed == len(ranking.lines) - len(judgments.judgments) > 0
    first = ranking.rankings[topics[0].id][0]
    (tmp_path / "qrels.txt").write_text(f"{topics[0].id} 0 {first.document_id} 2\n")
    with pytest.warns(tl.ToucheWarning):
        table = tl.evaluate(
            ranking, tl.read_qrels({"relevance": tmp_path / "qrels.txt"}, "comparative")
        )
    assert table.set_index("measure").loc["relevance nDCG@5", "value"] == pytest.approx(1.0)


async def test_queries_are_expanded_by_the_model_that_is_given(tmp_path: Path) -> None:
    config = config_for(tmp_path, topic=("3",), expansion__use=True)
    await run_directly(config, tmp_path / "out", ScriptedEngine(script_with_queries("comparative")))
    topics = [topic for topic in tl.read_topics(config.topics) if topic.id == "3"]
    with tl.open_corpus(config.corpus, task="comparative", index=tmp_path / "index") as corpus:
        with tl.LanguageModel(cache=config.cache.file, cache_mode="replay") as model:
            expanded = tl.retrieve(topics, corpus, expand_with=model)
    own = tl.read_run(tmp_path / "out/candidates.run.txt")
    assert [(query.topic_id, len(query.queries)) for query in expanded.queries] == [("3", 3)]
    assert expanded.rankings == own.rankings


def test_every_public_name_can_be_imported_and_is_documented() -> None:
    assert set(tl.__all__) <= set(dir(tl))
    for name in tl.__all__:
        found = getattr(tl, name)
        assert found.__doc__, name
        assert importlib.import_module(found.__module__)
