"""The half of a topic depends on its title alone."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

import pytest

from touche_llm.data.settings import read_yaml
from touche_llm.data.topics import normalise_title, read_topics
from touche_llm.evaluation.qrels import read_qrels
from touche_llm.prompt_lab.holdout import CHOICE, HALVES_FILE, HOLD_OUT, find_half
from touche_llm.tasks import TASKS, prompts_folder

REAL = Path(__file__).resolve().parents[3] / "shared/data"
PINNED = "a35b6e6b732c378ba2e8d9870ac6ab9dc6df8b33ad59db3cceca690b47c01e07"
PUBLISHED = {
    file.parent.name: {CHOICE: halves["choice"], HOLD_OUT: halves["hold_out"]}
    for file in sorted(prompts_folder().glob(f"*/{HALVES_FILE}"))
    if (halves := read_yaml(file))
}


def test_published_halves_never_move() -> None:
    lines = sorted(
        f"{normalise_title(title)} {half}"
        for of_task in PUBLISHED.values()
        for half in of_task
        for title in of_task[half]
    )
    assert hashlib.sha256("\n".join(lines).encode()).hexdigest() == PINNED
    assert len(lines) == 100 and PUBLISHED.keys() <= TASKS.keys()


def test_published_halves_have_equally_many_topics_and_each_title_once() -> None:
    counts = Counter(
        normalise_title(title) for of_task in PUBLISHED.values() for titles in of_task.values() for title in titles
    )
    assert set(counts.values()) == {1}
    assert {len(titles) for of_task in PUBLISHED.values() for titles in of_task.values()} == {25}
    for of_task in PUBLISHED.values():
        assert all(find_half(title) == half for half, titles in of_task.items() for title in titles)


@pytest.mark.skipif(not REAL.exists(), reason="needs the published topics")
@pytest.mark.parametrize(
    ("task", "judged_as", "qrels"),
    [
        ("comparative", "comparative", "comparative/qrels-relevance.txt"),
        ("sentence_pairs", "arguments_2020", "sentence_pairs/qrels-arguments-2020.txt"),
        ("controversial", "arguments_2020", "sentence_pairs/qrels-arguments-2020.txt"),
    ],
)
def test_judged_topics_are_balanced(task: str, judged_as: str, qrels: str) -> None:
    topics = read_topics(REAL / task / "topics.xml")
    judged = read_qrels({"relevance": REAL / qrels}, judged_as).grades["relevance"]
    assert Counter((find_half(topic.title), topic.id in judged) for topic in topics) == {
        (CHOICE, True): 13,
        (HOLD_OUT, True): 12,
        (CHOICE, False): 12,
        (HOLD_OUT, False): 13,
    }


def test_neither_case_nor_space_nor_punctuation_moves_a_topic() -> None:
    for title in ("which is better  CANON or\tNikon", "Which is better: Ｃanon or Nikon"):
        assert normalise_title(title) == normalise_title("Which is better, Canon or Nikon?")
        assert find_half(title) == find_half("Which is better, Canon or Nikon?")
    assert normalise_title("Cafe\u0301 oder Чай?") == normalise_title("CAFÉ oder чай")
    assert normalise_title("?") != normalise_title("!") and find_half("?") in (CHOICE, HOLD_OUT)


def test_other_topics_are_in_the_half_of_the_first_bit_of_their_hash() -> None:
    for number in range(40):
        title = f"Is question {number} new?"
        first = hashlib.sha256(f"is question {number} new".encode()).digest()[0]
        assert find_half(title) == (CHOICE if first < 128 else HOLD_OUT)
