"""Content of web pages without boilerplate, and passages of long documents, ranked for a topic.

The functions on passages take linear time, and all spans are character offsets into the original
text.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from sentencex import segment  # type: ignore[import-untyped]

from touche_llm.data.records import Topic
from touche_llm.data.topics.reading import build_query
from touche_llm.errors import needs_extra
from touche_llm.text.analysis import Analyzer
from touche_llm.text.sanitize import sanitize

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

    Removed are repeated lines, cookie and copyright notices, short lines that begin like links and
    buttons (log in, share, read more), breadcrumbs, and menus: four or more consecutive lines of at
    most four words that end no sentence. A single short line is kept, since it may be a heading.
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


def extract_text(body: bytes, content_type: str = "") -> str:
    """Return the main content of a web page as plain text, a line for each block.

    Empty if there is none.

    Its encoding is detected. The content type, without parameters, is HTML by default.

    Raises:
        ValueError: The content is not text.
        UsageError: The library resiliparse is missing.
    """
    with needs_extra("warc", "the text of web pages"):
        from resiliparse.extract.html2text import extract_plain_text
        from resiliparse.parse.encoding import bytes_to_str, detect_encoding
        from resiliparse.parse.html import HTMLTree

    kind = content_type.lower() or "text/html"
    if kind not in ("text/plain", "text/html", "application/xhtml+xml"):
        raise ValueError(f"its content type is {content_type!r:.80}, not text or HTML")
    encoding = detect_encoding(body) or "utf-8"
    if kind == "text/plain":
        return str(bytes_to_str(body, encoding))
    tree = HTMLTree.parse_from_bytes(body, encoding)
    return str(extract_plain_text(tree, main_content=True, alt_texts=False))


# Line that marks omitted passages; it cannot be read as chat control.
GAP_MARK = "…"
# About 120 words of English; in characters, so that a text without white space also has passages.
PASSAGE_CHARS = 720
# Characters per call of the sentence splitter, which is quadratic in unpaired quotation marks.
_PIECE_CHARS = 4000
# Robertson and Zaragoza's usual values for short texts.
_K1, _B = 1.2, 0.75


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Part of a document for a prompt: sanitized, with collapsed white space and marked gaps.

    Its spans, in order.
    """

    text: str
    parts: tuple[Span, ...]

    @property
    def chars(self) -> int:
        """Number of the document's characters in the excerpt."""
        return sum(end - start for start, end in self.parts)


@dataclass(frozen=True)
class RankedPassages:
    """Passages of a document, from `rank_passages`.

    Attributes:
        text: Original text of the document.
        sentences: Spans of the sentences of the content, in order; none is longer than a passage.
        passages: Ranges of sentences, best first; each shares a sentence with its successor in the
            document.
        complete: No line was removed as boilerplate.
        only_boilerplate: All lines look like boilerplate, so all were kept.
    """

    text: str
    sentences: tuple[Span, ...]
    passages: tuple[Span, ...]
    complete: bool
    only_boilerplate: bool

    @cached_property
    def whole(self) -> Excerpt:
        """Excerpt with all content."""
        return self._make_excerpt([(0, len(self.sentences))])

    @property
    def preference(self) -> list[Span]:
        """Spans of the passages in the text, best first."""
        return [
            (self.sentences[first][0], self.sentences[end - 1][1]) for first, end in self.passages
        ]

    def best(self, count: int) -> Excerpt:
        """Return the `count` best passages in document order, with gaps marked and overlaps merged.

        All passages together are the whole content.
        """
        return self._make_excerpt(
            _merge(sorted(self.passages[:count]), lambda before, first: first <= before[1])
        )

    @cached_property
    def passage(self) -> str:
        """Sanitized text of the best passage, without gap marks; empty if there is no passage."""
        return sanitize(
            "\n".join(
                _collapse_white_space(self.text[start:end]) for start, end in self._get_best_parts()
            )
        )

    def head(self, chars: int) -> Excerpt:
        """Return the first `chars` characters of `passage`, with their spans in the document."""
        text = self.passage[:chars]
        left = sum(not c.isspace() for c in text)
        parts: list[Span] = []
        for start, end in self._get_best_parts():
            # White space differs between document and passage, and sanitizing removes characters.
            places = (at + 1 for at in range(start, end) if sanitize(self.text[at]).strip())
            stop = start
            while left and (place := next(places, None)) is not None:
                stop, left = place, left - 1
            if stop > start:
                parts.append((start, stop))
        return Excerpt(text, tuple(parts))

    def _get_best_parts(self) -> list[Span]:
        return self._merge_spans(*self.passages[0]) if self.passages else []

    def _make_excerpt(self, ranges: list[Span]) -> Excerpt:
        lines: list[str] = []
        parts: list[Span] = []
        for first, end in ranges:
            if lines or first:
                lines.append(GAP_MARK)
            range_parts = self._merge_spans(first, end)
            lines.extend(
                _collapse_white_space(self.text[start:stop]) for start, stop in range_parts
            )
            parts.extend(range_parts)
        if ranges and ranges[-1][1] < len(self.sentences):
            lines.append(GAP_MARK)
        return Excerpt(sanitize("\n".join(lines)), tuple(parts))

    def _merge_spans(self, first: int, end: int) -> list[Span]:
        """Return a range of sentences as spans of the text, merged where only white space is between them."""
        return _merge(
            self.sentences[first:end],
            lambda before, start: not self.text[before[1] : start].strip(),
        )


