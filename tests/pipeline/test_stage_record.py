"""The record of a run is read as it was written, or refused with its file and the place in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.expect import raises_at
from tests.stage_records import all_records, judge_record, rank_record, retrieve_record
from touche_llm.errors import DataError
from touche_llm.llm.counts import Counts
from touche_llm.runs.directory import RunDirectory
from touche_llm.runs.record import RequestCounts, RunRecord, StageRecords
from touche_llm.settings.yaml_text import to_yaml


def as_plain(record: RunRecord) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(record)
    return plain


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    for record in (
        RunRecord(stages=all_records()),
        RunRecord(stages=StageRecords(retrieve=retrieve_record()), unfinished="judge"),
    ):
        directory.write_metadata({"tag": "mine", **as_plain(record)})
        assert directory.read_metadata() == record


def test_only_finished_stages_are_written() -> None:
    plain = as_plain(RunRecord(stages=StageRecords(retrieve=retrieve_record())))
    assert list(plain) == ["stages"] and list(plain["stages"]) == ["retrieve"]


def test_a_folder_without_metadata_has_no_finished_stage(tmp_path: Path) -> None:
    assert RunDirectory(tmp_path).read_metadata() == RunRecord(stages=StageRecords())


def drop(*path: str) -> Callable[[dict[str, Any]], None]:
    def damage(plain: dict[str, Any]) -> None:
        for name in path[:-1]:
            plain = plain[name]
        del plain[path[-1]]

    return damage


def put(value: Any, *path: str) -> Callable[[dict[str, Any]], None]:
    def damage(plain: dict[str, Any]) -> None:
        for name in path[:-1]:
            plain = plain[name]
        plain[path[-1]] = value

    return damage


@pytest.mark.parametrize(
    ("damage", "place"),
    [
        (drop("stages"), "stages"),
        (drop("stages", "judge", "llm"), "llm"),
        (drop("stages", "rank", "lines"), "lines"),
        (put(None, "stages"), "$.stages"),
        (put(None, "stages", "judge", "llm"), "$.stages.judge.llm"),
        (put([], "stages", "rank"), "$.stages.rank"),
        (put({}, "stages", "index"), "index"),
        (put(1, "stages", "judge", "shortcuts"), "shortcuts"),
        (put("9", "stages", "rank", "lines"), "$.stages.rank.lines"),
        (put(-1, "stages", "rank", "imputed_stances"), "$.stages.rank.imputed_stances"),
        (put(2**60, "stages", "retrieve", "topics"), "$.stages.retrieve.topics"),
        (put(-0.1, "stages", "retrieve", "seconds"), "$.stages.retrieve.seconds"),
        (put("3", "stages", "rank", "chosen_topics"), "$.stages.rank.chosen_topics"),
        (put({"judge": 3}, "stages", "judge", "llm", "labels"), "llm.labels"),
        (put("many", "stages", "judge", "llm", "counts", "requests"), "llm.counts.requests"),
        (put("evaluate", "unfinished"), "$.unfinished"),
    ],
)
def test_a_damaged_record_is_refused_with_its_place(
    damage: Callable[[dict[str, Any]], None], place: str, tmp_path: Path
) -> None:
    plain = as_plain(RunRecord(stages=all_records()))
    damage(plain)
    directory = RunDirectory(tmp_path)
    directory.metadata_file.write_bytes(to_yaml(plain))
    with raises_at(DataError, directory.metadata_file, place):
        directory.read_metadata()


def test_a_stage_replaces_its_own_record_and_drops_those_of_later_stages() -> None:
    records = all_records()
    assert records.add(retrieve_record()) == StageRecords(retrieve=retrieve_record())
    assert list(records.add(judge_record()).finished) == ["retrieve", "judge"]
    again = rank_record(chosen_topics=None)
    assert records.add(again).finished == {**records.finished, "rank": again}
    assert list(records.before("rank").finished) == ["retrieve", "judge"]
    assert records.before("retrieve") == StageRecords()


def test_tokens_from_the_prefix_cache_are_unknown_unless_the_engine_reports_them() -> None:
    for reports, expected in ((0, None), (3, 0)):
        counts = RequestCounts.from_counts(Counts(prefix_reports=reports))
        assert counts.prefix_cached_tokens == expected
