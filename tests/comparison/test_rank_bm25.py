"""Our index with method `robertson` against `rank_bm25.BM25Okapi`, fed with the same terms.

rank-bm25 multiplies every score by k1 + 1, bm25s does not, so scores are compared after that
factor. bm25s adds 32-bit floats, rank-bm25 64-bit ones: TOLERANCE, relative, is about four
roundings of a 32-bit float (2**-23 is 1.2e-7). On the real passages the largest difference seen is
1.5e-7, and no two neighbours in a ranking lie closer than that without being tied, so the rankings
are compared as they are. Generated corpora are full of sums that are equal or nearly so; there two
documents may change places where rank-bm25's scores differ by less than the tolerance.
"""

from __future__ import annotations

import json
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from touche_llm.corpus.json_lines import CorpusFile, read_passages
from touche_llm.corpus.store import DocumentStore, ensure_store
from touche_llm.data.records import Candidate, Topic
from touche_llm.retrieval.bm25 import OkapiIndex, open_index
from touche_llm.retrieval.settings import Bm25Settings

TOLERANCE = 5e-7
REAL = Path(__file__).resolve().parents[3] / "shared" / "data" / "comparative"


def quiet(message: str) -> None:
    pass


def store_of(folder: Path, documents: list[list[str]]) -> DocumentStore:
    corpus = folder / "corpus.jsonl"
    lines = (
        json.dumps({"id": f"d{n}", "contents": " ".join(words)})
        for n, words in enumerate(documents)
    )
    corpus.write_text("\n".join(lines))
    return ensure_store(CorpusFile(corpus, read_passages), folder / "index", warn=quiet)


def rankings(
    store: DocumentStore, topics: list[Topic], *, k1: float = 1.5, b: float = 0.75, depth: int = 100
) -> list[tuple[list[Candidate], list[Candidate]]]:
    """Ours and rank-bm25's, topic by topic."""
    index = open_index(store, Bm25Settings(method="robertson", k1=k1, b=b), quiet)
    ours = index.retrieve(topics, fields=("title",), depth=depth)
    theirs = OkapiIndex(store, k1=k1, b=b).retrieve(topics, fields=("title",), depth=depth)
    return list(zip(ours, theirs, strict=True))


def assert_same_scores(ours: list[Candidate], theirs: list[Candidate], factor: float) -> None:
    reference = {each.document_id: each.score for each in theirs}
    assert {each.document_id: each.score * factor for each in ours} == pytest.approx(
        reference, rel=TOLERANCE, abs=0
    )


# Words that the analyzer leaves alone; the later, the rarer.
WORDS = [f"w{n}" for n in range(12)]
word = st.integers(0, 143).map(lambda n: WORDS[int(n**0.5)])


@settings(deadline=None, max_examples=60)
@given(
    documents=st.lists(st.lists(word, min_size=1, max_size=15), min_size=3, max_size=40),
    query=st.lists(word, min_size=1, max_size=6),
    k1=st.floats(0.1, 3.0),
    b=st.floats(0.0, 1.0),
)
@pytest.mark.slow
def test_generated_rankings_are_the_same_up_to_ties(
    tmp_path_factory: pytest.TempPathFactory,
    documents: list[list[str]],
    query: list[str],
    k1: float,
    b: float,
) -> None:
    rare = [
        term
        for term in query
        if 2 * sum(term in document for document in documents) <= len(documents)
    ]
    assume(rare)
    with closing(store_of(tmp_path_factory.mktemp("generated"), documents)) as store:
        ((ours, theirs),) = rankings(store, [Topic("1", " ".join(rare))], k1=k1, b=b)
    assert_same_scores(ours, theirs, factor=k1 + 1)
    reference = {each.document_id: each.score for each in theirs}
    for above, below in pairwise(ours):
        assert reference[above.document_id] >= reference[below.document_id] * (1 - TOLERANCE)
