"""Mutants: where they are drawn, which tests see them, and what is made of the end of a test run."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("cosmic_ray", reason="make mutants installs it")

from benchmarks import mutants  # noqa: E402
from benchmarks.mutants import Mutant, draw, nearest_tests, outcomes, places  # noqa: E402

MODULE = """
def least(values: list[int | None], most: int = 3) -> int | None:
    found: int | None = None
    for each in values:
        if each is not None and each < most:
            found = each
    return found
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a project with one module and one test of it."""
    monkeypatch.setattr(mutants, "TREE", tmp_path)
    monkeypatch.setattr(mutants, "RESULTS", tmp_path / "results.jsonl")
    monkeypatch.setattr(mutants, "OUTPUT", tmp_path / "output.txt")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  vllm:\n  browser:\n  nightly:\n")
    (tmp_path / "least.py").write_text(MODULE)
    (tmp_path / "test_it.py").write_text(
        f"from pathlib import Path\nexec(Path({str(tmp_path / 'least.py')!r}).read_text())\n"
        "def test_it():\n    assert least([5, 2, None]) == 2\n"
    )
    return tmp_path / "least.py"


def test_each_place_outside_of_annotations_is_found_with_all_of_its_changes(module: Path) -> None:
    found = list(places(module))
    source = MODULE.splitlines()
    changed: Counter[str] = Counter()
    for operator, occurrence in (change for place in found for change in place):
        other = Mutant("least.py", operator, occurrence, "", "").apply(MODULE).splitlines()
        changed[next(line.strip() for line, now in zip(source, other, strict=True) if line != now)] += 1
    assert set(changed) == {
        "def least(values: list[int | None], most: int = 3) -> int | None:",
        "for each in values:",
        "if each is not None and each < most:",
    }
    assert changed["def least(values: list[int | None], most: int = 3) -> int | None:"] == 2, "3 becomes 2 and 4"


def test_a_draw_is_that_of_its_seed_and_names_what_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutants, "TREE", mutants.ROOT)
    one, again, other = draw("tasks", 12, 1), draw("tasks", 12, 1), draw("tasks", 12, 2)
    assert one == again != other and len(one) == 12
    assert all(each.before != each.after for each in one)


def test_tests_of_the_module_come_first_and_those_of_its_package_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutants, "TREE", mutants.ROOT)
    found = nearest_tests("touche_llm/excerpts.py", False)
    assert found[0].startswith("tests/") and "tests/test_excerpts.py" in found[: found.index("tests/regression")]
    found = nearest_tests("touche_llm/ranking/order.py", False)
    assert nearest_tests("touche_llm/ranking/order.py", True) == ["tests/ranking"]
    assert found[0] == "tests/ranking" and found[-2:] == ["tests/regression", "tests/test_pipeline.py"]


def test_a_mutant_is_killed_or_survives_and_is_tested_again_only_where_it_survived(
    module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutants, "nearest_tests", lambda file, near_only: ["test_it.py"])
    changes = [
        Mutant("least.py", "core/NumberReplacer", 0, "3", "4"),
        Mutant("least.py", "core/ZeroIterationForLoop", 0, "values", "[]"),
    ]
    assert [outcome for _, outcome, _ in outcomes(changes, 60)] == ["passed", "failed"]
    assert module.read_text() == MODULE
    (module.parent / "test_it.py").write_text("def test_it():\n    while True:\n        pass\n")
    assert [outcome for _, outcome, _ in outcomes(changes, 1)] == ["timeout", "failed"]
    lines = [json.loads(line) for line in mutants.RESULTS.read_text().splitlines()]
    assert [each["outcome"] for each in lines] == ["passed", "failed", "timeout"]
