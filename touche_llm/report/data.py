"""What a report shows, gathered from a run's folder and from what the run was made of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from touche_llm.config import FILE_NAME, Config, load_config
from touche_llm.errors import DataError
from touche_llm.excerpts import GAP_MARK
from touche_llm.files import RecordT, read_records
from touche_llm.first_stage import Corpus, check_candidates, check_topics, choose_topics
from touche_llm.metadata import FILE_NAME as METADATA
from touche_llm.pairing import SEPARATOR
from touche_llm.qrels import STANCE, Qrels
from touche_llm.ranking.chain import JUDGE
from touche_llm.ranking.pointwise import by_first_stage, by_judgment
from touche_llm.records import Comparison, Cut, Failure, Judgment, Objects, Reading, StanceReading, Topic
from touche_llm.report.measured import measure
from touche_llm.report.overview import cost_of, distributions, facts_of, moved, stages_of
from touche_llm.report.records import (
    DocumentView,
    RawAnswer,
    Report,
    Row,
    Said,
    SentenceView,
    StageCost,
    TopicView,
)
from touche_llm.report.sources import Answers, answers_at_hand, corpus_at_hand, prompts_at_hand, rendered
from touche_llm.run_files import (
    ALL_FAILURES,
    CANDIDATES,
    COMPARISONS,
    JUDGMENTS,
    OBJECTS,
    RUN,
    SENTENCE_JUDGMENTS,
    STANCES,
)
from touche_llm.runs import ReadRun, read_run
from touche_llm.tasks import get_task
from touche_llm.tasks.base import Task

# Of each topic so many lines are listed at most, those with texts included.
_LISTED = 100


def gather(folder: Path, qrels: Qrels | None, top: int) -> Report:
    """What the report of a run shows.

    Args:
        folder: the run's.
        qrels: judgments of people; None: the report has no figures that need them.
        top: so many documents of each topic are shown with their texts.

    Raises:
        DataError: a file of the run is not there or not as the program wrote it, or the corpus lacks its documents.
        UsageError: its configuration cannot be read.
    """
    config = config_of(folder)
    task = get_task(config.task)
    for name, stage in ((CANDIDATES, "retrieve"), (JUDGMENTS, "judge"), (RUN, "rank")):
        if not (folder / name).exists():
            raise DataError(f"{folder / name}: not there; run `touche-llm {stage}` for this folder first")
    run, first = read_run(folder / RUN, task.stances), read_run(folder / CANDIDATES)
    topics = {topic.id: topic for topic in _topics(folder, config)}
    check_topics(folder / RUN, run.rankings, config)
    stages, notes = stages_of(folder / METADATA), list[str]()
    failures = {
        name: read_records(folder / name, Failure, "failures") for name in ALL_FAILURES if (folder / name).exists()
    }
    measured = None
    if qrels is None:
        notes.append("No judgments of people were given, so no figure says how good the run is.")
    else:
        measured = measure(run, first, qrels, max(map(len, first.rankings.values())))
        notes += measured.notes
    missing = [topic for topic in topics if topic not in run.rankings]
    if missing:
        notes.append(f"Topics without a line in the run: {', '.join(missing)}.")
    with corpus_at_hand(config, task, stages, notes) as corpus, answers_at_hand(config, notes) as answers:
        prompts = prompts_at_hand(config, task, stages, notes)
        views = _Views(folder, config, task, run, first, qrels, corpus, answers, failures)
        if corpus is not None:
            heads = [ranking[:top] for ranking in run.rankings.values()]
            check_candidates(folder / RUN, heads, corpus.documents, corpus.name)
        rows = {topic_id: views.rows(topic_id) for topic_id in run.rankings}
        shown = [
            TopicView(
                topics[topic_id],
                [views.document(topic_id, row) for row in lines[:top]],
                lines[top:_LISTED],
                max(len(lines) - max(top, _LISTED), 0),
                rendered(prompts, task, topics[topic_id]),
            )
            for topic_id, lines in rows.items()
        ]
    if views.lost:
        notes.append(f"Raw answers that the cache {config.cache.file} does not hold: {views.lost:,}.")
    return Report(
        name=folder.resolve().name,
        facts=facts_of(config, task, stages, run),
        grades=task.question.grades,
        labels=task.stances,
        topics=shown,
        moved=moved(rows.values()),
        stances=distributions(run, task, qrels),
        measured=measured,
        costs=[StageCost(name, cost_of(stage)) for name, stage in stages.items()],
        failures=failures,
        notes=notes,
    )


def config_of(folder: Path) -> Config:
    """The configuration of the run in a folder; raises DataError where there is none."""
    if not (folder / FILE_NAME).is_file():
        raise DataError(f"{folder / FILE_NAME}: not there; give the folder of a run")
    return load_config(folder / FILE_NAME, {})


class _Views:
    """The lines and documents of a run, put together from its files."""

    def __init__(
        self,
        folder: Path,
        config: Config,
        task: Task,
        run: ReadRun,
        first: ReadRun,
        qrels: Qrels | None,
        corpus: Corpus | None,
        answers: Answers | None,
        failures: Mapping[str, list[Failure]],
    ) -> None:
        self.run, self.first, self.qrels, self.corpus, self.answers = run, first, qrels, corpus, answers
        self.config, self.task = config, task
        self.lost = 0
        self.judgments: dict[str, dict[str, Judgment]] = defaultdict(dict)
        for each in read_records(folder / JUDGMENTS, Judgment, "judgments"):
            self.judgments[each.topic_id][each.document_id] = each
        readings = _optional(folder / STANCES, StanceReading, "stances")
        self.readings = {(each.topic_id, each.document_id): each for each in readings}
        compared = (
            read_records(folder / COMPARISONS, Comparison, "comparisons") if (folder / COMPARISONS).exists() else []
        )
        self.compared = compared_of(compared)
        self.sentences: dict[tuple[str, str], Judgment] = {}
        if task.sentence_question is not None:
            judged = read_records(folder / SENTENCE_JUDGMENTS, Judgment, "judgments of sentences")
            self.sentences = {(each.topic_id, each.document_id): each for each in judged}
        self.failures: dict[tuple[str, str | None], list[Failure]] = defaultdict(list)
        for failure in (failure for of_file in failures.values() for failure in of_file):
            self.failures[failure.topic_id, failure.document_id].append(failure)

    def rows(self, topic_id: str) -> list[Row]:
        """The lines of a topic."""
        ranking, judgments = self.run.rankings[topic_id], self.judgments[topic_id]
        candidates = self.first.rankings.get(topic_id, [])
        first = {each.document_id: each.rank for each in candidates}
        judge: dict[str, int] = {}
        if self.config.steps[0].name == JUDGE and len(self.config.steps) > 1:
            kept = {each.document_id for each in ranking}
            judged = by_judgment(by_first_stage(candidates), judgments, self.config.weights)
            ordered = [each.document_id for each in judged if each.document_id in kept]
            judge = {document: rank for rank, document in enumerate(ordered, start=1)}
        rows = []
        for each in ranking:
            judgment = judgments.get(each.document_id)
            if each.document_id not in first:
                raise DataError(f"topic {topic_id}: document {each.document_id} of the run is no candidate; rank again")
            rows.append(
                Row(
                    each.rank,
                    each.document_id,
                    self.run.stances.get((topic_id, each.document_id), ""),
                    each.score,
                    first[each.document_id],
                    judge.get(each.document_id),
                    judgment.grades if judgment is not None else {},
                    judgment.source if judgment is not None else "",
                    self._people(topic_id, each.document_id),
                )
            )
        return rows

    def document(self, topic_id: str, row: Row) -> DocumentView:
        """A line with all that is known of its document."""
        key = (topic_id, row.document_id)
        judgment, reading = self.judgments[topic_id].get(row.document_id), self.readings.get(key)
        cut = judgment.cut if judgment is not None else None
        said = [] if judgment is None else _said(judgment.readings)
        answers = [] if judgment is None or judgment.key is None else [self._answer(judgment.prompt, judgment.key)]
        if reading is not None:
            said.append(Said("stance, asked for alone", reading.probabilities))
            answers += [self._answer(reading.prompt, each) for each in reading.keys]
        parts = row.document_id.split(SEPARATOR) if self.task.sentence_question is not None else []
        return DocumentView(
            row,
            None if self.corpus is None else _text(self.corpus.documents.get(row.document_id).text, cut),
            "" if cut is None else f"the model saw {cut.kept_chars:,} of {cut.of_chars:,} characters",
            said,
            self.compared.get(key, []),
            [each for each in answers if self.answers is not None],
            self.failures.get(key, []),
            [self._sentence(topic_id, each) for each in parts],
        )

    def _sentence(self, topic_id: str, sentence_id: str) -> SentenceView:
        judgment = self.sentences.get((topic_id, sentence_id))
        said = [] if judgment is None else _said(judgment.readings)
        if self.corpus is None:
            return SentenceView(sentence_id, "", "", said)
        sentence = self.corpus.candidates.get(sentence_id)
        return SentenceView(sentence_id, sentence.title, sentence.side, said)

    def _answer(self, prompt: str, key: str) -> RawAnswer:
        text = None if self.answers is None else self.answers(key)
        self.lost += self.answers is not None and text is None
        return RawAnswer(prompt, text)

    def _people(self, topic_id: str, document_id: str) -> dict[str, str]:
        if self.qrels is None:
            return {}
        found = {
            aspect: f"{grades[topic_id][document_id]:g}"
            for aspect, grades in self.qrels.grades.items()
            if document_id in grades.get(topic_id, {})
        }
        label = self.qrels.stances.get(topic_id, {}).get(document_id)
        return found if label is None else {**found, STANCE: label}


def compared_of(comparisons: Iterable[Comparison]) -> dict[tuple[str, str], list[str]]:
    """What came of comparing each document, by topic and document: a line for each step."""
    shares: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    places: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for each in comparisons:
        for label, document in zip("ABCDEFGHIJKLMNOPQRSTUVWXYZ", each.documents, strict=False):
            if each.best is not None:
                shares[each.topic_id, document][each.step].append(each.best.shares.get(label, 0.0))
        for place, document in enumerate(each.order or [], start=1):
            places[each.topic_id, document][each.step].append(place)
    said: dict[tuple[str, str], list[str]] = defaultdict(list)
    for key, steps in shares.items():
        said[key] += [f"{step}: the best with {fmean(won):.2f} on average ({len(won)}×)" for step, won in steps.items()]
    for key, steps in places.items():
        said[key] += [f"{step}: in place {fmean(at):.1f} on average ({len(at)}×)" for step, at in steps.items()]
    return said


def _said(readings: Mapping[str, Reading]) -> list[Said]:
    return [Said(name, reading.shares, reading.outside) for name, reading in readings.items()]


def _text(text: str, cut: Cut | None) -> str:
    """The document's text, or where the model saw excerpts, those."""
    return text if cut is None or cut.parts is None else f"\n{GAP_MARK}\n".join(text[a:b] for a, b in cut.parts)


def _topics(folder: Path, config: Config) -> list[Topic]:
    """The run's topics, with the objects that the model found."""
    found = {each.topic_id: each.objects for each in _optional(folder / OBJECTS, Objects, "objects")}
    return [replace(topic, objects=topic.objects or found.get(topic.id)) for topic in choose_topics(config)]


def _optional(path: Path, record: type[RecordT], what: str) -> list[RecordT]:
    """The records of a file that only some runs have."""
    return read_records(path, record, what) if path.exists() else []
