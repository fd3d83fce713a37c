"""Datasets of ir_datasets, and the topics of a run."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from touche_llm.config.configuration import Config
from touche_llm.corpus.ir_dataset import (
    dataset_folder,
    read_dataset_judgments,
    read_dataset_topics,
    topics_file,
)
from touche_llm.data.files import replace_folder
from touche_llm.data.records import Topic
from touche_llm.data.topics.reading import read_topics, write_topics
from touche_llm.evaluation.qrels import Qrels, find_qrels, qrels_file, read_qrels
from touche_llm.tasks import find_dataset_task, get_task


class Dataset:
    """A dataset of ir_datasets: topics, documents for `open_corpus`, and judgments.

    Topics and judgments are read from the dataset once, and kept as files below
    `.touche-llm/datasets`.
    """

    def __init__(self, id: str, task: str | None = None) -> None:
        """Name a dataset; it is read when its topics, documents or judgments are used.

        Args:
            id: Id of the dataset.
            task: Name of the task; None for the task of the project that has this dataset.

        Raises:
            UsageError: The task is unknown.
        """
        self.id = id
        self.task = get_task(task or find_dataset_task(id))
        self.folder = dataset_folder(id)

    def __repr__(self) -> str:
        return f"<Dataset of {self.task.name}: {self.id}>"

    @cached_property
    def topics(self) -> list[Topic]:
        """Topics of the dataset.

        Raises UsageError if it has none, and DataError if they cannot be downloaded.
        """
        file = topics_file(self.id)
        if not file.exists():
            write_topics(read_dataset_topics(self.id), file)
        return read_topics(file)

    @cached_property
    def qrels_files(self) -> dict[str, Path]:
        """Files of the judgments by aspect of the task; raises as `topics`."""
        # One folder for each task, since another task of the same dataset can have other aspects.
        folder = self.folder / self.task.name
        if not folder.exists():
            self._write_qrels(folder)
        return find_qrels(folder, self.task)

    def _write_qrels(self, folder: Path) -> None:
        """Write the judgments of the dataset to a folder, in a file for each aspect."""
        judged = read_dataset_judgments(self.id, self.task.judged_aspects)
        with replace_folder(folder, (qrels_file("*"),)) as building:
            for aspect, judgments in judged.items():
                file = building / qrels_file(aspect)
                lines = [f"{topic} 0 {document} {value}\n" for topic, document, value in judgments]
                file.write_text("".join(lines), encoding="utf-8")

    @cached_property
    def qrels(self) -> Qrels:
        """Judgments of the dataset, see `read_qrels`."""
        return read_qrels(self.qrels_files, self.task)


def read_run_topics(config: Config) -> list[Topic]:
    """Return all topics of a run's file or dataset."""
    if config.dataset is not None:
        return Dataset(config.dataset, config.task).topics
    return read_topics(config.topics)
