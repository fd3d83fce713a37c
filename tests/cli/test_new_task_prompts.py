"""`prompts compare` and `prompts try` with the prompts of a task that was changed by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.changed_example import FIVE, INPUTS, LABELS, TWO_SCALES, change_example, write_qrels
from tests.cli.conftest import Touche
from tests.prompt_variants import opening
from tests.scripted_engine import Label, ScriptedEngine
from touche_llm.llm.answer_schema import list_fields
from touche_llm.llm.request import Request

OPTIONS = (*INPUTS, "--task", "essays", "--index", "index", "--cache", "answers.sqlite")


def answer(request: Request) -> Mapping[str, Label | Mapping[Label, float]]:
    """Answer by the number of the opinion; the wording BLUNT is wrong about depth and stance."""
    number = int((request.origin.document_id or "")[-1]) - 1
    if "BLUNT" in request.messages[0].content:
        number = 4 - number
    answers: dict[str, Label | Mapping[Label, float]] = {}
    for field, values in list_fields(request.schema).items():
        labels = values["enum"]
        label, following = labels[number % len(labels)], labels[(number + 1) % len(labels)]
        answers[field] = {label: 0.75, following: 0.25} if field == "depth" else label
    return answers


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> ScriptedEngine:
    """Engine of both commands."""
    engine = ScriptedEngine(answer)
    for module in ("touche_llm.prompt_lab.comparison", "touche_llm.cli.prompts_trial"):
        monkeypatch.setattr(f"{module}.open_client", opening(engine))
    return engine


def write_variants() -> tuple[str, str]:
    """Write a blunt wording beside the judge prompt; returns both."""
    text = Path("essays/judge.jinja").read_text()
    Path("essays/blunt.jinja").write_text(text.replace("You assess", "BLUNT: you assess"))
    return "essays/blunt.jinja", "judge"


def test_wordings_are_compared_by_all_aspects_and_labels(
    touche: Touche, engine: ScriptedEngine
) -> None:
    change_example(touche, FIVE, TWO_SCALES)
    command = ("prompts", "compare", *write_variants(), *OPTIONS, *write_qrels(), "--split", "all")
    done = touche(*command, "--html", "page.html", "--format", "json")
    assert done.returncode == 0, done.stderr
    blunt, judge = json.loads(done.stdout)
    # The most probable depth is that of people, and the reverse of it.
    assert judge["depth_kappa"] == pytest.approx(1.0)
    assert blunt["depth_kappa"] == pytest.approx(-1.0)
    assert (judge["stance_macro_f1"], blunt["stance_macro_f1"], judge["best"]) == (1.0, 0.2, True)
    assert judge["requests"] == blunt["requests"] == len(engine.requests) / 2 == 10
    page = Path("page.html").read_text()
    assert all(label in page for label in (*LABELS, "depth"))
    done = touche(*command)
    assert done.returncode == 0 and "depth kappa" in done.stdout and "quality" not in done.stdout
    assert (
        "judge has the best depth nDCG@5 on 2 topics" in done.stdout and len(engine.requests) == 20
    )


def test_grades_are_compared_on_the_scale_of_the_judgments(
    touche: Touche, engine: ScriptedEngine
) -> None:
    change_example(touche, FIVE, TWO_SCALES)
    command = (
        "prompts",
        "compare",
        *write_variants(),
        *OPTIONS,
        *write_qrels(),
        "--split",
        "all",
        "--format",
        "json",
    )
    before = json.loads(touche(*command).stdout)
    # The same judgments on a scale of 0 to 8, which the prompt does not have.
    definition = Path("essays/task.yaml")
    definition.write_text(
        definition.read_text().replace("\nstance:", "\nqrels: {depth: 0..8}\nstance:")
    )
    lines = [line.split() for line in Path("depth.txt").read_text().splitlines()]
    Path("depth.txt").write_text(
        "".join(f"{topic} 0 {name} {int(grade) * 2}\n" for topic, _, name, grade in lines)
    )
    after = json.loads(touche(*command).stdout)
    for old, new in zip(before, after, strict=True):
        assert new["depth_ndcg_5"] == pytest.approx(old["depth_ndcg_5"])
        # Nothing says which depth of people each depth of the prompt is.
        assert "depth_kappa" not in new
    assert [row["depth_spearman"] for row in after] == pytest.approx([-1.0, 1.0])
    assert after[1]["requests"] == 0

    definition.write_text(
        definition.read_text().replace(
            "\nstance:", "\nqrels_mapping: {depth: [0, 2, 4, 6, 8]}\nstance:"
        )
    )
    mapped = json.loads(touche(*command).stdout)
    assert [row["depth_kappa"] for row in mapped] == pytest.approx([-1.0, 1.0])


def test_a_task_of_other_aspects_without_stances_has_these_alone(
    touche: Touche, engine: ScriptedEngine
) -> None:
    change_example(touche, "", "{relevance: 0..2, depth: 1..5}")
    for file in ("task.yaml", "judge.jinja"):
        path = Path("essays", file)
        # The objective keeps its name.
        path.write_text(
            path.read_text()
            .replace("relevance", "width")
            .replace("\n  width: {", "\n  relevance: {")
        )
    write_qrels()
    qrels = ("--qrels", "depth=depth.txt")
    compare = ("prompts", "compare", *write_variants(), *OPTIONS, "--split", "all")
    done = touche(*compare, *qrels, "--html", "page.html")
    assert done.returncode == 0, done.stderr
    assert "judge has the best depth nDCG@5 on 2 topics" in done.stdout
    assert "macro-F1" not in done.stdout + done.stderr
    assert "stances" not in Path("page.html").read_text().partition("<body")[2]
    attempt = ("prompts", "try", "judge", *OPTIONS, "--topic", "1", "--doc", "opinion-4")
    rows = json.loads(touche(*attempt, *qrels, "--format", "json").stdout)
    assert [(row["field"], row["value"], row["people"]) for row in rows] == [
        ("width", 0.0, None),
        ("depth", 4.25, 3.0),
    ]
    for wrong in (("--relevance", "depth.txt"), ("--stance", "stance.txt"), ()):
        done = touche(*compare, *wrong)
        assert done.returncode == 2 and "width, depth" in done.stderr, done.stderr
