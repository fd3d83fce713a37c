"""Temporary folders as dead processes leave them."""

from __future__ import annotations

import shutil
from pathlib import Path

from touche_llm.data.files import open_scratch


def leave_scratch(parent: Path, host: str = "") -> Path:
    """Leave a temporary folder whose process has died; of this host unless `host` is another."""
    with open_scratch(parent / "output") as content:
        scratch = content.parent
        # The lock is not copied.
        left = shutil.copytree(scratch, parent / ".touche-llm-copy")
    left = left.rename(scratch)
    if host:
        (marker,) = left.glob("lock-*")
        marker.rename(left / f"lock-{host}")
    return left
