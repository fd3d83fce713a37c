"""What the GPU benchmark reads from its command line, and when it holds targets against its figures."""

from __future__ import annotations

import argparse

import pytest

from benchmarks.gpu import option, real_size
from benchmarks.judge_rate import Measured


@pytest.mark.parametrize(
    ("text", "value"),
    [("tensor_parallel_size=2", 2), ("enforce_eager=true", True), ("dtype=bfloat16", "bfloat16"), ("a=x=y", "x=y")],
)
def test_an_option_of_vllm_has_the_type_that_its_value_looks_like(text: str, value: object) -> None:
    assert option(text) == (text.partition("=")[0], value)


@pytest.mark.parametrize("text", ["tensor_parallel_size", "=2", "--enforce-eager=true"])
def test_what_is_no_option_of_vllm_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="name=value"):
        option(text)


@pytest.mark.parametrize(
    ("changes", "requests", "real"),
    [
        ({}, 10_000, True),
        ({"depth": 1_000}, 50_000, True),
        ({"cpu": True}, 10_000, False),
        ({"rounds": 1}, 10_000, False),
        ({"depth": 20}, 1_000, False),
        ({}, 9_999, False),
    ],
)
def test_targets_are_held_against_a_gpu_at_full_size_alone(changes: dict[str, int], requests: int, real: bool) -> None:
    options = argparse.Namespace(**({"topics": 50, "depth": 200, "rounds": 2, "cpu": False} | changes))
    assert real_size(options, Measured(requests=requests)) is real
