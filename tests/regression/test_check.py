"""What a check says of the project's own recorded runs, as they are and after changes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.regression.conftest import Copy, checked, edit, overlay
from tests.write_regressions import FOLDER
from touche_llm.cli.demo import SAMPLE_TASKS
from touche_llm.llm.answers import AnswerForm
from touche_llm.prompts.prompt import read_header
from touche_llm.prompts.templates import HEADER
from touche_llm.regression.check import RunDifference, format_differences
from touche_llm.regression.snapshot import open_snapshot
from touche_llm.tasks import prompts_folder

Findings = dict[str, list[RunDifference]]
REAL_MODEL = FOLDER.with_name("regress_model") / "comparative"


def group_by_kind(differences: Iterable[RunDifference]) -> Findings:
    found: Findings = {}
    for difference in differences:
        found.setdefault(difference.kind, []).append(difference)
    return found


@pytest.mark.parametrize("folder", [*(FOLDER / task for task in SAMPLE_TASKS), REAL_MODEL], ids=str)
def test_the_project_s_own_recorded_runs_come_out_as_they_were_recorded(folder: Path) -> None:
    assert format_differences(folder.name, checked(folder)) == f"{folder.name}: as recorded"


def test_a_run_with_prompts_in_the_object_form_of_version_1_replays_unchanged() -> None:
    folder = FOLDER.with_name("regress_objects") / "comparative"
    prompts = open_snapshot(folder).config().prompts
    matches = [HEADER.match(Path(name).read_text()) for name in (prompts.judge, prompts.best)]
    headers = [read_header(Path("x"), match.group(1)) for match in matches if match]
    assert [(header.version, header.form) for header in headers] == [(1, AnswerForm.OBJECT)] * 2
    assert checked(folder) == []


@pytest.mark.parametrize(
    ("task", "purpose", "old"),
    [
        ("comparative", "objects", "{{ topic.title }}"),
        ("controversial", "stance", "{{ topic.title }}"),
        ("sentence_pairs", "sentence", "You are an assessor"),
    ],
)
def test_a_changed_sentence_of_a_template_fails_with_the_diff_of_that_prompt_alone(
    tmp_path: Path, task: str, purpose: str, old: str
) -> None:
    new = f"Indeed. {old}"
    differences = checked(FOLDER / task, overlay(tmp_path / "mine", task, **{purpose: (old, new)}))
    found = group_by_kind(differences)
    assert set(found) == {"prompt", "missing"}
    (prompt,) = found["prompt"]
    assert prompt.name == purpose
    assert {each.name for each in found["missing"]} == {purpose}
    added = [line for line in prompt.text.split("\n") if line.startswith("+")][1:]
    taken = [line for line in prompt.text.split("\n") if line.startswith("-")][1:]
    assert taken and [line[1:] for line in taken] == [
        line[1:].replace("Indeed. ", "") for line in added
    ]
    assert f"answers missing: {len(found['missing'])}\n    {purpose}: topic" in format_differences(
        task, differences
    )


def test_a_changed_weight_moves_ranks(copy_of: Copy) -> None:
    folder = copy_of("comparative")
    edit(
        folder / "config.yaml",
        "  relevance: 1.0\n  quality: 0.5\n  first_stage: 0.05\n",
        "  relevance: 0.0\n  quality: 0.0\n  first_stage: 1.0\n",
    )
    edit(folder / "config.yaml", "- listwise:4\n- pairwise:3\n", "")
    found = group_by_kind(checked(folder))
    assert {each.name: (each.old, each.new) for each in found["setting"]} == {
        "rank": (["judge", "listwise:4", "pairwise:3"], ["judge"]),
        "weights.first_stage": (0.05, 1.0),
        "weights.quality": (0.5, 0.0),
        "weights.relevance": (1.0, 0.0),
    }
    ranks = {
        tuple(line.split()[i] for i in (0, 2)): int(line.split()[3])
        for line in _lines(folder / "run.txt")
    }
    first = {
        tuple(line.split()[i] for i in (0, 2)): int(line.split()[3])
        for line in _lines(folder / "candidates.run.txt")
    }
    # By the first stage's score alone, the new run is the first stage.
    wanted = {key: (ranks[key], first[key]) for key in ranks if ranks[key] != first[key]}
    assert {(each.topic, each.document): (each.old, each.new) for each in found["rank"]} == wanted
    furthest = [abs(each.old - each.new) for each in found["rank"]]
    assert furthest == sorted(furthest, reverse=True)
    text = format_differences("x", checked(folder))
    assert "setting weights.quality: 0.5 → 0.0" in text and f"ranks moved: {len(wanted)}\n" in text


def test_an_answer_that_is_not_there_is_told_with_topic_and_document(copy_of: Copy) -> None:
    folder = copy_of("comparative")
    lines = (folder / "cassette.jsonl").read_text().splitlines(keepends=True)
    best = _lines(folder / "run.txt")[0].split()[2]
    gone = next(
        line
        for line in lines
        if (entry := json.loads(line)).get("prompt") == "comparative/judge"
        and entry["document"] == best
    )
    (folder / "cassette.jsonl").write_text("".join(line for line in lines if line != gone))
    entry = json.loads(gone)
    differences = checked(folder)
    assert differences == [RunDifference("missing", "judge", entry["topic"], entry["document"])]


def test_a_changed_default_is_told_by_name(copy_of: Copy) -> None:
    folder = copy_of("comparative")
    # As if it had been recorded by a program with another default.
    edit(folder / "recorded.json", '"ranking.listwise.window": 20', '"ranking.listwise.window": 30')
    assert not checked(folder)  # what changes nothing is no difference
    edit(folder / "config.yaml", "tag: regress", "tag: other")
    (setting,) = [each for each in checked(folder) if each.name == "ranking.listwise.window"]
    assert (setting.kind, setting.old, setting.new) == ("setting", 30, 20)


def test_a_check_leaves_the_folder_as_it_was_and_needs_nothing_but_it(
    copy_of: Copy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = copy_of("controversial")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    checked(
        folder, overlay(tmp_path / "mine", "controversial", judge=("You are", "You are indeed"))
    )
    assert not checked(folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert not list((tmp_path / "elsewhere").iterdir())
    assert prompts_folder().is_dir()


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()
