from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from touche_llm.corpus.json_lines import CorpusFile
from touche_llm.corpus.store import DocumentStore, ensure_store
from touche_llm.data.records import Document, Part, Topic
from touche_llm.errors import BadLine
from touche_llm.retrieval.bm25 import open_index
from touche_llm.retrieval.sentences import (
    DuplicateFilter,
    SentenceSettings,
    is_self_contained,
    jaccard,
    join_scores,
    retrieve_sentences,
)
from touche_llm.retrieval.settings import Bm25Settings

TOPIC = Topic("1", "Should zoos be closed?")
ARGUMENTS = {
    "A1": ["Zoos should be closed for good now.", "Animals suffer behind these bars."],
    "A2": ["Bread tastes better with salted butter.", "https://example.org/zoos-should-be-closed"],
    "A3": ["Zoos should be closed for good, now!", "Zoos teach children about animals.", "Zoos?"],
    "A4": ["Trains are seldom late in winter."],
    "A5": [
        "Nobody reads printed maps any more.",
        "A compass needs no battery.",
        "Paper lasts.",
        "Ink fades slowly.",
    ],
    "A6": [
        "Rain fills the wells.",
        "Clouds pass.",
        "Rivers carry sand.",
        "Lakes freeze late.",
        "Snow melts in spring.",
    ],
    "A7": ["Wool shrinks."],
    "A8": ["Glass is made of sand."],
}


def make_store(folder: Path) -> DocumentStore:
    def read(
        path: Path, on_bad_line: Callable[[BadLine], None] | None = None
    ) -> Iterator[tuple[int, Document]]:
        for line, (name, texts) in enumerate(ARGUMENTS.items(), start=2):
            parts = tuple(Part(f"{name}_{n}", text) for n, text in enumerate(texts, start=1))
            yield (
                line,
                Document(name, " ".join(texts), title="A conclusion", side="PRO", parts=parts),
            )

    (folder / "corpus").touch()
    return ensure_store(CorpusFile(folder / "corpus", read), folder / "index", warn=lambda _: None)


def retrieved(folder: Path, **settings: float) -> list[tuple[str, float]]:
    with make_store(folder) as store:
        stages = [
            open_index(units, Bm25Settings(), lambda _: None) for units in (store, store.parts)
        ]
        chosen = SentenceSettings.model_validate(settings)
        (ranking,) = retrieve_sentences(
            [TOPIC], stages[0], stages[1], store.parts, chosen, ("title",)
        )
    assert [each.rank for each in ranking] == list(range(1, len(ranking) + 1))
    return [(each.document_id, each.score) for each in ranking]


def test_sentences_of_good_arguments_come_with_those_that_match_themselves(tmp_path: Path) -> None:
    found = dict(retrieved(tmp_path))
    # A1_2 and A2_1 hold no word of the topic, their arguments do. A1_1 repeats A3_1; A3_3 and A2_2
    # cannot stand alone.
    assert set(found) == {"A3_1", "A3_2", "A1_2", "A2_1"}
    assert list(found)[0] == "A3_1"
    assert found["A2_1"] <= 0.3
    assert found["A1_2"] <= 0.3
    assert all(0 < score <= 1 for score in found.values())


def test_scores_are_joined_by_their_shares() -> None:
    arguments, sentences = np.array([4.0, 2.0, 1.0]), np.array([0.0, 5.0, 10.0, 0.0])
    parents = np.array([0, 1, 2, 2])
    settings = SentenceSettings(arguments=2, argument_share=0.4)
    rows, scores = join_scores(arguments, sentences, parents, settings)
    assert rows.tolist() == [0, 1, 2]
    assert scores.tolist() == pytest.approx([0.4 * 1.0, 0.6 * 0.5 + 0.4 * 0.5, 0.6])


@pytest.mark.parametrize(
    ("text", "alone"),
    [
        ("Zoos should be closed.", True),
        ("Why not?", False),
        ("https://www.example.org/a-long-path/with/many/words.html", False),
        ("See www.example.de for it", False),
        ("“”", False),
        ("1. 2. 3. 4. 5.", False),
        ("Org/vaping-safer-smoking-cigarettes-2/", False),
        ("a" * 100_000, False),
        ("word " * 201, False),
        ("word " * 200, True),
        ("Ключевые слова этого текста", True),
    ],
)
def test_what_can_stand_alone(text: str, alone: bool) -> None:
    assert is_self_contained(text, SentenceSettings()) is alone


TERMS = st.frozensets(st.sampled_from("abcdefghij"), max_size=8)


@given(st.lists(TERMS, max_size=30), st.sampled_from([0.3, 0.5, 0.6, 0.8, 1.0]))
def test_near_duplicates_are_those_that_comparing_all_pairs_finds(
    sets: list[frozenset[str]], threshold: float
) -> None:
    expected: list[int] = []
    for place, terms in enumerate(sets):
        if terms and all(jaccard(terms, sets[other]) < threshold for other in expected):
            expected.append(place)
    seen = DuplicateFilter(threshold)
    assert [place for place, terms in enumerate(sets) if seen.add(terms)] == expected
