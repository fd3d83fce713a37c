"""An open run folder: its files, its corpus and its completions, if available."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from string import ascii_uppercase
from typing import Literal

from touche_llm.api.corpora import open_run_corpus
from touche_llm.api.progress import SilentProgress
from touche_llm.config.configuration import Config
from touche_llm.config.files import NO_USER_OPTIONS, UserOptions
from touche_llm.config.origins import LoadedConfig
from touche_llm.config.task_copies import find_copy
from touche_llm.data.records import (
    Candidate,
    Comparison,
    Cut,
    Failure,
    Judgment,
    Reading,
    StanceReading,
    Topic,
)
from touche_llm.data.runs.reading import ParsedRun, read_run
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
        rank: Rank in the run.
        document_id: Id of the document.
        stance: Stance in the run; empty if it has none.
        score: Score in the run.
        first: Rank in the first stage.
        judge: Rank by judgment, if later steps reranked the documents; else None.
        grades: Expected grades, by name; empty without a judgment.
        source: Source of the grades, as in `Judgment`; None without a judgment.
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
    source: Literal["probabilities", "value", "inherited"] | None
    people: Mapping[str, str]
    differs: Sequence[str] | None = None

    @property
    def places(self) -> list[int]:
        """Its ranks, from the first stage to the run."""
        if self.judge is None:
            return [self.first, self.rank]
        return [self.first, self.judge, self.rank]

    @property
    def is_inherited(self) -> bool:
        """Whether it is a pair with the grades of its sentences."""
        return self.source == "inherited"

    @property
    def is_judged(self) -> bool:
        """Whether the model judged the document itself."""
        return self.source is not None and not self.is_inherited


@dataclass(frozen=True, slots=True)
class StoredCompletion:
    """A completion of the run: label of its prompt, and its text.

    The text is None if the cache lacks it.
    """

    prompt: str
    text: str | None


@dataclass(frozen=True, slots=True)
class SentenceView:
    """A sentence of a pair.

    Attributes:
        id: Id of the sentence.
        title: Conclusion of its argument; empty without a corpus.
        side: Side of its argument; empty without a corpus.
        readings: Readings of the answer about it, by field; empty without a judgment.
    """

    id: str
    title: str
    side: str
    readings: Mapping[str, Reading]


@dataclass(frozen=True, slots=True)
class DocumentView:
    """A row of the ranking with its document and the answers of the model.

    Attributes:
        row: Row of the ranking.
        text: Text of the document, or the part that the model saw; None without a corpus.
        truncation: Sentence on how much the model saw; empty if all.
        readings: Readings of the judge prompt's answer, by field; empty without a judgment.
        separate_stance: Reading of the stance prompt's answers; None if there was none.
        judge_answers: Completions of the judge prompt.
        stance_answers: Completions of the stance prompt.
        comparisons: Summaries of comparisons with other documents.
        failures: Failed requests about this document alone.
        sentences: Sentences of a pair; empty for other documents.
    """

    row: DocumentRow
    text: str | None
    truncation: str
    readings: Mapping[str, Reading]
    separate_stance: Reading | None
    judge_answers: list[StoredCompletion]
    stance_answers: list[StoredCompletion]
    comparisons: list[str]
    failures: list[Failure]
    sentences: list[SentenceView]

    @property
    def answers(self) -> list[StoredCompletion]:
        """All completions about this document alone."""
        return [*self.judge_answers, *self.stance_answers]


@contextmanager
def open_folder(path: Path, user_options: UserOptions = NO_USER_OPTIONS) -> Iterator[RunFolder]:
    """Open a run folder with its corpus and its completions.

    Args:
        path: Folder of the run.
        user_options: Settings that the user gives, and whether the user trusts the folder.

    Raises:
        DataError: The run is unfinished or damaged.
    """
    directory = RunDirectory(path)
    loaded = directory.read_with_origins(user_options)
    directory.check_finished("rank")

    notes: list[str] = []
    with ExitStack() as stack:
        context = stack.enter_context(_make_context(directory, loaded, notes))

        # Everything that is required is read before corpus and cache, which may be missing.
        records = directory.read_judgments(context)
        run = directory.read_run(context.task.stances)
        stages = _read_stages(directory)
        check_topics(directory.run_file, run.rankings, context.file_topics)
        failures = directory.read_failures()

        corpus = _open_corpus(loaded, context, notes)
        if corpus is not None:
            stack.enter_context(corpus)
        answers = _open_answers(loaded, context.config, notes)
        if answers is not None:
            stack.enter_context(answers)

        # Readers see the notes in this order: what is missing first, then limits of use.
        if corpus is not None:
            notes.extend(_list_restrictions(run))

        yield RunFolder(
            directory=directory,
            context=context,
            run=run,
            records=records,
            comparisons=directory.read_comparisons(),
            sentence_judgments=_read_sentences(directory, context.task),
            stages=stages,
            failures=failures,
            corpus=corpus,
            answers=answers,
            notes=notes,
        )


def _make_context(directory: RunDirectory, loaded: LoadedConfig, notes: list[str]) -> RunContext:
    """Return the context of a run: with the run's copy of the task, if it has one.

    The topics of somebody else's run may be another file of this machine, so they are not read.

    Args:
        directory: Folder of the run.
        loaded: Configuration of the run.
        notes: Receives the reason if the topics may not be read; they have no titles then.
    """
    config = loaded.config
    task_copy = find_copy(directory.path)
    if task_copy is not None:
        config = config.model_copy(update={"task": task_copy})

    # Without topics, the context reads those that the configuration names.
    topics: list[Topic] | None = None
    if loaded.unused is not None and loaded.is_without("topics"):
        topics = _name_topics(directory)
        notes.append(f"No titles: {loaded.unused.describe_input('topics')}.")
    return RunContext(config, SilentProgress(), topics=topics)


def _read_stages(directory: RunDirectory) -> StageRecords:
    """Read the records of the stages; raise DataError if that of the last one is missing."""
    stages = directory.read_metadata().stages
    if stages.rank is None:
        problem = "no metadata of the run"
        raise DataError(f"{directory}: {problem}; run `touche-llm rank` for this folder first")
    return stages


def _list_restrictions(run: ParsedRun) -> list[str]:
    """Return a note on documents whose texts may not be published, if the run has any."""
    document_ids = (line.document_id for ranking in run.rankings.values() for line in ranking)
    restriction = describe_restriction(document_ids)
    return [] if restriction is None else [f"This page {restriction}."]


def _read_sentences(directory: RunDirectory, task: Task) -> list[Judgment]:
    """Read the judgments of sentences; empty unless the kind of the task makes documents."""
    if not get_kind(task).makes_documents:
        return []
    return directory.read_sentences(task)


def _name_topics(directory: RunDirectory) -> list[Topic]:
    """Return the topics of somebody else's run, with a reason in place of each title."""
    candidates = read_run(directory.candidates_file).rankings
    return [Topic(ident, f"(title of topic {ident} not read)") for ident in candidates]


