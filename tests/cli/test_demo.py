"""The demo measures its runs with the invented judgments of the samples, and writes a report."""

from __future__ import annotations

import re
import sys
import warnings
from pathlib import Path

import pytest

import touche_llm as tl
from tests.cli.conftest import Touche
from touche_llm.cli.demo import SAMPLES, find_judgments

# Place, ranking, values and judged@5; a first stage has no value for the stance.
ROW = re.compile(r"^ +(\d)  (.+?)  +(0\.\d{4})  +(0\.\d{4})  +(0\.\d{4})? +(0\.\d{4})$", re.MULTILINE)


@pytest.mark.parametrize(("task", "cutoff"), [("comparative", 5), ("controversial", 10)])
def test_the_places_of_the_demo_are_those_of_the_measures(
    task: str, cutoff: int, touche: Touche, tmp_path: Path
) -> None:
    done = touche("demo", "--task", task, "--out", "demo")
    assert done.returncode == 0, done.stderr
    rows = {name: values for _, name, *values in ROW.findall(done.stdout)}
    folder = tmp_path / "demo" / task
    qrels = tl.read_qrels(find_judgments(SAMPLES / task, tl.get_task(task)), task)
    assert len(rows) == 3 and "macro-F1 of stances" in done.stdout
    # The texts fill the width of the tables, and rows for programs have a format of their own.
    assert max(len(line) for line in done.stdout.splitlines() if set(line) == {"─"}) == 80 and "\t" not in done.stdout
    assert {line.split()[0] for line in re.findall(r"^ +\d  sample-.*", done.stdout, re.MULTILINE)} == {"1", "2", "3"}
    for name, file in (("first stage", "candidates.run.txt"), (list(rows)[1], "run.txt")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", tl.ToucheWarning)
            frame = tl.evaluate(tl.read_run(folder / file), qrels).set_index("measure")["value"]
        expected = [frame[f"relevance nDCG@{cutoff}"], frame[f"quality nDCG@{cutoff}"]]
        assert rows[name][:2] == [f"{value:.4f}" for value in expected]
        assert rows[name][2] == ("" if name == "first stage" else f"{frame['stance macro-F1']:.4f}")
        assert rows[name][3] == f"{frame['relevance judged@5']:.4f}"
    assert [float(values[0]) for values in rows.values()] == sorted((float(v[0]) for v in rows.values()), reverse=True)
    # What was measured is kept, so that a report needs no qrels.
    assert "nDCG" in (folder / "report.html").read_text()
    assert touche("report", f"demo/{task}").returncode == 0


def test_a_sample_without_judgments_is_shown_without_measures(touche: Touche, tmp_path: Path) -> None:
    done = touche("demo", "--task", "sentence_pairs", "--out", "demo")
    assert done.returncode == 0 and not ROW.search(done.stdout) and "note: " not in done.stderr
    assert (tmp_path / "demo" / "sentence_pairs" / "report.html").is_file()


def test_the_demo_names_the_extra_that_its_report_needs(
    touche: Touche, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = touche("demo", "--task", "controversial", "--out", "demo")
    assert done.returncode == 0 and "touche-llm[plots]" in done.stdout
    assert not (tmp_path / "demo" / "controversial" / "report.html").exists()
