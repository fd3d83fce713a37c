"""The PyTerrier transformers, with the real PyTerrier, without Java, on the replayed answers of the samples."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyterrier as pt
import pytest

import touche_llm as tl
from tests.expect import raises_at
from tests.sample_runs import TASK_OF_EACH_KIND, Silent
from touche_llm.cli.demo import SAMPLES, sample_config
from touche_llm.integrations.tira import detect_input
from touche_llm.runs.stages import run_all

# Any, since a call of a transformer returns whatever it was given: a frame, or rows.
transformers: Any = importlib.import_module("touche_llm.integrations.pyterrier")
BM25, LLMJudge, LLMRerank = transformers.BM25, transformers.LLMJudge, transformers.LLMRerank


@pytest.fixture(autouse=True)
def no_java(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    yield
    assert not pt.java.started()


def read_frame(task: str) -> pd.DataFrame:
    """The topics of a sample as PyTerrier has them."""
    topics = tl.read_topics(detect_input(SAMPLES / task).topics)
    return pd.DataFrame(topics).rename(columns={"id": "qid", "title": "query"})


@pytest.fixture
def sample(tmp_path: Path) -> Iterator[Any]:
    """The sample of the task `comparative`: topics, corpus, model."""
    with (
        tl.open_corpus(
            SAMPLES / "comparative/passages.jsonl", task="comparative", index=tmp_path / "index"
        ) as corpus,
        tl.LanguageModel(
            cache=SAMPLES / "comparative/cassette.jsonl", cache_mode="replay"
        ) as model,
    ):
        yield SimpleNamespace(topics=read_frame("comparative"), corpus=corpus, model=model)


def to_results(frame: pd.DataFrame, columns: Any) -> pd.DataFrame:
    """The frame with the names and ranks of `results.tsv`."""
    renamed = frame.rename(columns={"qid": "topic", "docno": "document"})
    return renamed.assign(rank=frame["rank"] + 1)[list(columns)]


@pytest.mark.parametrize("task", TASK_OF_EACH_KIND)
@pytest.mark.filterwarnings("ignore::touche_llm.errors.ToucheWarning")
def test_a_pipeline_makes_the_run_of_the_command_line(task: str, tmp_path: Path) -> None:
    config = sample_config(task, tmp_path / "out", {})
    asyncio.run(run_all(config, tmp_path / "out", Silent()))
    expected = pd.read_csv(tmp_path / "out/results.tsv", sep="\t", dtype={"topic": str})
    options = tl.RankOptions(stance=config.stance or tl.StanceSettings(), settings=config.ranking)
    sample = detect_input(SAMPLES / task)
    with (
        tl.open_corpus(sample.corpus, task=task, index=tmp_path / "index") as corpus,
        tl.LanguageModel(cache=SAMPLES / task / "cassette.jsonl", cache_mode="replay") as model,
    ):
        # Pairs of sentences are made of the corpus; other documents travel in the frame.
        source = corpus if task == "sentence_pairs" else task
        first = BM25(corpus, depth=config.depth) >> LLMJudge(
            model,
            source,
            depth=config.depth,
            judging_settings=config.judging_settings,
            options=options,
        )
        steps = [str(step) for step in config.steps]
        judged = first(read_frame(task))
        whole = LLMRerank(model, steps, source, options=options)(judged)
        comparisons = LLMRerank(model, steps[1:], source, options=options)(judged)
    pd.testing.assert_frame_equal(to_results(whole, expected.columns), expected, check_dtype=False)
    # Without `judge`, the order of the frame is ranked further, with other scores.
    columns = [name for name in expected.columns if name != "score"]
    pd.testing.assert_frame_equal(
        to_results(comparisons, columns), expected[columns], check_dtype=False
    )


def test_inspection_finds_the_columns_that_a_frame_has(sample: Any) -> None:
    bm25 = BM25(sample.corpus, depth=3)
    judge = LLMJudge(sample.model, "comparative", options=tl.RankOptions(stance={"depth": 100}))
    rerank = LLMRerank(None, ["judge", "balance:3"], "comparative")
    columns, frame = list(sample.topics.columns), sample.topics
    for transformer in (bm25, judge, rerank):
        (needed,) = pt.inspect.transformer_inputs(transformer) or [[]]
        assert set(needed) <= set(columns)
        frame = transformer(frame)
        columns = pt.inspect.transformer_outputs(transformer, columns)
        assert set(columns) == set(frame.columns)
        again = pt.inspect.transformer_apply_attributes(transformer)
        assert repr(again) == repr(transformer)
    assert pt.inspect.transformer_outputs(bm25 >> judge >> rerank, list(sample.topics.columns))
    assert {
        "score",
        "rank",
        "stance",
        "relevance",
        "quality",
        "p_FIRST",
        "p_NO",
        "text",
        "objects",
    } <= set(columns)
    assert frame.groupby("qid")["rank"].apply(list).tolist() == [[0, 1, 2]] * len(sample.topics)


def test_an_experiment_compares_the_stages(sample: Any) -> None:
    terrier: Any = pt
    bm25 = BM25(sample.corpus, depth=100)
    judge = LLMJudge(sample.model, "comparative", options=tl.RankOptions(stance={"depth": 100}))
    system = bm25 >> judge >> LLMRerank(sample.model, ["pairwise:5"], "comparative")
    qrels = system(sample.topics).query("rank == 0")[["qid", "docno"]].assign(label=1)
    names = ["bm25", "rerank"]
    table = terrier.Experiment(
        [bm25, system], sample.topics, qrels, [terrier.measures.RR], names=names, plan="tree"
    )
    assert table.set_index("name")["RR"]["rerank"] == 1.0


def test_the_corpus_holds_the_texts_that_a_frame_lacks(sample: Any) -> None:
    frame = BM25(sample.corpus, depth=2)(sample.topics)
    judged = LLMJudge(sample.model, sample.corpus)(frame.drop(columns="text"))
    pd.testing.assert_frame_equal(
        judged, LLMJudge(sample.model, "comparative")(frame).drop(columns="text")
    )


@pytest.mark.parametrize(
    ("change", "values"),
    [
        (lambda frame: frame.assign(text=float("nan")), ["no text"]),
        (
            lambda frame: frame.assign(text=range(len(frame)), docno="d").astype({"text": str}),
            ["two of them"],
        ),
        (lambda frame: frame.assign(score=float("nan")), ["score"]),
    ],
)
def test_a_malformed_frame_is_refused(change: Any, values: list[str], sample: Any) -> None:
    frame = BM25(sample.corpus, depth=2)(sample.topics)
    with raises_at(tl.DataError, "frame", *values):
        LLMJudge(sample.model, "comparative")(change(frame))


def test_missing_columns_are_named_before_any_request(sample: Any) -> None:
    frame = BM25(sample.corpus, depth=2)(sample.topics)
    for transformer, column in (
        (LLMJudge(sample.model, "comparative"), "text"),
        (LLMRerank(sample.model, ["pairwise:2"], "comparative"), "objects"),
        (LLMRerank(None, ["judge", "balance:2"], "comparative"), "relevance"),
    ):
        with pytest.raises(pt.validate.InputValidationError) as caught:
            transformer(frame.drop(columns=column, errors="ignore"))
        assert column in caught.value.modes[0].missing_columns


def test_wrong_use_is_named_at_once(sample: Any) -> None:
    wrong: list[tuple[Callable[[], Any], str]] = [
        (lambda: LLMJudge(sample.model, "sentence_pairs"), "source"),
        (lambda: LLMRerank(sample.model, ["guess:3"], "comparative"), "steps"),
        (lambda: LLMRerank(None, ["pairwise:3"], "comparative"), "model"),
    ]
    for make, location in wrong:
        with pytest.raises(tl.UsageError) as caught:
            make()
        assert caught.value.location == location


def test_topics_without_objects_are_not_compared_and_named(sample: Any) -> None:
    frame = BM25(sample.corpus, depth=2)(sample.topics.assign(objects=None))
    rerank = LLMRerank(sample.model, ["pairwise:2"], "comparative")
    with pytest.warns(tl.ToucheWarning) as caught:
        ranked = rerank(frame)
    assert any("no objects" in str(warning.message) for warning in caught)
    assert ranked["docno"].tolist() == frame["docno"].tolist()


@pytest.mark.parametrize(
    ("task", "step", "grades", "stances"),
    [
        (
            "comparative",
            "balance:2",
            {"relevance": 1.0, "quality": 1.0, "stance": "NO"},
            {"stance"},
        ),
        ("arguments_2020", "fusion:2", {"relevance": 1.0}, set()),
    ],
)
@pytest.mark.filterwarnings("ignore::touche_llm.errors.ToucheWarning")
def test_only_documents_without_grades_get_a_stance(
    task: str, step: str, grades: dict[str, Any], stances: set[str], sample: Any
) -> None:
    frame = BM25(sample.corpus, depth=3)(sample.topics)
    rerank = LLMRerank(None, [step], task)
    assert (
        set(rerank(frame).columns) == set(rerank(frame[:0]).columns) == {*frame.columns, *stances}
    )
    judged = frame.assign(**grades)
    # Columns that a transformer adds or replaces are the last.
    assert rerank(judged).columns[-2:].tolist() == ["score", "rank"]
    by_grades = LLMRerank(None, ["judge"], task)(judged)
    assert by_grades["docno"].tolist() == frame["docno"].tolist()


def test_grades_that_are_none_are_refused(sample: Any) -> None:
    judged = LLMJudge(sample.model, "comparative")(BM25(sample.corpus, depth=2)(sample.topics))
    rerank = LLMRerank(None, ["judge"], "comparative")
    with raises_at(tl.DataError, "judgments", "relevance"):
        rerank(judged.assign(relevance=9.0))
    with pytest.warns(tl.ToucheWarning, match="no judgment"):
        assert len(rerank(judged.assign(relevance=None, quality=None))) == len(judged)


def test_without_the_package_the_message_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "touche_llm.integrations.pyterrier")
    monkeypatch.setitem(sys.modules, "pyterrier", None)
    with pytest.raises(tl.UsageError, match=r"touche-llm\[pyterrier\]"):
        importlib.import_module("touche_llm.integrations.pyterrier")