@dataclass
class RunFolder:
    """The contents of a run folder.

    Attributes:
        directory: The folder.
        context: Context of the run.
        run: The ranking.
        records: Candidates and judgments.
        comparisons: Comparisons of the ranking steps.
        sentence_judgments: Judgments of the sentences of pairs.
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
    comparisons: Sequence[Comparison]
    sentence_judgments: Sequence[Judgment]
    stages: StageRecords
    failures: Mapping[str, list[Failure]]
    corpus: Corpus | None
    answers: Cache | None
    notes: list[str]

    @property
    def config(self) -> Config:
        """Configuration of the run."""
        return self.context.config

    @property
    def task(self) -> Task:
        """Task of the run."""
        return self.context.task

    @cached_property
    def first(self) -> ParsedRun:
        """Ranking of the first stage, without stances."""
        return replace(self.run, rankings=dict(self.records.candidates.rankings), stances={})

    @cached_property
    def topics(self) -> dict[str, Topic]:
        """Topics by id, with the objects that the model extracted."""
        return {topic.id: topic for topic in self.records.candidates.topics}

    @cached_property
    def judgments(self) -> dict[str, dict[str, Judgment]]:
        """Judgments by topic id and document id; topics without a judgment are left out."""
        return self.records.by_document()

    @cached_property
    def stance_readings(self) -> dict[tuple[str, str], StanceReading]:
        """Readings of the stance prompt, by topic id and document id."""
        return {(stance.topic_id, stance.document_id): stance for stance in self.records.stances}

    @cached_property
    def _comparison_lines(self) -> dict[tuple[str, str], list[str]]:
        """Summaries of comparisons, by topic id and document id."""
        return summarize_comparisons(self.comparisons)

    @cached_property
    def _sentences(self) -> dict[tuple[str, str], Judgment]:
        """Judgments of sentences, by topic id and sentence id."""
        judgments = self.sentence_judgments
        return {(judgment.topic_id, judgment.document_id): judgment for judgment in judgments}

    @cached_property
    def _failures_by_document(self) -> dict[tuple[str, str | None], list[Failure]]:
        """Failed requests, by topic id and document id; None for requests about a topic."""
        by_document: dict[tuple[str, str | None], list[Failure]] = defaultdict(list)
        for failures_in_file in self.failures.values():
            for failure in failures_in_file:
                by_document[failure.topic_id, failure.document_id].append(failure)
        return dict(by_document)

    def find_judgment(self, topic_id: str, document_id: str) -> Judgment | None:
        """Return the judgment of a document; None if it has none."""
        return self.judgments.get(topic_id, {}).get(document_id)

    def find_failures(self, topic_id: str, document_id: str) -> list[Failure]:
        """Return the failed requests about one document alone."""
        return self._failures_by_document.get((topic_id, document_id), [])

    def count_failures(self, topic_id: str) -> int:
        """Count the failed requests of a topic."""
        return sum(
            len(failures)
            for (failed_topic, _), failures in self._failures_by_document.items()
            if failed_topic == topic_id
        )

    def check_documents(self, rankings: Iterable[list[Candidate]]) -> None:
        """Raise DataError if the corpus is available and lacks one of these documents."""
        if self.corpus is not None:
            self.corpus.check(rankings, self.directory.run_file, ranked=True)

    def rows(self, topic_id: str, qrels: Qrels | None) -> list[DocumentRow]:
        """Return the rows of a topic, with judgments by assessors.

        Empty if the run lacks the topic.

        Raises:
            DataError: A document of the run is not a candidate.
        """
        candidates = self.first.rankings.get(topic_id, [])
        first_ranks = {candidate.document_id: candidate.rank for candidate in candidates}
        judge_ranks = self._rank_by_judgment(topic_id)

        rows: list[DocumentRow] = []
        for candidate in self.run.rankings.get(topic_id, []):
            first_rank = first_ranks.get(candidate.document_id)
            if first_rank is None:
                place = f"topic {topic_id}: document {candidate.document_id}"
                raise DataError(f"{place} of the run is not a candidate; rank again")
            judge_rank = judge_ranks.get(candidate.document_id)
            rows.append(self._make_row(topic_id, candidate, first_rank, judge_rank, qrels))
        return rows

    def _make_row(
        self,
        topic_id: str,
        candidate: Candidate,
        first_rank: int,
        judge_rank: int | None,
        qrels: Qrels | None,
    ) -> DocumentRow:
        """Return the row of a document in the run."""
        document_id = candidate.document_id
        judgment = self.find_judgment(topic_id, document_id)
        grades = {} if judgment is None else judgment.grades
        stance = self.run.stances.get((topic_id, document_id), "")
        people = get_assessments(qrels, topic_id, document_id)
        return DocumentRow(
            rank=candidate.rank,
            document_id=document_id,
            stance=stance,
            score=candidate.score,
            first=first_rank,
            judge=judge_rank,
            grades=grades,
            source=None if judgment is None else judgment.source,
            people=people,
            differs=find_differences(grades, stance, people, self.task),
        )

    def _rank_by_judgment(self, topic_id: str) -> dict[str, int]:
        """Return the ranks that a topic's documents had by judgment, before later steps.

        Empty if there are no later steps.
        """
        steps = self.config.steps
        is_reranked = steps[0].name == JUDGE and len(steps) > 1
        if not is_reranked:
            return {}

        judged = rank_by_judgment(
            rank_by_first_stage(self.first.rankings.get(topic_id, [])),
            self.judgments.get(topic_id, {}),
            self.config.weights,
            self.task.aspects,
        )
        # Ranks count only the documents that are in the run, which can leave out judged ones.
        kept = {candidate.document_id for candidate in self.run.rankings.get(topic_id, [])}
        ranked = [document_id for document_id in judged.ranking.documents if document_id in kept]
        return {document_id: rank for rank, document_id in enumerate(ranked, start=1)}

    def texts(self, topic_id: str, document_ids: Iterable[str]) -> dict[str, str]:
        """Return the texts of documents by id, or of the parts that the model saw.

        Documents that the corpus lacks are left out; without a corpus, all.
        """
        if self.corpus is None:
            return {}

        requested_ids = list(document_ids)
        unknown_ids = set(self.corpus.documents.find_unknown(requested_ids))
        texts: dict[str, str] = {}
        for document_id in requested_ids:
            if document_id not in unknown_ids:
                texts[document_id] = self._read_text(self.corpus, topic_id, document_id)
        return texts

    def document(self, topic_id: str, row: DocumentRow) -> DocumentView:
        """Return all that is known of a document in the run: its text, and the model's answers.

        Args:
            topic_id: Topic of the document.
            row: Ranks, grades and stance of the document.
        """
        document_id = row.document_id
        text = None
        if self.corpus is not None:
            text = self._read_text(self.corpus, topic_id, document_id)

        judgment = self.find_judgment(topic_id, document_id)
        # The answer to the stance prompt, which is used beside the judge prompt.
        stance = self.stance_readings.get((topic_id, document_id))
        separate_stance = None
        if stance is not None:
            separate_stance = Reading(answered=row.stance, probabilities=stance.probabilities)

        return DocumentView(
            row=row,
            text=text,
            truncation=describe_truncation(judgment),
            readings={} if judgment is None else judgment.readings,
            separate_stance=separate_stance,
            judge_answers=self._read_completions(judgment),
            stance_answers=self._read_completions(stance),
            comparisons=self._comparison_lines.get((topic_id, document_id), []),
            failures=self.find_failures(topic_id, document_id),
            sentences=self._view_sentences(topic_id, document_id),
        )

    def _read_text(self, corpus: Corpus, topic_id: str, document_id: str) -> str:
        """Return the text of a document, or the parts that the model saw if it was truncated."""
        text = corpus.documents.get(document_id).text
        judgment = self.find_judgment(topic_id, document_id)
        truncation = None if judgment is None else judgment.cut
        if truncation is None or truncation.parts is None:
            return text

        parts = [text[start:end] for start, end in truncation.parts]
        return f"\n{GAP_MARK}\n".join(parts)

    def _read_completions(self, judged: Judgment | StanceReading | None) -> list[StoredCompletion]:
        """Return the completions behind a judgment, those of reasoning first.

        Empty without a judgment, and without a cache.
        """
        if judged is None or self.answers is None:
            return []

        completions: list[StoredCompletion] = []
        for key in judged.thought_keys:
            text = _read_completion(self.answers, key)
            completions.append(StoredCompletion(f"{judged.prompt}, thought", text))
        for key in judged.answer_keys:
            text = _read_completion(self.answers, key)
            completions.append(StoredCompletion(judged.prompt, text))
        return completions

    def _view_sentences(self, topic_id: str, document_id: str) -> list[SentenceView]:
        """Return the sentences of which a document is made; empty if it is of none."""
        sentence_ids = get_kind(self.task).list_sentences(document_id)
        return [self._view_sentence(topic_id, sentence_id) for sentence_id in sentence_ids]

    def _view_sentence(self, topic_id: str, sentence_id: str) -> SentenceView:
        """Return a sentence of a pair."""
        judgment = self._sentences.get((topic_id, sentence_id))
        readings = {} if judgment is None else judgment.readings
        if self.corpus is None:
            return SentenceView(id=sentence_id, title="", side="", readings=readings)
        sentence = self.corpus.candidates.get(sentence_id)
        return SentenceView(
            id=sentence_id,
            title=sentence.title,
            side=sentence.side,
            readings=readings,
        )


def _read_completion(answers: Cache, key: str) -> str | None:
    """Return the beginning of a completion; None if the cache lacks it."""
    answer = answers.get(key, Answer)
    if answer is None:
        return None
    if len(answer.text) <= _MAX_CHARS:
        return answer.text
    return f"{answer.text[:_MAX_CHARS]}…"


def summarize_comparisons(comparisons: Iterable[Comparison]) -> dict[tuple[str, str], list[str]]:
    """Summarize the comparisons of each document in a line for each step.

    Returns:
        Lines by topic id and document id.
    """
    # Values by topic and document, and by step.
    grouped: dict[tuple[str, str, _StepKind], list[float]] = defaultdict(list)
    for comparison in comparisons:
        kind = _StepKind(comparison.step, has_best=comparison.best is not None)
        for document_id, value in _list_values(comparison).items():
            grouped[comparison.topic_id, document_id, kind].append(value)

    summaries: dict[tuple[str, str], list[str]] = defaultdict(list)
    for (topic_id, document_id, kind), values in grouped.items():
        summaries[topic_id, document_id].append(_summarize_step(kind, values))
    return dict(summaries)


@dataclass(frozen=True, slots=True)
class _StepKind:
    """A ranking step, and whether its comparisons name the best document.

    The others give an order.
    """

    step: str
    has_best: bool


def _list_values(comparison: Comparison) -> dict[str, float]:
    """Return a number for each compared document, by id.

    It is the probability of being the best, or the rank if the model put documents in order.
    """
    if comparison.best is None:
        # The answer is an order of the documents, best first.
        order = comparison.order or []
        return {document_id: float(rank) for rank, document_id in enumerate(order, start=1)}

    # The answer is a label: the prompt calls the documents A, B and so on.
    probabilities = comparison.best.shares
    labelled = zip(ascii_uppercase, comparison.documents, strict=False)
    return {document_id: probabilities.get(label, 0.0) for label, document_id in labelled}


def _summarize_step(kind: _StepKind, values: Sequence[float]) -> str:
    """Return the line on a document's comparisons in one step."""
    mean = fmean(values)
    if kind.has_best:
        return f"{kind.step}: best with mean probability {mean:.2f} ({len(values)}×)"
    return f"{kind.step}: mean rank {mean:.1f} ({len(values)}×)"


