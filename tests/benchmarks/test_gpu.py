"""What the GPU benchmark reads from its command line."""

from __future__ import annotations

import argparse

import pytest

from benchmarks.gpu import option


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
