"""Measures of grades that ir-measures computes as trec_eval does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from touche_llm.data.measure import CUTOFF, MeasureName
from touche_llm.evaluation.registry import RELEVANT, StandardMeasure, register

if TYPE_CHECKING:
    from ir_measures.measures import Measure as Metric

# ir-measures is slow to load, and the text of a measure is read without it.


def _make_ndcg() -> Metric:
    from ir_measures import nDCG

    return nDCG


def _make_precision() -> Metric:
    from ir_measures import P

    precision: Metric = P(rel=RELEVANT)
    return precision


def _make_recall() -> Metric:
    from ir_measures import R

    recall: Metric = R(rel=RELEVANT)
    return recall


register(
    StandardMeasure(
        name=MeasureName.NDCG,
        definition=(
            "as trec_eval: linear gain, discount log2(rank + 1); unjudged documents and grades below 0 "
            "count 0"
        ),
        reference="Järvelin and Kekäläinen, TOIS 20(4), 2002",
        cutoffs=(CUTOFF, 10),
        make_metric=_make_ndcg,
        order=10,
    )
)
register(
    StandardMeasure(
        name=MeasureName.PRECISION,
        definition="precision; a document is relevant from grade 1",
        make_metric=_make_precision,
        order=20,
    )
)
register(
    StandardMeasure(
        name=MeasureName.RECALL,
        definition=(
            "recall at the depth of the first stage, or of the longest run where none is known; a "
            "document is relevant from grade 1"
        ),
        is_at_depth=True,
        make_metric=_make_recall,
        order=30,
    )
)
