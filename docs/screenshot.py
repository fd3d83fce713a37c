"""Take the pictures of the documentation in Chromium: pages of runs on the sample, with its invented judgments.

python docs/screenshot.py
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Locator, Page, sync_playwright

from touche_llm.cli.demo import SAMPLES

_CHROMIUM = "/usr/bin/chromium"
_FOLDER = Path(__file__).parent.absolute()
_RUN = "run --config demo.yaml --topics topics.xml --corpus passages.jsonl --cache cassette.jsonl --cache-mode replay"
_QRELS = "--relevance qrels-relevance.txt --quality qrels-quality.txt --stance qrels-stance.txt"
_COMMANDS = (
    f"{_RUN} --out first",
    f"{_RUN} --rank judge --out judged",
    f"report first {_QRELS}",
    f"compare judged first {_QRELS} --html comparison.html",
)


def main() -> None:
    """Make the runs and their pages, and take the pictures."""
    with tempfile.TemporaryDirectory() as folder:
        # Relative paths, since the pages show them.
        shutil.copytree(SAMPLES / "comparative", folder, dirs_exist_ok=True)
        os.chdir(folder)
        for arguments in _COMMANDS:
            subprocess.run([sys.executable, "-m", "touche_llm", *arguments.split()], check=True, capture_output=True)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=_CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
            page = browser.new_page(viewport={"width": 1000, "height": 800}, color_scheme="light")
            _take_pictures(page)
            browser.close()
        os.chdir(_FOLDER)


def _take_pictures(page: Page) -> None:
    page.goto(Path("first/report.html").absolute().as_uri())
    page.screenshot(path=_FOLDER / "report.png")
    document = _open_topic(page).locator("details.doc").nth(1)
    document.locator(":scope > summary").click()
    document.screenshot(path=_FOLDER / "document.png")
    page.goto(Path("comparison.html").absolute().as_uri())
    # Documents outside the window are not painted.
    page.set_viewport_size({"width": 1000, "height": 6000})
    box = _open_topic(page).bounding_box()
    assert box is not None
    page.screenshot(path=_FOLDER / "comparison.png", clip={**box, "height": 620})


def _open_topic(page: Page) -> Locator:
    topic = page.locator("details.topic").first
    topic.locator(":scope > summary").click()
    return topic


if __name__ == "__main__":
    main()
