"""PyTerrier transformers: BM25, judging and reranking as parts of a pipeline.

    import pyterrier as pt
    import touche_llm as tl
    from touche_llm.integrations.pyterrier import BM25, LLMJudge, LLMRerank

    bm25 = BM25(tl.open_corpus("passages.jsonl.gz", task="comparative"), depth=20)
    with tl.LanguageModel("http://127.0.0.1:8000", cache="answers.sqlite") as model:
        judge = LLMJudge(model, "comparative")
        rerank = LLMRerank(model, ["pairwise:10"], "comparative")
        systems = [bm25, bm25 >> judge, bm25 >> judge >> rerank]
        pt.Experiment(systems, topics, qrels, [pt.measures.nDCG @ 5], plan="tree")

A topic is made of the columns `qid`, `query` (its title) and, if present, `description`,
`narrative` and `objects`; a document of `docno`, `text` and, for arguments, `title` (the
conclusion) and `side`. Ranks count from 0, as PyTerrier's.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import pandas as pd

from touche_llm.api import library
from touche_llm.api.language_model import LanguageModel
from touche_llm.api.rank import Ranking, list_result_columns
from touche_llm.data import concurrency
from touche_llm.data.records import Candidate, Document, Judgment, Topic
from touche_llm.data.runs.writing import NO_STANCE_COLUMN
from touche_llm.data.topics.reading import make_topic
from touche_llm.errors import DataError, ToucheWarning, UsageError, needs_extra, shorten
from touche_llm.judging.result import Judgments
from touche_llm.judging.stance_labels import StanceSettings
from touche_llm.kinds.known import get_kind
from touche_llm.ranking.steps import JUDGE, list_comparison_kinds, needs_texts
from touche_llm.retrieval.candidates import Candidates
from touche_llm.retrieval.corpus import Corpus, CorpusRecord
from touche_llm.retrieval.settings import QueryField
from touche_llm.settings.section import Section
from touche_llm.tasks import get_task
from touche_llm.tasks.parts import FIRST_STAGE
from touche_llm.tasks.task import Task

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
        self.task = task
        self.candidates = self
        self.documents = self
        self.description = CorpusRecord(source="frame")
        self._documents: dict[str, Document] = {}
        if "text" in frame:
            self._documents = _read_documents(task, frame)

    def get(self, document_id: str) -> Document:
        """Return a document of the frame."""
        return self._documents[document_id]

    def find_unknown(self, document_ids: Iterable[str]) -> list[str]:
        """Return the given ids that the frame lacks."""
        return [document_id for document_id in document_ids if document_id not in self._documents]

    async def search(
        self,
        topics: list[Topic],
        fields: tuple[QueryField, ...],
        depth: int,
        done: Callable[[], None],
    ) -> list[list[Candidate]]:
        """Raise UsageError, since a frame has no index."""
        raise UsageError("frame: cannot be searched; open a corpus with open_corpus")


def _read_documents(task: Task, frame: pd.DataFrame) -> dict[str, Document]:
    """Return the documents of a frame by id; a document may be in several rows, one for each topic.

    Raises:
        DataError: A document has no text, or differs between two rows.
    """
    rows = frame.reindex(columns=["docno", *list_text_columns(task)]).astype(object)
    # Without duplicates, a document is in several rows only if its texts differ.
    rows = rows.fillna({"title": "", "side": ""}).drop_duplicates()

    documents: dict[str, Document] = {}
    for row in rows.to_dict("records"):
        document_id = row.pop("docno")
        has_text = isinstance(row["text"], str)
        has_other_text = document_id in documents
        if not has_text or has_other_text:
            raise DataError(
                f"frame: document {document_id}: no text, or two of them; give each document one"
            )
        documents[document_id] = Document(id=document_id, **row)
    return documents


def use_text_ids(inp: pd.DataFrame) -> pd.DataFrame:
    """Return a copy whose ids are texts, since frames turn digits into numbers."""
    return inp.assign(**{name: inp[name].astype(str) for name in KEYS if name in inp})


def read_topics(frame: pd.DataFrame) -> list[Topic]:
    """Return the topics of a frame, each of its first row.

    Raises:
        DataError: A topic is malformed.
    """
    names = [name for name in ("qid", "query", *TOPIC_COLUMNS) if name in frame]
    rows = frame.drop_duplicates("qid")[names].rename(columns={"qid": "number"}).astype(object)
    # Frames have NaN for a missing value.
    rows = rows.where(rows.notna(), None)

    topics: list[Topic] = []
    for record in rows.to_dict("records"):
        topics.append(make_topic(record, record["number"], "frame"))
    return topics


def read_candidates(
    frame: pd.DataFrame, source: str | Corpus, score: str = "score", depth: int | None = None
) -> Candidates:
    """Return the candidates of a frame, by descending score.

    Without scores, they are in the order of their ranks; without ranks too, in that of the rows.

    Args:
        frame: Frame with a row for each topic and document.
        source: Corpus of the documents; or the task, if the frame has their texts.
        score: Column of the scores.
        depth: Number of candidates per topic to judge; all if None.

    Raises:
        DataError: A row is malformed, or a document has no text.
    """
    has_scores = score in frame
    has_ranks = "rank" in frame
    names = [*KEYS]
    if has_scores:
        names.append(score)
    if has_ranks:
        names.append("rank")

    # `Candidates.from_frame` orders rows by rank, or else by score, and needs one of them.
    rows = frame[names].rename(columns={"qid": "topic", "docno": "document", score: "score"})
    if has_scores and has_ranks:
        # The score decides; documents with equal scores keep the order of their ranks.
        rows = rows.sort_values("rank", kind="stable").drop(columns="rank")
    if not has_scores and not has_ranks:
        place_in_topic = rows.groupby("topic", sort=False).cumcount()
        rows["rank"] = place_in_topic + 1

    corpus = source if isinstance(source, Corpus) else FrameCorpus(get_task(source), frame)
    return Candidates.from_frame(rows, read_topics(frame), corpus, depth=depth)


def read_judgments(frame: pd.DataFrame, task: Task) -> list[Judgment]:
    """Return the judgments that `LLMJudge` wrote to a frame; rows without grades have none."""
    judgments: list[Judgment] = []
    for row in frame.to_dict("records"):
        grades = _read_grades(row, task)
        if not grades:
            continue

        is_inherited = row.get("stance_source") == "inherited"
        judgment = Judgment(
            topic_id=row["qid"],
            document_id=row["docno"],
            grades=grades,
            stance=row["stance"] if task.stances else NO_STANCE_COLUMN,
            source="inherited" if is_inherited else "value",
            # A frame does not say which prompt was judged with, and a judgment must name one.
            prompt="frame",
        )
        judgments.append(judgment)
    return judgments


def _read_grades(row: Mapping[Hashable, Any], task: Task) -> dict[str, float]:
    """Return the grades in a row by aspect.

    A document that inherits the grades of its sentences may lack some.
    """
    grades: dict[str, float] = {}
    for aspect in task.question.grades:
        if not pd.isna(row[aspect]):
            grades[aspect] = float(row[aspect])
    return grades


def list_text_columns(task: Task) -> list[str]:
    """Return the columns of a document beside its id.

    Only arguments have a conclusion and a side.
    """
    return ["text", "title", "side"] if task.reads_arguments else ["text"]


with needs_extra("pyterrier", "touche_llm.integrations.pyterrier"):
    import pyterrier as pt


@dataclass(repr=False, eq=False)
class BM25(pt.Transformer):
    """First stage: retrieves the documents of a corpus; a search engine if the corpus is one.

    Args:
        corpus: Open corpus to search.
        depth: Maximum number of documents per topic.
        fields: Fields of a topic that make the query; `title` is the column `query`.
    """

    corpus: Corpus
    _: KW_ONLY
    depth: int = 100
    fields: QueryField | Sequence[QueryField] = ("title",)

    def __repr__(self) -> str:
        return f"BM25({self.depth})"

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Return a row per candidate, with the columns of the topics and docno, score, rank and the texts.

        Raises:
            DataError: No topic has a candidate, or a topic is malformed.
        """
        fields = [self.fields] if isinstance(self.fields, str) else self.fields
        # PyTerrier's column `query` is the title; each other field has a column of its name.
        other_fields = [field for field in fields if field in TOPIC_COLUMNS]
        pt.validate.query_frame(inp, extra_columns=["query", *other_fields], context=self)
        if inp.empty:
            text_columns = list_text_columns(self.corpus.task)
            return _make_empty(inp, ["docno", "score", "rank", *text_columns])

        frame = use_text_ids(inp)
        candidates = library.retrieve(
            read_topics(frame), self.corpus, depth=self.depth, fields=self.fields
        )
        # A search engine's texts are not here before the check, which fetches them.
        concurrency.run(candidates.check())

        rows = _rename(candidates.to_frame())
        rows_with_texts = _add_texts(rows, candidates)
        return _merge(frame, rows_with_texts, keys=["qid"])


