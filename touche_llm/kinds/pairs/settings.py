"""Settings of pairs of sentences."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from touche_llm.settings.section import Option, Section


class PairSettings(Section):
    """Settings for pairing judged sentences.

    Attributes:
        both_orders: Number of the best judged pairs that are judged again in reversed order; the
            better order is kept.
        most: Maximum number of pairs per topic.
        most_share: Maximum share of a topic's pairs, and of its judged pairs, that one sentence may
            be in; exceeded only if the required number of pairs cannot be reached otherwise.
        no_side_above: Probability of taking no side above which a sentence has none; else it has
            the more probable.
        same_argument: Bonus on the score of two sentences of one argument, since they belong
            together.
    """

    judged: Annotated[
        int,
        Option(
            "--judge-pairs",
            "Pairs per topic that the model judges; the others inherit their grades",
            "Judging",
        ),
    ] = Field(100, ge=0)
    both_orders: Annotated[
        int,
        Option(
            "--both-orders",
            "Best pairs per topic that are judged in the other order too",
            "Judging",
        ),
    ] = Field(20, ge=0)
    most: int = Field(1000, ge=1)
    most_share: float = Field(0.1, gt=0.0, le=1.0)
    no_side_above: float = Field(0.5, ge=0.0, le=1.0)
    same_argument: float = Field(0.1, ge=0.0, le=1.0)
