"""PyTerrier's frames as records: topics, documents, candidates and judgments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pandas as pd

from touche_llm.data.records import Candidate, Document, Judgment, Topic
from touche_llm.data.topics import make_topic
from touche_llm.errors import DataError, UsageError
from touche_llm.pipeline.candidates import Candidates
from touche_llm.pipeline.corpora import Corpus
from touche_llm.retrieval.settings import QueryField
from touche_llm.tasks.base import Task

# Columns of a topic beside `qid` and `query`, and columns that identify a row of results.
TOPIC_COLUMNS = ("description", "narrative", "objects")
KEYS = ["qid", "docno"]


class FrameCorpus(Corpus):
    """The documents of a frame, which are judged and compared, but not searched."""

    def __init__(self, task: Task, frame: pd.DataFrame) -> None:
        """Take the documents of a frame; without a column `text` there is none.

        Raises:
            DataError: A document has no text, or differs between two rows.
        """
        self.task, self.candidates, self.documents = task, self, self
        self.description = {"file": "frame"}
        self._documents: dict[str, Document] = {}
        names = ["docno", *list_text_columns(task)]
        for row in frame[[name for name in names if name in frame]].to_dict("records") if "text" in frame else ():
            text, title, side = (row.get(name) for name in ("text", "title", "side"))
            if not isinstance(text, str):
                raise DataError(f"frame: document {row['docno']}: no text; add it, or leave the row out")
            document = Document(
                row["docno"], text, "" if _is_missing(title) else title, "" if _is_missing(side) else side
            )
            if self._documents.setdefault(document.id, document) != document:
                raise DataError(f"frame: document {document.id}: two texts; give each document one")

    def get(self, document_id: str) -> Document:
        """Return a document; raise DataError if the frame lacks it."""
        if document_id not in self._documents:
            raise DataError(f"frame: document {document_id}: not in the frame")
        return self._documents[document_id]

    def find_unknown(self, document_ids: Iterable[str]) -> list[str]:
        """Return the given ids that the frame lacks."""
        return [document_id for document_id in document_ids if document_id not in self._documents]

    async def search(
        self, topics: list[Topic], fields: tuple[QueryField, ...], depth: int, done: Callable[[], None]
    ) -> list[list[Candidate]]:
        """Raise UsageError, since a frame has no index."""
        raise UsageError("frame: cannot be searched; open a corpus with open_corpus")

    def explain_empty(self) -> str:
        """See the base class."""
        return "frame: no document"

    def _close(self) -> None:
        self._documents = {}


def use_text_ids(inp: pd.DataFrame) -> pd.DataFrame:
    """Return a copy whose ids are texts, since frames turn digits into numbers."""
    return inp.assign(**{name: inp[name].astype(str) for name in KEYS if name in inp})


def read_topics(frame: pd.DataFrame) -> list[Topic]:
    """Return the topics of a frame, in the order of their first rows; raise DataError if a topic is malformed."""
    names = ["query", *(name for name in TOPIC_COLUMNS if name in frame)]
    for name in names:
        counts = frame[name].astype(str).groupby(frame["qid"], sort=False).nunique()
        if (differing := counts[counts > 1]).size:
            raise DataError(f"frame: topic {differing.index[0]}: its rows have {differing.iloc[0]} different {name}")
    topics = []
    for qid, *row in frame.drop_duplicates("qid")[["qid", *names]].itertuples(index=False, name=None):
        values = {name: None if _is_missing(value) else value for name, value in zip(names, row, strict=True)}
        topics.append(make_topic({"number": qid, **values}, str(qid), "frame"))
    return topics


def read_candidates(
    frame: pd.DataFrame, task: Task, corpus: Corpus | None, score: str, depth: int | None = None
) -> Candidates:
    """Return the candidates of a frame in the order of a column of scores, or of the rows if there is none."""
    names = [*KEYS, *(name for name in (score, "rank") if name in frame)]
    rows = frame[names].rename(columns={"qid": "topic", "docno": "document", score: "score"})
    if "score" in rows:
        # Ties keep the order of the ranks.
        rows = rows.sort_values("rank", kind="stable") if "rank" in rows else rows
        rows = rows.drop(columns="rank", errors="ignore")
    elif "rank" not in rows:
        rows["rank"] = rows.groupby("topic", sort=False).cumcount() + 1
    return Candidates.from_frame(rows, read_topics(frame), corpus or FrameCorpus(task, frame), depth=depth)


def read_judgments(frame: pd.DataFrame, task: Task) -> list[Judgment]:
    """Return the judgments that `LLMJudge` wrote to a frame; rows without grades have none."""
    grades = task.question.grades
    judgments = []
    for row in frame.to_dict("records"):
        # Pairs that inherit the grades of their sentences have no coherence.
        values = {name: row[name] for name in grades if not _is_missing(row[name])}
        if not values:
            continue
        where = f"frame: topic {row['qid']}, document {row['docno']}"
        try:
            found = {name: float(value) for name, value in values.items()}
        except (TypeError, ValueError) as error:
            raise DataError(f"{where}: a grade is no number: {error}") from error
        judgments.append(
            Judgment(
                topic_id=row["qid"],
                document_id=row["docno"],
                grades=found,
                stance=row["stance"] if task.stances else task.run_labels[0],
                source="inherited" if row.get("stance_source") == "inherited" else "value",
                prompt="frame",
            )
        )
    return judgments


def _is_missing(value: Any) -> bool:
    return bool(pd.api.types.is_scalar(value) and pd.isna(value))


def list_text_columns(task: Task) -> list[str]:
    """Return the columns of a document beside its id; only arguments have a conclusion and a side."""
    return ["text", "title", "side"] if task.reads_arguments else ["text"]
