"""Datasets of ir_datasets as the inputs of a run: topics, documents and judgments."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from touche_llm.config import Config
from touche_llm.corpus.ir_dataset import (
    check_dataset_id,
    dataset_folder,
    read_dataset_judgments,
    read_dataset_topics,
    topics_file,
)
from touche_llm.data.files import replace_folder
from touche_llm.data.records import Topic
from touche_llm.data.topics import read_topics, write_topics
from touche_llm.errors import UsageError
from touche_llm.evaluation.qrels import Qrels, qrels_file, read_qrels
from touche_llm.tasks import find_dataset_task, get_task


class Dataset:
    """A dataset of ir_datasets: topics, documents for `open_corpus`, and judgments.

    Topics and judgments are kept as files in a folder below the current one, `.touche-llm/datasets`, where the store of
    the documents has its place too. They are read from the dataset only if a file is missing.

    Attributes:
        id: Id of the dataset, as `clueweb12/touche-2022-task-2`.
        task: Task of the dataset.
        folder: Folder of its files.
    """

    def __init__(self, id: str, task: str | None = None) -> None:
        """Name a dataset; it is read when its topics, documents or judgments are used.

        Args:
            id: Id of the dataset.
            task: Name of the task; None for the task of the project that has this dataset.

        Raises:
            UsageError: The id is malformed, or the task is unknown.
        """
        try:
            self.id = check_dataset_id(id)
        except ValueError as error:
            raise UsageError(f"dataset: {error}, not {id!r:.80}") from error
        self.task = get_task(task or find_dataset_task(id))
        self.folder = dataset_folder(id)

    def __repr__(self) -> str:
        return f"<Dataset of {self.task.name}: {self.id}>"

    @cached_property
    def topics(self) -> list[Topic]:
        """Topics of the dataset.

        Raises:
            UsageError: There is no such dataset, or it has no topics.
            DataError: The topics are not there and cannot be downloaded.
        """
        file = topics_file(self.id)
        if not file.exists():
            write_topics(read_dataset_topics(self.id), file)
        return read_topics(file)

    @cached_property
    def qrels_files(self) -> dict[str, Path]:
        """Files of the judgments by aspect of the task.

        Raises:
            UsageError: There is no such dataset, or it judges no aspect of the task.
            DataError: The judgments are not there and cannot be downloaded.
        """
        # One folder for each task, since another task of the same dataset can have other aspects.
        folder, aspects = self.folder / self.task.name, self.task.judged_aspects
        if not folder.exists():
            judged = read_dataset_judgments(self.id, aspects)
            with replace_folder(folder, (qrels_file("*"),)) as building:
                for aspect, judgments in judged.items():
                    lines = (f"{topic} 0 {document} {value}\n" for topic, document, value in judgments)
                    (building / qrels_file(aspect)).write_text("".join(lines), encoding="utf-8")
        return {aspect: file for aspect in aspects if (file := folder / qrels_file(aspect)).exists()}

    @cached_property
    def qrels(self) -> Qrels:
        """Judgments of the dataset, see `read_qrels`."""
        return read_qrels(self.qrels_files, self.task)


def read_run_topics(config: Config) -> list[Topic]:
    """Return all topics of a run's file or dataset.

    Raises:
        DataError: The topics cannot be read.
        UsageError: There is no such dataset, or it has no topics.
    """
    if config.dataset is not None:
        return Dataset(config.dataset, config.task).topics
    return read_topics(config.topics)
