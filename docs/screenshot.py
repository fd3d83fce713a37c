"""Make the picture of the README: the report of a run on the sample, with its invented judgments, in Chromium.

python docs/screenshot.py
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from touche_llm.cli.demo import SAMPLES

_CHROMIUM = "/usr/bin/chromium"
_OUTPUT = Path(__file__).parent.absolute() / "report.png"
_RUN = "run --config demo.yaml --topics topics.xml --corpus passages.jsonl --cache cassette.jsonl --cache-mode replay"
_QRELS = "--relevance qrels-relevance.txt --quality qrels-quality.txt --stance qrels-stance.txt"


def main() -> None:
    """Run the sample, report it, and take the picture."""
    with tempfile.TemporaryDirectory() as folder:
        # Relative paths, since the page shows them.
        shutil.copytree(SAMPLES / "comparative", folder, dirs_exist_ok=True)
        os.chdir(folder)
        for arguments in (f"{_RUN} --out first", f"report first {_QRELS}"):
            subprocess.run([sys.executable, "-m", "touche_llm", *arguments.split()], check=True, capture_output=True)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=_CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
            page = browser.new_page(viewport={"width": 1000, "height": 800}, color_scheme="light")
            page.goto(Path("first/report.html").absolute().as_uri())
            page.screenshot(path=_OUTPUT)
            browser.close()
        os.chdir(_OUTPUT.parent)


if __name__ == "__main__":
    main()
