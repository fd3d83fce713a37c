"""`touche-llm compare --html` as a user meets it; what is on the page is tested in tests/report."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Touche
from tests.report.reports import sample_run, write_qrels

# Pages of several runs take a while to make.
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("touche_llm.evaluation.significance.RESAMPLES", 200)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run `comparative` and qrels for it."""
    folder = tmp_path_factory.mktemp("sample")
    write_qrels(sample_run("comparative", folder), folder)
    return folder


@pytest.fixture
def arguments(sample: Path, tmp_path: Path) -> list[str]:
    shutil.copy(sample / "comparative" / "run.txt", tmp_path / "other.txt")
    run = str(sample / "comparative")
    qrels = ["--relevance", str(sample / "qrels-relevance.txt"), "--stance", str(sample / "qrels-stance.txt")]
    return ["compare", "other.txt", run, "--task", "comparative", *qrels]


def test_the_page_is_written_beside_what_is_printed_as_ever(
    touche: Touche, arguments: list[str], tmp_path: Path
) -> None:
    plain = touche(*arguments)
    done = touche(*arguments, "--html", "pages/both.html")
    assert (done.returncode, plain.returncode) == (0, 0), done.stderr
    page = tmp_path / "pages" / "both.html"
    assert done.stdout == f"{plain.stdout}page: pages/both.html (4 topics, {page.stat().st_size:,} bytes)\n"
    assert done.stderr == plain.stderr
    text = page.read_text()
    assert text.startswith("<!doctype html>") and 'class="doc"' in text


def test_what_cannot_be_shown_is_told_and_nothing_is_written(
    touche: Touche, arguments: list[str], tmp_path: Path
) -> None:
    for n in range(7):
        shutil.copy(tmp_path / "other.txt", tmp_path / f"{n}.txt")
    done = touche(*arguments, *(f"{n}.txt" for n in range(7)), "--html", "page.html")
    assert (done.returncode, done.stdout) == (2, "") and "give 2 to 8" in done.stderr
    done = touche(*arguments, "--html", "other.txt")
    assert (done.returncode, done.stdout) == (2, "") and "other.txt" in done.stderr
    assert not (tmp_path / "page.html").exists() and "<html" not in (tmp_path / "other.txt").read_text()
