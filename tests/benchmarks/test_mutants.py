"""Mutants: where they are drawn, which tests are run against them, and what follows from how these end."""

from __future__ import annotations

import json
import multiprocessing
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("cosmic_ray", reason="make mutants installs it")

from benchmarks import covering_tests, mutants  # noqa: E402
from benchmarks.covering_tests import CoveringTests, digests, executed_lines  # noqa: E402
from benchmarks.mutants import Mutant, draw, make_mutant, places, record_tests, try_all  # noqa: E402

FILE = "touche_llm/least.py"
MODULE = """
def least(values: list[int | None], most: int = 3) -> int | None:
    found: int | None = None
    for each in values:
        if each is not None and each < most:
            found = each
    return found


def some_values():
    return [5, 2]


def endless():
    while False:
        pass
"""
# Run instead of imported: this process has imported the package of the same name from elsewhere.
TESTS = """
import runpy
import pytest
MODULE = runpy.run_path("touche_llm/least.py")
@pytest.fixture(scope="module")
def values():
    return MODULE["some_values"]()
def test_two(values):
    assert MODULE["least"](values) == 2
def test_none():
    assert MODULE["least"]([]) is None
def test_end():
    MODULE["endless"]()
def test_values(values):
    assert len(values) == 2
def test_that_fails():
    assert MODULE["least"]([1]) == 2
"""
STATEMENTS = """A = 1
def f(
    a=2):
    try:
        b = [
            a]
        if (a and
            b):
            return
    except E:
        pass
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one module and its tests."""
    monkeypatch.setattr(mutants, "TREE", tmp_path / "tree")
    monkeypatch.setattr(mutants, "RECORDS", tmp_path / "records")
    monkeypatch.setattr(mutants, "RESULTS", tmp_path / "results.jsonl")
    for folder in ("tree/touche_llm", "tree/tests", "records"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "tree" / "pytest.ini").write_text("[pytest]\nmarkers =\n  vllm:\n  browser:\n  nightly:\n")
    (tmp_path / "tree" / "tests" / "test_least.py").write_text(TESTS)
    (tmp_path / "tree" / FILE).write_text(MODULE)
    return tmp_path / "tree" / FILE


@pytest.fixture
def workers() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        yield pool


def recorded(workers: ProcessPoolExecutor) -> CoveringTests:
    """Record the tests of the project."""
    for name, digest in digests(mutants.TREE).items():
        workers.submit(record_tests, name, digest).result()
    return CoveringTests.read(mutants.TREE, mutants.RECORDS)


def names(tests: list[str]) -> set[str]:
    assert all(test.startswith("tests/test_least.py::test_") for test in tests)
    return {test.removeprefix("tests/test_least.py::test_") for test in tests}


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(MODULE.splitlines(), start=1) if text in line)


def test_each_place_outside_of_annotations_is_found_with_all_of_its_changes(module: Path) -> None:
    found = list(places(module))
    source = MODULE.splitlines()
    changed: Counter[str] = Counter()
    for operator, occurrence in (change for place in found for change in place):
        mutant = make_mutant(FILE, MODULE, operator, occurrence)
        assert source[mutant.line - 1].strip() == mutant.before
        changed[mutant.before] += 1
    assert set(changed) == {
        "def least(values: list[int | None], most: int = 3) -> int | None:",
        "for each in values:",
        "if each is not None and each < most:",
        "return [5, 2]",
        "while False:",
    }
    assert changed["def least(values: list[int | None], most: int = 3) -> int | None:"] == 2, "3 becomes 2 and 4"


def test_a_draw_is_that_of_its_seed_and_begins_like_a_longer_one(module: Path) -> None:
    one, longer, other = draw("top", 4, 1), draw("top", 6, 1), draw("top", 4, 2)
    assert one == longer[:4] and one != other and len(one) == 4
    assert all(mutant.before != mutant.after for mutant in one)


