"""Take the pictures of the documentation in Chromium: runs on the sample.

python docs/screenshot.py    # pages, and the lab with the sample's invented answers
python docs/screenshot.py --base-url URL --folder FOLDER --topic 12 --topic 48 --topic 84
                             # the lab while a prompt is edited, with the answers of a model about
                             topics of 2022
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Locator, Page, sync_playwright

from touche_llm.cli.demo import SAMPLES

_CHROMIUM = "/usr/bin/chromium"
_FOLDER = Path(__file__).parent.absolute()
_RUN = "run --config demo.yaml --topics topics.xml --corpus passages.jsonl --cache cassette.jsonl --cache-mode replay"
_QRELS = "--relevance qrels-relevance.txt --quality qrels-quality.txt --stance qrels-stance.txt"
# What the pictures with a model change in the judge prompt, which then asks for an object with
# named fields.
_EDITS = (
    (
        "YES = it says something for or against at least one of them, or weighs them with reasons.",
        "YES = it says something good or bad about at least one of them, even in passing, or weighs them with reasons.",
    ),
    ("form: letters", "form: object"),
    (
        "Answer with one JSON array of four values and nothing else, each label by its first letter: [relevance 0 to "
        '3, quality 0 to 3, position "Y" or "N", stance "F", "S" or "N"]',
        "Answer with one JSON object and nothing else: relevance and quality from 0 to 3, position YES or NO, stance "
        "FIRST, SECOND or NEUTRAL.",
    ),
)
_MILLISECONDS = 3_000_000
_COMMANDS = (
    f"{_RUN} --out first",
    f"{_RUN} --rank judge --out judged",
    f"report first {_QRELS}",
    f"compare judged first {_QRELS} --html comparison.html",
)


@dataclass(frozen=True)
class PictureOptions:
    """Arguments of the command line.

    Attributes:
        base_url: Server of a model; None for the sample's invented answers.
        folder: Folder with topics.xml, passages.jsonl[.gz] and qrels.
        topics: Topics of the runs with a model.
        cache: Answers of the model.
    """

    base_url: str | None
    folder: Path
    topics: list[str]
    cache: Path


def main() -> None:
    """Make the runs and their pages, and take the pictures."""
    options = _parse_arguments()
    with tempfile.TemporaryDirectory() as folder:
        # Relative paths, since the pages show them.
        os.chdir(shutil.copytree(options.folder, Path(folder) / "sample"))
        for command in _list_commands(options):
            _run(command)
        with sync_playwright() as playwright, _serve_lab() as address:
            browser = playwright.chromium.launch(
                executable_path=_CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
            )
            page = browser.new_page(viewport={"width": 1000, "height": 800}, color_scheme="light")
            page.set_default_timeout(_MILLISECONDS)
            if options.base_url is None:
                _take_pictures(page)
                _take_lab(page, address)
            else:
                _take_edit(page, address, *options.topics[:1])
            browser.close()
        os.chdir(_FOLDER)


def _parse_arguments() -> PictureOptions:
    """Parse the arguments of the command line.

    The folder and the cache become absolute paths.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base-url", metavar="URL", help="Server of a model.")
    parser.add_argument(
        "--folder",
        type=Path,
        default=SAMPLES / "comparative",
        help="With topics.xml, passages.jsonl[.gz] and qrels.",
    )
    parser.add_argument(
        "--topic", action="append", default=[], help="A topic of the runs with a model; repeatable."
    )
    parser.add_argument(
        "--cache", type=Path, default=Path("live.sqlite"), help="Answers of the model."
    )
    arguments = parser.parse_args()
    return PictureOptions(
        base_url=arguments.base_url,
        folder=arguments.folder.absolute(),
        topics=arguments.topic,
        cache=arguments.cache.absolute(),
    )


def _list_commands(options: PictureOptions) -> Sequence[str]:
    """Return the commands that make the runs and their pages.

    They run in the folder of the topics.
    """
    if options.base_url is None:
        return _COMMANDS
    corpus = next(Path().glob("passages.jsonl*"))
    words = [
        f"run --topics topics.xml --corpus {corpus} --cache {options.cache} --out first",
        "--depth 8 --rank judge",
        *(f"--topic {topic}" for topic in options.topics),
        f"--base-url {options.base_url}",
    ]
    return [" ".join(words)]


def _run(command: str) -> None:
    """Run a command of this program."""
    subprocess.run(
        [sys.executable, "-m", "touche_llm", *command.split()],
        check=True,
        capture_output=True,
    )


def _take_pictures(page: Page) -> None:
    """Take the pictures of the page of a run and of a comparison."""
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


@contextmanager
def _serve_lab() -> Iterator[str]:
    """Serve the runs in a lab; yield its address."""
    command = [sys.executable, "-m", "touche_llm", "lab", ".", *_QRELS.split()]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def _open_bench(page: Page, address: str, topic: str = "3") -> None:
    """Open the bench of the first run, and wait for the answers about a topic."""
    page.set_viewport_size({"width": 1280, "height": 800})
    page.goto(address)
    page.goto(f"{address.partition('#')[0]}#/bench?run=first&topic={topic}")
    page.get_by_role("button", name="Request answers").click()
    page.locator(".answer .bar").first.wait_for()
    page.wait_for_timeout(1000)


def _take_lab(page: Page, address: str) -> None:
    """Take the pictures of the bench and of the documents."""
    _open_bench(page, address)
    page.screenshot(path=_FOLDER / "lab-bench.png")
    page.get_by_role("link", name="Documents").click()
    page.locator(".ranking a").nth(1).click()
    page.locator(".document .bar").first.wait_for()
    page.screenshot(path=_FOLDER / "lab-documents.png")


def _take_edit(page: Page, address: str, topic: str = "3") -> None:
    """Change the prompt, wait for the answers, and judge the sample."""
    _open_bench(page, address, topic)
    area = page.locator("textarea").first
    text = area.input_value()
    for old, new in _EDITS:
        text = text.replace(old, new)
    area.fill(text)
    # It asks after a pause.
    page.wait_for_timeout(1000)
    page.locator("#draft", has_text=re.compile("^draft, .*answers")).wait_for()
    page.screenshot(path=_FOLDER / "lab-edit.png")
    page.get_by_role("button", name="Judge the sample").click()
    page.locator(".measures table").wait_for()
    print(page.locator(".measures").inner_text())
    page.locator("section", has=page.locator(".measures")).screenshot(
        path=_FOLDER / "lab-measures.png"
    )


def _open_topic(page: Page) -> Locator:
    """Open the first topic of a page, and return it."""
    topic = page.locator("details.topic").first
    topic.locator(":scope > summary").click()
    return topic


if __name__ == "__main__":
    main()
