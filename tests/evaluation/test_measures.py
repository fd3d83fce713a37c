from __future__ import annotations

import math
from math import log2, nan
from pathlib import Path

import ir_measures
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.evaluation.judged_runs import TASK, evaluated, qrels_of, run_of, values_of
from touche_llm.errors import DataError, UsageError
from touche_llm.evaluation import evaluate
from touche_llm.evaluation.measures import evaluate_run
from touche_llm.qrels import Grades, read_qrels
from touche_llm.runs import read_run

REAL = Path(__file__).resolve().parents[3] / "shared" / "data" / "comparative"
QRELS = "1 0 a 2\n1 0 b 1\n1 0 c 0\n"
# The ideal ranking of the judgments above.
IDEAL = 2 + 1 / log2(3)

# Each case: run, qrels, expected nDCG@5, official_ndcg@5, P@5, R@10 and judged@5.
CASES = {
    "the ideal order": ("1 Q0 a 1 3 t\n1 Q0 b 2 2 t\n1 Q0 c 3 1 t\n", QRELS, 1, 1, 2 / 5, 1, 3 / 5),
    "an unjudged document first: it counts 0, the script drops it": (
        "1 Q0 x 1 3 t\n1 Q0 a 2 2 t\n1 Q0 b 3 1 t\n",
        QRELS,
        (2 / log2(3) + 1 / log2(4)) / IDEAL,
        1,
        2 / 5,
        1,
        2 / 5,
    ),
    "the script cuts before it drops: what comes sixth does not move up": (
        "".join(f"1 Q0 x{n} {n} {9 - n} t\n" for n in range(1, 5)) + "1 Q0 b 5 4 t\n1 Q0 a 6 3 t\n",
        QRELS,
        1 / log2(6) / IDEAL,
        1 / IDEAL,
        1 / 5,
        1,
        1 / 5,
    ),
    "a judged topic that is missing from the run counts 0, the script leaves it out": (
        "1 Q0 a 1 3 t\n1 Q0 b 2 2 t\n",
        QRELS + "2 0 a 1\n",
        1 / 2,
        1,
        1 / 5,
        1 / 2,
        1 / 5,
    ),
    "a topic of the run without judgments does not count": (
        "1 Q0 a 1 3 t\n1 Q0 b 2 2 t\n2 Q0 a 1 3 t\n",
        QRELS,
        1,
        1,
        2 / 5,
        1,
        2 / 5,
    ),
    "a topic without positive judgments counts 0, the script leaves it out": (
        "1 Q0 a 1 3 t\n1 Q0 b 2 2 t\n2 Q0 a 1 3 t\n",
        QRELS + "2 0 a 0\n2 0 b -2\n",
        1 / 2,
        1,
        1 / 5,
        1 / 2,
        3 / 10,
    ),
    "no judged document in the top: the script has no value": ("1 Q0 x 1 3 t\n", QRELS, 0, nan, 0, 0, 0),
    "all scores tied: the rank column decides, not the id": (
        "1 Q0 b 1 1 t\n1 Q0 a 2 1 t\n",
        QRELS,
        (1 + 2 / log2(3)) / IDEAL,
        (1 + 2 / log2(3)) / IDEAL,
        2 / 5,
        1,
        2 / 5,
    ),
    "lines out of order: the rank column decides": (
        "1 Q0 b 2 2 t\n1 Q0 c 3 1 t\n1 Q0 a 1 3 t\n",
        QRELS,
        1,
        1,
        2 / 5,
        1,
        3 / 5,
    ),
    "grades of -2 and -1 count 0": (
        "1 Q0 n 1 3 t\n1 Q0 m 2 2 t\n1 Q0 a 3 1 t\n",
        "1 0 n -2\n1 0 m -1\n1 0 a 2\n",
        1 / log2(4),
        1 / log2(4),
        1 / 5,
        1,
        3 / 5,
    ),
    "ranks from 0": ("1 Q0 a 0 3 t\n1 Q0 b 1 2 t\n1 Q0 c 2 1 t\n", QRELS, 1, 1, 2 / 5, 1, 3 / 5),
    "ranks with gaps": ("1 Q0 a 7 3 t\n1 Q0 b 9 2 t\n", QRELS, 1, 1, 2 / 5, 1, 2 / 5),
    "tabs": (
        "1\tQ0\ta\t1\t3\tt\n1\tQ0\tb\t2\t2\tt\n",
        QRELS.replace(" ", "\t"),
        1,
        1,
        2 / 5,
        1,
        2 / 5,
    ),
    "several spaces": ("1  Q0 a  1 3   t\n1 Q0 b 2 2 t\n", QRELS.replace(" 0 ", "  0   "), 1, 1, 2 / 5, 1, 2 / 5),
    "two tags in one file are one run": ("1 Q0 a 1 3 t\n1 Q0 b 2 2 other\n", QRELS, 1, 1, 2 / 5, 1, 2 / 5),
    "grades with decimals: relevant from 1, and the script cuts them": (
        "1 Q0 a 1 3 t\n1 Q0 b 2 2 t\n1 Q0 c 3 1 t\n",
        "1 0 a 0.5\n1 0 b 1.5\n1 0 c 2.000\n",
        (0.5 + 1.5 / log2(3) + 2 / log2(4)) / (2 + 1.5 / log2(3) + 0.5 / log2(4)),
        (1 / log2(3) + 2 / log2(4)) / IDEAL,
        2 / 5,
        1,
        3 / 5,
    ),
    "a judgment that is there twice counts once": (
        "1 Q0 a 1 3 t\n1 Q0 b 2 2 t\n",
        QRELS + "1 0 a 2.0\n",
        1,
        1,
        2 / 5,
        1,
        2 / 5,
    ),
    "an id that C would cut short is another document": (
        "1 Q0 a\0x 1 3 t\n1 Q0 a 2 2 t\n",
        QRELS,
        2 / log2(3) / IDEAL,
        2 / IDEAL,
        1 / 5,
        1 / 2,
        1 / 5,
    ),
}

