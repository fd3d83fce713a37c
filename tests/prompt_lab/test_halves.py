"""The half of a topic depends on its title alone."""

from __future__ import annotations

import hashlib

from touche_llm.data.topics.reading import normalise_title
from touche_llm.prompt_lab.holdout import CHOICE, HALVES_FILE, HOLD_OUT, find_half
from touche_llm.settings.yaml_text import read_yaml
from touche_llm.tasks import TASKS, prompts_folder

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
