"""The topics that runs are measured on: every command and the library have the same values of the same runs."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import touche_llm as tl
from tests.cli.conftest import Touche
from tests.sample_runs import config_for, run_scripted
from touche_llm.llm.answer_schema import list_fields
from touche_llm.llm.request import Request
from touche_llm.report.run_pages import gather_report
from touche_llm.runs.directory import RunDirectory

TOPICS = ("3", "7", "12", "20")
ASPECTS = ("relevance", "quality", "stance")
# The topics that are chosen for each run, and those that it loses.
CHOSEN: Mapping[str, tuple[str, ...] | None] = {
    **{"whole": None, "lossy": None, "few": ("3", "7"), "lossy-few": ("3", "7")},
    "one": ("7",),
}
LOST = {"lossy": "7", "lossy-few": "3"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five runs in `runs`, and qrels whose aspects judge other topics."""
    folder = tmp_path_factory.mktemp("made")
    chance = random.Random(0)

    def answer(request: Request) -> dict[str, Any]:
        fields = list_fields(request.schema)
        return {name: chance.choice(field["enum"]) for name, field in fields.items()}

    for name, chosen in CHOSEN.items():
        flags: dict[str, Any] = {"cache__file": folder / f"{name}.sqlite", "depth": 12}
        if name in LOST:
            lines = (folder / "runs/whole/candidates.run.txt").read_text().splitlines(keepends=True)
            flags["candidates"] = folder / f"{name}.run.txt"
            flags["candidates"].write_text(
                "".join(line for line in lines if line.split()[0] != LOST[name])
            )
        flags |= {"limit_topics": 2} if chosen == TOPICS[:2] else {"topic": chosen or ()}
        asyncio.run(run_scripted(config_for(folder, **flags), folder / "runs" / name, answer))
    candidates = tl.read_run(folder / "runs/whole/candidates.run.txt").rankings
    for aspect, judged in zip(ASPECTS, (TOPICS, TOPICS[1:3], (*TOPICS[:2], "99")), strict=True):
        values = ("FIRST", "SECOND", "NO") if aspect == "stance" else "012"
        documents = [
            (topic, each.document_id) for topic in judged for each in candidates.get(topic, [])
        ]
        lines = [
            f"{topic} 0 {document} {chance.choice(values)}\n"
            for topic, document in [*documents, ("99", "x")]
        ]
        (folder / aspect).write_text("".join(lines if "99" in judged else lines[:-1]))
    return folder


def measured_on(run: str, aspect: str) -> set[str]:
    judged = {"relevance": set(TOPICS), "quality": {"7", "12"}, "stance": {"3", "7", "99"}}[aspect]
    chosen = CHOSEN[run]
    return judged if chosen is None else judged.intersection(chosen)


def rows_of(touche: Touche, *arguments: str) -> list[dict[str, Any]]:
    done = touche(*arguments, "--format", "json")
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def same(one: float | None, other: float | None) -> bool:
    if one is None or one != one:
        return other is None or other != other
    return other is not None and one == pytest.approx(other, abs=1e-6)


@pytest.mark.parametrize("run", CHOSEN)
def test_a_run_records_the_topics_that_were_chosen_whatever_it_loses(made: Path, run: str) -> None:
    chosen = CHOSEN[run]
    expected = None if chosen is None else list(chosen)
    assert RunDirectory(made / "runs" / run).read_chosen_topics() == expected
    stages = yaml.safe_load((made / "runs" / run / "ir-metadata.yml").read_text())["stages"]
    assert [facts["chosen_topics"] for facts in stages.values()] == [expected] * 3
    lines = tl.read_run(made / "runs" / run)
    assert set(lines.rankings) == set(chosen or TOPICS) - {LOST.get(run)}
    assert lines.chosen_topics == expected


@pytest.mark.filterwarnings("ignore::touche_llm.errors.ToucheWarning")
@pytest.mark.parametrize("run", CHOSEN)
def test_all_commands_and_the_library_have_the_same_values(
    touche: Touche, made: Path, run: str
) -> None:
    files = {aspect: made / aspect for aspect in ASPECTS if measured_on(run, aspect)}
    qrels, folder = tl.read_qrels(files, "comparative"), str(made / "runs" / run)
    options = [part for aspect, path in files.items() for part in (f"--{aspect}", str(path))]
    rows = {
        row["measure"]: row
        for row in rows_of(touche, "evaluate", folder, *options)
        if row["run"] == folder
    }
    for measure, row in rows.items():
        topics = measured_on(run, measure.split()[0])
        missing = topics & {LOST.get(run), "99"}
        assert (row["topics"], row["missing"]) == (len(topics), len(missing))
        if measure.endswith(" P@5"):
            assert row["n"] == len(topics)
    (listed,) = rows_of(touche, "runs", folder)
    for measure in ("relevance nDCG@5", "quality nDCG@5", "stance macro-F1"):
        if measure in rows and rows[measure]["value"] is not None:
            assert same(listed[measure], rows[measure]["value"])
    for row in tl.evaluate(tl.read_run(folder), qrels, depth=12).to_dict("records"):
        if " R@" not in row["measure"]:
            assert same(row["value"], rows[row["measure"]]["value"])
            assert [row[key] for key in ("topics", "missing")] == [
                rows[row["measure"]][key] for key in ("topics", "missing")
            ]
    report = gather_report(Path(folder), qrels, 1).measured
    assert report is not None
    for shown in report.measures:
        assert same(report.rows["run", shown].value, rows[str(shown)]["value"])


def test_the_library_measures_a_ranking_by_the_topics_that_it_was_given(made: Path) -> None:
    folder = made / "runs/lossy-few"
    config = RunDirectory(folder).read_config()
    topics = [topic for topic in tl.read_topics(config.topics) if topic.id in ("3", "7")]
    qrels = tl.read_qrels({"relevance": made / "relevance"}, "comparative")
    with tl.open_corpus(config.corpus, task="comparative", index=config.index) as corpus:
        candidates = tl.Candidates.from_run(folder / "candidates.run.txt", topics, corpus)
        with pytest.warns(tl.ToucheWarning):
            ranking = tl.rank(candidates, tl.Judgments(candidates, [], [], []))
            table = tl.evaluate(ranking, qrels).set_index("measure").loc["relevance nDCG@5"]
    assert [table[key] for key in ("n", "topics", "missing", "judged_topics")] == [2, 2, 1, 4]
