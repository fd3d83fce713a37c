"""Configurations in the folders of runs, changed as if this program had written them."""

from __future__ import annotations

from pathlib import Path

from touche_llm.config.own_folders import record_configuration


def rewrite(file: Path, text: str) -> None:
    """Write another configuration, which counts as written here."""
    file.write_text(text)
    record_configuration(file, text.encode())