def _merge(spans: Iterable[Span], is_joined: Callable[[Span, int], bool]) -> list[Span]:
    """Merge each span with those before it if `is_joined(before, start)`."""
    merged: list[Span] = []
    for start, end in spans:
        if merged and is_joined(merged[-1], start):
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged


def rank_passages(
    text: str, topic: Topic, analyzer: Analyzer, passage_chars: int = PASSAGE_CHARS
) -> RankedPassages:
    """Split a document into passages and rank them for a topic.

    The query is the topic's title, description and narrative: the words of the title are everywhere
    in a retrieved page, those of the other fields discriminate between its passages. The first
    passage of the document ranks second unless it ranks first, since title and lead introduce the
    rest.

    A passage has at most `passage_chars` characters. Share an analyzer between documents, since it
    caches stems.
    """
    everything = split_lines(text)
    lines = select_content(text, everything)
    sentences = tuple(
        short
        for start, end in _join_lines(text, lines or everything)
        for sentence in _split_sentences(text, start, end)
        for short in _split_span(text, *sentence, passage_chars)
    )
    passages = _group_sentences(sentences, passage_chars)
    terms = [
        analyzer.analyze(" ".join(text[start:end] for start, end in sentences[slice(*passage)]))
        for passage in passages
    ]
    query = analyzer.analyze(build_query(topic, ("title", "description", "narrative")))
    scores = _score_bm25(terms, query)
    order = sorted(range(len(passages)), key=lambda number: (-scores[number], number))
    if order and order[0] != 0:
        order.remove(0)
        order.insert(1, 0)
    return RankedPassages(
        text=text,
        sentences=sentences,
        passages=tuple(passages[number] for number in order),
        complete=len(lines or everything) == len(everything),
        only_boilerplate=bool(everything) and not lines,
    )


def _join_lines(text: str, lines: list[Span]) -> list[Span]:
    """Join lines where a sentence continues in the next one, as in texts wrapped at a fixed width."""

    def continues(before: Span, start: int) -> bool:
        first, stop = before
        # Consecutive lines: no removed line and no empty line between them.
        is_next = len(f"{text[stop:start]}.".splitlines()) == 2
        return (
            is_next
            and text[start].islower()
            and not has_sentence_end(text[max(first, stop - 10) : stop])
        )

    return _merge(lines, continues)


def _split_sentences(text: str, start: int, end: int) -> Iterator[Span]:
    """Yield the sentences of a block, without surrounding white space."""
    for piece_start, piece_end in _split_span(text, start, end, _PIECE_CHARS):
        # The splitter refuses lone surrogates; a question mark for each keeps the offsets.
        piece = text[piece_start:piece_end].encode("utf-8", "replace").decode()
        at = piece_start
        for sentence in segment("en", piece):
            stripped = sentence.strip()
            if stripped:
                left = at + len(sentence) - len(sentence.lstrip())
                yield left, left + len(stripped)
            at += len(sentence)


def _split_span(text: str, start: int, end: int, limit: int) -> Iterator[Span]:
    """Split a span into spans of at most `limit` characters, at white space if possible, and strip them."""
    while end - start > limit:
        piece = text[start : start + limit + 1]
        kept = piece.rstrip() if piece[-1].isspace() else piece.rsplit(maxsplit=1)[0][:limit]
        yield start, start + len(kept)
        start += len(kept)
        while text[start].isspace():
            start += 1
    yield start, end


def _group_sentences(sentences: Sequence[Span], limit: int) -> list[Span]:
    """Group sentences into overlapping ranges of at most `limit` characters.

    Each range begins with the last sentence of its predecessor, if both that sentence and the next
    one fit.
    """
    lengths = [end - start for start, end in sentences]
    passages: list[Span] = []
    first = 0
    while first < len(lengths):
        end, chars = first + 1, lengths[first]
        while end < len(lengths) and chars + lengths[end] <= limit:
            chars += lengths[end]
            end += 1
        passages.append((first, end))
        if end == len(lengths):
            break
        first = end - 1 if lengths[end - 1] + lengths[end] <= limit else end
    return passages


def _score_bm25(passages: list[list[str]], query: list[str]) -> list[float]:
    """Return the non-negative BM25 scores of analyzed passages.

    Repeated query terms count repeatedly.

    Formula: Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond"
        (2009), section 3.4,
    without the constant factor k1 + 1 and with 1 added under the logarithm, as in Lucene. Scores
    are rounded, so that ties are the same on every machine.
    """
    query_counts = Counter(query)
    counts = [Counter(term for term in terms if term in query_counts) for terms in passages]
    document_counts = Counter(term for count in counts for term in count)
    weights = {
        term: query_counts[term] * math.log1p((len(passages) - n + 0.5) / (n + 0.5))
        for term, n in document_counts.items()
    }
    total = sum(map(len, passages)) or 1
    scores = []
    for terms, count in zip(passages, counts, strict=True):
        saturation = _K1 * (1 - _B + _B * len(terms) * len(passages) / total)
        scores.append(
            round(sum(weights[term] * n / (n + saturation) for term, n in count.items()), 6)
        )
    return scores


def _collapse_white_space(text: str) -> str:
    """Collapse white space within lines, and remove empty lines."""
    return "\n".join(line for line in (" ".join(raw.split()) for raw in text.splitlines()) if line)
