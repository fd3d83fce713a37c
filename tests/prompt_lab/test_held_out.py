"""Topics held out from the choice of a prompt, and the log of accesses to them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.expect import raises_at
from tests.prompt_lab.conftest import BLUNT, SHARP, Bench
from tests.prompt_variants import asked_with, title_of
from touche_llm.errors import DataError, UsageError
from touche_llm.prompt_lab.holdout import read_accesses


def titles(topics: Iterable[str]) -> list[str]:
    return [title_of(topic).strip() for topic in topics]


async def test_held_out_topics_are_judged_only_to_confirm_the_choice(
    bench: Bench, blunt: Path, sharp: Path
) -> None:
    found = await bench.compare(blunt, sharp)
    assert {request.origin.topic_id for request in bench.engine.requests} == {
        str(n) for n in range(1, 17, 2)
    }
    assert [part.name for part in found.parts] == ["choice"]
    assert (found.verdict.winner, found.verdict.confirmed, found.earlier_accesses) == (
        str(sharp),
        None,
        None,
    )
    assert "confirm it on the topics held out" in found.verdict.sentence
    (halves,) = (notice for notice in bench.notices if " to choose on; " in notice)
    assert (
        halves.startswith("8 topics (1, 3, 5") and "8 topics (2, 4, 6" in halves.partition("; ")[2]
    )
    assert [access.topics for access in read_accesses(bench.log)] == [titles(found.parts[0].topics)]


async def test_only_the_best_and_the_first_prompt_judge_held_out_topics(
    bench: Bench, blunt: Path, sharp: Path
) -> None:
    dull = bench.wording("dull", f"{BLUNT} again")
    found = await bench.compare(blunt, dull, sharp, confirm=True)
    choice, held = found.parts
    assert [variant.name for variant in found.variants_in(choice)] == [
        str(blunt),
        str(dull),
        str(sharp),
    ]
    assert (
        [variant.name for variant in found.variants_in(held)]
        == list(held.estimates)
        == [str(blunt), str(sharp)]
    )
    assert {request.origin.topic_id for request in asked_with(bench.engine, "again")} == set(
        choice.topics
    )
    assert found.verdict.confirmed is True


async def test_each_access_is_logged_and_the_next_confirmation_lists_it(
    bench: Bench, blunt: Path, sharp: Path
) -> None:
    first = await bench.compare(blunt, sharp, confirm=True)
    assert any("0 earlier looks" in notice and str(bench.log) in notice for notice in bench.notices)
    bench.wording("sharp", f"{SHARP} and better")
    second = await bench.compare(blunt, sharp, confirm=True)
    choice, one, again, two = read_accesses(bench.log)
    assert [access.kind for access in (choice, one, again, two)] == ["choice", "confirmation"] * 2
    assert (first.earlier_accesses, second.earlier_accesses) == ([], [one])
    assert (choice.topics, one.topics) == tuple(titles(part.topics) for part in first.parts)
    assert (again.topics, two.topics) == (choice.topics, one.topics)
    assert one.prompts == [variant.prompt.label for variant in first.variants]
    assert one.prompts[0] == two.prompts[0] and one.prompts[1] != two.prompts[1]


async def test_bad_logs_and_splits_are_errors_before_any_request(
    bench: Bench, blunt: Path, sharp: Path
) -> None:
    bench.log.write_text("{}\n")
    for confirm in (True, False):
        with raises_at(DataError, f"{bench.log}:1"):
            await bench.compare(blunt, sharp, confirm=confirm)
    assert bench.log.read_text() == "{}\n"
    bench.log.unlink()
    with pytest.raises(UsageError, match="split"):
        await bench.compare(blunt, sharp, split="all", confirm=True)
    assert bench.engine.requests == []
