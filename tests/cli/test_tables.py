"""Tables of a given width."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest

from touche_llm.cli.emit import Column, show_lines, show_table

COLUMNS = (
    Column("n"),
    Column("name", is_text=True),
    Column("text", drop=3, cut=6),
    Column("b", drop=2),
    Column("a", drop=1),
    Column("share", drop=2),
)
ROWS: tuple[Sequence[str], ...] = (
    ("1", "plain", "many words of a passage", "22", "333", "0.1"),
    ("a heading of many words",),
    ("10", "長い", "few", "2", "3", "0.25"),
    (),
    ("", "", "two\nlines", "", "", ""),
)


def shown(width: int | None) -> list[str]:
    stream = io.StringIO()
    show_table(COLUMNS, ROWS, title="Title", below=["below"], file=stream, width=width)
    return stream.getvalue().splitlines()


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (
            None,
            [
                " n  name   text                      b    a  share",
                "─" * 50,
                " 1  plain  many words of a passage  22  333    0.1",
                "a heading of many words",
                "10  長い   few                       2    3   0.25",
                "─" * 50,
                "           two lines",
            ],
        ),
        (
            33,
            [
                " n  name   text     b    a  share",
                "─" * 33,
                " 1  plain  many …  22  333    0.1",
                "a heading of many words",
                "10  長い   few      2    3   0.25",
                "─" * 33,
                "           two l…",
            ],
        ),
        (
            32,
            [
                " n  name    b    a  share",
                "─" * 25,
                " 1  plain  22  333    0.1",
                "a heading of many words",
                "10  長い    2    3   0.25",
                "─" * 25,
                "",
                "(not shown in 32 columns: text; --format tsv has all)",
            ],
        ),
        (
            21,
            [
                " n  name     a",
                "─" * 14,
                " 1  plain  333",
                "a heading of many wo…",
                "10  長い     3",
                "─" * 14,
                "",
                "(not shown in 21 columns: text, b, share; --format tsv has all)",
            ],
        ),
        (
            8,
            [
                " n  name",
                "─" * 9,
                " 1  plain",
                "a headi…",
                "10  長い",
                "─" * 9,
                "",
                "(not shown in 8 columns: text, b, a, share; --format tsv has all)",
            ],
        ),
    ],
)
def test_columns_are_dropped_in_their_order_and_only_texts_are_cut(width: int | None, expected: list[str]) -> None:
    assert shown(width) == ["Title", "  below", *expected]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("width", "keeps_indented", "expected"),
    [
        ("24", True, ["words that are too many", "   here", "  a command that is not broken", "short"]),
        ("24", False, ["words that are too many", "   here", "  a command that is not", "   broken", "short"]),
        ("80", False, ["words that are too many here", "  a command that is not broken", "short"]),
    ],
)
def test_a_terminal_gets_long_lines_broken_between_words_apart_from_commands(
    width: str, keeps_indented: bool, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    lines = ["words that are too many here", "  a command that is not broken", "short"]
    stream = Terminal()
    show_lines(lines, stream, 3, keeps_indented=keeps_indented)
    assert stream.getvalue().splitlines() == expected
    file = io.StringIO()
    show_lines(lines, file, 3, keeps_indented=keeps_indented)
    assert file.getvalue().splitlines() == lines
