"""Content of web pages without markup and boilerplate."""

from __future__ import annotations

import re
from collections.abc import Sequence

from touche_llm.errors import needs_extra

# Start and end, the end excluded.
Span = tuple[int, int]

# Max words of an entry of a menu, and min entries of a menu.
_ENTRY_WORDS = 4
_MENU_LINES = 4
_LABEL_WORDS = 8
_NOTICE_CHARS = 300
_CLOSING = "\"”’')]»"
# Notices may be whole sentences; labels begin a line of a few words that is not a sentence.
_NOTICE = re.compile(
    r"\b(?:we use cookies|(?:this|our) (?:web)?site uses cookies|accept (?:all )?cookies|all rights reserved|"
    r"(?:enable|turn on) javascript|javascript is (?:disabled|required)|continuing to (?:use|browse) (?:this|our) |"
    r"(?:subscribe|sign up) (?:to|for) (?:our|the|a|my) (?:\w+ )?(?:newsletter|mailing list|updates))|"
    r"copyright (?:©|\(c\)|\d{4})|(?:©|\(c\)) ?(?:copyright|\d{4})",
    re.IGNORECASE,
)
_LABEL = re.compile(
    r"\W*(?:share (?:this|on|via|with)|follow us|log ?in\b|sign (?:in|up)\b|create (?:an )?account|register now|"
    r"subscribe|skip to|(?:back|return) to top|read more|click here|leave a (?:comment|reply)|(?:contact|about) us\b|"
    r"(?:privacy|cookie) (?:policy|settings|notice)|terms (?:of (?:use|service)|and conditions|& conditions)|"
    r"related (?:articles|posts|links|stories)|powered by|(?:print|e-?mail) this|report abuse|advertisements?$)",
    re.IGNORECASE,
)
_SEPARATOR = re.compile(r"\s[>›»|·•/→]\s")


def split_lines(text: str) -> list[Span]:
    """Return the spans of the non-empty lines of a text, without surrounding white space."""
    lines: list[Span] = []
    at = 0
    for line in text.splitlines(keepends=True):
        stripped = line.strip()
        if stripped:
            start = at + len(line) - len(line.lstrip())
            lines.append((start, start + len(stripped)))
        at += len(line)
    return lines


def select_content(text: str, lines: Sequence[Span]) -> list[Span]:
    """Return the lines of a web page that are content.

    Removed are repeated lines, cookie and copyright notices, short lines that begin like links and buttons (log in,
    share, read more), breadcrumbs, and menus: four or more consecutive lines of at most four words that end no
    sentence. A single short line is kept, since it may be a heading.
    """
    seen: set[str] = set()
    content: list[Span] = []
    # Short lines since the last content, and whether each is boilerplate by itself.
    menu: list[tuple[Span, bool]] = []

    def end_menu() -> None:
        if len(menu) < _MENU_LINES:
            content.extend(line for line, boilerplate in menu if not boilerplate)
        menu.clear()

    for start, end in lines:
        line = text[start:end]
        boilerplate = line in seen or _is_boilerplate(line)
        seen.add(line)
        if len(line.split(maxsplit=_ENTRY_WORDS)) <= _ENTRY_WORDS and not has_sentence_end(line):
            menu.append(((start, end), boilerplate))
        elif not boilerplate:
            end_menu()
            content.append((start, end))
    end_menu()
    return content


def _is_boilerplate(line: str) -> bool:
    if len(line) > _NOTICE_CHARS:
        return False
    if _NOTICE.search(line):
        return True
    if has_sentence_end(line):
        return False
    if len(line.split()) <= _LABEL_WORDS and _LABEL.match(line):
        return True
    entries = _SEPARATOR.split(line)
    return len(entries) > 2 and all(len(entry.split()) <= _ENTRY_WORDS for entry in entries)


def has_sentence_end(line: str) -> bool:
    """Return whether a line ends with the punctuation of a sentence."""
    return line.rstrip(_CLOSING).endswith((".", "?", "!", "…"))


_PLAIN_TEXT = "text/plain"
_HTML = ("", "text/html", "application/xhtml+xml")


def extract_text(body: bytes, content_type: str = "") -> str:
    """Return the main content of a web page as plain text, a line for each block; empty if there is none.

    Args:
        body: Bytes of the page; their encoding is detected.
        content_type: Content type without parameters; by default HTML.

    Raises:
        ValueError: The content is not text.
        UsageError: The library resiliparse is missing.
    """
    with needs_extra("warc", "the text of web pages"):
        from resiliparse.extract.html2text import extract_plain_text
        from resiliparse.parse.encoding import bytes_to_str, detect_encoding
        from resiliparse.parse.html import HTMLTree

    kind = content_type.lower()
    if kind not in (*_HTML, _PLAIN_TEXT):
        raise ValueError(f"its content type is {content_type!r:.80}, not {', '.join(filter(None, _HTML))}")
    encoding = detect_encoding(body) or "utf-8"
    if kind == _PLAIN_TEXT:
        return str(bytes_to_str(body, encoding))
    tree = HTMLTree.parse_from_bytes(body, encoding)
    return str(extract_plain_text(tree, main_content=True, alt_texts=False))
