"""The library in a Jupyter kernel, with a real vLLM."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.notebooks import last_text, run_notebook
from tests.vllm.real_data import TaskInput
from touche_llm.corpus.json_lines import read_collection
from touche_llm.data.topics import read_topics
from touche_llm.data.trec_runs import read_run
from touche_llm.tasks import get_task

pytestmark = pytest.mark.vllm


def test_a_notebook_judges_ranks_and_evaluates(
    vllm_url: str, inputs: Callable[[str], TaskInput], tmp_path: Path
) -> None:
    data = inputs("comparative")
    topics = read_topics(data.topics)
    # All passages are judged, so that the run has judged ones whatever it finds.
    judged = [document.id for _, document in read_collection(data.corpus)]
    (tmp_path / "qrels.txt").write_text("".join(f"{topics[0].id} 0 {document} 2\n" for document in judged))
    values = {
        "topics": str(data.topics),
        "corpus": str(data.corpus),
        "index": str(data.index),
        "depth": 3,
        "url": vllm_url,
        "cache": str(tmp_path / "answers.sqlite"),
        "cache_mode": "reuse",
        "prompt": "judge",
        "stance_depth": 0,
        "run": str(tmp_path / "run.txt"),
        "qrels": str(tmp_path / "qrels.txt"),
    }
    outputs = run_notebook(tmp_path, values)
    run = read_run(tmp_path / "run.txt", get_task("comparative").stances)
    assert len(run.rankings) == len(topics)
    assert sum(map(len, run.rankings.values())) > 2 * len(topics)
    # The second block takes every answer from the cache.
    assert last_text(outputs[3]) == "True"
