"""Expected grades: where a label's probability becomes a grade."""

from __future__ import annotations

import math

from touche_llm.data.records import Reading
from touche_llm.llm.label_probabilities import round_nine_digits


def compute_expected_grade(reading: Reading) -> float:
    """Return the mean of the integer grades under their probabilities.

    Without these, the answered grade.
    """
    if reading.probabilities is None:
        return float(reading.answered)
    shares = {int(grade): share for grade, share in reading.probabilities.items()}
    mean = math.fsum([grade * share for grade, share in shares.items()])
    # Rounded probabilities can add up to slightly more or less than 1.
    return round_nine_digits(min(max(mean, float(min(shares))), float(max(shares))))
