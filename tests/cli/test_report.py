from __future__ import annotations

import webbrowser
from pathlib import Path

import pytest

from tests.cli.conftest import Touche
from tests.report.reports import sample_run, write_qrels


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sample_run("comparative", tmp_path_factory.mktemp("sample"))


def test_judgments_give_figures_and_the_page_goes_where_it_is_wanted(
    run: Path, touche: Touche, tmp_path: Path
) -> None:
    qrels = write_qrels(run, tmp_path)
    given = [part for aspect, path in qrels.items() for part in (f"--{aspect}", str(path))]
    done = touche("report", str(run), *given, "-o", "pages/one.html")
    assert done.returncode == 0 and "No qrels" not in done.stderr
    page = (tmp_path / "pages/one.html").read_text()
    assert '<details class="doc"' in page and "stance macro-F1" in page


def test_judgments_of_another_corpus_make_no_page(
    run: Path, touche: Touche, tmp_path: Path
) -> None:
    topics = {line.split()[0] for line in (run / "run.txt").read_text().splitlines()}
    (tmp_path / "foreign").write_text("".join(f"{topic} 0 z1 2\n" for topic in topics))
    done = touche("report", str(run), "--relevance", "foreign", "-o", "page.html")
    assert (done.returncode, done.stdout) == (1, "")
    assert "relevance qrels" in done.stderr and not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("has_browser", [True, False])
def test_the_page_is_opened_in_a_browser_only_if_that_is_requested(
    run: Path, touche: Touche, monkeypatch: pytest.MonkeyPatch, has_browser: bool
) -> None:
    opened: list[str] = []

    def open_page(url: str) -> bool:
        opened.append(url)
        return has_browser

    monkeypatch.setattr(webbrowser, "open", open_page)
    assert touche("report", str(run)).returncode == 0 and opened == []
    done = touche("report", str(run), "-o", "a page.html", "--open")
    assert done.returncode == 0 and opened == [Path("a page.html").absolute().as_uri()]
    assert ("a page.html: found no browser" in done.stderr) is not has_browser
