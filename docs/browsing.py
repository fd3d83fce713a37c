"""What pages need in a browser: whole words in commands, and a search.

Sphinx fetches a page to show an excerpt of it, which a browser refuses if the documentation is
opened from a folder. The search page therefore has the texts of the pages in a script.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

_SCRIPT = "pages.js"
_ARTICLE = re.compile(r'<article role="main".*?</article>', re.DOTALL)
# Ends of elements whose texts would be one word without white space between them.
_END = re.compile(r"</(?:d[td]|t[dh]|li|p|h\d)>")
_CODE = re.compile(r"<pre>.*?</pre>|<code .*?</code>", re.DOTALL)
# Options and names with hyphens, outside tags, as `--dry-run`; a browser would break them after a
# hyphen.
_WORD = re.compile(r"(?<![^\s>])[\w./]*-[\w./-]{1,30}(?=[\s<])(?![^<>]*>)")
# In place of the fetch of a page: its article.
_FETCH = """
const fetchElsewhere = window.fetch;
window.fetch = (url, ...options) => {
  const page = PAGES[String(url).replace(/^\\.\\//, "")];
  return page === undefined ? fetchElsewhere(url, ...options) : Promise.resolve(new Response(page));
};
"""


def _prepare_page(
    app: Any, page: str, template: str, context: dict[str, Any], doctree: Any
) -> None:
    """Add the script to the search page, and keep words of commands whole."""
    if page == "search":
        app.add_js_file(_SCRIPT)
    if "body" in context:
        context["body"] = _CODE.sub(lambda code: _mark_words(code[0]), context["body"])


def _mark_words(code: str) -> str:
    """Mark the words with hyphens in an element of code."""
    return _WORD.sub(r'<span class="whole">\g<0></span>', code)


def _write_script(app: Any, exception: Exception | None) -> None:
    """Write the script with the articles of all pages.

    It is called when the documentation is built.
    """
    if exception is not None:
        return

    folder = Path(app.outdir)
    articles: dict[str, str] = {}
    for path in sorted(folder.rglob("*.html")):
        article = _ARTICLE.search(path.read_text(encoding="utf-8"))
        if article is not None:
            name = path.relative_to(folder).as_posix()
            articles[name] = _END.sub(r"\g<0> ", article[0])

    pages = json.dumps(articles, ensure_ascii=False)
    script = folder / "_static" / _SCRIPT
    script.write_text(f"const PAGES = {pages};{_FETCH}", encoding="utf-8")


def setup(app: Any) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("html-page-context", _prepare_page)
    app.connect("build-finished", _write_script)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
