"""Notebooks of the library's use, executed in a Jupyter kernel."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

import touche_llm


def run_notebook(folder: Path, values: Mapping[str, Any], cells: Sequence[str]) -> list[list[Any]]:
    """Execute the cells; return the outputs of each."""
    notebook = nbformat.v4.new_notebook()  # type: ignore[no-untyped-call]
    for cell in cells:
        lines = cell.format(**values).strip("\n").splitlines()
        source = "\n".join(line.removeprefix("    ") for line in lines).rstrip()
        cell_of = nbformat.v4.new_code_cell(source)  # type: ignore[no-untyped-call]
        notebook.cells.append(cell_of)
    # The kernel runs in another folder, but has to import this checkout.
    environment = os.environ | {"PYTHONPATH": str(Path(touche_llm.__file__).parent.parent)}
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute(
        env=environment
    )
    return [cell.outputs for cell in notebook.cells]


def last_text(outputs: list[Any]) -> str:
    """The plain text of a cell's result."""
    (result,) = [output for output in outputs if output.output_type == "execute_result"]
    return str(result.data["text/plain"])
