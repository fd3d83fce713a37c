"""Seconds and bytes of `touche-llm report` for a run of 50 topics over the real corpus.

    python -m benchmarks.report [--depth 100] [--topics 50] [--keep FOLDER]

The input is the comparative task's real topics, passages and judgments in `../shared/data`. The answers are drawn at
random, and the same each time: the figures on such a page say nothing about a model.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tests.sample_runs import run_scripted
from touche_llm.config import load_config
from touche_llm.llm.request import Request
from touche_llm.report.write import MOST_BYTES

DATA = Path(__file__).parent.parent.parent / "shared" / "data" / "comparative"


def answer(request: Request) -> Mapping[str, Mapping[int | str, float]]:
    """Probabilities for each label of each field, drawn from the request's key."""
    chance = random.Random(request.key)
    found: dict[str, Mapping[int | str, float]] = {}
    for name, field in request.schema["properties"].items():
        weights = {label: chance.random() ** 4 + 1e-4 for label in field["enum"]}
        found[name] = {label: weight / sum(weights.values()) for label, weight in weights.items()}
    return found


def main() -> None:
    """Make the run, then the report twice in processes of their own: without and with judgments of people."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depth", type=int, default=100)
    parser.add_argument("--topics", type=int, default=50)
    parser.add_argument("--keep", type=Path, help="Leave the run and its pages in this folder.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        work = (options.keep or Path(name)).resolve()
        flags = {"topics": DATA / "topics.xml", "corpus": DATA / "passages.jsonl.gz", "index": work / "index"}
        settings = {"depth": options.depth, "limit_topics": options.topics, "rank": ("judge", "pairwise:5")}
        config = load_config(None, {**flags, **settings, "cache.file": work / "answers.sqlite"})
        out = work / "run"
        lines, _ = asyncio.run(run_scripted(config, out, answer))
        print(f"{options.topics} topics, {len(lines):,} lines")
        qrels = [f"--{aspect}={DATA / f'qrels-{aspect}.txt'}" for aspect in ("relevance", "quality", "stance")]
        for title, given in (("without judgments of people", []), ("with judgments of people", qrels)):
            page = out / f"report{len(given)}.html"
            started = time.monotonic()
            command = [sys.executable, "-m", "touche_llm", "report", str(out), "-o", str(page), *given]
            subprocess.run(command, check=True, capture_output=True)
            seconds, size = time.monotonic() - started, page.stat().st_size
            print(f"{title}: {seconds:.2f} s, {size:,} bytes ({size / MOST_BYTES:.0%} of the most)")


if __name__ == "__main__":
    main()
