"""A measure in a file of its own, through the command line and the library."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import orjson
import pytest

from tests.cli.test_evaluate import GOOD, POOR, RELEVANCE
from tests.extending.conftest import Extended

MODULES = ("tests.extending.reciprocal_rank",)
QRELS = ["--task", "comparative", "--relevance", "relevance"]
# By topic 1, 2 and 4: the run lacks the last.
VALUES = {"mine": [1.0, 0.5, 0.0], "other": [0.5, 1 / 3, 0.0]}


@pytest.fixture
def judged(tmp_path: Path) -> Path:
    """A folder with qrels, the run folder `mine` and the run file `other`."""
    (tmp_path / "mine").mkdir()
    files = {"relevance": RELEVANCE, "other": POOR, "mine/run.txt": GOOD}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def values_of(output: str) -> Mapping[str, float]:
    return {
        row["run"]: row["value"]
        for row in orjson.loads(output)
        if row["measure"] == "relevance RR@10"
    }


def test_evaluate_and_compare_have_it_and_keep_it_for_later(
    extended: Extended, judged: Path
) -> None:
    done = extended("evaluate", "mine", "other", *QRELS, "--format", "json", modules=MODULES)
    assert done.returncode == 0, done.stderr
    means = {name: sum(values) / 3 for name, values in VALUES.items()}
    assert values_of(done.stdout) == pytest.approx(means)

    # The qrels of the evaluation are known now.
    compare = ["compare", "mine", "other", "--task", "comparative"]
    compared = extended(*compare, "--format", "json", modules=MODULES)
    assert compared.returncode == 0, compared.stderr
    (row,) = [row for row in orjson.loads(compared.stdout) if row["measure"] == "relevance RR@10"]
    assert row["difference"] == pytest.approx(means["other"] - means["mine"])
    assert (row["losses"], row["ties"]) == (2, 1)


@pytest.mark.slow
def test_the_table_of_compare_has_it_and_without_it_its_values_are_an_error(
    extended: Extended, judged: Path
) -> None:
    done = extended("evaluate", "mine", "other", *QRELS, modules=MODULES)
    assert done.returncode == 0, done.stderr

    compare = ["compare", "mine", "other", "--task", "comparative"]
    table = extended(*compare, modules=MODULES)
    assert table.returncode == 0 and "RR@10" in table.stdout, table.stderr
    without_it = extended(*compare)
    assert without_it.returncode == 1
    assert "'relevance RR@10'" in without_it.stderr and "nDCG@K, P@K" in without_it.stderr


@pytest.mark.slow
def test_values_by_topic_have_it_and_the_table_names_what_does_not_fit(
    extended: Extended, judged: Path
) -> None:
    by_topic = ["evaluate", "other", *QRELS, "--per-topic"]
    rows = extended(*by_topic, "--format", "json", modules=MODULES)
    assert rows.returncode == 0, rows.stderr
    values = [row["relevance RR@10"] for row in orjson.loads(rows.stdout)]
    assert values == pytest.approx(VALUES["other"])

    table = extended(*by_topic, modules=MODULES)
    plain = extended(*by_topic)
    assert (table.returncode, plain.returncode) == (0, 0)
    (line,) = [line for line in table.stdout.splitlines() if "RR@10" in line]
    assert line.endswith(": RR@10") and "further measures" not in plain.stdout


@pytest.mark.slow
def test_the_library_measures_by_it_and_takes_no_measure_after_it(
    extended: Extended, judged: Path
) -> None:
    program = """
import tests.extending.reciprocal_rank
import touche_llm as tl
qrels = tl.read_qrels({"relevance": "relevance"}, "comparative")
table = tl.evaluate(tl.read_run("other"), qrels).set_index("measure")
assert abs(table.loc["relevance RR@10", "value"] - 5 / 18) < 1e-9
from touche_llm.evaluation.registry import TopicMeasure, register
register(TopicMeasure(name="late", definition="", compute=lambda topic: 0.0))
"""
    done = extended(program=program)
    assert done.returncode == 1 and "ExtensionError: late: " in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("bounds", ["Bounds(0, 10)", "None"])
def test_values_beyond_1_need_bounds_of_their_own(
    extended: Extended, judged: Path, bounds: str
) -> None:
    program = """
from touche_llm.evaluation.intervals import Bounds
from touche_llm.evaluation.registry import TopicMeasure, register
register(TopicMeasure(name="length", definition="", compute=lambda topic: 3.0 OF_IT))
import touche_llm as tl
qrels = tl.read_qrels({"relevance": "relevance"}, "comparative")
table = tl.evaluate(tl.read_run("other"), qrels).set_index("measure")
assert table.loc["relevance length@5", "value"] == 3.0
"""
    declared = extended(program=program.replace(" OF_IT", f", bounds={bounds}"))
    assert declared.returncode == 0, declared.stderr
    undeclared = extended(program=program.replace(" OF_IT", ""))
    assert undeclared.returncode == 1
    assert "ExtensionError: length: topic 1" in undeclared.stderr
