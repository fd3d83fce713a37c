"""A first stage: all documents in a random order, as a baseline below every other."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from touche_llm.corpus.store import TextTable
from touche_llm.retrieval.corpus import FirstStage
from touche_llm.retrieval.registry import Retriever, StageInputs, register
from touche_llm.settings.section import NamedSection, Option, Section


class RandomOrderSettings(Section):
    """Settings of the random order."""

    seed: Annotated[int, Option("--random-seed", "Seed of the random order", "Retrieval")] = 0


class RandomOrder(FirstStage):
    """Random scores, the same for a query and a seed."""

    def __init__(self, table: TextTable, seed: int) -> None:
        super().__init__(table)
        self.seed = seed

    def score(self, query: str) -> NDArray[np.float64]:
        """Return a positive score of each row."""
        generator = np.random.default_rng([self.seed, *query.encode()])
        return 1.0 - generator.random(len(self.table))


def open_random_order(inputs: StageInputs) -> RandomOrder:
    """Open the first stage, which has no index."""
    settings: RandomOrderSettings = inputs.settings
    return RandomOrder(inputs.table, settings.seed)


register(
    Retriever(
        name="random",
        help="random order",
        method="random order",
        section=NamedSection(name="random", settings=RandomOrderSettings),
        open_stage=open_random_order,
    )
)
