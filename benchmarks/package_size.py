"""Measure the size of the package: lines, modules, the longest function and the most parameters, by room.

python -m benchmarks.package_size [COMMIT ...]    # the working tree, compared with earlier commits

Lines of code are those without blanks, comments and docstrings. Parameters are counted without
`self` and `cls`; the signatures of commands in `cli`, whose parameters are options, count for
nothing.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tarfile
import tokenize
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

_ROOT = Path(__file__).parent.parent
_PACKAGE = "touche_llm"
_LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Function(NamedTuple):
    """A function with its number of lines and of parameters."""

    lines: int
    parameters: int
    place: str


@dataclass(frozen=True)
class Module:
    """The size of a module: all lines, lines of code, and its functions."""

    room: str
    lines: int
    code: int
    functions: list[Function]


def measure(name: str, source: str) -> Module:
    """Measure a module of the package by its path, `touche_llm/ROOM/NAME.py`."""
    functions = list_functions(name, ast.walk(ast.parse(source)))
    return Module(_room_of(name), source.count("\n"), count_code_lines(source), functions)


def _room_of(name: str) -> str:
    parts = Path(name).parts
    return parts[1] if len(parts) > 2 else "(top)"


def list_functions(name: str, nodes: Iterable[ast.AST]) -> list[Function]:
    """Measure the functions among the nodes of a module."""
    functions = []
    for node in nodes:
        if not isinstance(node, _FUNCTIONS):
            continue
        is_command = _room_of(name) == "cli" and any(
            kind in ast.unparse(node.args) for kind in ("Option", "Argument")
        )
        start = node.body[0].lineno if is_command else node.lineno
        functions.append(
            Function(
                (node.end_lineno or start) - start + 1,
                0 if is_command else _count_parameters(node.args),
                f"{name.removeprefix(f'{_PACKAGE}/')}: {node.name}",
            )
        )
    return functions


def count_code_lines(source: str) -> int:
    """Return the number of lines that hold code."""
    documented = (ast.Module, ast.ClassDef, *_FUNCTIONS)
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            text = node.body[0]
            docstrings.update(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def read_sources(commit: str | None) -> dict[str, str]:
    """Return the Python files of the package by path, of a commit or the working tree."""
    if commit is None:
        return {
            str(path.relative_to(_ROOT)): path.read_text()
            for path in (_ROOT / _PACKAGE).rglob("*.py")
        }
    archive = subprocess.run(
        ["git", "-C", str(_ROOT), "archive", commit, _PACKAGE], check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        found = {
            member.name: files.extractfile(member)
            for member in files
            if member.name.endswith(".py")
        }
        return {
            name: stream.read().decode() for name, stream in found.items() if stream is not None
        }


def main() -> None:
    """Print two tables for each version: its rooms, and the largest of all modules and functions."""
    for commit in (*sys.argv[1:], None):
        print(
            f"{commit or 'now'}\n{'room':<14}{'lines':>8}{'code':>8}{'modules':>9}{'longest':>9}{'parameters':>12}"
        )
        modules = [measure(name, source) for name, source in read_sources(commit).items()]
        rooms: dict[str, list[Module]] = {}
        for module in sorted(modules, key=lambda module: module.room):
            rooms.setdefault(module.room, []).append(module)
        _print_rooms(rooms | {"all": modules})
        functions = list(chain.from_iterable(module.functions for module in modules))
        longest, widest = max(functions), max(functions, key=lambda function: function.parameters)
        print(f"longest function: {longest.place}; most parameters: {widest.place}\n")


def _print_rooms(rooms: Mapping[str, Sequence[Module]]) -> None:
    for room, modules in rooms.items():
        functions = [
            Function(0, 0, ""),
            *chain.from_iterable(module.functions for module in modules),
        ]
        cells = (
            sum(module.lines for module in modules),
            sum(module.code for module in modules),
            len(modules),
        )
        lines, code, count = (f"{cell:,}" for cell in cells)
        longest = max(function.lines for function in functions)
        widest = max(function.parameters for function in functions)
        print(f"{room:<14}{lines:>8}{code:>8}{count:>9}{longest:>9}{widest:>12}")


def _count_parameters(arguments: ast.arguments) -> int:
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return sum(argument.arg not in ("self", "cls") for argument in named)


if __name__ == "__main__":
    main()
