"""The folder of a run as its readers find it: whether the stages behind its files finished."""

from __future__ import annotations

from pathlib import Path

from touche_llm.errors import DataError
from touche_llm.run_files import CONFIG, METADATA, OUTPUTS
from touche_llm.yaml_text import YamlError, read_yaml

# In the metadata, the stage that has begun to replace its outputs; removed once they are recorded.
UNFINISHED = "unfinished"


def check_finished(folder: Path, stage: str) -> None:
    """Raise an error if a stage up to this one was interrupted while it replaced its outputs.

    A folder without metadata was put together by hand and holds what its user says.

    Args:
        folder: The run's folder.
        stage: The last stage whose outputs are to be read.

    Raises:
        DataError: The outputs can be of two states, or the metadata cannot be read; says which command to repeat.
    """
    path, stages = folder / METADATA, list(OUTPUTS)
    if not path.exists():
        return
    try:
        content = read_yaml(path)
        begun = content.get(UNFINISHED)
        place = None if begun is None else stages.index(begun)
    except (OSError, YamlError, AttributeError, ValueError) as error:
        raise DataError(
            f"{path}: not metadata that this program wrote ({error!s:.200}); delete it and run all stages"
        ) from error
    if place is not None and place <= stages.index(stage):
        config = f" --config {folder / CONFIG}" if begun == "retrieve" else ""
        raise DataError(
            f"{folder}: `touche-llm {begun}` was interrupted while it replaced its outputs, so these files do not "
            "belong together; repeat the command that was interrupted, or run "
            f"`touche-llm {begun}{config} --out {folder}` (answers that are in the cache are not requested again)"
        )