@dataclass(repr=False, eq=False)
class LLMJudge(pt.Transformer):
    """Second stage: the model judges documents, which are ranked by their grades.

    Args:
        model: Model, open when the transformer is used.
        source: Name of the task, whose documents are in the column `text`; or the corpus, which
            tasks need that make documents of sentences.
        depth: Number of candidates per topic to judge; all if None.
        prompts: Prompts by purpose, for example `{"judge": "mine.jinja"}`; None for the task's own.
        judging_settings: Settings that the kind of the task declares; None for the defaults.
        options: Weights and settings of the stance.

    Raises:
        UsageError: The task is unknown, or makes its documents of the sentences of a corpus.
    """

    model: LanguageModel
    source: str | Corpus
    _: KW_ONLY
    depth: int | None = None
    prompts: Mapping[str, str] | None = None
    judging_settings: Section | None = None
    options: library.RankOptions = library.RankOptions()

    def __post_init__(self) -> None:
        _find_task(self.source)

    def __repr__(self) -> str:
        return f"LLMJudge({_find_task(self.source).name})"

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Return the documents ranked by their grades.

        The columns are those of the frame, and these:

        - `score` and `rank`: by the grades.
        - A column of grades for each aspect of the task.
        - `stance`, `stance_source`, and `p_LABEL` for the probability of each stance.
        - `first_stage`: the score in the frame.
        - `objects`: if the task compares two objects.

        If the task makes documents of sentences, these documents take the place of the frame's.

        Raises:
            DataError: The frame is malformed.
            EngineError: The engine failed; answers so far are in the cache.
            ReplayMiss: The cache of a replay lacks an answer.
        """
        needed = ["query", *_list_needed_texts(self.source)]
        pt.validate.result_frame(inp, extra_columns=needed, context=self)
        if inp.empty:
            return _make_empty(inp, _list_judged_columns(_find_task(self.source)))

        frame = use_text_ids(inp)
        candidates = read_candidates(frame, self.source, depth=self.depth)
        judgments = library.judge(
            candidates,
            self.model,
            prompts=self.prompts,
            stance=self.options.stance,
            judging_settings=self.judging_settings,
        )
        ranking = library.rank(candidates, judgments, options=self.options)
        _warn_of_failures(self, len(judgments.failures))

        judged = judgments.candidates
        results = _make_judged_rows(ranking, judged)
        if judged.are_made:
            # The rows of the frame are sentences, not the ranked documents; only topics are kept.
            results_with_texts = _add_texts(results, judged)
            return _merge(_select_topics(frame), results_with_texts, keys=["qid"])
        return _merge(frame, results, keys=KEYS)


@dataclass(repr=False, eq=False)
class LLMRerank(pt.Transformer):
    """Last stage: ranks the best documents again in the given steps.

    The steps rank the documents in the order of the frame. If `judge` is the first step, they are
    ranked by the columns that `LLMJudge` added, as `touche-llm rank` does; only then does `fusion`
    include the first stage.

    Args:
        model: Model, open when the transformer is used; None if no step compares documents.
        steps: Steps in order, with a number of documents, such as `pairwise:10`.
        source: Name of the task, whose documents are in the column `text`; or the corpus, which
            tasks need that make documents of sentences.
        prompts: Prompts of the comparisons: best, order.
        options: Objective, weights and settings of the steps.

    Raises:
        UsageError: A step is unknown or needs a model, or the source is wrong, see `LLMJudge`.
    """

    model: LanguageModel | None
    steps: Sequence[str]
    source: str | Corpus
    _: KW_ONLY
    prompts: Mapping[str, str] | None = None
    options: library.RankOptions = library.RankOptions()

    def __post_init__(self) -> None:
        """Check the steps, and write each in its complete form, as `pairwise:10`."""
        steps = library.read_steps(self.steps, _find_task(self.source))
        self._needs_texts = needs_texts(steps)
        self.steps = [str(step) for step in steps]

        are_compared = len(list_comparison_kinds(steps)) > 0
        if are_compared and self.model is None:
            raise UsageError(f"model: missing; the steps {', '.join(self.steps)} compare documents")

    def __repr__(self) -> str:
        return f"LLMRerank({','.join(self.steps)})"

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Return the documents with new `score` and `rank`.

        A `stance` is added if the task has stances and the frame has no judgments.

        Raises:
            DataError: The frame is malformed.
            EngineError: The engine failed; answers so far are in the cache.
            ReplayMiss: The cache of a replay lacks an answer.
        """
        task = _find_task(self.source)
        pt.validate.result_frame(inp, extra_columns=self._list_needed(task), context=self)
        added = ["score", "rank"]
        if task.stances and not _is_judged(inp, task):
            added.append("stance")
        if inp.empty:
            return _make_empty(inp, added)

        frame = use_text_ids(inp)
        candidates = self._read_candidates(frame, task)
        self._warn_of_missing_objects(candidates)
        ranking = self._rank(candidates, frame)
        _warn_of_failures(self, len(ranking.failures))

        results = _rename(ranking.to_frame())
        return _merge(frame, results[[*KEYS, *added]], keys=KEYS)

    def _rank(self, candidates: Candidates, frame: pd.DataFrame) -> Ranking:
        """Rank the candidates of a frame in the steps, with the frame's judgments if it has them."""
        task = candidates.task
        judgments = read_judgments(frame, task) if _is_judged(frame, task) else []
        # The stance of the frame is final, so its thresholds do not apply again.
        options = self.options.model_copy(update={"stance": StanceSettings()})
        return library.rank(
            candidates,
            Judgments(candidates, judgments),
            steps=self.steps,
            model=self.model,
            prompts=self.prompts,
            options=options,
        )

    @property
    def _begins_with_judgments(self) -> bool:
        """Whether the documents are ranked by their grades first."""
        return self.steps[0] == JUDGE

    def _list_needed(self, task: Task) -> list[str]:
        """Return the columns that a frame needs for the steps."""
        needed = ["query"]
        if self._begins_with_judgments:
            needed.extend(_list_judgment_columns(task))
        if self._needs_texts:
            needed.extend(_list_needed_texts(self.source))
        if self._needs_texts and task.objects_answer is not None:
            needed.append("objects")
        return needed

    def _read_candidates(self, frame: pd.DataFrame, task: Task) -> Candidates:
        """Return the candidates of a frame in the order in which the steps get them.

        If they are ranked by judgments first, that is the order of the first stage, whose scores
        `LLMJudge` kept in a column of their own.
        """
        score = "score"
        if self._begins_with_judgments and FIRST_STAGE in frame:
            score = FIRST_STAGE
        candidates = read_candidates(frame, self.source, score)
        # The documents of such a kind of task were made of sentences by `LLMJudge`.
        return replace(candidates, are_made=get_kind(task).makes_documents)

    def _warn_of_missing_objects(self, candidates: Candidates) -> None:
        """Warn of topics whose documents cannot be compared, since their objects are unknown."""
        needs_objects = self.model is not None and candidates.task.objects_answer is not None
        lacking = [topic.id for topic in candidates.topics if topic.objects is None]
        if needs_objects and lacking:
            message = f"{self}: no objects, so no comparisons, for {len(lacking)} topics: {shorten(lacking)}"
            # The warning names the line that called `transform`.
            warnings.warn(message, ToucheWarning, stacklevel=3)


