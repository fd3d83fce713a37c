"""First-stage candidates, with the topics and the corpus that they belong to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from touche_llm.data.files import check_output
from touche_llm.data.records import Candidate, Failure, Objects, Queries, Topic
from touche_llm.data.trec_runs import check_tag, make_strictly_decreasing, read_candidates, write_candidates
from touche_llm.errors import DataError, UsageError, shorten
from touche_llm.judging.pointwise import Documents
from touche_llm.pipeline.corpora import Corpus
from touche_llm.pipeline.frames import group_rankings, make_frame
from touche_llm.tasks.base import Task

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, slots=True, repr=False)
class Candidates:
    """Candidates of topics: documents, sentences to make pairs of, or pairs.

    Attributes:
        task: Task of the run.
        topics: Topics, in the order of the run.
        corpus: Corpus that holds the documents; None if the candidates are only ranked by their judgments.
        rankings: Candidates by topic id, best first, with ranks from 1 and strictly decreasing scores.
        depth: Number of candidates per topic to judge; of sentences, the number judged at a time.
        source: Where the candidates come from, for messages.
        are_pairs: Whether they are pairs of sentences.
        queries: Additional queries that were searched for.
        failures: Failures of query expansion, whose topics were searched for with their own query only.
    """

    task: Task
    topics: list[Topic]
    corpus: Corpus | None
    rankings: Mapping[str, list[Candidate]]
    depth: int
    source: str = "candidates"
    are_pairs: bool = False
    queries: Sequence[Queries] = ()
    failures: Sequence[Failure] = ()

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for topic in self.topics:
            if topic.id in seen:
                raise DataError(f"topics: topic {topic.id} occurs twice; give each topic once")
            seen.add(topic.id)

    def __repr__(self) -> str:
        count = sum(map(len, self.rankings.values()))
        return f"<Candidates: {count:,} {'pairs' if self.are_pairs else 'candidates'} of {len(self.topics):,} topics>"

    @property
    def documents(self) -> Documents:
        """Source of the candidates' texts; raises UsageError without a corpus."""
        corpus = self.require_corpus()
        return corpus.documents if self.are_pairs else corpus.candidates

    def require_corpus(self) -> Corpus:
        """Return the corpus; raise UsageError if the candidates have none."""
        if self.corpus is None:
            raise UsageError(f"{self.source}: no corpus; open the corpus that holds these documents")
        self.corpus.require_open()
        return self.corpus

    def list_rankings(self) -> list[list[Candidate]]:
        """Return the candidates of each topic, in the order of the topics."""
        return [self.rankings.get(topic.id, []) for topic in self.topics]

    async def check(self) -> None:
        """Fetch the documents from a search engine; raise DataError if the corpus lacks one."""
        corpus = self.require_corpus()
        await corpus.fetch(candidate.document_id for ranking in self.rankings.values() for candidate in ranking)
        corpus.check(self.rankings.values(), self.source, ranked=self.are_pairs)

    def write(self, path: Path | str, *, tag: str = "touche-llm", overwrite: bool = False) -> None:
        """Write a TREC run with `Q0` as stance, atomically; an existing file raises UsageError without `overwrite`."""
        check_output(Path(path), overwrite)
        write_candidates(Path(path), self.list_rankings(), check_tag(tag))

    def to_frame(self) -> DataFrame:
        """Return a row per candidate, with the columns topic, document, rank and score."""
        rows = (
            (candidate.topic_id, candidate.document_id, candidate.rank, candidate.score)
            for ranking in self.list_rankings()
            for candidate in ranking
        )
        return make_frame(rows, ("topic", "document", "rank", "score"))

    @classmethod
    def from_frame(cls, frame: DataFrame, topics: list[Topic], corpus: Corpus, *, depth: int | None = None) -> Self:
        """Return the candidates of a frame with the columns topic, document, and rank or score or both.

        Args:
            frame: One row per candidate; other columns are ignored.
            topics: Topics of the candidates; rows of other topics raise DataError.
            corpus: Corpus that holds the documents.
            depth: Number of candidates per topic to judge; all if None.

        Raises:
            DataError: A column is missing or malformed, or a topic is unknown.
        """
        return cls._of_rankings(group_rankings(frame), topics, corpus, depth, "frame")

    @classmethod
    def from_run(cls, path: Path | str, topics: list[Topic], corpus: Corpus, *, depth: int | None = None) -> Self:
        """Return the candidates of a run file of any tool, see `read_candidates`; arguments as `from_frame`."""
        found = read_candidates(Path(path), depth)
        return cls._of_rankings(found, topics, corpus, depth, str(path))

    @classmethod
    def _of_rankings(
        cls, found: Mapping[str, list[Candidate]], topics: list[Topic], corpus: Corpus, depth: int | None, source: str
    ) -> Self:
        known = {topic.id for topic in topics}
        if unknown := [topic_id for topic_id in found if topic_id not in known]:
            raise DataError(f"{source}: {len(unknown)} of its topics are not among the given: {shorten(unknown)}")
        rankings = normalise_rankings(found.values())
        return cls(corpus.task, topics, corpus, rankings, depth or max(map(len, rankings.values()), default=1), source)


def normalise_rankings(rankings: Iterable[list[Candidate]]) -> dict[str, list[Candidate]]:
    """Return candidates by topic id as a run file holds them: ranks from 1, strictly decreasing rounded scores."""
    result: dict[str, list[Candidate]] = {}
    for ranking in rankings:
        scores = make_strictly_decreasing([candidate.score for candidate in ranking])
        for rank, (candidate, score) in enumerate(zip(ranking, scores, strict=True), start=1):
            normalised = Candidate(candidate.topic_id, candidate.document_id, rank, score)
            result.setdefault(candidate.topic_id, []).append(normalised)
    return result


def add_objects(topics: list[Topic], found: Iterable[Objects]) -> list[Topic]:
    """Return the topics with the objects that the model found for those that name none."""
    objects = {record.topic_id: record.objects for record in found}
    return [replace(topic, objects=topic.objects or objects.get(topic.id)) for topic in topics]
