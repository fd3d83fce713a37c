"""Texts of known measures, and of others."""

from __future__ import annotations

import pytest

from touche_llm.data.measure import MACRO_F1, Measure, make_headline_ndcg
from touche_llm.evaluation.known_measures import parse_measure

KNOWN = {
    "relevance nDCG@5": make_headline_ndcg("relevance"),
    "my_aspect R@1000": Measure("my_aspect", "R", 1000),
    "stance macro-F1": MACRO_F1,
    "stance precision NO": Measure("stance", "precision", label="NO"),
    "quality kappa": Measure("quality", "kappa"),
}


@pytest.mark.parametrize("text", KNOWN)
def test_a_known_measure_is_read_from_its_text(text: str) -> None:
    assert parse_measure(text) == KNOWN[text]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nDCG@5",
        "relevance",
        "relevance ",
        "relevance nDCG",
        "relevance nDCG@",
        "relevance nDCG@0",
        "relevance nDCG@05",
        "relevance nDCG@-5",
        "relevance ndcg@5",
        "relevance nDCG@5 ",
        "relevance nDCG@5\n",
        "relevance  nDCG@5",
        "relevance nDCG@5 NO",
        "relevance kappa@5",
        "stance precision",
        "stance precision@5 NO",
        "stance F1",
        "two words nDCG@5",
    ],
)
def test_other_text_is_refused_with_the_known_measures(text: str) -> None:
    with pytest.raises(ValueError, match=r"nDCG@K, .*recall LABEL, kappa, Spearman$") as error:
        parse_measure(text)
    assert repr(text) in str(error.value)
