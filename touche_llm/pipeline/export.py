"""Tables of a finished run, written to one file for other programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING

import orjson

from touche_llm.data.files import check_output, open_atomic
from touche_llm.errors import UsageError, needs_extra
from touche_llm.pipeline.context import RunContext
from touche_llm.pipeline.progress import Progress
from touche_llm.pipeline.run import Run
from touche_llm.tasks.published import describe_restriction

if TYPE_CHECKING:
    from pandas import DataFrame


class RunTable(StrEnum):
    """A table of a run, named for the frame of a `Run`."""

    RESULTS = "results"
    JUDGMENTS = "judgments"
    COMPARISONS = "comparisons"


@dataclass(frozen=True, slots=True)
class Exported:
    """Counts of an exported table, and a note on its texts; empty if there are none, or they may be redistributed."""

    rows: int
    columns: list[str]
    note: str = ""


def export_run(
    folder: Path, file: Path, progress: Progress, *, table: RunTable, with_text: bool, overwrite: bool
) -> Exported:
    """Write a table of a run to a file, whose suffix gives its format: `.parquet`, `.jsonl` or `.csv`.

    With `with_text` the text of each document is added, from the corpus of the run, whose warnings `progress` receives.

    Raises:
        UsageError: The suffix is unknown, the file exists, a table has no texts, or the library of a format is missing.
        DataError: The folder holds no finished run, or its corpus is missing.
    """
    if file.suffix not in _WRITERS:
        raise UsageError(f"{file}: unknown format {file.suffix!r:.20}; end the name with {', '.join(_WRITERS)}")
    if with_text and table is RunTable.COMPARISONS:
        raise UsageError("comparisons: have several documents each, so no text; export the texts with the results")
    check_output(file, overwrite)
    run = Run.open(folder)
    frame: DataFrame = getattr(run, table)
    note = ""
    if with_text:
        frame = frame.assign(text=_read_texts(run, list(frame["document"]), progress))
        note = describe_restriction(frame["document"])
    with open_atomic(file) as stream:
        _WRITERS[file.suffix](frame, stream)
    return Exported(len(frame), list(frame.columns), note)


def _read_texts(run: Run, document_ids: list[str], progress: Progress) -> list[str]:
    with RunContext(run.config, progress) as context:
        documents = context.corpus.documents
        return [documents.get(document_id).text for document_id in document_ids]


def _write_parquet(frame: DataFrame, stream: IO[bytes]) -> None:
    with needs_extra("parquet", "the format `.parquet`"):
        import pyarrow  # noqa: F401, pandas reports a missing library without the extra

    frame.to_parquet(stream, engine="pyarrow", index=False)


def _write_json_lines(frame: DataFrame, stream: IO[bytes]) -> None:
    # Unknown values are null.
    for row in frame.astype(object).where(frame.notna(), None).to_dict(orient="records"):
        stream.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))


def _write_csv(frame: DataFrame, stream: IO[bytes]) -> None:
    """Write a header and a line for each row; a list is JSON, an unknown value empty."""
    cells = frame.map(lambda value: orjson.dumps(value).decode() if isinstance(value, list | tuple) else value)
    cells.to_csv(stream, index=False, lineterminator="\n", encoding="utf-8")


_WRITERS: Mapping[str, Callable[[DataFrame, IO[bytes]], None]] = {
    ".parquet": _write_parquet,
    ".jsonl": _write_json_lines,
    ".csv": _write_csv,
}
