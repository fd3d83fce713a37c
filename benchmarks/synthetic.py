"""A synthetic corpus of any size in the layout of the real ones, with topics for it.

The same sizes give the same texts.

Words are invented and follow the Zipf-Mandelbrot law p(rank) ~ 1 / (rank + 10), from a million;
none is changed by the stemmer. With them stand the 33 stop words, in a quarter of the places as in
the real texts. Lengths are lognormal: passages of 110 indexed terms in the mean, sentences of 16,
arguments of 16.7 sentences (6.1 million sentences in 365,408 arguments), with the spread of the
real texts. Of the passages and sentences 5 % are near-duplicates: another one of the same
thousands, with a tenth of the words drawn again.
"""

from __future__ import annotations

import csv
import gzip
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Literal
from xml.sax.saxutils import escape

import numpy as np
import orjson
from numpy.typing import NDArray

from touche_llm.text.analysis import STOP_WORDS

PASSAGES = 868_655
SENTENCES = 6_100_000

_WORDS = 1_000_000
_SHIFT = 10.0
_PASSAGE_TERMS, _PASSAGE_SIGMA = 110.0, 0.3
_SENTENCE_TERMS, _SENTENCE_SIGMA = 16.0, 0.77
_ARGUMENT_SENTENCES, _ARGUMENT_SIGMA = 16.7, 1.0
_STOP_SHARE = 0.25
_DUPLICATES = 0.05
_CHANGED = 0.1
_PASSAGES_AT_ONCE = 4_000
_ARGUMENTS_AT_ONCE = 2_000
# An odd number, so that multiplying by it modulo a power of two gives each number another one: ids
# without an order.
_SPREAD = 0x9E3779B1

Numbers = NDArray[np.int64]


def words(count: int) -> list[str]:
    """So many different words, short ones first: syllables, then a letter in which no ending ends that is cut off."""
    syllables = ["".join(pair) for pair in itertools.product("bdfgklmnprtvz", "aeiou")]
    found: list[str] = []
    for length in itertools.count(1):
        for parts in itertools.product(syllables, repeat=length):
            stem = "".join(parts)
            found.extend((f"{stem}k", f"{stem}p"))
            if len(found) >= count:
                return found[:count]
    raise AssertionError("unreachable")


