"""A file that leads a browser to the lab."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path

from touche_llm.data.files import open_private_folder

_PAGE = """<!doctype html>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={url}">
<title>touche-llm lab</title>
"""


@contextmanager
def write_redirect(url: str) -> Iterator[Path]:
    """Yield a page that redirects to the URL of a lab, and remove it at the end of the block.

    Every user of a machine can read the command line of a browser. The page, which only this user
    can read, keeps the token out of it.
    """
    with open_private_folder() as folder:
        page = folder / "lab.html"
        page.touch(mode=0o600)
        page.write_text(_PAGE.format(url=escape(url)), encoding="utf-8")
        yield page
