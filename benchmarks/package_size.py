"""Count the lines of each package: all lines, and lines of code without blanks, comments and docstrings.

python -m benchmarks.package_size [COMMIT ...]    # the working tree, compared with earlier commits
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tarfile
import tokenize
from collections import Counter
from pathlib import Path

_ROOT = Path(__file__).parent.parent
_PACKAGE = "touche_llm"
_LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def count_code_lines(source: str) -> int:
    """Return the number of lines that hold code."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
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
        return {str(path.relative_to(_ROOT)): path.read_text() for path in (_ROOT / _PACKAGE).rglob("*.py")}
    archive = subprocess.run(
        ["git", "-C", str(_ROOT), "archive", commit, _PACKAGE], check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        found = {member.name: files.extractfile(member) for member in files if member.name.endswith(".py")}
        return {name: stream.read().decode() for name, stream in found.items() if stream is not None}


def main() -> None:
    """Print a table: a row for each package, and two columns for each version."""
    versions = [*sys.argv[1:], None]
    totals: list[Counter[str]] = []
    codes: list[Counter[str]] = []
    for commit in versions:
        total, code = Counter[str](), Counter[str]()
        for name, source in read_sources(commit).items():
            parts = Path(name).parts
            package = parts[1] if len(parts) > 2 else "(top)"
            total[package] += source.count("\n")
            code[package] += count_code_lines(source)
        totals.append(total)
        codes.append(code)
    print(f"{'package':<16}" + "".join(f"{version or 'now':>12.10} {'code':>7}" for version in versions))
    for counter in (*totals, *codes):
        counter["all"] = sum(counter.values())
    for package in [*sorted(set().union(*totals) - {"all"}), "all"]:
        counts = zip(totals, codes, strict=True)
        print(f"{package:<16}" + "".join(f"{total[package]:>12,} {code[package]:>7,}" for total, code in counts))


if __name__ == "__main__":
    main()
