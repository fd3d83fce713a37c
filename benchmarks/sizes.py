"""Sizes on the command lines of the benchmarks."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def at_least(least: int) -> Callable[[str], int]:
    """A `type` of argparse: integers that are no less than `least`."""

    def size(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is no integer of {least} or more")
        return int(text)

    return size
