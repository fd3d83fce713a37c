"""Zero-shot argument retrieval for the Touché shared tasks, with open-weight models served by vLLM.

from touche_llm import evaluate, read_qrels, read_run

qrels = read_qrels({"relevance": "qrels.txt"}, "comparative")
table = evaluate(read_run("run.txt"), qrels)
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from touche_llm.data.trec_runs import read_run
    from touche_llm.evaluation import evaluate
    from touche_llm.evaluation.qrels import read_qrels
    from touche_llm.tasks import get_task

logging.getLogger(__name__).addHandler(logging.NullHandler())
# What is sent and answered: logged for those alone who set its level.
logging.getLogger(f"{__name__}.text").setLevel(logging.CRITICAL)

# The one place of the version, so that a checkout on the path knows it without being installed.
__version__ = "0.1.0"
__all__ = ["evaluate", "get_task", "read_qrels", "read_run"]

_HOMES = {
    "evaluate": "touche_llm.evaluation",
    "get_task": "touche_llm.tasks",
    "read_qrels": "touche_llm.evaluation.qrels",
    "read_run": "touche_llm.data.trec_runs",
}


def __getattr__(name: str) -> Any:
    # Loaded on first use: every command imports this package, and most need none of these modules.
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
