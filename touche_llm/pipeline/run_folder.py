"""Reading of a run's folder: metadata of its stages, and whether they finished."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from touche_llm.data.files import read_records
from touche_llm.data.records import Failure
from touche_llm.data.yaml_text import YamlError, read_yaml
from touche_llm.errors import DataError, UsageError
from touche_llm.llm.counts import translate_old_counts
from touche_llm.pipeline.run_files import ALL_FAILURES, CONFIG, METADATA, OUTPUTS, RUN
from touche_llm.tasks import TASKS, get_task
from touche_llm.tasks.base import Task

# Metadata key of the stage that is replacing its outputs; removed once they are recorded.
UNFINISHED = "unfinished"

# Marks every page that this program writes, within its first bytes.
GENERATOR = '<meta name="generator" content="touche-llm">'
_HEAD_BYTES = 512


class Metadata(NamedTuple):
    """Stages in the metadata of a run's folder.

    Attributes:
        stages: Facts of each finished stage.
        unfinished: The stage that has begun to replace its outputs, if one has.
    """

    stages: Mapping[str, Mapping[str, Any]]
    unfinished: str | None


def read_metadata(folder: Path) -> Metadata:
    """Read the stages from a folder's metadata; return no stages if the file is missing.

    Raises:
        DataError: The metadata cannot be read, or is not as this program writes it.
    """
    path = folder / METADATA
    try:
        content = read_yaml(path)
        stages = {str(name): translate_old_counts(dict(facts)) for name, facts in content["stages"].items()}
        unfinished = content.get(UNFINISHED)
        if unfinished is not None and unfinished not in OUTPUTS:
            raise ValueError(f"{UNFINISHED}: {unfinished!r:.80} is no stage")
    except FileNotFoundError:
        return Metadata({}, None)
    except OSError as error:
        raise DataError(f"{path}: cannot read the metadata: {error.strerror}; make the file readable") from error
    except (YamlError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"{path}: not metadata that this program wrote ({error!s:.200}); delete it and run all stages"
        ) from error
    return Metadata(stages, unfinished)


def check_finished(folder: Path, stage: str) -> None:
    """Raise an error if a stage up to this one was interrupted while it replaced its outputs.

    A folder without metadata was assembled by hand and is trusted.

    Args:
        folder: The run's folder.
        stage: The last stage whose outputs are to be read.

    Raises:
        DataError: The outputs may be inconsistent, or the metadata cannot be read; names the command to repeat.
    """
    stages, unfinished = list(OUTPUTS), read_metadata(folder).unfinished
    if unfinished is not None and stages.index(unfinished) <= stages.index(stage):
        config = f" --config {folder / CONFIG}" if unfinished == "retrieve" else ""
        raise DataError(
            f"{folder}: `touche-llm {unfinished}` was interrupted while it replaced its outputs, so these files do not "
            "belong together; repeat the command that was interrupted, or run "
            f"`touche-llm {unfinished}{config} --out {folder}` (answers that are in the cache are not requested again)"
        )


def find_folder(path: Path) -> Path | None:
    """Return the folder of a run of this program, given as the folder or as its run file; None for other run files.

    Raises:
        DataError: The folder has no run, or its last stage did not finish.
    """
    if path.is_dir():
        check_finished(path, "rank")
        if not (path / RUN).exists():
            raise DataError(f"{path}: no {RUN} in this folder; run `touche-llm rank` for it, or name a run file")
        return path
    if path.name != RUN or not (path.parent / CONFIG).exists():
        return None
    check_finished(path.parent, "rank")
    return path.parent


def find_run_file(path: Path) -> Path:
    """Return the run file of a run's folder, or the file that was given itself; see `find_folder` for errors."""
    return path / RUN if path.is_dir() and find_folder(path) else path


def find_task(name: str | None, runs: Iterable[Path]) -> Task:
    """Return the task of this name, or without a name the task of the first run that is a folder of this program.

    Raises:
        UsageError: There is no such task, or no run says which it is.
        DataError: See `find_folder`.
    """
    if name is not None:
        return get_task(name)
    for folder in filter(None, map(find_folder, runs)):
        try:
            return get_task(str(read_yaml(folder / CONFIG)["task"]))
        except (OSError, YamlError, KeyError, TypeError) as error:
            raise DataError(
                f"{folder / CONFIG}: cannot read the task of the run ({error!s:.200}); give --task"
            ) from error
    raise UsageError(f"--task: missing; name the task of the runs ({', '.join(TASKS)})")


def is_page(path: Path) -> bool:
    """Return whether a file is a page that this program wrote."""
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        return GENERATOR.encode() in stream.read(_HEAD_BYTES)


def read_failures(folder: Path) -> dict[str, list[Failure]]:
    """Read the failures of a run, by file; raises DataError if a file is damaged."""
    files = (name for name in ALL_FAILURES if (folder / name).exists())
    return {name: read_records(folder / name, Failure, "failures") for name in files}
