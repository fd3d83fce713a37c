"""An open run folder: its files, its corpus and its completions, if available."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from string import ascii_uppercase
from types import SimpleNamespace

from touche_llm.api.corpora import open_run_corpus
from touche_llm.api.progress import SilentProgress
from touche_llm.config.configuration import Config
from touche_llm.config.task_copies import find_copy
from touche_llm.data.records import Candidate, Comparison, Failure, Judgment, Reading, StanceReading
from touche_llm.data.runs.reading import ParsedRun
from touche_llm.errors import DataError, ToucheError
from touche_llm.evaluation.agreement import round_grade
from touche_llm.evaluation.qrels import STANCE, Qrels
from touche_llm.judging.result import Judgments
from touche_llm.kinds.known import get_kind
from touche_llm.llm.answer import Answer
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.ranking.scores import rank_by_first_stage, rank_by_judgment
from touche_llm.ranking.steps import JUDGE
from touche_llm.retrieval.candidates import check_topics
from touche_llm.retrieval.corpus import Corpus
from touche_llm.runs.context import RunContext
from touche_llm.runs.directory import RunDirectory
from touche_llm.runs.record import StageRecords
from touche_llm.tasks.published import describe_restriction
from touche_llm.tasks.task import Task
from touche_llm.text.passages import GAP_MARK

# Of a completion on a page; only thoughts are longer.
_MAX_CHARS = 2000

_MOVED = "if the file moved, name it in config.yaml, whose relative paths start at its folder"


@dataclass(frozen=True, slots=True)
class DocumentRow:
    """A row of the ranking.

    Attributes:
        first: Rank in the first stage.
        judge: Rank by judgment, if later steps reranked the documents; else None.
        grades: Expected grades, by name; empty without a judgment.
        source: Source of the grades, as in `Judgment`; empty without a judgment.
        people: Judgments by assessors: grades by aspect, and the stance.
        differs: Aspects in which the model differs from the assessors, grades after rounding; None
            unless both judged.
    """

    rank: int
    document_id: str
    stance: str
    score: float
    first: int
    judge: int | None
    grades: Mapping[str, float]
    source: str
    people: Mapping[str, str]
    differs: Sequence[str] | None = None

    @property
    def places(self) -> list[int]:
        """Return its ranks, from the first stage to the run."""
        return [self.first, *([self.judge] if self.judge is not None else []), self.rank]


@contextmanager
def open_folder(path: Path) -> Iterator[RunFolder]:
    """Open a run folder with its corpus and its completions."""
    directory = RunDirectory(path)
    config, notes = directory.read_config(), list[str]()
    directory.check_finished("rank")
    if (copy := find_copy(path)) is not None:
        config = config.model_copy(update={"task": copy})
    with RunContext(config, SilentProgress()) as context:
        judgments, run = directory.read_judgments(context), directory.read_run(context.task.stances)
        stages = directory.read_metadata().stages
        if stages.rank is None:
            raise DataError(
                f"{path}: no metadata of the run; run `touche-llm rank` for this folder first"
            )
        check_topics(directory.run_file, run.rankings, context.file_topics)
        failures = directory.read_failures()
        with (
            _open_corpus(config, context.task, notes) as corpus,
            _open_answers(config, notes) as answers,
        ):
            if corpus is not None:
                ranked = (line.document_id for ranking in run.rankings.values() for line in ranking)
                restriction = describe_restriction(ranked)
                if restriction is not None:
                    notes.append(f"This page {restriction}.")
            yield RunFolder(
                directory, context, run, judgments, stages, failures, corpus, answers, notes
            )


@dataclass
class RunFolder:
    """The contents of a run folder.

    Attributes:
        records: Candidates and judgments.
        stages: Records of the finished stages, that of the last one among them.
        failures: Failed requests, by file.
        corpus: Documents; None if unavailable.
        answers: Cache of the completions; None if unavailable.
        notes: Limitations of what could be opened.
    """

    directory: RunDirectory
    context: RunContext
    run: ParsedRun
    records: Judgments
    stages: StageRecords
    failures: Mapping[str, list[Failure]]
    corpus: Corpus | None
    answers: Cache | None
    notes: list[str]

    def __post_init__(self) -> None:
        self.config, self.task = self.context.config, self.context.task
        self.first = replace(self.run, rankings=dict(self.records.candidates.rankings), stances={})
        # With the objects that the model extracted.
        self.topics = {topic.id: topic for topic in self.records.candidates.topics}
        self.judgments: Mapping[str, dict[str, Judgment]] = defaultdict(
            dict, self.records.by_document()
        )
        self.readings = {
            (reading.topic_id, reading.document_id): reading for reading in self.records.stances
        }
        self.compared = summarize_comparisons(self.directory.read_comparisons())
        self.sentences: dict[tuple[str, str], Judgment] = {}
        if get_kind(self.task).makes_documents:
            judged = self.directory.read_sentences(self.task)
            self.sentences = {
                (judgment.topic_id, judgment.document_id): judgment for judgment in judged
            }
        self.failed: dict[tuple[str, str | None], list[Failure]] = defaultdict(list)
        for failure in (failure for of_file in self.failures.values() for failure in of_file):
            self.failed[failure.topic_id, failure.document_id].append(failure)

    def check_documents(self, rankings: Iterable[list[Candidate]]) -> None:
        """Raise DataError if the corpus is available and lacks one of these documents."""
        if self.corpus is not None:
            self.corpus.check(rankings, self.directory.run_file, ranked=True)

    def rows(self, topic_id: str, qrels: Qrels | None) -> list[DocumentRow]:
        """Return the rows of a topic, with judgments by assessors.

        Empty if the run lacks the topic.
        """
        ranking, judgments = self.run.rankings.get(topic_id, []), self.judgments[topic_id]
        candidates = self.first.rankings.get(topic_id, [])
        first = {candidate.document_id: candidate.rank for candidate in candidates}
        judge: dict[str, int] = {}
        if self.config.steps[0].name == JUDGE and len(self.config.steps) > 1:
            kept = {candidate.document_id for candidate in ranking}
            before = rank_by_first_stage(candidates)
            judged = rank_by_judgment(before, judgments, self.config.weights, self.task.aspects)
            ordered = [document for document in judged.ranking.documents if document in kept]
            judge = {document: rank for rank, document in enumerate(ordered, start=1)}
        rows = []
        for candidate in ranking:
            judgment = judgments.get(candidate.document_id)
            if candidate.document_id not in first:
                raise DataError(
                    f"topic {topic_id}: document {candidate.document_id} of the run is not a candidate; rank again"
                )
            grades = judgment.grades if judgment is not None else {}
            stance = self.run.stances.get((topic_id, candidate.document_id), "")
            people = get_assessments(qrels, topic_id, candidate.document_id)
            rows.append(
                DocumentRow(
                    rank=candidate.rank,
                    document_id=candidate.document_id,
                    stance=stance,
                    score=candidate.score,
                    first=first[candidate.document_id],
                    judge=judge.get(candidate.document_id),
                    grades=grades,
                    source=judgment.source if judgment is not None else "",
                    people=people,
                    differs=find_differences(grades, stance, people, self.task),
                )
            )
        return rows

    def texts(self, topic_id: str, document_ids: Iterable[str]) -> dict[str, str]:
        """Return the texts of the documents in the corpus, or the parts that the model saw."""
        if self.corpus is None:
            return {}
        requested = list(document_ids)
        unknown = set(self.corpus.documents.find_unknown(requested))
        return {
            document_id: self._text(self.corpus, topic_id, document_id)
            for document_id in requested
            if document_id not in unknown
        }

    def document(self, topic_id: str, row: DocumentRow) -> SimpleNamespace:
        """Return a row with its document and the answers of the model, for the templates."""
        key = (topic_id, row.document_id)
        judgment, stance = self.judgments[topic_id].get(row.document_id), self.readings.get(key)
        readings = {} if judgment is None else dict(judgment.readings)
        keys = [] if judgment is None else _list_answers(judgment)
        if stance is not None:
            probable = Reading(answered=row.stance, probabilities=stance.probabilities)
            readings["stance, separate request"] = probable
            keys += _list_answers(stance)
        sentence_ids = get_kind(self.task).list_sentences(row.document_id)
        return SimpleNamespace(
            row=row,
            text=None
            if self.corpus is None
            else self._text(self.corpus, topic_id, row.document_id),
            truncation=describe_truncation(judgment),
            readings=readings,
            comparisons=self.compared.get(key, []),
            # The prompt and the text of each completion; no text where the cache lacks it.
            answers=[]
            if self.answers is None
            else [(prompt, _read_text(self.answers, key)) for prompt, key in keys],
            # Requests about this document alone.
            failures=self.failed.get(key, []),
            sentences=[self._sentence(topic_id, sentence_id) for sentence_id in sentence_ids],
        )

    def _text(self, corpus: Corpus, topic_id: str, document_id: str) -> str:
        text, judgment = (
            corpus.documents.get(document_id).text,
            self.judgments[topic_id].get(document_id),
        )
        cut = judgment.cut if judgment is not None else None
        return (
            text
            if cut is None or cut.parts is None
            else f"\n{GAP_MARK}\n".join(text[a:b] for a, b in cut.parts)
        )

    def _sentence(
        self, topic_id: str, sentence_id: str
    ) -> tuple[str, str, str, Mapping[str, Reading]]:
        """Return id, title and side of a sentence of a document, both empty without a corpus, and its readings."""
        judgment = self.sentences.get((topic_id, sentence_id))
        readings = {} if judgment is None else judgment.readings
        sentence = None if self.corpus is None else self.corpus.candidates.get(sentence_id)
        return (
            sentence_id,
            *(("", "") if sentence is None else (sentence.title, sentence.side)),
            readings,
        )


def _read_text(answers: Cache, key: str) -> str | None:
    answer = answers.get(key, Answer)
    return (
        None
        if answer is None
        else answer.text[:_MAX_CHARS] + ("…" if len(answer.text) > _MAX_CHARS else "")
    )


def _list_answers(judged: Judgment | StanceReading) -> list[tuple[str, str]]:
    """Return the prompt and the key of each completion, thoughts first."""
    thoughts = [(f"{judged.prompt}, thought", key) for key in judged.thought_keys]
    answers = [(judged.prompt, key) for key in judged.answer_keys]
    return [*thoughts, *answers]


def summarize_comparisons(comparisons: Iterable[Comparison]) -> dict[tuple[str, str], list[str]]:
    """Summarize the comparisons of each document, by topic and document id: a line for each step."""
    values: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for comparison in comparisons:
        if comparison.best is not None:
            shares, line = (
                comparison.best.shares,
                f"{comparison.step}: best with mean probability {{:.2f}} ({{}}×)",
            )
            labels = zip(ascii_uppercase, comparison.documents, strict=False)
            found = [(document, shares.get(label, 0.0)) for label, document in labels]
        else:
            line = f"{comparison.step}: mean rank {{:.1f}} ({{}}×)"
            found = [
                (document, float(place))
                for place, document in enumerate(comparison.order or [], start=1)
            ]
        for document, value in found:
            values[comparison.topic_id, document][line].append(value)
    return {
        key: [line.format(fmean(given), len(given)) for line, given in of.items()]
        for key, of in values.items()
    }


@contextmanager
def _open_corpus(config: Config, task: Task, notes: list[str]) -> Iterator[Corpus | None]:
    """Open the documents of the run, or yield None if they are unavailable.

    Add the reason to `notes`.
    """
    if config.corpus is not None and not config.corpus.is_file():
        # Its index has the texts too.
        config = config.model_copy(update={"corpus": None})
    # Without these files, opening the corpus would download what is missing, or make an empty cache.
    needed = config.retriever.kind.find_needed_file(config.retriever_settings)
    if config.dataset is not None and config.index is not None:
        needed = config.index / "manifest.json"
    with ExitStack() as stack:
        try:
            if needed is not None and not needed.is_file():
                raise DataError(f"{needed}: not found")
            corpus = stack.enter_context(open_run_corpus(config, task, notes.append))
        except ToucheError as error:
            notes.append(f"No document texts: {error}; {_MOVED}.")
            yield None
            return
        yield corpus


def _open_answers(config: Config, notes: list[str]) -> AbstractContextManager[Cache | None]:
    """Open the cache of the run, if it exists; else add the reason to `notes`."""
    if config.cache.mode is not CacheMode.OFF and config.cache.file.is_file():
        return Cache(config.cache.file, CacheMode.REPLAY)
    notes.append(
        f"No completions: the run stored none, or its cache {config.cache.file} is gone; {_MOVED}."
    )
    return nullcontext()


def describe_truncation(judgment: Judgment | None) -> str:
    """Describe how much of the document the model saw; empty if all."""
    if judgment is None or (cut := judgment.cut) is None:
        return ""
    return f"the model saw {cut.kept_chars:,} of {cut.of_chars:,} characters"


def get_assessments(qrels: Qrels | None, topic_id: str, document_id: str) -> dict[str, str]:
    """Return the judgments of a document by assessors: grades by aspect, and the stance."""
    if qrels is None:
        return {}
    found = {
        aspect: f"{grades[topic_id][document_id]:g}"
        for aspect, grades in qrels.grades.items()
        if document_id in grades.get(topic_id, {})
    }
    label = qrels.stances.get(topic_id, {}).get(document_id)
    return found if label is None else {**found, STANCE: label}


def find_differences(
    grades: Mapping[str, float], stance: str, people: Mapping[str, str], task: Task
) -> list[str] | None:
    """Return the aspects in which the model differs from the assessors, grades after rounding.

    Grades are compared where their scales are the same or the task maps them. None unless both
    judged an aspect that can be compared.

    The grades of the model are empty without a judgment; `people` has those of `get_assessments`.
    """
    compared = 0
    differing: list[str] = []
    for aspect, assessment in people.items():
        if aspect == STANCE:
            is_judged = bool(grades) and bool(stance)
            is_equal = assessment == stance
        else:
            mapping = task.qrels_mapping_of(aspect)
            is_judged = aspect in grades and mapping is not None
            is_equal = (
                mapping is not None
                and aspect in grades
                and mapping[round_grade(grades[aspect])] == round_grade(float(assessment))
            )
        if is_judged:
            compared += 1
        if is_judged and not is_equal:
            differing.append(aspect)
    return differing if compared else None
