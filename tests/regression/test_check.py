"""What a check says of the project's own recorded runs, as they are and after changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.regression.conftest import Copy, checked, edit, overlay
from tests.write_regressions import FOLDER
from touche_llm.cli.demo import SAMPLE_TASKS
from touche_llm.llm.answer_schema import AnswerForm
from touche_llm.prompts.prompt import read_header
from touche_llm.prompts.template_text import HEADER
from touche_llm.regression.result import (
    CheckResult,
    LabelDifference,
    MissingAnswer,
    PromptDifference,
)
from touche_llm.regression.snapshot import open_snapshot
from touche_llm.tasks import prompts_folder

REAL_MODEL = FOLDER.with_name("regress_model") / "comparative"


@pytest.mark.parametrize("folder", [*(FOLDER / task for task in SAMPLE_TASKS), REAL_MODEL], ids=str)
def test_the_project_s_own_recorded_runs_come_out_as_they_were_recorded(folder: Path) -> None:
    result = checked(folder)
    assert result == CheckResult()
    assert result.is_same


def test_a_run_with_prompts_in_the_object_form_of_version_1_replays_unchanged() -> None:
    folder = FOLDER.with_name("regress_objects") / "comparative"
    prompts = open_snapshot(folder).config().prompts
    matches = [HEADER.match(Path(name).read_text()) for name in (prompts.judge, prompts.best)]
    headers = [read_header(Path("x"), match.group(1)) for match in matches if match]
    assert [(header.version, header.form) for header in headers] == [(1, AnswerForm.OBJECT)] * 2
    assert checked(folder) == CheckResult()


@pytest.mark.parametrize(
    ("task", "purpose", "old"),
    [
        ("comparative", "objects", "{{ topic.title }}"),
        ("controversial", "stance", "{{ topic.title }}"),
        ("sentence_pairs", "sentence", "You are an assessor"),
    ],
)
def test_a_changed_sentence_of_a_template_makes_that_prompt_alone_differ(
    tmp_path: Path, task: str, purpose: str, old: str
) -> None:
    changed = {purpose: (old, f"Indeed. {old}")}
    result = checked(FOLDER / task, overlay(tmp_path / "mine", task, **changed))
    (prompt,) = result.prompts
    assert prompt.purpose == purpose and prompt.has_changed_template
    assert prompt.missing
    assert set(result.topics) == {answer.topic_id for answer in prompt.missing}
    assert result.ranks == ()
    assert result.labels == ()
    assert result.error is None and not result.is_same


def test_a_changed_setting_of_the_requests_makes_prompts_with_unchanged_templates_differ(
    copy_of: Copy,
) -> None:
    folder = copy_of("controversial")
    edit(folder / "config.yaml", "tag: regress\n", "tag: regress\nsampling: {seed: 1}\n")
    result = checked(folder)
    assert [prompt.purpose for prompt in result.prompts] == ["judge"]
    assert not any(prompt.has_changed_template for prompt in result.prompts)


def test_a_prompt_that_the_recorded_run_did_not_send_differs(copy_of: Copy) -> None:
    folder = copy_of("controversial")
    edit(folder / "config.yaml", "- setwise:3\n", "- setwise:3\n- listwise:3\n")
    (prompt,) = checked(folder).prompts
    assert prompt.purpose == "order" and prompt.has_changed_template


def test_a_changed_weight_moves_ranks(copy_of: Copy) -> None:
    folder = copy_of("comparative")
    edit(
        folder / "config.yaml",
        "  relevance: 1.0\n  quality: 0.5\n  first_stage: 0.05\n",
        "  relevance: 0.0\n  quality: 0.0\n  first_stage: 1.0\n",
    )
    edit(folder / "config.yaml", "- listwise:4\n- pairwise:3\n", "")
    result = checked(folder)
    # By the first stage's score alone, the new run is the first stage.
    recorded = _read_ranks(folder / "run.txt")
    first_stage = _read_ranks(folder / "candidates.run.txt")
    moves = {
        key: (rank, first_stage[key]) for key, rank in recorded.items() if rank != first_stage[key]
    }
    differences = {
        (rank.topic_id, rank.document_id): (rank.recorded, rank.replayed) for rank in result.ranks
    }
    assert differences == moves
    assert set(result.topics) == {"3", "20"}
    assert result.prompts == () and result.error is None


def test_a_changed_stance_is_a_label(copy_of: Copy) -> None:
    folder = copy_of("comparative")
    topic_id, label, document_id, *_ = _lines(folder / "run.txt")[0].split()
    other = "SECOND" if label == "FIRST" else "FIRST"
    edit(
        folder / "run.txt",
        f"{topic_id} {label} {document_id} ",
        f"{topic_id} {other} {document_id} ",
    )
    expected = LabelDifference(
        topic_id=topic_id, document_id=document_id, recorded=other, replayed=label
    )
    assert checked(folder) == CheckResult(topics=(topic_id,), labels=(expected,))


def test_another_score_makes_its_topic_differ_alone(copy_of: Copy) -> None:
    folder = copy_of("comparative")
    first = _lines(folder / "run.txt")[0]
    topic_id, stance, document_id, rank, score, tag = first.split()
    higher = f"{float(score) + 1:.6f}"
    edit(folder / "run.txt", first, " ".join([topic_id, stance, document_id, rank, higher, tag]))
    assert checked(folder) == CheckResult(topics=(topic_id,))


def test_another_order_of_the_topics_makes_all_topics_differ(copy_of: Copy) -> None:
    folder = copy_of("comparative")
    lines = _lines(folder / "run.txt")
    topics = list(dict.fromkeys(line.split()[0] for line in lines))
    by_other_order = sorted(lines, key=lambda line: -topics.index(line.split()[0]))
    (folder / "run.txt").write_text("".join(f"{line}\n" for line in by_other_order))
    assert checked(folder) == CheckResult(topics=tuple(reversed(topics)))


def test_a_missing_answer_has_its_prompt_topic_and_document(copy_of: Copy) -> None:
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
    missing = MissingAnswer(entry["topic"], entry["document"])
    prompt = PromptDifference("judge", has_changed_template=False, missing=(missing,))
    assert checked(folder) == CheckResult(topics=(entry["topic"],), prompts=(prompt,))


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
    assert checked(folder).is_same
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert not list((tmp_path / "elsewhere").iterdir())
    assert prompts_folder().is_dir()


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def _read_ranks(run: Path) -> dict[tuple[str, str], int]:
    ranks: dict[tuple[str, str], int] = {}
    for line in _lines(run):
        topic_id, _, document_id, rank, *_ = line.split()
        ranks[topic_id, document_id] = int(rank)
    return ranks
