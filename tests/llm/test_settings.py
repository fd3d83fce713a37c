from __future__ import annotations

import pytest

from touche_llm.llm.settings import SamplingConfig


@pytest.mark.parametrize(("logprobs", "alternatives"), [(True, 20), (False, 0)])
def test_alternatives_are_requested_only_with_log_probabilities(logprobs: bool, alternatives: int) -> None:
    assert SamplingConfig(logprobs=logprobs).top_logprobs == alternatives
