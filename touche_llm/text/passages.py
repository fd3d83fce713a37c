"""Long documents: the passages of a web page that a model should see for a topic.

Everything is linear in the text, and every place is kept as character offsets into the text as it was given.
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from sentencex import segment  # type: ignore[import-untyped]

from touche_llm.data.records import Topic
from touche_llm.data.topics import build_query
from touche_llm.text.analysis import Analyzer
from touche_llm.text.boilerplate import Span, has_sentence_end, select_content, split_lines
from touche_llm.text.sanitize import sanitize

# Stands where passages are left out, on a line of its own; nothing in it could be chat control.
GAP_MARK = "…"
# About 120 words of English. In characters, so that a text without white space has passages as well.
PASSAGE_CHARS = 720
# Sentences are looked for in so many characters at a time: the splitter is quadratic in unpaired quotation marks.
_PIECE_CHARS = 4000
# Robertson and Zaragoza's usual values for short texts.
_K1, _B = 1.2, 0.75


@dataclass(frozen=True, slots=True)
class Excerpt:
    """What a prompt shows of a document.

    Attributes:
        text: as the prompt shows it: white space collapsed, neutralised, gaps marked.
        parts: the spans of the document's own characters that it shows, in order.
    """

    text: str
    parts: tuple[Span, ...]

    @property
    def chars(self) -> int:
        """How many of the document's characters it shows."""
        return sum(end - start for start, end in self.parts)


@dataclass(frozen=True)
class RankedPassages:
    """A document in passages; `excerpts` makes it.

    Attributes:
        text: the document as it was given.
        sentences: spans of the content's sentences, in order; none is longer than a passage.
        passages: each a range of sentences, the best first; each shares a sentence with the next in the document.
        complete: no line was left out.
        only_boilerplate: no line is content by the rules, so all were kept.
    """

    text: str
    sentences: tuple[Span, ...]
    passages: tuple[Span, ...]
    complete: bool
    only_boilerplate: bool

    @property
    def count(self) -> int:
        """The number of passages."""
        return len(self.passages)

    @cached_property
    def whole(self) -> Excerpt:
        """All content."""
        return self._show([(0, len(self.sentences))])

    @property
    def preference(self) -> list[Span]:
        """The spans of the text from each passage's beginning to its end, the best first."""
        return [(self.sentences[first][0], self.sentences[end - 1][1]) for first, end in self.passages]

    def best(self, count: int) -> Excerpt:
        """The `count` best passages in document order, with a mark where others are left out; never a text twice.

        All passages together are the whole.
        """
        ranges: list[Span] = []
        for first, end in sorted(self.passages[:count]):
            if ranges and first <= ranges[-1][1]:
                ranges[-1] = (ranges[-1][0], max(end, ranges[-1][1]))
            else:
                ranges.append((first, end))
        return self._show(ranges)

    @cached_property
    def passage(self) -> str:
        """The best passage alone, as a prompt shows it but without marks; empty where there is none."""
        return sanitize("\n".join(_collapsed(self.text[start:end]) for start, end in self._best_parts()))

    def head(self, chars: int) -> Excerpt:
        """The first `chars` characters of `passage`, and the document's characters that they show."""
        text = self.passage[:chars]
        left = sum(not c.isspace() for c in text)
        parts: list[Span] = []
        for start, end in self._best_parts():
            # White space differs between the two, and what neutralising takes away is not in the passage.
            places = (at + 1 for at in range(start, end) if _is_shown(self.text[at]))
            stop = start
            while left and (place := next(places, None)) is not None:
                stop, left = place, left - 1
            if stop > start:
                parts.append((start, stop))
        return Excerpt(text, tuple(parts))

    def _best_parts(self) -> list[Span]:
        return self._parts(*self.passages[0]) if self.passages else []

    def _show(self, ranges: list[Span]) -> Excerpt:
        lines: list[str] = []
        parts: list[Span] = []
        for first, end in ranges:
            if lines or first:
                lines.append(GAP_MARK)
            of_range = self._parts(first, end)
            lines.extend(_collapsed(self.text[start:stop]) for start, stop in of_range)
            parts.extend(of_range)
        if ranges and ranges[-1][1] < len(self.sentences):
            lines.append(GAP_MARK)
        return Excerpt(sanitize("\n".join(lines)), tuple(parts))

    def _parts(self, first: int, end: int) -> list[Span]:
        """A range of sentences as spans of the text; sentences with nothing but white space between are one."""
        parts: list[Span] = []
        for start, stop in self.sentences[first:end]:
            if parts and not self.text[parts[-1][1] : start].strip():
                parts[-1] = (parts[-1][0], stop)
            else:
                parts.append((start, stop))
        return parts


