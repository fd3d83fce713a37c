"""Outcomes of requests: results, and failures of the requests without a usable answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic

from touche_llm.data.concurrency import ResultT
from touche_llm.data.records import Failure
from touche_llm.llm.client import UncachedRequest


@dataclass(frozen=True, slots=True)
class Outcomes(Generic[ResultT]):
    """Results of requests, and failures of the requests without a usable answer.

    Attributes:
        results: Results, in the order of the requests.
        failures: Failures, in the order of the requests.
    """

    results: list[ResultT]
    failures: list[Failure]


def separate_failures(
    outcomes: Iterable[ResultT | Failure | UncachedRequest],
) -> Outcomes[ResultT]:
    """Separate results from failures.

    Requests of a replay whose answer the cache lacks are neither; the client lists them as `misses`.
    """
    results: list[ResultT] = []
    failures: list[Failure] = []
    for outcome in outcomes:
        if isinstance(outcome, Failure):
            failures.append(outcome)
        elif not isinstance(outcome, UncachedRequest):
            results.append(outcome)
    return Outcomes(results, failures)
