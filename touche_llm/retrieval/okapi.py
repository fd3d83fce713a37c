"""Reference first stage with unmodified rank-bm25, for small corpora (all in memory)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from touche_llm.corpus.store import TextTable
from touche_llm.errors import DataError
from touche_llm.retrieval.base import FirstStage
from touche_llm.text.analysis import Analyzer


class OkapiIndex(FirstStage):
    """`rank_bm25.BM25Okapi` index of documents or of their parts.

    Terms in more than half of the documents get the idf floor of that class, a quarter of the mean idf.
    """

    def __init__(self, table: TextTable, *, k1: float, b: float) -> None:
        """Index all texts; raises DataError if they contain no word."""
        from rank_bm25 import BM25Okapi

        super().__init__(table)
        self._analyzer = Analyzer()
        terms = [self._analyzer.analyze(text) for text in table.read_texts()]
        if not any(terms):
            raise DataError(f"{table.manifest.corpus}: no word to index")
        self._index = BM25Okapi(terms, k1=k1, b=b)

    def score(self, query: str) -> NDArray[np.float64]:
        """Score all rows; see FirstStage."""
        return np.asarray(self._index.get_scores(self._analyzer.analyze(query)), dtype=np.float64)