def _open_corpus(loaded: LoadedConfig, context: RunContext, notes: list[str]) -> Corpus | None:
    """Open the documents of a run, or return None if they are unavailable.

    Args:
        loaded: Configuration of the run, which says what may be read.
        context: Context of the run.
        notes: Receives the reason why documents are unavailable.
    """
    if loaded.unused is not None and loaded.is_without("index"):
        notes.append(f"No document texts: {loaded.unused.describe_input('corpus')}.")
        return None

    config = context.config
    if config.corpus is not None and not config.corpus.is_file():
        # The file was moved or deleted. Its index holds the texts too, so that alone is opened.
        config = config.model_copy(update={"corpus": None})
    try:
        _check_stored(config)
        return open_run_corpus(config, context.task, notes.append)
    except ToucheError as error:
        notes.append(f"No document texts: {error}; {_MOVED}.")
        return None


def _check_stored(config: Config) -> None:
    """Raise DataError if opening the corpus of a run would first download or index it.

    Opening a run only to read it must not start such work.
    """
    if config.dataset is not None and config.index is not None:
        # A dataset is downloaded unless it has an index, which has a manifest.
        needed_file: Path | None = config.index / "manifest.json"
    else:
        needed_file = config.retriever.kind.find_needed_file(config.retriever_settings)
    if needed_file is not None and not needed_file.is_file():
        raise DataError(f"{needed_file}: not found")


