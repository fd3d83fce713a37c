"""Declaration and registry of the steps of a ranking."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from touche_llm.data.records import ScoredDocument
from touche_llm.extensions import Registry
from touche_llm.ranking.comparer import Comparer, ComparisonKind
from touche_llm.ranking.scores import NamedRanking, TopicInputs
from touche_llm.settings.section import Section

# Scores of documents for one topic, in the given order.
ScoreDocuments = Callable[[Sequence[str]], Awaitable[list[float]]]


class RankingMethod(Section):
    """A way to rank the best documents of a topic; its fields are the settings of its step.

    Each method is one of the types below, by what it needs.
    """


class ComparingMethod(RankingMethod):
    """A method that requests comparisons of documents from the model.

    Attributes:
        kind: Kind of its comparisons, which is also the purpose of their prompt.
    """

    kind: ClassVar[ComparisonKind]

    @property
    def max_shown(self) -> int:
        """Maximum number of documents that one request shows."""
        raise NotImplementedError

    def bound_comparisons(self, document_count: int) -> int | None:
        """Return the maximum number of comparisons of so many documents.

        None if answers do not change the number.
        """
        return None

    async def rerank(self, documents: list[str], comparer: Comparer) -> list[ScoredDocument]:
        """Rank documents, given best first, with scores from 0 to 1."""
        raise NotImplementedError


class ScoringMethod(RankingMethod):
    """A method that requests scores from the cross-encoder of `ranking.cross_encoder`."""

    async def rerank(self, documents: list[str], score: ScoreDocuments) -> list[ScoredDocument]:
        """Rank documents, given best first, with scores from 0 to 1."""
        raise NotImplementedError


class CombiningMethod(RankingMethod):
    """A method that makes a ranking of earlier ones, without requests."""

    def combine(
        self, documents: list[str], earlier: Sequence[NamedRanking]
    ) -> list[ScoredDocument]:
        """Rank documents, given best first, with scores from 0 to 1.

        Args:
            documents: Documents to rank.
            earlier: Rankings of the first stage and of the steps so far, the latest first.

        Returns:
            Ranked documents, above those that it leaves out; none to leave the order as it is.
        """
        raise NotImplementedError


class ReorderingMethod(RankingMethod):
    """A method that exchanges documents, without requests.

    Scores stay with the places, and later steps do not fuse its order.
    """

    def reorder(self, documents: list[str], topic: TopicInputs) -> list[str]:
        """Return documents, given best first, in their new order.

        Args:
            documents: Documents to reorder.
            topic: Judgments and stances of all documents of the topic.
        """
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingStep:
    """A step that ranks the best documents so far.

    Attributes:
        name: Name in `--rank`, and of the section of its settings in `ranking`.
        method: Type of its settings, which ranks; its base says what requests it needs.
        summary: What it does, for the documentation.
        requests: Number of requests for N documents, for the documentation.
        reference: Source of the method, for the documentation; empty if there is none.
        max_depth: Maximum number of documents that it ranks.
        needs_sides: Whether it needs a task with stances that take a side.
        order: Place in lists; lower ones come first.
    """

    name: str
    method: type[RankingMethod]
    summary: str
    requests: str = "none"
    reference: str = ""
    max_depth: int = 1000
    needs_sides: bool = False
    order: int = 100


RANKING_STEPS: Registry[RankingStep] = Registry("ranking step")


def register(step: RankingStep) -> RankingStep:
    """Add a step to those of a ranking, and return it.

    Raises:
        ExtensionError: Another step has its name, or the settings of the steps are made already.
    """
    return RANKING_STEPS.register(step)
