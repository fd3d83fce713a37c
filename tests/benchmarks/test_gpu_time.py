"""Memory and time of published models by arithmetic."""

from __future__ import annotations

import pytest

from benchmarks.gpu_time import GPUS, LLAMA, MODELS, output_seconds, prompt_seconds, tokens_at_a_time


def test_the_keys_and_values_of_a_token_are_those_of_all_layers_and_heads() -> None:
    # 36 layers, 8 heads of 128 numbers, keys and values, two bytes a number.
    (model,) = (each for each in MODELS if each.name == "Qwen3-8B")
    assert model.key_value_bytes == 36 * 8 * 128 * 2 * 2 == 147_456


def test_what_is_left_of_nine_tenths_of_the_memory_holds_tokens() -> None:
    (model,) = (each for each in MODELS if each.name == "Qwen3-8B")
    small, *_, large = GPUS
    assert tokens_at_a_time(model, small) == pytest.approx((21.6e9 - 16.4e9) / 147_456)
    assert tokens_at_a_time(model, large) == pytest.approx((72e9 - 16.4e9) / 147_456)
    (too_large,) = (each for each in MODELS if each.name == "Qwen3-32B")
    assert tokens_at_a_time(too_large, small) < 0


def test_a_mixture_of_experts_computes_with_its_active_parameters_and_reads_all_weights() -> None:
    (mixture,) = (each for each in MODELS if each.active < each.parameters)
    assert prompt_seconds(1e6, mixture) == pytest.approx(prompt_seconds(1e6, LLAMA) * 3.3 / 8.03)
    assert output_seconds(256, 0, mixture) == pytest.approx(output_seconds(256, 0, LLAMA) * 30.5 / 8.03)
