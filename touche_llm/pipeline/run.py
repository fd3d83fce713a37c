"""A finished run as data frames."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from touche_llm.config import Config
from touche_llm.corpus.store import DocumentStore
from touche_llm.data import trec_runs
from touche_llm.data.topics import require_kind
from touche_llm.data.trec_runs import ParsedRun
from touche_llm.errors import DataError, UsageError
from touche_llm.judging.sentence_pairs import PairDocuments
from touche_llm.pipeline import run_directory
from touche_llm.pipeline.candidates import make_frame
from touche_llm.pipeline.judge import Judgments
from touche_llm.pipeline.progress import SilentProgress
from touche_llm.pipeline.rank import list_result_columns
from touche_llm.pipeline.run_directory import RunDirectory
from touche_llm.tasks import find_dataset_task, get_task
from touche_llm.tasks.task import Task

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, repr=False)
class Run:
    """A finished run, read from its folder when a frame is first used.

    Attributes:
        folder: The run's folder.
        config: Configuration of the run.
    """

    folder: Path
    config: Config

    def __repr__(self) -> str:
        return f"<Run of {self.config.task}: {self.folder}>"

    @classmethod
    def open(cls, folder: Path | str) -> Self:
        """Open the folder of a finished run.

        Raises:
            DataError: The folder holds no run, or its last stage did not finish.
        """
        directory = find_run_directory(Path(folder))
        if directory is None:
            raise DataError(f"{folder}: no run of this program; give the folder of a run, or read_run for another file")
        return cls(directory.path, directory.read_config())

    @property
    def _directory(self) -> RunDirectory:
        return RunDirectory(self.folder)

    @cached_property
    def stages(self) -> Mapping[str, Mapping[str, Any]]:
        """Facts of each stage: counts, prompts, requests, seconds."""
        return self._directory.read_metadata().stages

    @cached_property
    def ranking(self) -> ParsedRun:
        """The run itself, as `evaluate` takes it."""
        return self._directory.read_run(self._directory.read_task().stances)

    @cached_property
    def candidates(self) -> DataFrame:
        """A row per candidate: topic, document, rank, score."""
        return self._records.candidates.to_frame()

    @cached_property
    def judgments(self) -> DataFrame:
        """A row per judgment, see `Judgments.to_frame`."""
        return self._records.to_frame()

    @cached_property
    def results(self) -> DataFrame:
        """A row per line of the run: topic, document, rank, score, stance, its source, grades and probabilities."""
        task = self._directory.read_task()
        return make_frame(
            (list(row.values()) for row in read_results(self._directory, task)), list_result_columns(task)
        )

    @cached_property
    def _records(self) -> Judgments:
        # Imported here because reading a run file alone needs no stages.
        from touche_llm.pipeline.context import RunContext

        with RunContext(self.config, SilentProgress()) as context:
            return self._directory.read_judgments(context)


_TEXT_CHARS = 300
_TEXT_COLUMNS = ("topic", "document", "stance", "stance_source")


def find_run_directory(path: Path) -> RunDirectory | None:
    """Return the folder of a run of this program, given as the folder or as its run file; None for other run files."""
    directory = RunDirectory(path if path.is_dir() else path.parent)
    if path != directory.path and (path.name != run_directory.RUN or not directory.config_file.exists()):
        return None
    directory.check_finished("rank")
    if not directory.run_file.exists():
        finished = ", ".join(directory.read_metadata().stages) or "none"
        raise DataError(
            f"{directory}: no {run_directory.RUN}, and so no finished run (finished stages: {finished}); name a run "
            "file or the folder of a run, or give the command of this run again"
        )
    return directory


def find_run_file(path: Path) -> Path:
    """Return the run file of a run's folder, or the file that was given; see `find_run_directory` for errors."""
    directory = find_run_directory(path) if path.is_dir() else None
    return path if directory is None else directory.run_file


def read_run(path: Path | str, labels: Collection[str] | None = None) -> ParsedRun:
    """Read the run of a folder, given as the folder or as its run file, or the run file of any tool, with its stances.

    A file has columns that are separated by any white space; a `rerank.jsonl` of TIRA has no stances. Only the run of a
    folder has chosen topics (`--topic`, `--limit-topics`).

    Args:
        path: Folder or file.
        labels: Valid stances beside `Q0`; None accepts any word.

    Raises:
        DataError: A line is no run line, a topic repeats a document, scores grow along the ranks, or a stance is not
            one of the labels; for a folder also as `find_run_directory`.
    """
    directory = find_run_directory(Path(path))
    return trec_runs.read_run(path, labels) if directory is None else directory.read_run(labels)


def find_task(name: str | None, runs: Collection[Path], dataset: str | None = None) -> Task:
    """Return the task of this name, or without a name the task of the first run that is a folder of this program."""
    for path in runs:
        if path.is_file():
            require_kind(path, "run", "rerank")
    if name is not None:
        return get_task(name)
    for path in runs:
        if not path.exists():
            raise DataError(f"{path}: no such file or folder; give a run file or the folder of a run")
        if (directory := find_run_directory(path)) is not None:
            return directory.read_task()
    if dataset is not None:
        return get_task(find_dataset_task(dataset))
    raise UsageError(
        "no run says of which task it is; name the task or its folder (`task: NAME`; see `touche-llm tasks list`)"
    )


def read_results(directory: RunDirectory, task: Task) -> Iterator[dict[str, Any]]:
    """Yield the lines of `results.tsv` as mappings with numbers; None for unknown ones."""
    path = directory.results_file
    names = list_result_columns(task)
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            for row in csv.DictReader(stream, delimiter="\t", strict=True):
                numbers = {name: float(row[name]) if row[name] else None for name in names if name not in _TEXT_COLUMNS}
                yield {name: row[name] for name in names} | numbers | {"rank": int(row["rank"])}
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file; run `touche-llm rank` for this folder first") from error
    except (csv.Error, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: not results of this program ({error!s:.100}); run `touche-llm rank` again") from error


def read_texts(config: Config, task: Task, document_ids: Iterable[str]) -> dict[str, str]:
    """Return the beginning of documents by id, from the local index of a run.

    White space is collapsed. Documents that the index lacks are left out; without an index, all.
    """
    if config.index is None or not (config.index / "manifest.json").is_file():
        return {}
    wanted = list(dict.fromkeys(document_ids))
    with DocumentStore(config.index) as store:
        source = store if task.sentence_question is None else PairDocuments(store.parts)
        unknown = set(source.find_unknown(wanted))
        return {name: " ".join(source.get(name).text.split())[:_TEXT_CHARS] for name in wanted if name not in unknown}
