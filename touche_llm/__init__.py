"""Zero-shot argument retrieval for the Touché shared tasks, with open-weight models served by vLLM.

`evaluate(run, qrels)` measures a run, see `touche_llm.evaluation.evaluate`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from touche_llm.evaluation import evaluate

__all__ = ["evaluate"]


def __getattr__(name: str) -> Any:
    # Only when it is asked for: every command imports this package, and most of them measure nothing.
    if name == "evaluate":
        from touche_llm.evaluation import evaluate

        return evaluate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
