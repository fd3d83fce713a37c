"""rank-bm25 as it is: the reference first stage, for small corpora (it keeps everything in memory)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from touche_llm.corpus.store import Units
from touche_llm.errors import DataError
from touche_llm.records import Candidate, Topic
from touche_llm.retrieval.analysis import Analyser
from touche_llm.retrieval.top import query_text, top_candidates


def retrieve_okapi(
    topics: list[Topic], units: Units, *, k1: float, b: float, fields: tuple[str, ...], depth: int
) -> Iterator[list[Candidate]]:
    """The best documents of each topic by `rank_bm25.BM25Okapi`, topic by topic.

    Terms that occur in more than half of the documents get that class's floor (a quarter of the mean idf).
    """
    from rank_bm25 import BM25Okapi

    analyser = Analyser()
    terms = [analyser.terms(text) for text in units.texts()]
    if not any(terms):
        raise DataError(f"{units.manifest.corpus}: no word to index in it")
    okapi = BM25Okapi(terms, k1=k1, b=b)
    for topic in topics:
        scores = np.asarray(okapi.get_scores(analyser.terms(query_text(topic, fields))), dtype=np.float64)
        yield top_candidates(topic, scores, units.ids_of, depth)
