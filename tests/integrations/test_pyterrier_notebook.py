"""An experiment with the PyTerrier transformers in a Jupyter kernel, whose event loop runs in the cells."""

from __future__ import annotations

import re
from pathlib import Path

from tests.notebooks import last_text, run_notebook
from touche_llm.cli.demo import SAMPLES, sample_config

# What docs/how-to/pyterrier.md shows; `given` is replaced by the test.
CELLS = (
    """
    import warnings
    warnings.simplefilter("ignore")
    import pandas as pd
    import pyterrier as pt
    import touche_llm as tl
    from touche_llm.integrations.pyterrier import BM25, LLMJudge, LLMRerank

    topics = pd.DataFrame(tl.read_topics({topics!r})).rename(columns={{"id": "qid", "title": "query"}})
    corpus = tl.open_corpus({corpus!r}, task="comparative", index={index!r})
    bm25 = BM25(corpus, depth=100)
    """,
    """
    with tl.LanguageModel(cache={cache!r}, cache_mode="replay") as model:
        judge = LLMJudge(model, "comparative", options=tl.RankOptions(stance={stance!r}))
        rerank = LLMRerank(model, ["pairwise:5"], "comparative")
        qrels = (bm25 >> judge >> rerank)(topics).query("rank == 0")[["qid", "docno"]].assign(label=1)
        systems = [bm25, bm25 >> judge, bm25 >> judge >> rerank]
        table = pt.Experiment(
            systems, topics, qrels, [pt.measures.RR], names=["bm25", "judge", "rerank"], plan="tree"
        )
    print(table.set_index("name")["RR"].to_dict(), pt.java.started())
    """,
    """
    bm25 >> judge >> rerank
    """,
)


def test_a_notebook_compares_the_stages(tmp_path: Path) -> None:
    config = sample_config("comparative", tmp_path / "out", {})
    assert config.stance is not None
    values = {
        "topics": str(config.topics),
        "corpus": str(config.corpus),
        "index": str(tmp_path / "index"),
        "cache": str(SAMPLES / "comparative/cassette.jsonl"),
        "stance": config.stance.model_dump(mode="json"),
    }
    outputs = run_notebook(tmp_path, values, CELLS)
    printed = "".join(output["text"] for output in outputs[1] if output.get("name") == "stdout")
    assert re.search(r"'rerank': 1.0} False", printed)
    # The diagram of the pipeline is made by inspection.
    assert "LLMRerank" in last_text(outputs[2])
