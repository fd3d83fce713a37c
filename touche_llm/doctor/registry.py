"""Declaration and registry of the checks of a server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import IntEnum

from touche_llm.doctor.survey import Survey
from touche_llm.engines.identification import ServerCheck
from touche_llm.extensions import Registry


class Occasion(IntEnum):
    """When a check is made; each occasion includes the ones before it."""

    START_UP = 1
    DOCTOR = 2
    THOROUGH = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """Something that a server may lack.

    Attributes:
        name: Name on the card.
        remedy: What the missing feature costs, and how to add it.
        is_blocking: Whether no run is possible without it.
    """

    name: str
    remedy: str
    is_blocking: bool = False

    def fail(self, value: str, remedy: str = "") -> ServerCheck:
        """Return a failed check.

        Args:
            value: Finding.
            remedy: What helps; if empty, that of the feature.
        """
        return ServerCheck(
            name=self.name,
            is_ok=False,
            value=value,
            remedy=remedy or self.remedy,
            is_blocking=self.is_blocking,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Check(Feature):
    """A check of a server for a feature.

    Attributes:
        run: Sends the requests and returns results, the one of the feature first; none if the check
            does not apply. Raises Transient if the server did not reply, and Rejected if it refuses
            all requests.
        occasion: When the check is made.
        order: Place among the checks of its occasion; lower ones are made first.
        needs_answers: Whether the check is left out if the server enforces no schema or shows no
            system message to the model.
        warns_if_unknown: Whether the start-up warns of an unknown result too, if the run reads
            log-probabilities.
    """

    run: Callable[[Survey], Awaitable[list[ServerCheck]]]
    occasion: Occasion = Occasion.DOCTOR
    order: int = 100
    needs_answers: bool = True
    warns_if_unknown: bool = False


CHECKS: Registry[Check] = Registry("check of a server")


def register(check: Check) -> Check:
    """Add a check to those of the start-up and of `doctor`, and return it.

    Raises:
        ExtensionError: Another check has its name.
    """
    return CHECKS.register(check)
