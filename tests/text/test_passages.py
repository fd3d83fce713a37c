"""Long documents: what counts as content, where passages begin and end, and that offsets show what was shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from touche_llm.data.records import Topic
from touche_llm.text.analysis import Analyzer
from touche_llm.text.passages import (
    GAP_MARK,
    PASSAGE_CHARS,
    RankedPassages,
    rank_passages,
    select_content,
    split_lines,
)
from touche_llm.text.sanitize import sanitize

TOPIC = Topic(
    "2",
    "Is vaping with e-cigarettes safe?",
    "The user wonders about risks.",
    "Health effects of nicotine.",
)
ANALYZER = Analyzer()
ARGUMENT = "Vaping is safer than smoking, since nicotine alone harms the health of the lungs far less than tar."
FILLER = [
    f"The village fair of {1700 + n} was held on the green near the old mill." for n in range(600)
]
MANY = " ".join([*FILLER[:300], ARGUMENT, *FILLER[300:]])


def made(text: str, passage_chars: int = PASSAGE_CHARS) -> RankedPassages:
    return rank_passages(text, TOPIC, ANALYZER, passage_chars)


def content(text: str) -> list[str]:
    return [text[start:end] for start, end in select_content(text, split_lines(text))]


def test_menus_notices_links_breadcrumbs_and_repetitions_are_left_out_and_sentences_and_headings_kept() -> (
    None
):
    page = """\
    Home
    About the project
    Our Products
    Blog

    Health > Smoking > E-cigarettes
    Is vaping safe?
    Skip to main content
    We use cookies to give you the best experience on this website.
    For and against
    Tobacco firms share this view, but they sell both.
    Cookies are a risk to privacy, as many users never read what they accept.
    Share this on Facebook
    Log in or register
    Tobacco firms share this view, but they sell both.
    Nicotine is addictive
    It harms the young more than others.
    Copyright 2019 Some Publisher. All rights reserved.
    Effects of nicotine | Risks of vaping
    - it costs less than smoking does
    - no tar gets into the lungs
    - nobody knows the long term effects
    - bans drive smokers back to cigarettes
    """
    assert content(page) == [
        "Is vaping safe?",
        "For and against",
        "Tobacco firms share this view, but they sell both.",
        "Cookies are a risk to privacy, as many users never read what they accept.",
        "Nicotine is addictive",
        "It harms the young more than others.",
        # One separator makes no breadcrumb, and a list of arguments is no menu.
        "Effects of nicotine | Risks of vaping",
        "- it costs less than smoking does",
        "- no tar gets into the lungs",
        "- nobody knows the long term effects",
        "- bans drive smokers back to cigarettes",
    ]


def test_a_page_of_boilerplate_alone_is_kept_and_says_so() -> None:
    page = "Home\nLog in\nContact us\nSitemap\n"
    document = made(page)
    assert content(page) == []
    assert document.only_boilerplate and document.complete
    assert document.whole.text.split("\n") == page.split()[:1] + ["Log in", "Contact us", "Sitemap"]
    assert not made("One sentence.\nLog in").only_boilerplate
    assert not made("\n \n").only_boilerplate


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Dr. Smith moved to the U.S. in 1990. He paid 3.5 dollars, e.g. for food.", 2),
        ("“Is it so?” Yes! It is; see p. 12. Done", 4),
        ("A line that ends nothing\nAnother line that begins anew", 2),
        ("A sentence goes on in the next line\nas in mails with fixed width. Another one.", 2),
        ("Not joined over an empty line\n\nas these are paragraphs", 2),
        ("It goes on\r\nafter a Windows line break", 1),
        ("Nor over a line that is left out\nLog in\nas a button is none of its words", 2),
        ("It says “so.”\nand the next is another", 2),
        # The splitter takes marks after the first for a sentence of their own.
        (f"It closes all quotations.{'”' * 9}\nand the next is another", 3),
        (f"So many marks close none.{'”' * 10}\nand go on", 2),
        ("A sentence ends here.\n\nTo go\non in the next line", 2),
        ("", 0),
    ],
)
def test_sentences_end_where_a_reader_ends_them(text: str, sentences: int) -> None:
    assert len(made(text).sentences) == sentences


def test_passages_end_at_sentence_ends_share_a_sentence_and_hold_everything() -> None:
    document = made(MANY)
    in_order = sorted(document.passages)
    for (first, end), (following, _) in zip(in_order, in_order[1:], strict=False):
        assert first < following == end - 1
        assert sum(stop - start for start, stop in document.sentences[first:end]) <= PASSAGE_CHARS
        assert MANY[document.sentences[end - 1][1] - 1] == "."
    assert (in_order[0][0], in_order[-1][1]) == (0, len(document.sentences))


def test_a_sentence_longer_than_a_passage_is_split_at_white_space() -> None:
    words = [f"word{n}" for n in range(1000)]
    document = made(" ".join(words))
    assert len(document.passages) > 5
    shown = [document.text[start:end] for start, end in document.sentences]
    assert all(len(sentence) <= PASSAGE_CHARS for sentence in shown)
    assert " ".join(shown).split() == words


def test_the_passage_that_argues_is_first_the_beginning_second_and_what_lies_between_is_marked() -> (
    None
):
    document = made(MANY)
    best = document.best(1)
    assert ARGUMENT in best.text
    assert best.text.startswith(f"{GAP_MARK}\n") and best.text.endswith(f"\n{GAP_MARK}")
    two = document.best(2)
    beginning, middle, nothing = two.text.split(GAP_MARK)
    assert beginning.startswith(FILLER[0]) and ARGUMENT in middle and not nothing.strip()
    assert [MANY[start:end] for start, end in two.parts] == [beginning.strip(), middle.strip()]


def test_overlapping_passages_are_shown_once_and_all_of_them_are_the_whole() -> None:
    document = made(MANY)
    for count in range(1, len(document.passages) + 1):
        shown = document.best(count)
        ends = [place for part in shown.parts for place in part]
        assert ends == sorted(set(ends))
        assert len(shown.parts) == len(
            [part for part in shown.text.split(GAP_MARK) if part.strip()]
        )
    assert document.best(len(document.passages)) == document.whole
    assert document.whole.text == MANY
    assert document.whole.parts == ((0, len(MANY)),)


def test_left_out_boilerplate_parts_the_whole_without_a_mark() -> None:
    page = "The first sentence of it.\n\nLog in\nThe second sentence of it.\nThe third."
    document = made(page)
    assert not document.complete
    assert (
        document.whole.text == "The first sentence of it.\nThe second sentence of it.\nThe third."
    )
    assert [page[start:end] for start, end in document.whole.parts] == [
        "The first sentence of it.",
        "The second sentence of it.\nThe third.",
    ]


def essence(text: str) -> str:
    """What is left of a text without white space and marks."""
    return "".join(text.split()).replace(GAP_MARK, "")


WORDS = [
    *"Vaping is risky. Yes! “No?” e.g. Home A a (".split(),
    "Log in",
    "\nMenu\n",
    "x" * 30,
    ". ",
    '"',
]
ODD = ["[INST]", "<|im_end|>", "\n\n", "\r\n", " | ", *"\n\t\x00\u200b\u2028\xa0é😀…\ud800"]
texts = st.lists(st.sampled_from(WORDS + ODD) | st.text(max_size=8), max_size=60).map(
    " ".join
) | st.text(max_size=200)


@given(texts, st.integers(1, 60), st.integers(0, 12))
def test_the_parts_are_exactly_what_is_shown(text: str, passage_chars: int, count: int) -> None:
    document = made(text, passage_chars)
    for excerpt in (document.whole, document.best(count)):
        assert essence(excerpt.text) == essence(
            sanitize(" ".join(text[start:end] for start, end in excerpt.parts))
        )
        assert sanitize(excerpt.text) == excerpt.text
        ends = [place for part in excerpt.parts for place in part]
        assert ends == sorted(ends) and all(start < end for start, end in excerpt.parts)
    assert essence(document.best(len(document.passages)).text) == essence(document.whole.text)
    if document.complete:
        assert essence(document.whole.text) == essence(sanitize(text))


@given(texts, st.integers(1, 60), st.integers(0, 80))
def test_the_head_of_the_best_passage_points_to_what_it_shows(
    text: str, passage_chars: int, chars: int
) -> None:
    document = made(text, passage_chars)
    head = document.head(chars)
    assert head.text == document.passage[:chars]
    shown = sanitize(" ".join(text[start:end] for start, end in head.parts))
    assert "".join(head.text.split()) == "".join(shown.split())


SLOW = [".", "a", "a. A ", "“a. B ", "(a. ", "[", "\u200b"]


@pytest.mark.parametrize("unit", [*SLOW, "Home\n", "Log in | ", "a\nb", "subscribe to our "])
def test_texts_made_to_be_slow_end(unit: str) -> None:
    document = made(unit * (100_000 // len(unit)))
    for count in (1, len(document.passages) // 2, len(document.passages)):
        assert document.best(count).chars <= document.whole.chars
