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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace

import pandas as pd

from touche_llm.api import library
from touche_llm.api.language_model import LanguageModel
from touche_llm.api.rank import list_result_columns
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
        if "text" not in frame:
            return

        rows = frame.reindex(columns=["docno", *list_text_columns(task)]).astype(object)
        rows = rows.fillna({"title": "", "side": ""}).drop_duplicates()
        for row in rows.itertuples(index=False, name=None):
            document = Document(*row)
            if not isinstance(document.text, str) or document.id in self._documents:
                raise DataError(
                    f"frame: document {document.id}: no text, or two of them; give each document one"
                )
            self._documents[document.id] = document

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


def use_text_ids(inp: pd.DataFrame) -> pd.DataFrame:
    """Return a copy whose ids are texts, since frames turn digits into numbers."""
    return inp.assign(**{name: inp[name].astype(str) for name in KEYS if name in inp})


def read_topics(frame: pd.DataFrame) -> list[Topic]:
    """Return the topics of a frame, each of its first row.

    Raise DataError if a topic is malformed.
    """
    names = [name for name in ("qid", "query", *TOPIC_COLUMNS) if name in frame]
    rows = frame.drop_duplicates("qid")[names].rename(columns={"qid": "number"}).astype(object)
    records = rows.where(rows.notna(), None).to_dict("records")
    return [make_topic(record, record["number"], "frame") for record in records]


def read_candidates(
    frame: pd.DataFrame, source: str | Corpus, score: str = "score", depth: int | None = None
) -> Candidates:
    """Return the candidates of a frame in the order of a column of scores, or of the rows if there is none."""
    names = [*KEYS, *(name for name in (score, "rank") if name in frame)]
    rows = frame[names].rename(columns={"qid": "topic", "docno": "document", score: "score"})
    if {"score", "rank"} <= set(rows):
        # Ties keep the order of the ranks.
        rows = rows.sort_values("rank", kind="stable").drop(columns="rank")
    elif len(names) == len(KEYS):
        rows["rank"] = rows.groupby("topic", sort=False).cumcount() + 1
    corpus = source if isinstance(source, Corpus) else FrameCorpus(get_task(source), frame)
    return Candidates.from_frame(rows, read_topics(frame), corpus, depth=depth)