def test_tests_are_chosen_that_execute_the_line(
    module: Path, workers: ProcessPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    tests = recorded(workers)
    assert names(list(tests.failed)) == {"that_fails"}
    assert names(tests.choose(FILE, line_of("if each"), 60)) == {"two"}
    assert names(tests.choose(FILE, line_of("return found"), 60)) == {"two", "none"}
    assert names(tests.choose(FILE, line_of("return [5"), 60)) == {"two", "none", "end", "values"}, "a shared fixture"
    assert names(tests.choose(FILE, line_of("def least"), 60)) == {"two", "none", "end", "values"}, "an import"
    # The quickest are chosen within the bound.
    tests.seconds.update({f"tests/test_least.py::test_{name}": of for name, of in {"two": 4.0, "none": 3.0}.items()})
    line = line_of("return found")
    assert [names([test]) for test in tests.choose(FILE, line, 7)] == [{"none"}, {"two"}]
    assert [names([test]) for test in tests.choose(FILE, line, 6)] == [{"none"}]
    assert [names([test]) for test in tests.choose(FILE, line, 0)] == [{"none"}]
    assert len(tests.choose(FILE, line_of("def least"), 0)) == 1
    monkeypatch.setattr(covering_tests, "STRUCTURE", ("tests/test_least.py",))
    assert len(tests.choose(FILE, line_of("def least"), 0)) == 4


def test_test_files_of_the_module_and_its_package_come_first() -> None:
    tests = CoveringTests(mutants.ROOT, digests(mutants.ROOT), {}, set(), {})
    nearest = tests.nearest_files("touche_llm/ranking/order.py")
    of_package = [name.startswith("tests/ranking/") for name in nearest]
    assert any(of_package) and of_package == sorted(of_package, reverse=True)
    assert tests.nearest_files("touche_llm/text/passages.py")[0] == "tests/text/test_passages.py"


@pytest.mark.parametrize(
    ("line", "lines", "is_import"),
    [
        (1, {1}, True),
        (2, {2, 3}, True),
        (3, {2, 3}, True),
        (4, {4}, False),
        (6, {5, 6}, False),
        (7, {7, 8}, False),
        (9, {9}, False),
    ],
)
def test_a_line_belongs_to_a_statement_without_its_body(line: int, lines: set[int], is_import: bool) -> None:
    assert executed_lines(STATEMENTS, line) == (lines, is_import)


@pytest.mark.nightly  # One mutant is endless and ends with the time that it has.
def test_mutants_are_killed_or_survive_and_only_survivors_are_tried_again(
    module: Path, workers: ProcessPoolExecutor
) -> None:
    changes = [
        Mutant(FILE, "core/NumberReplacer", 0, line_of("3"), "3", "4"),
        Mutant(FILE, "core/ZeroIterationForLoop", 0, line_of("in values"), "values", "[]"),
        Mutant(FILE, "core/ReplaceFalseWithTrue", 0, line_of("False"), "False", "True"),
    ]
    tests = recorded(workers)
    quick = CoveringTests(tests.tree, tests.digests, dict.fromkeys(tests.seconds, -1.8), tests.failed, tests.lines)
    for _ in range(2):
        found = [result["outcome"] for result in try_all(changes, quick, workers, 60)]
        assert found == ["passed", "failed", "timeout"]
        assert len(mutants.RESULTS.read_text().splitlines()) == 3, "the tests are the same"
    assert module.read_text() == MODULE
    tests_file = module.parents[1] / "tests" / "test_least.py"
    tests_file.write_text(
        TESTS.replace(
            "def test_that_fails", "def test_most():\n    assert MODULE['least']([3]) is None\ndef test_that_fails"
        )
    )
    for copy in module.parents[2].glob("tree-*/tests/test_least.py"):
        copy.write_text(tests_file.read_text())
    assert [result["outcome"] for result in try_all(changes, recorded(workers), workers, 60)][:2] == [
        "failed",
        "failed",
    ]
    lines = [json.loads(line) for line in mutants.RESULTS.read_text().splitlines()]
    assert [each["outcome"] for each in lines] == ["passed", "failed", "timeout", "failed"]
