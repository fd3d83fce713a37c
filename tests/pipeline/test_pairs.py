"""Pairs of sentences end to end, on the sample, with a scripted engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.sample_runs import Silent, config_for, rank_stage, run_lines, run_scripted
from tests.scripted_engine import Label
from tests.write_demo_cassette import script_of
from touche_llm.data.files import read_records
from touche_llm.data.records import Failure, Judgment, RunLine
from touche_llm.data.runs.reading import read_candidates
from touche_llm.errors import DataError
from touche_llm.evaluation.validation import validate_run
from touche_llm.llm.answer_schema import list_fields
from touche_llm.llm.request import Request
from touche_llm.tasks import get_task

SCRIPT = script_of("sentence_pairs")
Fields = Mapping[str, Label | Mapping[Label, float]]


async def run(
    tmp_path: Path, script: Callable[[Request], Fields] = SCRIPT, **flags: Any
) -> tuple[list[RunLine], Silent]:
    config = config_for(tmp_path, task="sentence_pairs", **({"depth": 60} | flags))
    return await run_scripted(config, tmp_path / "out", script)


def judgments(tmp_path: Path) -> dict[tuple[str, str], Judgment]:
    found = read_records(tmp_path / "out" / "judgments.jsonl", Judgment, "judgments")
    return {(each.topic_id, each.document_id): each for each in found}


async def test_the_run_is_valid_and_each_topic_has_enough_pairs(tmp_path: Path) -> None:
    lines, _ = await run(tmp_path, pairs__judged=30)
    task = get_task("sentence_pairs")
    assert validate_run(tmp_path / "out" / "run.txt", task) == []
    sizes = Counter(line.topic_id for line in lines)
    assert len(sizes) == 2 and min(sizes.values()) >= 100
    # What the model was asked about stands before what inherits, and the metadata counts both.
    found = judgments(tmp_path)
    for topic in sizes:
        sources = [
            found[topic, line.document_id].source for line in lines if line.topic_id == topic
        ]
        assert sources == ["probabilities"] * 30 + ["inherited"] * (sizes[topic] - 30)
    stages = yaml.safe_load((tmp_path / "out" / "ir-metadata.yml").read_text())["stages"]
    assert stages["rank"]["lines"] == stages["judge"]["pairs"] == len(lines)
    assert stages["judge"]["sentences"] == 120


async def test_no_pair_is_there_in_both_orders_and_the_better_order_stays(tmp_path: Path) -> None:
    def the_other_way_round_is_better(request: Request) -> Fields:
        answer = dict(SCRIPT(request))
        if "coherence" in answer:
            first, second = (request.origin.document_id or "").split(",")
            answer["coherence"] = 3 if first > second else 0
        return answer

    lines, _ = await run(
        tmp_path, the_other_way_round_is_better, pairs__judged=20, pairs__both_orders=20
    )
    pairs = [frozenset(line.document_id.split(",")) for line in lines if line.topic_id == "3"]
    assert len(set(pairs)) == len(pairs)
    top = [line.document_id.split(",") for line in lines if line.topic_id == "3"][:20]
    assert len(top) == 20 and all(first > second for first, second in top)
    candidates = read_candidates(tmp_path / "out" / "candidates.run.txt", 1000)
    assert {each.document_id for each in candidates["3"]} == {
        line.document_id for line in lines if line.topic_id == "3"
    }


async def test_a_pair_without_a_usable_answer_inherits_and_a_sentence_without_one_is_in_no_pair(
    tmp_path: Path,
) -> None:
    spoiled: list[str] = []

    def broken_for_pairs_and_at_first(request: Request) -> Fields:
        document = request.origin.document_id or ""
        if "," not in document and (document in spoiled or len(spoiled) < 4):
            spoiled.append(document)
            return {"free": "text"}
        return {"free": "text"} if "coherence" in list_fields(request.schema) else SCRIPT(request)

    lines, _ = await run(
        tmp_path,
        broken_for_pairs_and_at_first,
        topic=("3",),
        pairs__judged=5,
        engine__concurrency=1,
    )
    found = judgments(tmp_path)
    failures = read_records(tmp_path / "out" / "failures.jsonl", Failure, "failures")
    assert {each.kind for each in failures} == {"outside_schema"}
    failed = {each.document_id for each in failures if "," not in (each.document_id or "")}
    assert failed == set(spoiled) and failed and len(failures) == len(failed) + 5
    assert not any(part in failed for line in lines for part in line.document_id.split(","))
    assert {each.source for each in found.values()} == {"inherited"}
    assert len(lines) >= 100 and {line.stance for line in lines} <= {"PRO", "CON"}
    sentences = {
        each.document_id: each.stance
        for each in read_records(
            tmp_path / "out" / "sentence_judgments.jsonl", Judgment, "judgments"
        )
    }
    assert all(
        {sentences[part] for part in line.document_id.split(",")} == {line.stance} for line in lines
    )


async def test_more_sentences_are_judged_until_there_are_enough_pairs(tmp_path: Path) -> None:
    lines, _ = await run(tmp_path, depth=10, pairs__judged=2)
    judge = yaml.safe_load((tmp_path / "out" / "ir-metadata.yml").read_text())["stages"]["judge"]
    assert min(Counter(line.topic_id for line in lines).values()) >= 100
    assert 20 < judge["sentences"] < 135


async def test_where_the_corpus_has_too_few_it_is_said_and_nothing_is_invented(
    tmp_path: Path,
) -> None:
    def almost_none_takes_a_side(request: Request) -> Fields:
        answer = dict(SCRIPT(request))
        if "role" in answer and not (request.origin.document_id or "").endswith("__PREMISE__1"):
            answer["stance"] = {"PRO": 0.01, "CON": 0.01, "NONE": 0.98}
        return answer

    lines, progress = await run(tmp_path, almost_none_takes_a_side)
    sizes = Counter(line.topic_id for line in lines)
    assert 0 < sizes["3"] < 100
    assert any(
        "topic 3: " in notice and "fewer than the 100 wanted" in notice
        for notice in progress.notices
    )
    assert all(
        part.endswith("__PREMISE__1") for line in lines for part in line.document_id.split(",")
    )


async def test_a_replay_needs_no_other_answer_whatever_the_weights(tmp_path: Path) -> None:
    lines, _ = await run(tmp_path, pairs__judged=40)
    config = config_for(
        tmp_path, task="sentence_pairs", depth=60, pairs__judged=40, weights__coherence=9.0
    )
    await rank_stage(config, tmp_path / "out", Silent())
    weighted = run_lines(tmp_path / "out" / "run.txt")
    assert [line.document_id for line in weighted] != [line.document_id for line in lines]

    def unreachable(request: Request) -> Fields:
        raise AssertionError(f"asked about {request.origin.document_id}")

    replayed, _ = await run(tmp_path, unreachable, pairs__judged=40, weights__coherence=9.0)
    assert replayed == weighted
    # Both orders are there for whoever wants to choose by other grades.
    judged = judgments(tmp_path)
    both = [
        pair for topic, pair in judged if (topic, ",".join(reversed(pair.split(",")))) in judged
    ]
    assert len(both) == 2 * 2 * 20


async def test_where_no_sentence_takes_a_side_the_run_ends_with_what_to_do(tmp_path: Path) -> None:
    def none(request: Request) -> Fields:
        return {**SCRIPT(request), "stance": {"PRO": 0.01, "CON": 0.01, "NONE": 0.98}}

    with pytest.raises(
        DataError, match=r"sentence_judgments.jsonl: no topic has two sentences on one side"
    ):
        await run(tmp_path, none)
    # What was judged is not lost.
    found = read_records(tmp_path / "out" / "sentence_judgments.jsonl", Judgment, "judgments")
    assert (
        len(found) == len((tmp_path / "out" / "sentences.run.txt").read_text().splitlines()) > 100
    )
