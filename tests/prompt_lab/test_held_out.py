"""Topics held out from the choice of a prompt, and the log of looks at them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.expect import raises_at
from tests.prompt_lab.conftest import BLUNT, SHARP, Bench
from tests.prompt_variants import asked_with, collection, reader
from tests.scripted_engine import ScriptedEngine
from touche_llm.errors import DataError, EngineError, UsageError
from touche_llm.evaluation.qrels import read_qrels
from touche_llm.llm.answer_forms import list_fields
from touche_llm.llm.engines.base import Rejected
from touche_llm.prompt_lab.looks import hash_grades, read_looks


async def test_a_warning_says_that_few_held_out_topics_cannot_confirm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, monkeypatch, collection(tmp_path, topics=8))
    found = await bench.compare(bench.wording("blunt", BLUNT), bench.wording("sharp", SHARP), confirm=True)
    assert found.verdict.confirmed is False
    assert "with 4 topics p cannot be below 0.1250" in found.verdict.sentence


async def test_the_verdict_counts_the_topics_of_both_parts(bench: Bench, blunt: Path, sharp: Path) -> None:
    (bench.folder / "some").write_text("".join(f"{number}\n" for number in range(1, 8)))
    found = await bench.compare(blunt, sharp, split="some", confirm=True)
    assert [len(part.topics) for part in found.parts] == [7, 9]
    assert "on the 7 topics that" in found.verdict.sentence and "on the 9 topics held out" in found.verdict.sentence


async def test_held_out_topics_are_judged_only_to_confirm_the_choice(bench: Bench, blunt: Path, sharp: Path) -> None:
    found = await bench.compare(blunt, sharp)
    assert {request.origin.topic_id for request in bench.engine.requests} == {str(n) for n in range(1, 17, 2)}
    assert [part.name for part in found.parts] == ["choice"]
    assert (found.verdict.winner, found.verdict.confirmed, found.earlier_looks) == (str(sharp), None, None)
    assert "confirm it on the topics held out" in found.verdict.sentence
    assert any("8 topics to choose on; 8 are held out" in notice for notice in bench.notices)
    assert [set(look.topics) for look in read_looks(bench.log)] == [{str(n) for n in range(1, 17, 2)}]


async def test_a_split_of_all_topics_holds_none_out(bench: Bench, blunt: Path, sharp: Path) -> None:
    found = await bench.compare(blunt, sharp, split="all")
    (part,) = found.parts
    assert (part.name, len(part.topics)) == ("all", 16)
    assert "no topics were held out" in found.verdict.sentence
    with pytest.raises(UsageError, match="split"):
        await bench.compare(blunt, sharp, split="all", confirm=True)


async def test_only_the_best_and_the_first_prompt_judge_held_out_topics(bench: Bench, blunt: Path, sharp: Path) -> None:
    dull = bench.wording("dull", f"{BLUNT} again")
    found = await bench.compare(blunt, dull, sharp, confirm=True)
    choice, held = found.parts
    assert [variant.name for variant in found.variants_in(choice)] == [str(blunt), str(dull), str(sharp)]
    assert [variant.name for variant in found.variants_in(held)] == list(held.estimates) == [str(blunt), str(sharp)]
    assert {request.origin.topic_id for request in asked_with(bench.engine, "again")} == set(choice.topics)
    assert found.verdict.confirmed is True


async def test_each_look_is_logged_and_the_next_one_lists_it(bench: Bench, blunt: Path, sharp: Path) -> None:
    first = await bench.compare(blunt, sharp, confirm=True)
    bench.wording("sharp", f"{SHARP} and better")
    second = await bench.compare(blunt, sharp, confirm=True)
    choice, one, again, two = read_looks(bench.log)
    assert (first.earlier_looks, second.earlier_looks) == ([], [one])
    assert (choice.topics, again.topics) == (list(first.parts[0].topics), list(second.parts[0].topics))
    assert (one.task, one.aspect, one.topics) == ("comparative", "relevance", list(first.parts[1].topics))
    assert (
        one.qrels
        == two.qrels
        == hash_grades(read_qrels({"relevance": bench.files["relevance"]}, "comparative").grades["relevance"])
    )
    assert [(template.name, template.hash) for template in one.templates] == [
        (variant.name, variant.prompt.hash) for variant in first.variants
    ]
    assert one.templates[0] == two.templates[0] and one.templates[1].hash != two.templates[1].hash
    assert any(one.templates[1].hash in notice for notice in bench.notices)
    # Other judgments are held out by themselves.
    lines = bench.files["relevance"].read_text().splitlines(keepends=True)
    bench.files["relevance"].write_text("".join(lines[:-1]))
    assert (await bench.compare(blunt, sharp, confirm=True)).earlier_looks == []
    assert len(read_looks(bench.log)) == 6


@pytest.mark.parametrize("split", ["even", "all", "a file"])
async def test_topics_of_another_choice_count_as_looks(
    bench: Bench, blunt: Path, sharp: Path, tmp_path: Path, split: str
) -> None:
    if split == "a file":
        (tmp_path / "split").write_text("".join(f"{number}\n" for number in range(5, 13)))
    await bench.compare(blunt, sharp)
    await bench.compare(blunt, sharp, split=str(tmp_path / "split") if split == "a file" else split)
    found = await bench.compare(blunt, sharp, confirm=True)
    own, other, _, _ = read_looks(bench.log)
    assert found.earlier_looks == [other] and set(other.topics) & {str(number) for number in range(2, 17, 2)}
    assert any("before this one: 1;" in notice for notice in bench.notices)


@pytest.mark.parametrize("confirm", [True, False])
async def test_a_damaged_log_of_looks_is_an_error_before_any_request(
    bench: Bench, blunt: Path, sharp: Path, confirm: bool
) -> None:
    bench.log.write_text("{}\n")
    with raises_at(DataError, f"{bench.log}:1"):
        await bench.compare(blunt, sharp, confirm=confirm)
    assert bench.engine.requests == [] and bench.log.read_text() == "{}\n"


async def test_the_half_of_a_topic_depends_on_neither_sample_nor_selection(
    bench: Bench, blunt: Path, sharp: Path
) -> None:
    odd = {str(number) for number in range(1, 17, 2)}
    lines = bench.files["passages.jsonl"].read_text().splitlines(keepends=True)
    bench.files["passages.jsonl"].write_text("".join(line for line in lines if "passage 1-" not in line))
    for plan in ({}, {"size": 60, "seed": 1}, {"confirm": True}):
        found = await bench.compare(blunt, sharp, split="odd", **plan)
        assert set(found.parts[0].topics) <= odd - {"1"}
        assert all(odd.isdisjoint(part.topics) for part in found.parts[1:])
    bench.flags = {"topic": ("2", "3", "5", "8")}
    found = await bench.compare(blunt, sharp, confirm=True)
    assert [part.topics for part in found.parts] == [["3", "5"], ["2", "8"]]


async def test_judgments_of_every_second_topic_fill_both_halves(bench: Bench, blunt: Path, sharp: Path) -> None:
    lines = bench.files["relevance"].read_text().splitlines(keepends=True)
    bench.files["relevance"].write_text("".join(line for line in lines if int(line.split()[0]) % 2))
    found = await bench.compare(blunt, sharp, confirm=True)
    assert [part.topics for part in found.parts] == [["1", "5", "9", "13"], ["3", "7", "11", "15"]]


async def test_a_topic_without_objects_does_not_move_others_between_halves(
    bench: Bench, blunt: Path, sharp: Path
) -> None:
    topics = bench.files["topics.xml"]
    topics.write_text(topics.read_text().replace("<objects>tea, coffee</objects>", "", 1))
    script = bench.engine.script

    def answer(request: Any) -> Any:
        return {"first": "none", "second": "none"} if "first" in list_fields(request.schema) else script(request)

    bench.engine = ScriptedEngine(answer)
    found = await bench.compare(blunt, sharp, confirm=True)
    assert [part.topics for part in found.parts] == [
        [str(number) for number in range(3, 17, 2)],
        [str(number) for number in range(2, 17, 2)],
    ]


async def test_too_few_held_out_topics_are_reported_before_the_engine_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, monkeypatch, collection(tmp_path, topics=11))
    bench.engine = UnauthorizedEngine(reader({}).script)
    with pytest.raises(EngineError):
        await bench.compare("judge", bench.wording("sharp", SHARP), confirm=True)
    assert "5 topics held out with a grade above 0: p cannot be below 0.0625" in bench.notices[-1]


async def test_too_small_halves_are_refused_before_any_request(bench: Bench, blunt: Path, sharp: Path) -> None:
    (bench.folder / "half").write_text("1\n")
    with pytest.raises(UsageError, match=r"^1 topics.* 15 .*split"):
        await bench.compare(blunt, sharp, split="half", confirm=True)
    assert bench.engine.requests == []


class UnauthorizedEngine(ScriptedEngine):
    """Rejects every request."""

    async def complete(self, request: Any) -> Any:
        raise Rejected(401, "no key")