def _list_judged_columns(task: Task) -> list[str]:
    """Return the columns that `LLMJudge` adds."""
    columns = [*_rename(pd.DataFrame(columns=list_result_columns(task))), FIRST_STAGE]
    if task.objects_answer is not None:
        columns.append("objects")
    return columns


def _list_judgment_columns(task: Task) -> list[str]:
    """Return the columns that are a judgment by `LLMJudge`: the grades, and the stance if any."""
    columns = [*task.question.grades]
    if task.stances:
        columns.append("stance")
    return columns


def _is_judged(frame: pd.DataFrame, task: Task) -> bool:
    """Return whether a frame has the columns of a judgment by `LLMJudge`."""
    return all(name in frame for name in _list_judgment_columns(task))


def _find_task(source: str | Corpus) -> Task:
    """Return the task of a name or a corpus; raise UsageError if the task needs a corpus."""
    task = source.task if isinstance(source, Corpus) else get_task(source)
    kind = get_kind(task)
    if kind.makes_documents and not isinstance(source, Corpus):
        raise UsageError(
            f"source: {task.name} ranks {kind.noun} of sentences, which are made of a corpus; give the corpus"
        )
    return task


def _list_needed_texts(source: str | Corpus) -> list[str]:
    """Return the columns that a frame needs for texts of documents: none if there is a corpus."""
    return [] if isinstance(source, Corpus) else ["text"]


