"""Declaration and registry of measures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from touche_llm.data.measure import CUTOFF, Measure
from touche_llm.data.records import Candidate
from touche_llm.evaluation.intervals import SHARE, Array, Bounds
from touche_llm.evaluation.qrels import GRADE_DECIMALS
from touche_llm.extensions import Registry

if TYPE_CHECKING:
    from ir_measures.measures import Measure as Metric

# What ir-measures takes as the lowest relevant grade, 1: it gets grades as whole numbers, which are
# multiples of the smallest decimal.
RELEVANT = 10**GRADE_DECIMALS


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureKind:
    """What a measure computes, of whatever aspect.

    Its type says which judgments it needs, and how it is computed. One of this type itself is
    computed where it is used, such as the kappa of prompts.

    Attributes:
        name: Name, as in `relevance nDCG@5`.
        definition: What its value is, for the documentation.
        reference: Source of the measure, for the documentation; empty if there is none.
        cutoffs: Numbers of first documents that it is computed of; None for whole rankings.
        is_at_depth: Whether its cutoff is the depth of the first stage, in place of `cutoffs`.
        is_of_label: Whether it measures each label alone.
        is_compared: Whether it is a measure of a system, so that runs are compared by it.
        bounds: Lowest and highest possible value, within which its intervals stay; None if there
            are none.
        order: Place in lists; lower ones come first.
    """

    name: str
    definition: str
    reference: str = ""
    cutoffs: tuple[int | None, ...] = (CUTOFF,)
    is_at_depth: bool = False
    is_of_label: bool = False
    is_compared: bool = True
    bounds: Bounds | None = SHARE
    order: int = 100

    @property
    def forms(self) -> list[str]:
        """Texts of its measures without the aspect, with `K` for a cutoff and `LABEL` for a label.

        For example `["precision LABEL"]`, `["nDCG@K"]`, and `["macro-F1", "macro-F1@K"]` for a
        measure of whole rankings and of the first documents.
        """
        if self.is_of_label:
            return [f"{self.name} LABEL"]
        if self.is_at_depth:
            return [f"{self.name}@K"]

        forms: list[str] = []
        if None in self.cutoffs:
            forms.append(self.name)
        if any(cutoff is not None for cutoff in self.cutoffs):
            forms.append(f"{self.name}@K")
        return forms

    def make_measures(self, aspect: str, depth: int) -> list[Measure]:
        """Return its measures of an aspect, for a first stage of this depth."""
        cutoffs = (depth,) if self.is_at_depth else self.cutoffs
        return [Measure(aspect, self.name, cutoff) for cutoff in cutoffs]


@dataclass(frozen=True, slots=True, kw_only=True)
class StandardMeasure(MeasureKind):
    """A measure of grades that ir-measures computes: a mean over topics.

    A topic counts 0 if the run lacks it or it has no grade above 0, as in trec_eval with `-c`.

    Attributes:
        make_metric: Returns the measure of ir-measures without a cutoff; see `RELEVANT` for grades.
    """

    make_metric: Callable[[], Metric]


@dataclass(frozen=True, slots=True, kw_only=True)
class GradedTopic:
    """Ranking of one topic with its grades.

    Attributes:
        ranking: Documents, best first; none if the run lacks the topic.
        grades: Grades by document, from -2.
        cutoff: Number of first documents to measure; None for the whole ranking.
    """

    ranking: Sequence[Candidate]
    grades: Mapping[str, float]
    cutoff: int | None

    @property
    def top(self) -> Sequence[Candidate]:
        """The documents to measure, best first."""
        return self.ranking[: self.cutoff]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicMeasure(MeasureKind):
    """A measure of grades that a function computes: a mean over topics.

    Attributes:
        compute: Returns the value of a topic; None to leave the topic out of the mean.
    """

    compute: Callable[[GradedTopic], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelMeasure(MeasureKind):
    """A measure of stances, over the documents of all topics, and over the first ones of each.

    Attributes:
        formula: Computes the value from numbers of documents by true label (rows) and the run's
            label (columns), of shape (…, labels, labels) to (…).
    """

    formula: Callable[[Array], Array]
    cutoffs: tuple[int | None, ...] = (None, CUTOFF)


MEASURE_KINDS: Registry[MeasureKind] = Registry("measure")


def register(kind: MeasureKind) -> MeasureKind:
    """Add a measure to those of runs, and return it.

    Raises:
        ExtensionError: Another measure has its name, or the measures are listed already.
    """
    return MEASURE_KINDS.register(kind)


def list_kinds() -> list[MeasureKind]:
    """Return the registered measures in their order."""
    return sorted(MEASURE_KINDS.by_name.values(), key=lambda kind: (kind.order, kind.name))


def list_label_measures() -> list[LabelMeasure]:
    """Return the registered measures of stances in their order."""
    return [kind for kind in list_kinds() if isinstance(kind, LabelMeasure)]
