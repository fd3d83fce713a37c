"""Measure the size of the package: lines, modules, the longest function and the most parameters, by room.

python -m benchmarks.package_size [COMMIT ...]    # the working tree, compared with earlier commits

Parameters are counted without `self` and `cls`; the
signatures of commands in `cli`, whose parameters are options, count for nothing.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import NamedTuple

_ROOT = Path(__file__).parent.parent
_PACKAGE = "touche_llm"
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Function(NamedTuple):
    """A function with its number of lines and of parameters."""

    lines: int
    parameters: int
    place: str


def _room_of(name: str) -> str:
    parts = Path(name).parts
    return parts[1] if len(parts) > 2 else "(top)"


def list_functions(name: str, nodes: Iterable[ast.AST]) -> list[Function]:
    """Measure the functions among the nodes of a module."""
    functions = []
    for node in nodes:
        if not isinstance(node, _FUNCTIONS):
            continue
        is_command = _room_of(name) == "cli" and _is_command(node)
        start = node.body[0].lineno if is_command else node.lineno
        functions.append(
            Function(
                (node.end_lineno or start) - start + 1,
                0 if is_command else _count_parameters(node.args),
                f"{name.removeprefix(f'{_PACKAGE}/')}: {node.name}",
            )
        )
    return functions


def read_sources(commit: str | None) -> dict[str, str]:
    """Return the Python files of the package by path, of a commit or the working tree."""
    if commit is None:
        return {str(path.relative_to(_ROOT)): path.read_text() for path in (_ROOT / _PACKAGE).rglob("*.py")}
    archive = subprocess.run(
        ["git", "-C", str(_ROOT), "archive", commit, _PACKAGE], check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        found = {member.name: files.extractfile(member) for member in files if member.name.endswith(".py")}
        return {name: stream.read().decode() for name, stream in found.items() if stream is not None}


def main() -> None:
    """Print two tables for each version: its rooms, and the largest of all modules and functions."""
    for commit in (*sys.argv[1:], None):
        print(f"{commit or 'now'}\n{'room':<14}{'lines':>8}{'modules':>9}{'longest':>9}{'parameters':>12}")
        rooms: dict[str, dict[str, str]] = {"all": read_sources(commit)}
        for name, source in sorted(rooms["all"].items()):
            rooms.setdefault(_room_of(name), {})[name] = source
        for room, sources in rooms.items():
            found = (list_functions(name, ast.walk(ast.parse(source))) for name, source in sources.items())
            functions = [Function(0, 0, ""), *chain.from_iterable(found)]
            lines = sum(source.count("\n") for source in sources.values())
            widest = max(functions, key=lambda function: function.parameters)
            print(f"{room:<14}{lines:>8,}{len(sources):>9}{max(functions).lines:>9}{widest.parameters:>12}")
            if room == "all":
                places = f"longest function: {max(functions).place}; most parameters: {widest.place}\n"
        print(places)


def _is_command(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether parameters of a function are declared as options or arguments of the command line."""
    return any(kind in ast.unparse(node.args) for kind in ("Option", "Argument"))


def _count_parameters(arguments: ast.arguments) -> int:
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return sum(argument.arg not in ("self", "cls") for argument in named)


if __name__ == "__main__":
    main()
