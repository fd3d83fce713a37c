"""Zero-shot argument retrieval for the Touché shared tasks, with open-weight models served by vLLM.

    import touche_llm as tl

    topics = tl.read_topics("topics.xml")
    corpus = tl.open_corpus("passages.jsonl.gz", task="comparative")
    candidates = tl.retrieve(topics, corpus, depth=100)
    with tl.LanguageModel("http://127.0.0.1:8000", cache="answers.sqlite") as model:
        judgments = tl.judge(candidates, model)
        ranking = tl.rank(candidates, judgments, steps=["judge", "pairwise:10"], model=model)
    ranking.write("run.txt", tag="mine")
    tl.evaluate(ranking, tl.read_qrels({"relevance": "qrels.txt"}, "comparative"))

The names in `__all__` are the public interface. All functions also work where an event loop runs,
as in Jupyter.
"""

import logging

import lazy_loader

logging.getLogger(__name__).addHandler(logging.NullHandler())

# The only place of the version, so that a checkout on the path knows it without being installed.
__version__ = "1.0.0.dev0"
# The public names are those of __init__.pyi, imported at first use: every command imports this
# package.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
