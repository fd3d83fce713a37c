"""The library in a Jupyter kernel, whose event loop runs while the cells are executed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.notebooks import last_text, run_notebook
from tests.sample_runs import Silent
from touche_llm.cli.demo import SAMPLES, sample_config
from touche_llm.pipeline.stages import run_all


@pytest.mark.slow
def test_a_notebook_makes_the_run_of_the_demo(tmp_path: Path) -> None:
    config = sample_config("comparative", tmp_path / "out", {"tag": "mine"})
    asyncio.run(run_all(config, tmp_path / "out", Silent()))
    document = (tmp_path / "out/run.txt").read_text().split(" ")[2]
    (tmp_path / "qrels.txt").write_text(f"3 0 {document} 2\n")
    values = {
        "topics": str(config.topics),
        "corpus": str(config.corpus),
        "index": str(tmp_path / "index"),
        "depth": config.depth,
        "url": None,
        "cache": str(SAMPLES / "comparative/cassette.jsonl"),
        "cache_mode": "replay",
        "prompt": "judge",
        "stance_depth": 100,
        "run": str(tmp_path / "run.txt"),
        "qrels": str(tmp_path / "qrels.txt"),
    }
    outputs = run_notebook(tmp_path, values)
    assert (tmp_path / "run.txt").read_bytes() == (tmp_path / "out/run.txt").read_bytes()
    assert "relevance nDCG@5" in last_text(outputs[2])