def read_judgments(frame: pd.DataFrame, task: Task) -> list[Judgment]:
    """Return the judgments that `LLMJudge` wrote to a frame; rows without grades have none."""
    judgments: list[Judgment] = []
    for row in frame.to_dict("records"):
        # Documents that inherit the grades of their sentences may lack some.
        grades: dict[str, float] = {}
        for name in task.question.grades:
            if not pd.isna(row[name]):
                grades[name] = float(row[name])
        if not grades:
            continue

        is_inherited = row.get("stance_source") == "inherited"
        judgment = Judgment(
            topic_id=row["qid"],
            document_id=row["docno"],
            grades=grades,
            stance=row["stance"] if task.stances else NO_STANCE_COLUMN,
            source="inherited" if is_inherited else "value",
            prompt="frame",
        )
        judgments.append(judgment)
    return judgments


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
        names = [self.fields] if isinstance(self.fields, str) else self.fields
        needed = [name for name in names if name in TOPIC_COLUMNS]
        pt.validate.query_frame(inp, extra_columns=["query", *needed], context=self)
        if inp.empty:
            return _make_empty(
                inp, ["docno", "score", "rank", *list_text_columns(self.corpus.task)]
            )
        frame = use_text_ids(inp)
        candidates = library.retrieve(
            read_topics(frame), self.corpus, depth=self.depth, fields=self.fields
        )
        concurrency.run(candidates.check())
        return _merge(frame, _add_texts(_rename(candidates.to_frame()), candidates), ["qid"])


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
        """Return the documents ranked by their grades: those of the frame, or made of these.

        Added or replaced are `score`, `rank`, `stance`, `stance_source`, the grades, `p_LABEL` for
        the probability of each stance, `first_stage` for the score before, and `objects` if the
        task compares two.

        Raises:
            DataError: The frame is malformed.
            EngineError: The engine failed; answers so far are in the cache.
            ReplayMiss: The cache of a replay lacks an answer.
        """
        task = _find_task(self.source)
        pt.validate.result_frame(
            inp, extra_columns=["query", *_list_needed(self.source)], context=self
        )
        if inp.empty:
            return _make_empty(inp, _list_judged_columns(task))

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
        before = _rename(judged.to_frame()).rename(columns={"score": FIRST_STAGE})
        results = _rename(ranking.to_frame()).merge(before.drop(columns="rank"), on=KEYS)
        if task.objects_answer is not None:
            objects = {topic.id: topic.objects for topic in judged.topics}
            results["objects"] = results["qid"].map(objects)
        if not judged.are_made:
            return _merge(frame, results, KEYS)

        # The rows of the frame are of sentences; only what they say of the topics stays.
        present = [name for name in TOPIC_COLUMNS if name in frame]
        topics = frame[[*pt.model.query_columns(frame), *present]].drop_duplicates("qid")
        return _merge(topics, _add_texts(results, judged), ["qid"])


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
        parsed = library.read_steps(self.steps, _find_task(self.source))
        self._reads_texts = needs_texts(parsed)
        self.steps = [str(step) for step in parsed]
        if list_comparison_kinds(parsed) and self.model is None:
            raise UsageError(f"model: missing; the steps {', '.join(self.steps)} compare documents")

    def __repr__(self) -> str:
        return f"LLMRerank({','.join(self.steps)})"

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Return the documents with new `score` and `rank`, and a `stance` if without grades.

        Raise as `LLMJudge`.
        """
        task = _find_task(self.source)
        judged_columns = [*task.question.grades]
        if task.stances:
            judged_columns.append("stance")
        is_judged = set(judged_columns) <= set(inp.columns)
        by_judgments = self.steps[0] == JUDGE

        needed = ["query"]
        if by_judgments:
            needed.extend(judged_columns)
        if self._reads_texts:
            needed.extend(_list_needed(self.source))
            if task.objects_answer is not None:
                needed.append("objects")
        pt.validate.result_frame(inp, extra_columns=needed, context=self)

        added = ["score", "rank"]
        if task.stances and not is_judged:
            added.append("stance")
        if inp.empty:
            return _make_empty(inp, added)

        frame = use_text_ids(inp)
        score = FIRST_STAGE if by_judgments and FIRST_STAGE in frame else "score"
        candidates = read_candidates(frame, self.source, score)
        candidates = replace(candidates, are_made=get_kind(task).makes_documents)
        lacking = [topic.id for topic in candidates.topics if topic.objects is None]
        if self.model is not None and task.objects_answer is not None and lacking:
            message = f"{self}: no objects, so no comparisons, for {len(lacking)} topics: {shorten(lacking)}"
            warnings.warn(message, ToucheWarning, stacklevel=2)
        # The stance of the frame is final, so its thresholds do not apply again.
        options = self.options.model_copy(update={"stance": StanceSettings()})
        judgments = Judgments(candidates, read_judgments(frame, task) if is_judged else [])
        ranking = library.rank(
            candidates,
            judgments,
            steps=self.steps,
            model=self.model,
            prompts=self.prompts,
            options=options,
        )
        _warn_of_failures(self, len(ranking.failures))
        return _merge(frame, _rename(ranking.to_frame())[[*KEYS, *added]], KEYS)


def _list_judged_columns(task: Task) -> list[str]:
    """Return the columns that `LLMJudge` adds."""
    columns = [*_rename(pd.DataFrame(columns=list_result_columns(task))), FIRST_STAGE]
    if task.objects_answer is not None:
        columns.append("objects")
    return columns


def _find_task(source: str | Corpus) -> Task:
    """Return the task of a name or a corpus; raise UsageError if the task needs a corpus."""
    task = source.task if isinstance(source, Corpus) else get_task(source)
    kind = get_kind(task)
    if kind.makes_documents and not isinstance(source, Corpus):
        raise UsageError(
            f"source: {task.name} ranks {kind.noun} of sentences, which are made of a corpus; give the corpus"
        )
    return task


def _list_needed(source: str | Corpus) -> list[str]:
    """Return the columns that a frame needs for the texts of its documents."""
    return [] if isinstance(source, Corpus) else ["text"]


def _add_texts(found: pd.DataFrame, candidates: Candidates) -> pd.DataFrame:
    """Return rows with the texts of their documents."""
    documents = {name: candidates.documents.get(name) for name in found["docno"].unique()}
    columns = {
        column: [getattr(documents[name], column) for name in found["docno"]]
        for column in list_text_columns(candidates.task)
    }
    return found.assign(**columns)


def _rename(results: pd.DataFrame) -> pd.DataFrame:
    """Return results of the library with PyTerrier's names and ranks."""
    results = results.rename(columns={"topic": "qid", "document": "docno"})
    return results.assign(rank=results["rank"] - 1 + pt.model.FIRST_RANK)


def _merge(frame: pd.DataFrame, results: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Return the columns of a frame with those of the results, which replace others of the same name."""
    replaced = [name for name in results.columns if name in frame and name not in keys]
    merged = frame.drop(columns=replaced).merge(results, on=keys)

    # Topics keep the order of the frame.
    places = {qid: place for place, qid in enumerate(frame["qid"].unique())}
    placed = merged.assign(place=merged["qid"].map(places))
    order = placed.sort_values(["place", "rank"], kind="stable").index
    return merged.loc[order].reset_index(drop=True)


def _make_empty(inp: pd.DataFrame, added: Sequence[str]) -> pd.DataFrame:
    """Return a frame without rows, from whose columns PyTerrier infers those of a result."""
    return pd.DataFrame(columns=list(dict.fromkeys([*inp.columns, *added])))


def _warn_of_failures(transformer: pt.Transformer, count: int) -> None:
    if count:
        warnings.warn(
            f"{transformer}: {count:,} requests without a usable answer",
            ToucheWarning,
            stacklevel=3,
        )
