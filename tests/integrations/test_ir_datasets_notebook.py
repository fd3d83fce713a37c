"""A notebook that begins with a dataset of ir_datasets, in a Jupyter kernel."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests import ir_datasets_home as home
from tests.notebooks import last_text, run_notebook
from touche_llm.cli.demo import SAMPLES

pytest.importorskip("ir_datasets")
# What docs/tutorials/notebook.md shows; `given` is replaced by the test.
CELLS = (
    """
    !{python} -m touche_llm run --dataset {dataset} --config {config} --cache {cache} --cache-mode replay --out run
    """,
    """
    import warnings
    import touche_llm as tl
    run = tl.Run.open("run")
    dataset = tl.Dataset(run.config.dataset)
    corpus = tl.open_corpus(dataset)
    candidates = tl.retrieve(dataset.topics, corpus)
    with tl.LanguageModel(cache={cache!r}, cache_mode="replay") as model:
        judgments = tl.judge(candidates, model, stance=tl.StanceSettings(depth=100))
        ranking = tl.rank(candidates, judgments, steps=["judge", "pairwise:5"], model=model)
    ranking.to_frame()[["topic", "document"]].equals(run.results[["topic", "document"]])
    """,
    """
    with warnings.catch_warnings(action="ignore"):
        table = tl.evaluate(ranking, dataset.qrels).set_index("measure")
    table.loc["relevance nDCG@5", "value"] > 0.8, list(dataset.qrels_files)
    """,
)


def test_a_notebook_begins_with_a_dataset(tmp_path: Path) -> None:
    home.write_passages(Path(os.environ["IR_DATASETS_HOME"]))
    sample = SAMPLES / "comparative"
    values = {
        "python": sys.executable,
        "dataset": home.PASSAGES,
        "config": str(sample / "demo.yaml"),
        "cache": str(sample / "cassette.jsonl"),
    }
    outputs = run_notebook(tmp_path, values, CELLS)
    printed = "".join(output["text"] for output in outputs[0])
    assert "run: run/run.txt" in printed and "error" not in printed
    assert last_text(outputs[1]) == "True"
    assert last_text(outputs[2]).replace("np.True_", "True") == "(True, ['relevance', 'quality', 'stance'])"
