"""The last evaluation of a run, in its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.expect import raises_at
from touche_llm.errors import DataError
from touche_llm.pipeline.run_directory import RunDirectory
from touche_llm.pipeline.run_overview import read_evaluation


@pytest.mark.parametrize(
    "content", ["measures: [", "{}", "task: comparative\nrun: ab\nqrels: {}\nmeasures: {nDCG: 1}\n"]
)
def test_what_is_no_evaluation_is_refused_with_its_file(content: str, tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    assert read_evaluation(directory) is None
    directory.evaluation_file.write_text(content)
    with raises_at(DataError, directory.evaluation_file):
        read_evaluation(directory)
