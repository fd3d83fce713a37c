from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Touche
from tests.report.reports import sample_run, write_qrels


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sample_run("comparative", tmp_path_factory.mktemp("sample"))


def test_the_page_lies_in_the_run_s_folder_and_what_is_missing_is_said(run: Path, touche: Touche) -> None:
    done = touche("report", str(run))
    page = run / "report.html"
    assert done.returncode == 0
    assert done.stdout == f"report: {page} (4 topics, {page.stat().st_size:,} bytes)\n"
    assert "note: No qrels were given" in done.stderr
    assert page.read_text().startswith("<!doctype html>")


def test_judgments_give_figures_and_the_page_goes_where_it_is_wanted(run: Path, touche: Touche, tmp_path: Path) -> None:
    qrels = write_qrels(run, tmp_path)
    given = [part for aspect, path in qrels.items() for part in (f"--{aspect}", str(path))]
    done = touche("report", str(run), *given, "--top", "3", "-o", "pages/one.html")
    assert done.returncode == 0 and "No qrels" not in done.stderr
    page = (tmp_path / "pages/one.html").read_text()
    assert page.count('<details class="doc"') == 12 and "stance macro-F1" in page


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        (("--relevance", "none.txt"), 1, "none.txt: cannot read the file"),
        (("--coherence", "none.txt"), 2, "qrels of coherence: comparative has no such aspect"),
        (("--top", "0"), 2, "--top"),
    ],
)
def test_wrong_judgments_and_options_are_told(
    run: Path, touche: Touche, arguments: tuple[str, ...], code: int, problem: str
) -> None:
    done = touche("report", str(run), *arguments, "-o", "page.html")
    assert done.returncode == code and problem in done.stderr
    assert not Path("page.html").exists()


def test_a_folder_without_a_run_is_told(touche: Touche, tmp_path: Path) -> None:
    done = touche("report", str(tmp_path))
    assert done.returncode == 1 and "config.yaml: no such file; give the folder of a run" in done.stderr
