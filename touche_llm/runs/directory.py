"""The folder of a run: the only reader and writer of its files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from touche_llm.api.rank import Ranking
from touche_llm.api.retrieve import add_objects
from touche_llm.config.configuration import PURPOSES, Config
from touche_llm.config.files import (
    CONFIG,
    METADATA,
    NO_USER_OPTIONS,
    UserOptions,
    load_run_config,
    write_config,
)
from touche_llm.config.origins import LoadedConfig
from touche_llm.config.own_folders import check_folder
from touche_llm.config.task_copies import copy_task
from touche_llm.data.files import RecordT, open_atomic, read_records, write_records
from touche_llm.data.locks import lock_folder
from touche_llm.data.records import (
    Comparison,
    Failure,
    Judgment,
    Malformed,
    Objects,
    StanceReading,
    UserLabels,
    convert_plain,
)
from touche_llm.data.runs.reading import ParsedRun, read_run
from touche_llm.errors import DataError
from touche_llm.judging.grades import check_judgments
from touche_llm.judging.result import Judgments
from touche_llm.kinds.known import get_kind
from touche_llm.retrieval.candidates import Candidates
from touche_llm.runs.context import RunContext
from touche_llm.runs.record import STAGES, RunRecord, StageName, StageRecords
from touche_llm.settings.yaml_text import read_yaml, to_yaml
from touche_llm.tasks import get_task
from touche_llm.tasks.task import Task

CANDIDATES = "candidates.run.txt"
# Candidates of the first stage if documents are made of them.
SENTENCES = "sentences.run.txt"
SENTENCE_JUDGMENTS = "sentence_judgments.jsonl"
# Only if topics name no objects.
OBJECTS = "objects.jsonl"
JUDGMENTS = "judgments.jsonl"
# Answers to the stance prompt.
STANCES = "stances.jsonl"
FAILURES = "failures.jsonl"
# Only with query expansion.
QUERIES = "queries.jsonl"
QUERY_FAILURES = "query_failures.jsonl"
# Only if the ranking compares documents.
COMPARISONS = "comparisons.jsonl"
COMPARISON_FAILURES = "comparison_failures.jsonl"
RUN = "run.txt"
# Run lines with grades and stances, for analysis.
RESULTS = "results.tsv"
# Only with `touche-llm report`; removed with the ranking that it shows.
REPORT = "report.html"
# Stands within the first bytes of every page that this program writes.
_GENERATOR = b'<meta name="generator" content="touche-llm">'
# Only with `touche-llm evaluate`; it names the run file that it measured by its hash, and so
# survives later stages.
EVALUATION = "evaluation.yaml"
# Only with `touche-llm lab`: labels and notes of its user, which survive a repetition.
LABELS = "labels.jsonl"
# Only with `touche-llm batch`: the last export.
BATCH = "batch.json"
# Only in a recorded run, which has some files of a run's folder, but is none.
RECORDED = "recorded.json"
ALL_FAILURES = (QUERY_FAILURES, FAILURES, COMPARISON_FAILURES)
# Outputs of each stage, in the order of the stages. Made documents replace the candidates, but does
# not remove them. The run comes first so that an interrupted removal never leaves a run without its
# inputs.
OUTPUTS: Mapping[StageName, tuple[str, ...]] = {
    "retrieve": (CANDIDATES, SENTENCES, QUERIES, QUERY_FAILURES),
    "judge": (JUDGMENTS, OBJECTS, STANCES, SENTENCE_JUDGMENTS, FAILURES),
    "rank": (RUN, RESULTS, COMPARISONS, COMPARISON_FAILURES),
}


class _RunFile:
    """Path of a file in the folder of a run."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, directory: RunDirectory, owner: type[RunDirectory]) -> Path:
        return directory.path / self.name


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The folder of a run.

    A stage calls `begin_stage`, writes its outputs, and writes the metadata. In between they mark
    the stage as unfinished, so that no reader mistakes a mix of old and new files for one run after
    an interruption.
    """

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    config_file = _RunFile(CONFIG)
    metadata_file = _RunFile(METADATA)
    run_file = _RunFile(RUN)
    results_file = _RunFile(RESULTS)
    evaluation_file = _RunFile(EVALUATION)
    # Candidates to rank: retrieved or made.
    candidates_file = _RunFile(CANDIDATES)
    judgments_file = _RunFile(JUDGMENTS)
    stances_file = _RunFile(STANCES)
    sentences_file = _RunFile(SENTENCE_JUDGMENTS)

    def first_stage_file(self, task: Task) -> Path:
        """Candidates of the first stage: documents, or the sentences that they are made of."""
        return self.path / (SENTENCES if get_kind(task).makes_documents else CANDIDATES)

    @contextmanager
    def lock(self, command: str, warn: Callable[[str], None]) -> Iterator[None]:
        """Hold the lock on the folder while the block runs; see `lock_folder`."""
        if not self.path.is_dir():
            raise DataError(f"{self}: no such folder; run `touche-llm retrieve --out {self}` first")
        with lock_folder(self.path, command, warn):
            yield

    # Configuration and metadata

    def read_config(self) -> Config:
        """Return the configuration of the run; raise DataError if the folder has none."""
        return self.read_with_origins().config

    def read_with_origins(self, user_options: UserOptions = NO_USER_OPTIONS) -> LoadedConfig:
        """Return the configuration of the run with the origins of its values.

        Args:
            user_options: Settings that the user gives, and whether the user trusts the folder.

        Raises:
            DataError: The folder has no configuration, or a link that leads out of it.
        """
        return load_run_config(self.config_file, user_options)

    def read_task(self) -> Task:
        """Return the task of the run; raise DataError if the folder has no configuration."""
        return get_task(self.read_config().task)

    def read_metadata(self) -> RunRecord:
        """Return the record of the run, without any stage if the file is missing.

        Raises:
            DataError: The file is not metadata that this version wrote.
        """
        check_folder(self.config_file)
        path = self.metadata_file
        if not path.exists():
            return RunRecord(stages=StageRecords())

        content = read_yaml(path)
        try:
            return convert_plain(content, RunRecord)
        except Malformed as error:
            raise DataError(
                f"{path}: not metadata that this version wrote: {error}; delete it and run all stages"
            ) from error

    def check_finished(self, stage: StageName) -> None:
        """Raise an error if a stage up to this one was interrupted while it replaced its outputs.

        A folder without metadata was assembled by hand and is trusted.
        """
        unfinished = self.read_metadata().unfinished
        if unfinished is not None and STAGES.index(unfinished) <= STAGES.index(stage):
            config = f" --config {self.config_file}" if unfinished == "retrieve" else ""
            raise DataError(
                f"{self}: `touche-llm {unfinished}` was interrupted while it replaced its outputs, so these files do "
                f"not belong together; run `touche-llm {unfinished}{config} --out {self}` again"
            )

    def begin_stage(self, config: Config, stage: StageName, metadata: Mapping[str, object]) -> None:
        """Remove the outputs of this stage and later ones, and write the configuration.

        The metadata has the stages before, and marks this one as unfinished.
        """
        self.write_metadata(metadata)
        for later in reversed(STAGES[STAGES.index(stage) :]):
            for name in OUTPUTS[later]:
                (self.path / name).unlink(missing_ok=True)
        write_config(config, self.config_file)

        purposes: list[str] = []
        for earlier in STAGES[: STAGES.index(stage)]:
            purposes.extend(PURPOSES[earlier])
        prompts = [getattr(config.prompts, purpose) for purpose in purposes]
        copy_task(get_task(config.task), self.path, prompts)

    def remove_report(self) -> bool:
        """Remove the page about the run, if this program wrote it; return whether it did."""
        page = self.path / REPORT
        if not is_page(page):
            return False
        page.unlink()
        return True

    def write_metadata(self, metadata: Mapping[str, object]) -> None:
        """Write the metadata in place of earlier ones."""
        with open_atomic(self.metadata_file) as stream:
            stream.write(to_yaml(metadata))

    # Outputs of the stages

    def write_candidates(self, candidates: Candidates, config: Config) -> None:
        """Write the outputs of the first stage."""
        candidates.write(self.first_stage_file(candidates.task), tag=config.tag, overwrite=True)
        if config.expansion.use:
            write_records(self.path / QUERIES, candidates.queries)
            write_records(self.path / QUERY_FAILURES, candidates.failures)

    def read_first_stage(self, context: RunContext) -> Candidates:
        """Read the candidates of the first stage.

        Raise DataError if they are missing or of other topics.
        """
        self.check_finished("retrieve")
        return context.read_candidates(
            self._require(self.first_stage_file(context.task), "retrieve")
        )

    def write_judgments(self, judgments: Judgments, tag: str, purposes: Collection[str]) -> None:
        """Write the outputs of the second stage.

        The purposes of the prompts that were used decide on the files.
        """
        if judgments.sentences is not None:
            judgments.candidates.write(self.candidates_file, tag=tag, overwrite=True)
            write_records(self.sentences_file, judgments.sentences)
        if "objects" in purposes:
            write_records(self.path / OBJECTS, judgments.objects)
        if "stance" in purposes:
            write_records(self.stances_file, judgments.stances)
        write_records(self.judgments_file, judgments.judgments)
        write_records(self.path / FAILURES, judgments.failures)

    def read_judgments(self, context: RunContext) -> Judgments:
        """Read the candidates to rank and their judgments; the corpus is not opened."""
        task = context.task
        self.check_finished("judge")
        are_made = get_kind(task).makes_documents
        # Documents that are made of sentences are written by the stage that judges these.
        made_by = "judge" if are_made else "retrieve"
        file = self._require(self.candidates_file, made_by)
        candidates = context.read_candidates(file, are_made=are_made)
        objects = self.read_objects()
        candidates = replace(candidates, topics=add_objects(candidates.topics, objects))

        judgments_file = self._require(self.judgments_file, "judge")
        judgments = read_records(judgments_file, Judgment, "judgments")
        check_judgments(judgments, task.question, judgments_file)
        return Judgments(
            candidates=candidates,
            judgments=judgments,
            stances=self.read_stances(task),
            objects=objects,
        )

    def read_objects(self) -> list[Objects]:
        """Read the objects that the model found; empty if there is no file."""
        return self._read_optional(OBJECTS, Objects, "objects")

    def read_stances(self, task: Task) -> list[StanceReading]:
        """Read the answers to the stance prompt.

        Empty if there is no file, DataError if their labels are others.
        """
        readings = self._read_optional(STANCES, StanceReading, "stances")
        for reading in readings:
            if set(reading.probabilities) != set(task.stances):
                raise DataError(
                    f"{self.stances_file}: topic {reading.topic_id}, document {reading.document_id}: labels other "
                    f"than {', '.join(task.stances)}"
                )
        return readings

    def read_sentences(self, task: Task) -> list[Judgment]:
        """Read the judgments of the sentences that documents were made of.

        Raises:
            DataError: There is no file, or a judgment does not fit the question of the task.
        """
        sentences = read_records(self.sentences_file, Judgment, "judgments of sentences")
        check_judgments(sentences, task.questions["sentence"], self.sentences_file)
        return sentences

    def read_comparisons(self) -> list[Comparison]:
        """Read the comparisons; empty if the ranking made none."""
        return self._read_optional(COMPARISONS, Comparison, "comparisons")

    def read_failures(self) -> dict[str, list[Failure]]:
        """Read the failures of all stages, by file; raise DataError if a file is damaged."""
        failures: dict[str, list[Failure]] = {}
        for name in ALL_FAILURES:
            file = self.path / name
            if file.exists():
                failures[name] = read_records(file, Failure, "failures")
        return failures

    def read_labels(self) -> list[UserLabels]:
        """Read the labels and notes of the user; empty if there is no file."""
        return self._read_optional(LABELS, UserLabels, "labels of the user")

    def write_labels(self, labels: Iterable[UserLabels]) -> None:
        """Write the labels and notes of the user in place of earlier ones."""
        write_records(self.path / LABELS, labels)

    def write_ranking(self, ranking: Ranking, *, compared: bool) -> None:
        """Write the outputs of the last stage; the comparisons only if documents were compared."""
        if compared:
            write_records(self.path / COMPARISONS, ranking.comparisons)
            write_records(self.path / COMPARISON_FAILURES, ranking.failures)
        ranking.write_results(self.results_file)
        ranking.write(self.run_file, overwrite=True)

    def read_run(self, labels: Collection[str] | None) -> ParsedRun:
        """Read the run with its chosen topics.

        DataError if it is missing or its last stage did not finish.
        """
        self.check_finished("rank")
        run = read_run(self._require(self.run_file, "rank"), labels)
        return replace(run, chosen_topics=self.read_chosen_topics())

    def read_chosen_topics(self) -> list[str] | None:
        """Return the ids of the topics that were chosen for the run; None if none were.

        Raises:
            DataError: The configuration chooses topics, and no stage recorded which.
        """
        finished = list(self.read_metadata().stages.finished.values())
        if finished:
            return finished[-1].chosen_topics

        if self.config_file.is_file() and self.read_config().has_chosen_topics:
            raise DataError(
                f"{self.metadata_file}: lacks the chosen topics; run `touche-llm rank` there again"
            )
        return None

    def _require(self, path: Path, stage: str) -> Path:
        if not path.exists():
            raise DataError(f"{path}: no such file; run `touche-llm {stage}` for this folder first")
        return path

    def _read_optional(self, name: str, record: type[RecordT], what: str) -> list[RecordT]:
        return read_records(self.path / name, record, what) if (self.path / name).exists() else []


def is_page(path: Path) -> bool:
    """Return whether this program wrote a page; False if there is no such file."""
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        return _GENERATOR in stream.read(512)
