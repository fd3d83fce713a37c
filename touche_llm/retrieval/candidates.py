"""Candidates of topics: a record, and how they are read from runs and frames."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from touche_llm.data.files import check_output
from touche_llm.data.records import Candidate, Failure, Queries, Topic
from touche_llm.data.runs.reading import read_candidates
from touche_llm.data.runs.writing import check_tag, make_strictly_decreasing, write_candidates
from touche_llm.errors import DataError, UsageError, shorten
from touche_llm.retrieval.corpus import Corpus, Documents
from touche_llm.tasks.task import Task

if TYPE_CHECKING:
    from pandas import DataFrame

RecordT = TypeVar("RecordT")


def make_frame(rows: Iterable[Sequence[Any]], columns: Sequence[str]) -> DataFrame:
    """Return a frame of rows; also without rows it has the columns."""
    # Imported here because pandas is slow to load.
    import pandas as pd

    return pd.DataFrame.from_records(list(rows), columns=list(columns))


def group_rankings(frame: DataFrame) -> dict[str, list[Candidate]]:
    """Return the candidates of a frame by topic id, best first.

    Args:
        frame: Frame with the columns topic, document, and rank (1 is best), score or both; rank
            decides.

    Raises:
        DataError: A column is missing, a value is missing or no number, a topic has a document
            twice, or rank and score disagree.
    """
    rows = _sort_rows(frame)
    # The rows are sorted by rank if there are ranks, so scores show whether the two agree.
    # Without scores, better ranks become higher scores.
    scores = rows["score"] if "score" in rows.columns else -rows["rank"]

    rankings: dict[str, list[Candidate]] = {str(topic): [] for topic in frame["topic"].unique()}
    for topic, document, score in zip(rows["topic"], rows["document"], scores, strict=True):
        ranking = rankings[str(topic)]
        if ranking and score > ranking[-1].score:
            raise DataError(
                f"frame: topic {topic}: document {document}: rank and score disagree; leave one of them out"
            )
        candidate = Candidate(
            topic_id=str(topic),
            document_id=str(document),
            rank=len(ranking) + 1,
            score=score,
        )
        ranking.append(candidate)
    return rankings


def _sort_rows(frame: DataFrame) -> DataFrame:
    """Return the rows of a frame, best first, with rank, score or both as numbers.

    Raises:
        DataError: A column is missing, a value is missing or no number, or a topic has a document
            twice.
    """
    order = [name for name in ("rank", "score") if name in frame.columns]
    # Without both, the rank is reported as the missing column.
    needed = order or ["rank"]
    rows = _select_rows(frame, ["topic", "document", *needed])
    try:
        rows = rows.astype(dict.fromkeys(order, float))
    except (TypeError, ValueError) as error:
        raise DataError(f"frame: {', '.join(order)}: not numbers: {error}") from error

    if "rank" in order:
        return rows.sort_values("rank", kind="stable")
    return rows.sort_values("score", ascending=False, kind="stable")


def _select_rows(frame: DataFrame, columns: list[str]) -> DataFrame:
    """Return these columns of a frame, which have topic and document among them.

    Raises:
        DataError: A column or a value is missing, or a topic has a document twice.
    """
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise DataError(
            f"frame: no column {', '.join(missing)}; expected topic, document, and rank or score"
        )

    rows = frame[columns]
    has_gaps = rows.isna().to_numpy().any()
    if has_gaps:
        raise DataError("frame: missing values in topic, document, rank or score; drop these rows")

    repeated = rows[rows.duplicated(["topic", "document"])]
    if len(repeated) > 0:
        first = repeated.iloc[0]
        raise DataError(
            f"frame: topic {first['topic']}: document {first['document']} occurs twice; keep one row"
        )
    return rows


@dataclass(frozen=True, slots=True, repr=False)
class Candidates:
    """Candidates of topics: documents, or sentences that documents are made of.

    Attributes:
        task: Task of the run.
        topics: Topics, in the order of the run.
        corpus: Corpus that holds the documents; None if the candidates are only ranked by their
            judgments.
        rankings: Candidates by topic id, best first, with ranks from 1 and strictly decreasing
            scores.
        depth: Number of candidates per topic to judge; of sentences, the number judged at a time.
        source: Where the candidates come from, for messages.
        are_made: Whether they are documents that were made of sentences, as pairs are.
        queries: Additional queries that were searched for.
        failures: Failures of query expansion, whose topics were searched for with their own query
            only.
    """

    task: Task
    topics: list[Topic]
    corpus: Corpus | None
    rankings: Mapping[str, list[Candidate]]
    depth: int
    source: str = "candidates"
    are_made: bool = False
    queries: Sequence[Queries] = ()
    failures: Sequence[Failure] = ()

    def __post_init__(self) -> None:
        """Raise DataError if a topic occurs twice."""
        counts = Counter(topic.id for topic in self.topics)
        for topic_id, count in counts.items():
            if count > 1:
                raise DataError(f"topics: {topic_id} occurs twice; give it once")

    def __repr__(self) -> str:
        count = sum(len(ranking) for ranking in self.rankings.values())
        noun = self.task.kind if self.are_made else "candidates"
        return f"<Candidates: {count:,} {noun} of {len(self.topics):,} topics>"

    @property
    def documents(self) -> Documents:
        """Source of the candidates' texts; raises UsageError without a corpus."""
        corpus = self.require_corpus()
        if self.are_made:
            return corpus.documents
        return corpus.candidates

    def require_corpus(self) -> Corpus:
        """Return the corpus; raise UsageError if the candidates have none."""
        if self.corpus is None:
            raise UsageError(
                f"{self.source}: no corpus; open the corpus that holds these documents"
            )
        self.corpus.require_open()
        return self.corpus

    def list_rankings(self) -> list[list[Candidate]]:
        """Return the candidates of each topic, in the order of the topics."""
        return [self.rankings.get(topic.id, []) for topic in self.topics]

    async def check(self) -> None:
        """Fetch the documents from a search engine; raise DataError if the corpus lacks one."""
        corpus = self.require_corpus()
        rankings = self.rankings.values()
        document_ids = [candidate.document_id for ranking in rankings for candidate in ranking]
        await corpus.fetch(document_ids)
        corpus.check(rankings, self.source, ranked=self.are_made)

    def write(self, path: Path | str, *, tag: str = "touche-llm", overwrite: bool = False) -> None:
        """Write a TREC run with `Q0` as stance, atomically.

        An existing file raises UsageError without `overwrite`.
        """
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
    def from_frame(
        cls, frame: DataFrame, topics: list[Topic], corpus: Corpus, *, depth: int | None = None
    ) -> Self:
        """Return the candidates of a frame with the columns topic, document, and rank or score or both.

        Args:
            frame: One row per candidate; other columns are ignored.
            topics: Topics of the candidates; rows of other topics raise DataError.
            corpus: Corpus that holds the documents.
            depth: Number of candidates per topic to judge; all if None.

        Raises:
            DataError: A column is missing or malformed, or a topic is unknown.
        """
        return cls._from_rankings(group_rankings(frame), topics, corpus, depth, "frame")

    @classmethod
    def from_run(
        cls, path: Path | str, topics: list[Topic], corpus: Corpus, *, depth: int | None = None
    ) -> Self:
        """Return the candidates of a run file of any tool.

        Args:
            path: Run file in the TREC format.
            topics: Topics of the candidates; lines of other topics raise DataError.
            corpus: Corpus that holds the documents.
            depth: Number of candidates per topic to read and to judge; all if None.

        Raises:
            DataError: The file is missing or malformed, or a topic is unknown.
        """
        rankings = read_candidates(Path(path), depth)
        return cls._from_rankings(rankings, topics, corpus, depth, str(path))

    @classmethod
    def _from_rankings(
        cls,
        rankings: Mapping[str, list[Candidate]],
        topics: list[Topic],
        corpus: Corpus,
        depth: int | None,
        source: str,
    ) -> Self:
        """Return the candidates of rankings that were read.

        Args:
            rankings: Candidates by topic id.
            topics: Topics of the run.
            corpus: Corpus that holds the documents.
            depth: Number of candidates per topic to judge; all if None.
            source: Where the rankings come from, for messages.

        Raises:
            DataError: A ranking is of another topic.
        """
        check_topics(source, rankings, topics)
        normalised = normalise_rankings(rankings.values())
        longest = max((len(ranking) for ranking in normalised.values()), default=1)
        return cls(
            task=corpus.task,
            topics=topics,
            corpus=corpus,
            rankings=normalised,
            depth=depth or longest,
            source=source,
        )


def check_topics(source: object, topic_ids: Iterable[str], topics: Iterable[Topic]) -> None:
    """Raise DataError if a run has topics that are not among the given ones."""
    known = {topic.id for topic in topics}
    unknown = [topic_id for topic_id in topic_ids if topic_id not in known]
    if unknown:
        raise DataError(
            f"{source}: {len(unknown)} of its topics are not among the given ones: {shorten(unknown)}"
        )


def normalise_rankings(rankings: Iterable[list[Candidate]]) -> dict[str, list[Candidate]]:
    """Return candidates by topic id as a run file holds them.

    Ranks are from 1, and scores are rounded and strictly decreasing.
    """
    normalised: dict[str, list[Candidate]] = {}
    for ranking in rankings:
        scores = make_strictly_decreasing([candidate.score for candidate in ranking])
        scored = zip(ranking, scores, strict=True)
        for rank, (candidate, score) in enumerate(scored, start=1):
            topic_id = candidate.topic_id
            kept = Candidate(topic_id, candidate.document_id, rank, score)
            normalised.setdefault(topic_id, []).append(kept)
    return normalised


class NoCandidates(DataError):
    """First stage that finds nothing to judge, or makes no pairs of what it finds."""
