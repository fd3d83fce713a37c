"""Energy that a stage uses, and the hardware of its machine, with tirex-tracker."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from touche_llm.errors import UsageError, needs_extra

# Names of measures in tirex-tracker, by the names of the metadata.
_ENERGY = {
    "cpu": "CPU_ENERGY_SYSTEM_JOULES",
    "memory": "RAM_ENERGY_SYSTEM_JOULES",
    "gpu": "GPU_ENERGY_SYSTEM_JOULES",
}
_HARDWARE = {
    "cpu": {
        "model": "CPU_MODEL_NAME",
        "architecture": "CPU_ARCHITECTURE",
        "number of cores": "CPU_AVAILABLE_SYSTEM_CORES",
    },
    "gpu": {"model": "GPU_MODEL_NAME", "memory in MB": "GPU_VRAM_AVAILABLE_SYSTEM_MB"},
    "memory": {"in MB": "RAM_AVAILABLE_SYSTEM_MB"},
}


class EnergyMeter:
    """Measurement from the construction to `stop`; it measures the whole machine, and nothing on other ones."""

    def __init__(self) -> None:
        """Start to measure.

        Raises:
            UsageError: The library is missing, or cannot measure here.
        """
        with needs_extra("tirex", "`energy: true`"):
            import tirex_tracker

        self._measures = tirex_tracker.Measure
        names = (*_ENERGY.values(), *(name for part in _HARDWARE.values() for name in part.values()))
        try:
            self._handle = tirex_tracker.TrackingHandle.start([self._measures[name] for name in names])
        except (RuntimeError, ValueError, OSError) as error:
            raise UsageError(f"energy: cannot be measured here ({error}); give `energy: false`") from error

    def stop(self) -> dict[str, Any]:
        """Return the joules by part, None where the machine has no counter, and the hardware.

        Raises:
            UsageError: The library failed while it measured.
        """
        try:
            results = self._handle.stop()
        except (RuntimeError, ValueError, OSError) as error:
            raise UsageError(
                f"energy: the measurement failed ({error}); repeat with `energy: false`, all answers are in the cache"
            ) from error
        found = {measure.name: _parse(entry.value) for measure, entry in results.items()}
        hardware = {part: _keep_known(found, names) for part, names in _HARDWARE.items()}
        return {
            "energy in joules": {part: found.get(name) for part, name in _ENERGY.items()},
            "hardware": {part: values for part, values in hardware.items() if values},
        }


def _keep_known(found: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {name: found[measure] for name, measure in names.items() if found.get(measure) not in (None, "", 0)}


def _parse(value: object) -> Any:
    """Return a value of the library: text, which is often JSON."""
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    try:
        return json.loads(text)
    except ValueError:
        return text
