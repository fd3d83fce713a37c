"""How much of a thought is printed."""

from __future__ import annotations

import pytest

from touche_llm.cli.show import show_thoughts


@pytest.mark.parametrize(("length", "kept", "end"), [(1999, 1999, "x"), (2000, 2000, "x"), (2001, 2000, "…")])
def test_only_a_thought_that_is_cut_ends_with_an_ellipsis(
    length: int, kept: int, end: str, capsys: pytest.CaptureFixture[str]
) -> None:
    show_thoughts({"d": [("judge", "x" * length)]}, ["other", "d"])
    head, text = capsys.readouterr().out.split("\n")[1:3]
    assert head.split() == ["2", "d,", "judge"]
    assert (text.count("x"), text[-1]) == (kept, end)
