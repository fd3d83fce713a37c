"""Commands, options, settings and links of the documentation and the README."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    *sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts),
]
_PARSER = MarkdownIt("commonmark").enable("table")
_ASSIGNMENT = re.compile(r"[A-Z_]+=")


@dataclass(frozen=True)
class Block:
    """A block of commands on a page, by its first line."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def needs(self) -> str:
        """What the block needs beyond this machine, by its first line."""
        first = self.text.partition("\n")[0]
        return first.removeprefix("# needs ") if first.startswith("# needs ") else ""

    def commands(self) -> Iterator[list[str]]:
        for line in self.text.replace("\\\n", " ").splitlines():
            if self.language == "console":
                if not line.startswith("$ "):
                    continue
                line = line.removeprefix("$ ")
            words = shlex.split(line, comments=True)
            while words and _ASSIGNMENT.match(words[0]):
                del words[0]
            if words:
                yield words

    def transcript(self) -> Iterator[tuple[list[str], list[str]]]:
        """Each command of a console with the lines of output below it."""
        for part in re.split(r"^\$ ", self.text.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
            command, *output = part.splitlines()
            yield shlex.split(command), output


def _tokens(page: Path) -> Iterator[Any]:
    for token in _PARSER.parse(page.read_text()):
        yield token
        yield from token.children or ()


def list_blocks(page: Path) -> list[Block]:
    blocks = []
    for token in _PARSER.parse(page.read_text()):
        if token.type == "code_block" or (
            token.type == "fence" and token.info.strip() in ("sh", "console")
        ):
            language = token.info.strip() or "sh"
            blocks.append(Block(page, (token.map or [0])[0] + 1, language, token.content))
    return blocks


def list_code(page: Path) -> list[str]:
    return [token.content for token in _tokens(page) if token.type == "code_inline"]


def list_targets(page: Path) -> list[str]:
    """The targets of links and pictures."""
    names = {"link_open": "href", "image": "src"}
    return [str(token.attrs[names[token.type]]) for token in _tokens(page) if token.type in names]
