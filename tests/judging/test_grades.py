from __future__ import annotations

from contextlib import nullcontext

import pytest

from tests.expect import raises_at
from touche_llm.data.records import Judgment, Reading
from touche_llm.errors import DataError
from touche_llm.judging.grades import check_judgments, mean_off_label_mass
from touche_llm.tasks import TASKS


def judgment(*masses: float | None) -> Judgment:
    """Return a judgment with a field for each mass."""
    readings = {f"f{n}": Reading(answered=1, off_label_mass=mass) for n, mass in enumerate(masses)}
    return Judgment(
        topic_id="1",
        document_id="d",
        grades={},
        stance="NO",
        readings=readings,
        source="value",
        prompt="test",
    )


@pytest.mark.parametrize(
    ("judgments", "expected"),
    [
        ([judgment(0.125, None), judgment(0.25), judgment(0.0)], 0.125),
        ([judgment(0.0)], 0.0),
        ([judgment(0.1234564)], 0.123456),
        ([judgment(None), judgment()], None),
        ([], None),
    ],
)
def test_the_mean_is_over_the_fields_with_probabilities(
    judgments: list[Judgment], expected: float | None
) -> None:
    assert mean_off_label_mass(judgments) == expected


@pytest.mark.parametrize(
    ("task", "of_sentence", "grades", "stance", "values"),
    [
        ("comparative", False, {"relevance": 3.0, "quality": 0.0}, "NO", None),
        ("comparative", False, {"relevance": 3.1, "quality": 0.0}, "NO", ("relevance 3.1",)),
        ("comparative", False, {"relevance": 3.0}, "PRO", ("stance PRO",)),
        ("sentence_pairs", False, {"coherence": 2.5}, "CON", None),
        ("sentence_pairs", True, {"relevance": 2.5}, "NONE", None),
        (
            "sentence_pairs",
            True,
            {"coherence": 2.5},
            "NONE",
            ("coherence 2.5", "relevance 0, 1, 2, 3; quality"),
        ),
    ],
)
def test_a_judgment_has_grades_and_labels_of_the_question(
    task: str,
    of_sentence: bool,
    grades: dict[str, float],
    stance: str,
    values: tuple[str, ...] | None,
) -> None:
    question = TASKS[task].questions["sentence" if of_sentence else "judge"]
    judged = Judgment(
        topic_id="1", document_id="d", grades=grades, stance=stance, source="value", prompt="p"
    )
    expected = (
        nullcontext()
        if values is None
        else raises_at(DataError, "file", "topic 1", "document d", *values)
    )
    with expected:
        check_judgments([judged], question, "file")
