from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest

from benchmarks import synthetic
from touche_llm.corpus.args_me import read_arguments
from touche_llm.corpus.json_lines import read_passages
from touche_llm.data.topics import read_topics
from touche_llm.text.analysis import Analyzer


@pytest.fixture(autouse=True)
def fewer_words(monkeypatch: pytest.MonkeyPatch) -> None:
    few = synthetic.words(20_000)
    monkeypatch.setattr(synthetic, "words", lambda count: few)
    monkeypatch.setattr(synthetic, "_WORDS", len(few))
    monkeypatch.setattr(synthetic, "_PASSAGES_AT_ONCE", 400)
    monkeypatch.setattr(synthetic, "_ARGUMENTS_AT_ONCE", 40)


def test_no_word_is_changed_by_the_analyser_or_occurs_twice() -> None:
    words = synthetic.words(20_000)
    assert Analyzer().analyze(" ".join(words)) == words
    assert len(set(words)) == 20_000


@pytest.mark.parametrize("name", ["passages.jsonl", "passages.jsonl.gz"])
def test_as_many_passages_as_asked_for_with_ids_of_their_own(tmp_path: Path, name: str) -> None:
    synthetic.write_passages(tmp_path / name, 1_000, seed=3)
    documents = [document for _, document in read_passages(tmp_path / name)]
    assert len({each.id for each in documents}) == len(documents) == 1_000
    analyzer = Analyzer()
    assert sum(len(analyzer.analyze(each.text)) for each in documents) / 1_000 == pytest.approx(110, rel=0.05)


def test_as_many_sentences_as_asked_for_with_ids_of_their_own(tmp_path: Path) -> None:
    count = synthetic.write_arguments(tmp_path / "args.csv", 1_000)
    arguments = [argument for _, argument in read_arguments(tmp_path / "args.csv")]
    parts = {part.id for argument in arguments for part in argument.parts}
    assert len(arguments) == len({each.id for each in arguments}) == count
    assert len(parts) == sum(len(each.parts) for each in arguments) == 1_000


def written(folder: Path, seed: int) -> list[bytes]:
    folder.mkdir()
    synthetic.write_passages(folder / "p.jsonl.gz", 100, seed)
    synthetic.write_arguments(folder / "a.csv", 100, seed)
    synthetic.write_topics(folder / "t.xml", 5, seed)
    return [(folder / name).read_bytes() for name in ("p.jsonl.gz", "a.csv", "t.xml")]


def test_the_seed_decides(tmp_path: Path) -> None:
    one, again, other = (written(tmp_path / name, seed) for name, seed in (("a", 1), ("b", 1), ("c", 2)))
    assert one == again
    assert all(each != another for each, another in zip(one, other, strict=True))


@pytest.mark.parametrize("task", ["comparative", "sentence_pairs"])
def test_topics_are_those_of_the_task(tmp_path: Path, task: Literal["comparative", "sentence_pairs"]) -> None:
    synthetic.write_topics(tmp_path / "topics.xml", 7, task=task)
    topics: list[Any] = read_topics(tmp_path / "topics.xml")
    assert [each.id for each in topics] == ["1", "2", "3", "4", "5", "6", "7"]
    assert all((each.objects is not None) == (task == "comparative") for each in topics)
