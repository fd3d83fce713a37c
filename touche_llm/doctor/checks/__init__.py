"""Checks of a server: each registers itself in a file of its own."""

from __future__ import annotations

# Imported because each registers its check.
from touche_llm.doctor.checks import (  # noqa: F401
    determinism,
    label_tokens,
    open_thought,
    prefix_cache,
    schema,
    system_message,
    thinking,
    tokens,
    white_space,
)
from touche_llm.doctor.registry import CHECKS, Check, Occasion
from touche_llm.extensions import load_extensions


def list_checks(occasion: Occasion) -> list[Check]:
    """Return the checks that are made on an occasion, in the order in which they are made.

    Raises:
        ExtensionError: A package with a check cannot be imported.
    """
    load_extensions()
    checks = [check for check in CHECKS.by_name.values() if check.occasion <= occasion]
    return sorted(checks, key=lambda check: (check.occasion, check.order, check.name))
