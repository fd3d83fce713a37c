"""Work of a command that sends requests to a model."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from touche_llm.config.configuration import Config
from touche_llm.interrupts import run_until_interrupted
from touche_llm.llm.cache import describe_resume

ResultT = TypeVar("ResultT")


def run_requests(config: Config, work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run work that sends requests; if it is interrupted, report where the answers are."""
    note = describe_resume(config.cache.file, config.cache.mode)
    return run_until_interrupted(work, note)
