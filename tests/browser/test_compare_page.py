from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Open
from tests.browser.test_report import LEFT, read_count
from tests.report.reports import ATTACKS
from touche_llm.data.runs.reading import ParsedRun, read_run
from touche_llm.evaluation.comparisons import compare_runs
from touche_llm.evaluation.measures import evaluate_run
from touche_llm.evaluation.qrels import Qrels, read_qrels
from touche_llm.report.comparison_page import gather_comparison
from touche_llm.report.page import render, write_page
from touche_llm.tasks import get_task

pytestmark = pytest.mark.browser

TASK = get_task("comparative")
# The name of a run, its rankings, and its folder, if any.
Named = tuple[str, ParsedRun, Path | None]


def written(runs: list[Named], qrels: Qrels, path: Path) -> Path:
    evaluations = [evaluate_run(name, run, qrels, 30) for name, run, _ in runs]
    comparison = compare_runs(evaluations[0], evaluations[1:])
    folders = [folder for _, _, folder in runs]
    write_page(render(gather_comparison(evaluations, folders, TASK, {}, comparison, 20)), path)
    return path


@pytest.fixture(scope="module")
def three(sample: Path) -> Path:
    """The sample's run, the same the other way round without positions, and its first stage as a run file."""
    run = sample.parent / "comparative"
    turned = sample.parent / "turned"
    shutil.copytree(run, turned, dirs_exist_ok=True)
    lines = [
        f"{topic} NO {each.document_id} {rank} {-rank} turned\n"
        for topic, ranking in read_run(run / "run.txt").rankings.items()
        for rank, each in enumerate(reversed(ranking), start=1)
    ]
    (turned / "run.txt").write_text("".join(lines))
    runs: list[Named] = [(str(each), read_run(each / "run.txt"), each) for each in (run, turned)]
    runs.append(("first-stage.txt", read_run(run / "candidates.run.txt"), None))
    aspects = ("relevance", "quality", "stance")
    qrels = read_qrels({aspect: sample.parent / f"qrels-{aspect}.txt" for aspect in aspects}, TASK)
    return written(runs, qrels, sample.parent / "three.html")


@pytest.fixture(scope="module")
def attacked(hostile: Path) -> Path:
    """Eight times the hostile run, under hostile names."""
    (run,) = (each for each in hostile.parent.iterdir() if (each / "run.txt").exists())
    found = read_run(run / "run.txt")
    grades = {"1": {each.document_id: 1.0 for each in found.rankings["1"][:3]}}
    runs: list[Named] = [(attack, found, run) for attack in ATTACKS[:8]]
    return written(
        runs,
        Qrels({"relevance": grades}, {}, TASK.stances, TASK.aspects),
        hostile.parent / "eight.html",
    )


def left_after(page: Page, choice: str, value: str) -> int:
    """The documents that are left after a choice; it is taken back."""
    page.select_option(choice, value)
    expect(page.locator("#found")).not_to_have_text(said_of_all(page))
    count = page.locator(LEFT).count()
    page.click("button[type=reset]")
    expect(page.locator("#found")).to_have_text(said_of_all(page))
    return count


def said_of_all(page: Page) -> str:
    count = page.locator(".doc").count()
    return f"{count} of {count} documents, 4 of 4 topics"


def test_filters_leave_what_the_runs_disagree_about(three: Path, opened: Open) -> None:
    with opened(three) as found:
        page = found.page
        count = page.locator(".doc").count()
        assert read_count(page) == said_of_all(page)
        judged = [left_after(page, "#judged", value) for value in ("p1", "p0")]
        assert sum(judged) == count and all(judged)
        for value in ("stance", "top"):
            assert 0 < left_after(page, "#differs", value) < count
        page.select_option("#differs", "stance")
        expect(page.locator("#found")).not_to_have_text(said_of_all(page))
        for document in page.locator(LEFT).all():
            labels = set(document.locator(".places .chip").all_text_contents())
            assert len(labels - {"no stance"}) == 2
        page.select_option("#topic", "t2")
        expect(page.locator("#found")).to_contain_text("1 of 4 topics")
        page.fill("#search", "no such words anywhere")
        expect(page.locator("#nothing")).to_be_visible()
        assert (found.requests, found.problems) == ([], [])


def test_a_topic_of_the_figure_leads_to_its_place_with_the_keyboard_too(
    three: Path, opened: Open
) -> None:
    with opened(three, viewport={"width": 1280, "height": 800}) as found:
        page = found.page
        link = page.locator("#measures a").last
        target = link.get_attribute("href") or ""
        link.focus()
        page.keyboard.press("Enter")
        expect(page.locator(target)).to_have_attribute("open", "")
        # What says which letter is which stays at the top, and covers nothing.
        legend, topic = (
            page.locator(".which").bounding_box(),
            page.locator(f"{target} > summary").bounding_box(),
        )
        assert (
            legend
            and topic
            and 0 <= legend["y"]
            and topic["y"] >= legend["y"] + legend["height"] - 1
        )
        page.focus(f"{target} .doc > summary")
        page.keyboard.press("Space")
        expect(page.locator(f"{target} .doc[open] blockquote").first).to_be_visible()
