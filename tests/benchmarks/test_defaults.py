"""The choice of default weights: shares of weights, and the left-out topics."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.defaults import leave_one_out, to_shares, to_weights


@pytest.mark.parametrize("shares", [(0.0, 0.1), (0.25, 0.0), (1.0, 2.0)])
def test_weights_have_the_shares_that_they_are_made_from(shares: tuple[float, float]) -> None:
    assert to_shares(to_weights(shares)) == pytest.approx(shares)


def test_shares_do_not_depend_on_the_size_of_weights() -> None:
    assert to_shares({"relevance": 3.0, "quality": 1.0, "first_stage": 2.0}) == (0.25, 0.5)


def test_a_left_out_topic_has_no_say_in_the_choice() -> None:
    cells = np.array([[0.9, 0.0, 0.0], [0.3, 0.2, 0.2]])
    # The first cell is the best on all topics, but only by the first one.
    held_out, taken = leave_one_out(cells)
    assert taken == [1, 0, 0]
    assert held_out.tolist() == [0.3, 0.0, 0.0]
