"""The log of accesses to judged topics, and which of them a confirmation counts."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from touche_llm.errors import DataError
from touche_llm.prompt_lab.holdout import (
    Access,
    access_log,
    check_log,
    describe_accesses,
    read_accesses,
    record_access,
    select_counted,
)

JUDGE, MINE, EARLIER = "task/judge@1-aaaaaa", "task/mine@2-bbbbbb", "task/mine@1-cccccc"
OTHER, BEST = "task/other@1-dddddd", "task/best@1-eeeeee"


def access(number: int = 0, **fields: Any) -> Access:
    given: dict[str, Any] = {
        "time": datetime(2026, 1, 2, 3, number % 60, tzinfo=UTC),
        "kind": "confirmation",
        "topics": ["Tea or coffee?", "Cats or dogs?"],
        "prompts": [JUDGE, MINE],
    }
    return Access(**given | fields)


def test_accesses_to_topics_of_the_same_title_are_earlier_ones(tmp_path: Path) -> None:
    path = tmp_path / "new" / "log"
    others = [["Cats or dogs?", "Bus or train?"], ["Bus or train?"], ["tea  OR\u00a0coffee"]]
    accesses = [access(number, topics=topics) for number, topics in enumerate(others)]
    for each in accesses:
        record_access(path, each)
    changed = access(4, prompts=[OTHER])
    assert record_access(path, changed) == [accesses[0], accesses[2]]
    assert read_accesses(path) == [*accesses, changed]


@pytest.mark.parametrize(
    ("kind", "logged"), [("choice", 2), ("confirmation", 2), ("trial", 1), ("evaluation", 1)]
)
def test_a_repeated_trial_or_evaluation_is_logged_once(
    tmp_path: Path, kind: str, logged: int
) -> None:
    path = tmp_path / "log"
    assert record_access(path, access(1, kind=kind)) == []
    assert record_access(path, access(2, kind=kind)) == [access(1, kind=kind)]
    assert len(read_accesses(path)) == logged
    record_access(path, access(3, kind=kind, prompts=[MINE]))
    assert len(read_accesses(path)) == logged + 1


@pytest.mark.parametrize(
    ("kind", "prompts", "counts"),
    [
        ("confirmation", [JUDGE, OTHER], True),
        ("choice", [JUDGE, OTHER], True),
        ("trial", [OTHER], True),
        ("evaluation", [MINE, BEST], True),
        ("evaluation", [EARLIER], True),
        ("evaluation", [JUDGE], False),
        ("evaluation", [JUDGE, BEST], False),
        ("evaluation", [OTHER], False),
    ],
)
def test_runs_with_other_prompts_are_not_counted(
    kind: str, prompts: list[str], counts: bool
) -> None:
    past = access(kind=kind, prompts=prompts)
    assert select_counted([past], MINE) == [past] * counts


def test_the_note_has_both_numbers_and_what_the_log_covers() -> None:
    logged = [access(number) for number in range(3)]
    numbers = re.findall(r"\d+", describe_accesses(logged, logged[:2]))
    assert numbers == ["3", "2"]
    covered = re.findall("`.*?`", describe_accesses([], []))
    assert covered == ["`prompts compare`", "`prompts try`"]


@pytest.mark.parametrize("damaged", [b"{}\n", b"\n", access().to_json()[:40], b"\xff\n"])
def test_a_damaged_log_is_an_error_with_file_and_line_and_stays_as_it_is(
    tmp_path: Path, damaged: bytes
) -> None:
    path = tmp_path / "log"
    path.write_bytes(access().to_json() + b"\n" + damaged)
    for fails in (lambda: record_access(path, access(1)), lambda: check_log(path)):
        with pytest.raises(DataError) as caught:
            fails()
        assert str(caught.value).startswith(f"{path}:2: ")
    assert path.read_bytes() == access().to_json() + b"\n" + damaged


def test_the_log_is_beside_a_cache_and_not_beside_a_cassette() -> None:
    assert access_log(Path("mine/answers.sqlite")) == Path("mine/hold_out_accesses.jsonl")
    assert access_log(Path("mine/cassette.jsonl")) == Path(".touche-llm/hold_out_accesses.jsonl")
