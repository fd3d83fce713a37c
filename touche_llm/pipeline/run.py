"""A finished run as data frames."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from touche_llm.config import Config
from touche_llm.data.trec_runs import ParsedRun
from touche_llm.errors import DataError
from touche_llm.pipeline.candidates import make_frame
from touche_llm.pipeline.context import RunContext
from touche_llm.pipeline.judge import Judgments
from touche_llm.pipeline.progress import SilentProgress
from touche_llm.pipeline.run_directory import RunDirectory
from touche_llm.pipeline.run_files import list_result_columns
from touche_llm.pipeline.run_overview import find_run_directory, read_results

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
    def comparisons(self) -> DataFrame:
        """A row per comparison: topic, step, documents, the most probable best one, and the order."""
        rows = []
        for comparison in self._directory.read_comparisons():
            best = None
            if comparison.best is not None:
                shares = comparison.best.shares
                best = comparison.documents[ord(max(shares, key=lambda label: shares[label])) - ord("A")]
            rows.append((comparison.topic_id, comparison.step, comparison.documents, best, comparison.order))
        return make_frame(rows, ("topic", "step", "documents", "best", "order"))

    @cached_property
    def failures(self) -> DataFrame:
        """A row per request without a usable answer: file, topic, document, kind, prompt, reason."""
        rows = [
            (file, failure.topic_id, failure.document_id, failure.kind, failure.prompt, failure.attempts[-1].reason)
            for file, failures in self._directory.read_failures().items()
            for failure in failures
        ]
        return make_frame(rows, ("file", "topic", "document", "kind", "prompt", "reason"))

    @cached_property
    def _records(self) -> Judgments:
        with RunContext(self.config, SilentProgress()) as context:
            return self._directory.read_judgments(context)
