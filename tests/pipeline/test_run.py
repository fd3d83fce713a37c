"""The frames of a finished run's folder, and the files that pandas writes of them."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

import touche_llm as tl
from tests.report.reports import sample_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return sample_run("comparative", tmp_path)


def test_a_frame_comes_back_from_a_file_as_it_was_and_a_run_that_was_not_ranked_has_judgments_alone(
    folder: Path, tmp_path: Path
) -> None:
    for frame in ("results", "judgments", "candidates"):
        expected: pd.DataFrame = getattr(tl.Run.open(folder), frame)
        expected.to_csv(tmp_path / "frame.csv", index=False)
        found = pd.read_csv(tmp_path / "frame.csv", dtype={"topic": str})
        pd.testing.assert_frame_equal(found, expected, check_dtype=False, check_exact=True)
        assert len(found) > 50 and "text" not in found
    (folder / "results.tsv").unlink()
    run = tl.Run.open(folder)
    with pytest.raises(tl.DataError, match="touche-llm rank"):
        run.results  # noqa: B018
    assert len(run.judgments) > 50


def test_a_grade_that_is_unknown_is_missing_in_the_frame(folder: Path) -> None:
    lines = [json.loads(line) for line in (folder / "judgments.jsonl").read_text().splitlines()]
    del lines[0]["grades"]["quality"]
    (folder / "judgments.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    judgments = tl.Run.open(folder).judgments
    assert judgments["quality"].isna().tolist() == [True] + [False] * (len(lines) - 1)
    assert judgments["relevance"].tolist() == [line["grades"]["relevance"] for line in lines]
