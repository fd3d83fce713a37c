"""Text of web pages."""

from __future__ import annotations

from touche_llm.errors import needs_extra

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