def _open_answers(loaded: LoadedConfig, config: Config, notes: list[str]) -> Cache | None:
    """Open the cache of a run, or return None if there is no such file.

    Args:
        loaded: Configuration of the run, which says what may be read.
        config: Settings of the cache.
        notes: Receives the reason why completions are unavailable.
    """
    cache = config.cache
    if cache.mode is not CacheMode.OFF and cache.file.is_file():
        return Cache(cache.file, CacheMode.REPLAY)

    # `unused` holds settings of somebody else's run, which could name any file as its cache.
    if loaded.unused is not None and "cache.file" in loaded.unused.values:
        notes.append(f"No completions: {loaded.unused.describe_input('cache')}.")
    else:
        problem = f"No completions: the run stored none, or its cache {cache.file} is gone"
        notes.append(f"{problem}; {_MOVED}.")
    return None


def describe_truncation(judgment: Judgment | None) -> str:
    """Describe how much of the document the model saw; empty if all."""
    if judgment is None or judgment.cut is None:
        return ""
    return describe_cut(judgment.cut)


def describe_cut(cut: Cut) -> str:
    """Describe how much of a truncated document the model saw."""
    return f"the model saw {cut.kept_chars:,} of {cut.of_chars:,} characters"


def get_assessments(qrels: Qrels | None, topic_id: str, document_id: str) -> dict[str, str]:
    """Return the judgments of a document by assessors: grades, and the stance."""
    if qrels is None:
        return {}

    assessments: dict[str, str] = {}
    for aspect, grades in qrels.grades.items():
        grade = grades.get(topic_id, {}).get(document_id)
        if grade is not None:
            assessments[aspect] = f"{grade:g}"

    label = qrels.stances.get(topic_id, {}).get(document_id)
    if label is not None:
        assessments[STANCE] = label
    return assessments


