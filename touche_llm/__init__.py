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

# The only place of the version, so that a checkout on the path knows it without being installed.
__version__ = "1.0.0.dev0"


def __getattr__(name: str) -> object:
    """Import a public name, one of `__init__.pyi`, at its first use.

    The program handles interrupts before it imports any library, and every program imports this
    package first.
    """
    import lazy_loader

    get_attribute, list_names, public_names = lazy_loader.attach_stub(__name__, __file__)
    globals().update(__getattr__=get_attribute, __dir__=list_names, __all__=public_names)
    return public_names if name == "__all__" else get_attribute(name)


def __dir__() -> list[str]:
    """Return the public names."""
    return __getattr__("__all__")
