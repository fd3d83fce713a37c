"""Short names of runs in tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from touche_llm.cli.measured_runs import given_runs
from touche_llm.evaluation.qrels import read_qrels
from touche_llm.tasks import get_task

LONG = "a-name-that-has-no-room-in-a-table"


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["one", "two"], ["one", "two"]),
        ([LONG], ["run"]),
        ([f"{LONG}-1", f"{LONG}-2", "short"], ["A", "B", "C"]),
        ([f"{LONG}-{number}" for number in range(28)], [*"ABCDEFGHIJKLMNOPQRSTUVWXYZ", "26", "27"]),
    ],
)
def test_long_names_are_replaced_by_letters_and_after_these_by_numbers(
    tmp_path: Path, names: list[str], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    task = get_task("comparative")
    Path("relevance").write_text("1 0 a 1\n")
    for name in names:
        Path(name).write_text("1 NO a 1 1 t\n")
    given = given_runs([Path(name) for name in names], read_qrels({"relevance": Path("relevance")}, task), task)
    assert [(each.name, each.label) for each in given] == list(zip(names, expected, strict=True))