ERRORS = {
    "a document twice": ("1 Q0 a 1 3 t\n1 Q0 a 2 2 t\n", QRELS, r"run\.txt:2: topic 1, document a: already in line 1"),
    "rank against score": ("1 Q0 a 1 1 t\n1 Q0 b 2 2 t\n", QRELS, r"run\.txt:2: .*make the ranks and the scores agree"),
    "two grades for a document": ("1 Q0 a 1 3 t\n", QRELS + "1 0 a 0\n", r"qrels\.txt:4: .*0\.0, but 2\.0 in line 1"),
    "no topic of the run is judged": ("7 Q0 a 1 3 t\n", QRELS, r"run's topics \(7\) is in the relevance qrels \(1\)"),
}

documents = st.sampled_from([f"d{number:02}" for number in range(20)])
judgments: st.SearchStrategy[Grades] = st.dictionaries(
    st.sampled_from("12345"), st.dictionaries(documents, st.sampled_from([-2.0, -1.0, 0.0, 1.0, 2.0, 3.0]), min_size=1)
).filter(bool)
rankings = st.dictionaries(st.sampled_from("12345"), st.lists(documents, unique=True, min_size=1))


@pytest.mark.parametrize("case", CASES)
def test_each_edge_case_has_its_value(tmp_path: Path, case: str) -> None:
    run, qrels, *expected = CASES[case]
    values = values_of(evaluated(tmp_path, run, qrels))
    names = ("nDCG@5", "official_ndcg@5", "P@5", "R@10", "judged@5")
    assert [values[name] for name in names] == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize("case", ERRORS)
def test_what_cannot_be_evaluated_is_an_error(tmp_path: Path, case: str) -> None:
    run, qrels, problem = ERRORS[case]
    with pytest.raises(DataError, match=problem):
        evaluated(tmp_path, run, qrels)


def test_topics_that_count_in_another_way_are_told(tmp_path: Path) -> None:
    found = evaluated(tmp_path, "1 Q0 a 1 3 t\n3 Q0 a 1 1 t\n9 Q0 a 1 1 t\n", QRELS + "2 0 a 1\n3 0 a 0\n")
    missing, without, foreign, left_out = found.notes
    assert "not in the run" in missing and missing.endswith(": 2")
    assert "without a grade above 0" in without and without.endswith(": 3")
    assert "not judged" in foreign and foreign.endswith(": 9")
    assert "official_ndcg@5" in left_out and left_out.endswith(": 2, 3")


def test_tables_have_one_row_for_each_measure_and_topic(tmp_path: Path) -> None:
    found = evaluated(tmp_path, "1 Q0 a 1 3 t\n", QRELS + "2 0 a 1\n")
    summary, per_topic = found.summary(), found.per_topic()
    assert list(summary.columns) == ["run", "measure", "value", "low", "high", "n"]
    assert list(per_topic.columns) == ["run", "measure", "topic", "value"]
    counted = summary.set_index("measure")["n"]
    assert counted["relevance nDCG@5"] == 2 and counted["relevance official_ndcg@5"] == 1
    means = per_topic.groupby("measure")["value"].mean()
    for row in summary.itertuples():
        assert row.value == pytest.approx(means[row.measure])


