"""The demo measures its runs with the invented judgments of the samples."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

import touche_llm as tl
from tests.cli.conftest import Touche
from touche_llm.cli.demo import SAMPLES
from touche_llm.evaluation.qrels import find_qrels


@pytest.mark.parametrize(("task", "cutoff"), [("comparative", 5), ("controversial", 10)])
def test_the_demo_measures_its_runs(task: str, cutoff: int, touche: Touche, tmp_path: Path) -> None:
    done = touche("demo", "--task", task, "--out", "demo")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "demo" / task
    qrels = tl.read_qrels(find_qrels(SAMPLES / task, tl.get_task(task)), task)
    for file in ("candidates.run.txt", "run.txt"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", tl.ToucheWarning)
            frame = tl.evaluate(tl.read_run(folder / file), qrels).set_index("measure")["value"]
        assert f"{frame[f'relevance nDCG@{cutoff}']:.4f}" in done.stdout
    # What was measured is kept, so that a report needs no qrels.
    assert touche("report", f"demo/{task}").returncode == 0
    assert "nDCG" in (folder / "report.html").read_text()


def test_a_sample_without_judgments_is_shown_without_measures(touche: Touche) -> None:
    done = touche("demo", "--task", "sentence_pairs", "--out", "demo")
    assert done.returncode == 0 and "nDCG" not in done.stdout and "note: " not in done.stderr