class _Texts:
    """Draws texts. Word numbers from `_WORDS` on are the stop words."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        plain = words(_WORDS) + sorted(STOP_WORDS)
        # The second half ends a sentence inside a passage.
        self._written = np.array([*plain, *(f"{word}." for word in plain)], dtype=object)
        self._plain = len(plain)

    def ranks(self, count: int, low: float, high: float) -> Numbers:
        """Ranks of words from `low` to `high`, Zipf-Mandelbrot, by the inverse of its continuous distribution."""
        least, most = low + _SHIFT, high + _SHIFT
        drawn = least * np.exp(self.random.random(count) * np.log(most / least)) - _SHIFT
        return np.asarray(np.minimum(drawn, high - 1), dtype=np.int64)

    def lengths(self, count: int, mean: float, sigma: float, least: int, most: int) -> Numbers:
        """Lognormal lengths of the given mean, cut to the bounds."""
        drawn = self.random.lognormal(np.log(mean) - sigma**2 / 2, sigma, count)
        return np.clip(np.rint(drawn), least, most).astype(np.int64)

    def texts(
        self, count: int, mean: float, sigma: float, least: int, most: int, full_stops: float
    ) -> list[str]:
        """Texts of so many indexed terms.

        A share of the words ends a sentence, and each text does.
        """
        lengths = self.lengths(count, mean / (1 - _STOP_SHARE), sigma, least, most)
        copied = self.random.random(count) < _DUPLICATES
        copied[0] = False
        copies, originals = np.flatnonzero(copied), np.flatnonzero(~copied)
        originals = originals[self.random.integers(0, len(originals), len(copies))]
        lengths[copies] = lengths[originals]
        ends = np.cumsum(lengths)
        total = int(ends[-1])
        drawn = self._drawn(total)
        for copy, original in zip(copies.tolist(), originals.tolist(), strict=True):
            size = int(lengths[copy])
            taken = drawn[ends[original] - size : ends[original]].copy()
            changed = self.random.random(size) < _CHANGED
            taken[changed] = self._drawn(int(changed.sum()))
            drawn[ends[copy] - size : ends[copy]] = taken
        last = self.random.random(total) < full_stops
        last[ends - 1] = True
        written = self._written[drawn + self._plain * last].tolist()
        starts = (ends - lengths).tolist()
        return [
            " ".join(written[start:end]) for start, end in zip(starts, ends.tolist(), strict=True)
        ]

    def _drawn(self, count: int) -> Numbers:
        numbers = self.ranks(count, 0, _WORDS)
        stops = self.random.random(count) < _STOP_SHARE
        numbers[stops] = self.random.integers(_WORDS, self._plain, int(stops.sum()))
        return numbers

    def title(self) -> str:
        """A query of two or three frequent words, as `which` and `better`, and two to four of a subject."""
        frequent, subject = (int(self.random.integers(2, high)) for high in (4, 5))
        ranks = np.concatenate([self.ranks(frequent, 10, 300), self.ranks(subject, 300, 30_000)])
        return " ".join(self._written[ranks].tolist())


def write_passages(path: Path, count: int = PASSAGES) -> None:
    """Write passages as the comparative task has them, gzipped where the name ends in `.gz`."""
    texts = _Texts(seed=0)
    done = 0
    with (
        gzip.open(path, "wb", compresslevel=1)
        if path.suffix == ".gz"
        else path.open("wb") as stream
    ):
        while done < count:
            some = min(_PASSAGES_AT_ONCE, count - done)
            lines = []
            for number, text in enumerate(
                texts.texts(some, _PASSAGE_TERMS, _PASSAGE_SIGMA, 30, 2_000, full_stops=0.06),
                start=done,
            ):
                page = number * _SPREAD % 2**32
                lines.append(
                    {
                        "id": f"clueweb12-{page >> 20:04}wb-{page >> 13 & 127:02}-{page & 8191:05}___{number % 9 + 1}",
                        "contents": text,
                        "chatNoirUrl": f"https://chatnoir.example/cache?uuid={page:032x}&index=cw12&raw&plain",
                    }
                )
            stream.write(
                b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in lines)
            )
            done += some


def write_arguments(path: Path, sentences: int = SENTENCES) -> None:
    """Write arguments as the processed args.me has them, so many sentences in all."""
    texts = _Texts(seed=0)
    done = sentences_done = 0
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["id", "conclusion", "premises", "context", "sentences"])
        while sentences_done < sentences:
            # The last argument is cut to what is left; it has a conclusion alone where that is one
            # sentence.
            sizes = texts.lengths(_ARGUMENTS_AT_ONCE, _ARGUMENT_SENTENCES, _ARGUMENT_SIGMA, 2, 400)
            before = np.cumsum(sizes) - sizes
            sizes = np.minimum(sizes, sentences - sentences_done - before)
            sizes = sizes[sizes > 0]
            total = int(sizes.sum())
            drawn = texts.texts(total, _SENTENCE_TERMS, _SENTENCE_SIGMA, 1, 700, full_stops=0.0)
            for row in _arguments(iter(drawn), sizes.tolist(), done):
                writer.writerow(row)
            done += len(sizes)
            sentences_done += total


def _arguments(drawn: Iterator[str], sizes: list[int], start: int) -> Iterator[list[str]]:
    for number, size in enumerate(sizes, start=start):
        # About five arguments of one discussion, which share the first half of the id.
        source = f"S{number // 5 * _SPREAD % 2**32:08x}"
        name = f"{source}-A{number * _SPREAD % 2**32:08x}"
        *premises, conclusion = itertools.islice(drawn, size)
        side = "PRO" if number % 2 else "CON"
        parts = [
            (f"{name}__PREMISE__{place}", text) for place, text in enumerate(premises, start=1)
        ]
        parts.append((f"{name}__CONC__1", conclusion))
        yield [
            name,
            conclusion,
            str([{"text": " ".join(premises), "stance": side, "annotations": []}]),
            str(
                {
                    "sourceId": source,
                    "discussionTitle": conclusion,
                    "mode": "discussion",
                    "aspects": [],
                }
            ),
            str([{"sent_id": part, "sent_text": text} for part, text in parts]),
        ]


def write_topics(
    path: Path, count: int = 50, task: Literal["comparative", "sentence_pairs"] = "comparative"
) -> None:
    """Write topics whose titles have four to seven indexed terms.

    Those of the comparative task name two objects.
    """
    texts = _Texts(seed=1)
    lines = ["<topics>"]
    for number in range(1, count + 1):
        title = texts.title()
        fields = {"number": str(number), "title": f"{title}?"}
        if task == "comparative":
            fields["objects"] = ", ".join(title.split()[-2:])
        fields["description"] = f"Somebody wants to know: {title}."
        fields["narrative"] = f"Relevant is what says {title}, and why."
        body = "".join(f"<{name}>{escape(text)}</{name}>\n" for name, text in fields.items())
        lines.append(f"<topic>\n{body}</topic>")
    path.write_text("\n".join([*lines, "</topics>", ""]), encoding="utf-8")