def _make_judged_rows(ranking: Ranking, judged: Candidates) -> pd.DataFrame:
    """Return a row for each ranked document, with its score before and the objects of its topic."""
    ranked_rows = _rename(ranking.to_frame())
    candidate_rows = _rename(judged.to_frame())
    scores_before = candidate_rows.rename(columns={"score": FIRST_STAGE}).drop(columns="rank")

    rows = ranked_rows.merge(scores_before, on=KEYS)
    if judged.task.objects_answer is not None:
        objects = {topic.id: topic.objects for topic in judged.topics}
        rows["objects"] = rows["qid"].map(objects)
    return rows


def _select_topics(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the topics of a frame, a row for each, with the columns that are about topics."""
    other_columns = [name for name in TOPIC_COLUMNS if name in frame]
    return frame[[*pt.model.query_columns(frame), *other_columns]].drop_duplicates("qid")


def _add_texts(found: pd.DataFrame, candidates: Candidates) -> pd.DataFrame:
    """Return rows with the texts of their documents."""
    documents: dict[str, Document] = {}
    for document_id in found["docno"].unique():
        documents[document_id] = candidates.documents.get(document_id)

    columns: dict[str, list[str]] = {}
    for name in list_text_columns(candidates.task):
        columns[name] = [getattr(documents[document_id], name) for document_id in found["docno"]]
    return found.assign(**columns)


def _rename(results: pd.DataFrame) -> pd.DataFrame:
    """Return results of the library with PyTerrier's names and ranks."""
    results = results.rename(columns={"topic": "qid", "document": "docno"})
    return results.assign(rank=results["rank"] - 1 + pt.model.FIRST_RANK)


def _merge(frame: pd.DataFrame, results: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Return results with the other columns of a frame, topics in the frame's order.

    Args:
        frame: Frame that a transformer got.
        results: New rows with a rank; their columns replace those of the same name.
        keys: Columns by which a result belongs to a row of the frame.
    """
    replaced = [name for name in results.columns if name in frame and name not in keys]
    merged = frame.drop(columns=replaced).merge(results, on=keys)

    topic_order = {qid: place for place, qid in enumerate(frame["qid"].unique())}
    sort_keys = pd.DataFrame({"topic": merged["qid"].map(topic_order), "rank": merged["rank"]})
    order = sort_keys.sort_values(["topic", "rank"], kind="stable").index
    return merged.loc[order].reset_index(drop=True)


def _make_empty(inp: pd.DataFrame, added: Sequence[str]) -> pd.DataFrame:
    """Return a frame without rows, from whose columns PyTerrier infers those of a result."""
    return pd.DataFrame(columns=list(dict.fromkeys([*inp.columns, *added])))


def _warn_of_failures(transformer: pt.Transformer, count: int) -> None:
    """Warn of requests without a usable answer, in the name of the line that called `transform`."""
    if count > 0:
        warnings.warn(
            f"{transformer}: {count:,} requests without a usable answer",
            ToucheWarning,
            stacklevel=3,
        )
