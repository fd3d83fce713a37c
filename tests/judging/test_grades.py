from __future__ import annotations

import pytest

from touche_llm.data.records import Judgment, Reading
from touche_llm.judging.grades import mean_off_label_mass


def judgment(*masses: float | None) -> Judgment:
    """Return a judgment with a field for each mass."""
    readings = {f"f{n}": Reading(answered=1, off_label_mass=mass) for n, mass in enumerate(masses)}
    return Judgment(
        topic_id="1", document_id="d", grades={}, stance="NO", readings=readings, source="value", prompt="test"
    )


@pytest.mark.parametrize(
    ("judgments", "expected"),
    [
        ([judgment(0.125, None), judgment(0.25), judgment(0.0)], 0.125),
        ([judgment(0.0)], 0.0),
        ([judgment(None), judgment()], None),
        ([], None),
    ],
)
def test_the_mean_is_over_the_fields_with_probabilities(judgments: list[Judgment], expected: float | None) -> None:
    assert mean_off_label_mass(judgments) == expected
