"""All measures, and the text of one of them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from touche_llm.data.measure import Measure

# Imported because each registers its measures.
from touche_llm.evaluation import (  # noqa: F401
    agreement,
    condensed_ndcg,
    judged_share,
    registry,
    standard_measures,
)
from touche_llm.evaluation.registry import MeasureKind
from touche_llm.extensions import load_extensions


def _list_kinds() -> list[MeasureKind]:
    """Return all measures in their order, after which none can be registered.

    Raises:
        ExtensionError: A package with a measure cannot be imported.
    """
    load_extensions()
    registry.MEASURE_KINDS.close()
    return registry.list_kinds()


KINDS: Mapping[str, MeasureKind] = {kind.name: kind for kind in _list_kinds()}


def parse_measure(text: str) -> Measure:
    """Parse the text of a known measure.

    Raises:
        ValueError: The text is none of a known measure; the message lists the known ones.
    """
    known = [form for kind in KINDS.values() for form in kind.forms]
    with suppress(ValueError):
        measure = Measure.parse(text)
        if measure.form in known:
            return measure
    raise ValueError(
        f"{text!r:.60} is no measure; expected an aspect and one of {', '.join(known)}"
    )
