"""Short names of runs in tables."""

from __future__ import annotations

LONG = "a-name-that-has-no-room-in-a-table"