def rank_passages(text: str, topic: Topic, analyzer: Analyzer, passage_chars: int = PASSAGE_CHARS) -> RankedPassages:
    """A document in passages, ranked for a topic.

    The query is the topic's title, description and narrative: the title's words are everywhere in a page that was found
    by them, those of the other two tell its passages apart. The passage that begins the document is the second choice
    wherever it is not the first, since title and lead say what the rest is about.

    Args:
        text: plain text; bounded by the caller.
        topic: what the passages are ranked for.
        analyzer: of the passages and the topic; one serves many documents.
        passage_chars: the most characters of a passage.
    """
    everything = split_lines(text)
    lines = select_content(text, everything)
    sentences = tuple(
        short
        for start, end in _blocks(text, lines or everything)
        for sentence in _sentences(text, start, end)
        for short in _split(text, *sentence, passage_chars)
    )
    passages = _passages(sentences, passage_chars)
    terms = [
        analyzer.analyze(" ".join(text[slice(*each)] for each in sentences[slice(*passage)])) for passage in passages
    ]
    query = analyzer.analyze(build_query(topic, ("title", "description", "narrative")))
    scores = _bm25(terms, query)
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


def _blocks(text: str, lines: list[Span]) -> list[Span]:
    """Lines joined where a sentence goes on in the next one, as in texts with lines of a fixed width."""
    blocks: list[Span] = []
    for start, end in lines:
        if blocks:
            before, stop = blocks[-1]
            between = text[stop:start]
            # Within a line break there is no text and no empty line.
            next_line = not between.strip() and len(f"{between}.".splitlines()) == 2
            if next_line and text[start].islower() and not has_sentence_end(text[max(before, stop - 10) : stop]):
                blocks[-1] = (before, end)
                continue
        blocks.append((start, end))
    return blocks


def _sentences(text: str, start: int, end: int) -> Iterator[Span]:
    """The sentences of a block, without white space around them."""
    for piece_start, piece_end in _split(text, start, end, _PIECE_CHARS):
        # The splitter takes no lone surrogates; a question mark each keeps the places.
        piece = text[piece_start:piece_end].encode("utf-8", "replace").decode()
        at = piece_start
        for sentence in segment("en", piece):
            stripped = sentence.strip()
            if stripped:
                left = at + len(sentence) - len(sentence.lstrip())
                yield left, left + len(stripped)
            at += len(sentence)


def _split(text: str, start: int, end: int, most: int) -> Iterator[Span]:
    """A span in spans of at most `most` characters, at white space where there is any, without white space around."""
    while end - start > most:
        cut = start + most
        while cut > start and not text[cut].isspace():
            cut -= 1
        if cut == start:
            cut = start + most
        stop = cut
        while text[stop - 1].isspace():
            stop -= 1
        yield start, stop
        start = cut
        while text[start].isspace():
            start += 1
    yield start, end


def _passages(sentences: Sequence[Span], most: int) -> list[Span]:
    """Ranges of sentences of at most `most` characters together, each from the last sentence of the one before on.

    Where that sentence leaves no room for the next, a range begins with the next.
    """
    lengths = [end - start for start, end in sentences]
    passages: list[Span] = []
    first = 0
    while first < len(lengths):
        end, chars = first + 1, lengths[first]
        while end < len(lengths) and chars + lengths[end] <= most:
            chars += lengths[end]
            end += 1
        passages.append((first, end))
        if end == len(lengths):
            break
        first = end - 1 if end - 1 > first and lengths[end - 1] + lengths[end] <= most else end
    return passages


def _bm25(passages: list[list[str]], query: list[str]) -> list[float]:
    """BM25 scores of the terms of passages, none negative; a word that the query repeats counts as often.

    The formula is that of Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009),
    section 3.4, without the constant factor k1 + 1 and with 1 added under the logarithm, as Lucene has it. Rounded, so
    that passages alike for the query tie on every machine.
    """
    asked = Counter(query)
    counts = [Counter(term for term in terms if term in asked) for terms in passages]
    holding = Counter(term for count in counts for term in count)
    weights = {term: asked[term] * math.log1p((len(passages) - n + 0.5) / (n + 0.5)) for term, n in holding.items()}
    total = sum(map(len, passages)) or 1
    scores = []
    for terms, count in zip(passages, counts, strict=True):
        saturation = _K1 * (1 - _B + _B * len(terms) * len(passages) / total)
        scores.append(round(sum(weights[term] * n / (n + saturation) for term, n in count.items()), 6))
    return scores


def _collapsed(text: str) -> str:
    """The text with one space for white space within a line, and without empty lines."""
    return "\n".join(line for line in (" ".join(each.split()) for each in text.splitlines()) if line)


def _is_shown(character: str) -> bool:
    """Whether `sanitize` keeps a character that is no white space."""
    return not character.isspace() and unicodedata.category(character) not in ("Cc", "Cf", "Cs")
