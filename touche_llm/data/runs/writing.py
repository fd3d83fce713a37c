"""Run files, written."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from touche_llm.data.files import open_atomic
from touche_llm.data.records import Candidate, RunLine
from touche_llm.errors import UsageError

# Decimals of a score in a run; equal scores are separated by one unit of the last decimal.
DECIMALS = 6
# Stance column of a run without stances.
NO_STANCE_COLUMN = "Q0"


def make_strictly_decreasing(scores: list[float]) -> list[float]:
    """Round scores to six decimals, and lower them where needed so that each is below its predecessor.

    The scores are in ranking order. Evaluators sort by score and break ties by document id,
    whatever the rank column says. trec_eval stores scores in single precision, so the returned
    scores also differ in single precision.
    """
    result: list[float] = []
    for score in scores:
        value = round(score, DECIMALS)
        if result:
            above = np.float32(result[-1])
            step = max(1.0 / 10**DECIMALS, float(np.spacing(np.abs(above))))
            while np.float32(value) >= above:
                value = round(result[-1] - step, DECIMALS)
                step *= 2
        result.append(value)
    return result


def check_tag(tag: str) -> str:
    """Return the tag of a run; raise UsageError unless it is one printable word."""
    if tag.split() != [tag] or not tag.isprintable():
        raise UsageError(f"tag: {tag!r:.40}: must be one word: a run line has six columns")
    return tag


def write_run(path: Path, lines: Iterable[RunLine]) -> None:
    """Write `qid stance doc rank score tag` lines, separated by single spaces, atomically."""
    with open_atomic(path) as stream:
        for line in lines:
            numbers = f"{line.rank} {line.score:.{DECIMALS}f}"
            stream.write(
                f"{line.topic_id} {line.stance} {line.document_id} {numbers} {line.tag}\n".encode()
            )


def write_candidates(path: Path, candidates: Iterable[list[Candidate]], tag: str) -> None:
    """Write a first stage as a run, with `Q0` as stance."""
    lines = (
        RunLine(
            candidate.topic_id, NO_STANCE_COLUMN, candidate.document_id, candidate.rank, score, tag
        )
        for ranking in candidates
        for candidate, score in zip(
            ranking, make_strictly_decreasing([each.score for each in ranking]), strict=True
        )
    )
    write_run(path, lines)