def test_recall_is_at_the_longest_ranking_unless_told() -> None:
    run, qrels = run_of({"1": ["a", "x", "b"], "2": ["a"]}), qrels_of({"1": {"a": 1, "b": 1}})
    table = evaluate(run, qrels, name="mine").set_index("measure")["value"]
    assert table["relevance R@3"] == 1.0
    assert evaluate(run, qrels, depth=2).set_index("measure")["value"]["relevance R@2"] == 0.5
    with pytest.raises(UsageError, match="recall at 0 documents"):
        evaluate(run, qrels, depth=0)


@given(judgments, rankings)
@settings(max_examples=60, deadline=None)
def test_ndcg_precision_and_recall_are_those_of_the_textbook(grades: Grades, ranked: dict[str, list[str]]) -> None:
    if not grades.keys() & ranked.keys():
        return
    found = evaluate_run("run", run_of(ranked), qrels_of(grades), depth=7)
    for topic, judged in grades.items():
        gains = [max(judged.get(document, 0.0), 0.0) for document in ranked.get(topic, [])]
        ideal = sorted((max(grade, 0.0) for grade in judged.values()), reverse=True)
        relevant = sum(grade >= 1 for grade in judged.values())
        expected = {
            "nDCG@5": dcg(gains[:5]) / dcg(ideal[:5]) if dcg(ideal) else 0.0,
            "nDCG@10": dcg(gains[:10]) / dcg(ideal[:10]) if dcg(ideal) else 0.0,
            "P@5": sum(gain >= 1 for gain in gains[:5]) / 5,
            "R@7": sum(gain >= 1 for gain in gains[:7]) / relevant if relevant else 0.0,
        }
        for measure, value in expected.items():
            figure = found.figures[f"relevance {measure}"]
            assert figure.by_topic()[figure.topics.index(topic)] == pytest.approx(value)


@given(judgments, rankings)
@settings(max_examples=60, deadline=None)
def test_ours_and_ir_measures_agree_where_they_define_the_same(grades: Grades, ranked: dict[str, list[str]]) -> None:
    full = {topic: each for topic, each in ranked.items() if len(each) >= 5}
    if not grades.keys() & full.keys():
        return
    found = evaluate_run("run", run_of(full), qrels_of(grades))
    whole = {topic: {name: max(int(grade), 0) for name, grade in each.items()} for topic, each in grades.items()}
    scored = {topic: {name: -float(place) for place, name in enumerate(each)} for topic, each in full.items()}
    theirs = {
        (str(metric.measure), metric.query_id): metric.value
        for metric in ir_measures.iter_calc([ir_measures.Judged @ 5, ir_measures.nDCG @ 5], whole, scored)
    }
    share = found.figures["relevance judged@5"]
    assert dict(zip(share.topics, share.by_topic(), strict=True)) == pytest.approx(
        {topic: theirs["Judged@5", topic] for topic in grades}
    )
    # Where nothing is dropped, the script's value is nDCG.
    official = found.figures["relevance official_ndcg@5"]
    for topic, value in zip(official.topics, official.by_topic(), strict=True):
        if theirs["Judged@5", topic] == 1.0:
            assert value == pytest.approx(theirs["nDCG@5", topic])


@pytest.mark.skipif(not REAL.is_dir(), reason=f"the real judgments are not at hand: {REAL}")
def test_real_judgments_give_the_values_of_the_independent_implementation() -> None:
    aspects = ("relevance", "quality")
    qrels = read_qrels({aspect: REAL / f"qrels-{aspect}.txt" for aspect in aspects}, TASK)
    table = evaluate(read_run(REAL / "candidates.run.txt"), qrels).set_index("measure")["value"]
    # From the README beside the data.
    assert table["relevance nDCG@5"] == pytest.approx(0.2596, abs=5e-5)
    assert table["relevance official_ndcg@5"] == pytest.approx(0.3154, abs=5e-5)
    assert table["quality nDCG@5"] == pytest.approx(0.2683, abs=5e-5)
    assert table["quality official_ndcg@5"] == pytest.approx(0.3230, abs=5e-5)
    assert table["relevance judged@5"] == pytest.approx(0.568, abs=5e-5)


def dcg(gains: list[float]) -> float:
    return math.fsum(gain / log2(place + 2) for place, gain in enumerate(gains))