def find_differences(
    grades: Mapping[str, float], stance: str, people: Mapping[str, str], task: Task
) -> list[str] | None:
    """Return the aspects, and the stance, in which the model differs from the assessors.

    An aspect is compared if both graded it, and the task maps its grades to the assessors' scale.
    Grades are rounded first.

    Args:
        grades: Grades by the model; empty without a judgment.
        stance: Stance of the document in the run; empty if it has none.
        people: Judgments by assessors, as `get_assessments` returns them.
        task: Task with the scales of the grades.

    Returns:
        Aspects that differ; None unless both judged an aspect that can be compared.
    """
    is_equal_by_aspect: dict[str, bool] = {}
    graded_by_both = [aspect for aspect in people if aspect in grades]
    for aspect in graded_by_both:
        mapping = task.qrels_mapping_of(aspect)
        if mapping is not None:
            mapped_grade = mapping[round_grade(grades[aspect])]
            assessed_grade = round_grade(float(people[aspect]))
            is_equal_by_aspect[aspect] = mapped_grade == assessed_grade

    is_judged = len(grades) > 0
    if is_judged and stance and STANCE in people:
        is_equal_by_aspect[STANCE] = people[STANCE] == stance

    if not is_equal_by_aspect:
        return None
    differing = {aspect for aspect, is_equal in is_equal_by_aspect.items() if not is_equal}
    # In the order of the assessors' aspects.
    return [aspect for aspect in people if aspect in differing]
