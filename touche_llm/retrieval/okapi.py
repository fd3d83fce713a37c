"""rank-bm25 as it is: the reference first stage, for small corpora (it keeps everything in memory)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from touche_llm.corpus.store import TextTable
from touche_llm.errors import DataError
from touche_llm.retrieval.base import FirstStage
from touche_llm.text.analysis import Analyzer


class OkapiIndex(FirstStage):
    """`rank_bm25.BM25Okapi` over documents, or over their parts.

    Terms that occur in more than half of the documents get that class's floor (a quarter of the mean idf).
    """

    def __init__(self, units: TextTable, *, k1: float, b: float) -> None:
        """Index all texts; raises DataError where they hold no word."""
        from rank_bm25 import BM25Okapi

        super().__init__(units)
        self._analyzer = Analyzer()
        terms = [self._analyzer.analyze(text) for text in units.read_texts()]
        if not any(terms):
            raise DataError(f"{units.manifest.corpus}: no word to index in it")
        self._index = BM25Okapi(terms, k1=k1, b=b)

    def scores(self, query: str) -> NDArray[np.float64]:
        """See FirstStage."""
        return np.asarray(self._index.get_scores(self._analyzer.analyze(query)), dtype=np.float64)
