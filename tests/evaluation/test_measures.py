from __future__ import annotations

import math
from collections.abc import Mapping
from math import log2, nan
from pathlib import Path
from typing import Any

import ir_measures
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.evaluation.judged_runs import TASK, evaluated, qrels_of, run_of, values_of
from touche_llm.api.evaluate import evaluate
from touche_llm.data.measure import MACRO_F1, Measure, MeasureName, make_headline_ndcg
from touche_llm.data.runs.reading import read_run
from touche_llm.errors import DataError
from touche_llm.evaluation.comparisons import compare_runs
from touche_llm.evaluation.measures import evaluate_run
from touche_llm.evaluation.qrels import Grades, read_qrels

REAL = Path(__file__).resolve().parents[3] / "shared" / "data" / "comparative"
ACCURACY = Measure("stance", MeasureName.ACCURACY)
QRELS = "1 0 a 2\n1 0 b 1\n1 0 c 0\n"
# The ideal ranking of the judgments above.
IDEAL = 2 + 1 / log2(3)

# Each case: run, qrels, expected nDCG@5, touche_nDCG@5, P@5, R@10 and judged@5.
CASES = {
    "the ideal order": ("1 Q0 a 1 3 t\n1 Q0 b 2 2 t\n1 Q0 c 3 1 t\n", QRELS, 1, 1, 2 / 5, 1, 3 / 5),
    "an unjudged document first: it counts 0, the script drops it": (
        "1 Q0 x 1 3 t\n1 Q0 a 2 2 t\n1 Q0 b 3 1 t\n",
        *(QRELS, (2 / log2(3) + 1 / log2(4)) / IDEAL, 1, 2 / 5, 1, 2 / 5),
    ),
    "the script cuts before it drops: what comes sixth does not move up": (
        "".join(f"1 Q0 x{n} {n} {9 - n} t\n" for n in range(1, 5)) + "1 Q0 b 5 4 t\n1 Q0 a 6 3 t\n",
        *(QRELS, 1 / log2(6) / IDEAL, 1 / IDEAL, 1 / 5, 1, 1 / 5),
    ),
    "a judged topic that is missing from the run counts 0, the script leaves it out": (
        "1 Q0 a 1 3 t\n1 Q0 b 2 2 t\n",
        *(QRELS + "2 0 a 1\n", 1 / 2, 1, 1 / 5, 1 / 2, 1 / 5),
    ),
    "a topic of the run without judgments does not count": (
        "1 Q0 a 1 3 t\n1 Q0 b 2 2 t\n2 Q0 a 1 3 t\n",
        *(QRELS, 1, 1, 2 / 5, 1, 2 / 5),
    ),
    "a topic without positive judgments counts 0, the script leaves it out": (
        "1 Q0 a 1 3 t\n1 Q0 b 2 2 t\n2 Q0 a 1 3 t\n",
        *(QRELS + "2 0 a 0\n2 0 b -2\n", 1 / 2, 1, 1 / 5, 1 / 2, 3 / 10),
    ),
    "no judged document in the top: the script has no value": (
        "".join(f"1 Q0 x{n} {n} {9 - n} t\n" for n in range(1, 6)) + "1 Q0 c 6 3 t\n",
        *(QRELS, 0, nan, 0, 0, 0),
    ),
    "all scores tied, lines out of order, ranks with gaps, two tags: the rank column decides": (
        "1 Q0 a 9 1 t\n1 Q0 b 7 1 other\n",
        *(QRELS, (1 + 2 / log2(3)) / IDEAL, (1 + 2 / log2(3)) / IDEAL, 2 / 5, 1, 2 / 5),
    ),
    "grades of -2 and -1 count 0, and ranks may begin at 0": (
        "1 Q0 n 0 3 t\n1 Q0 m 1 2 t\n1 Q0 a 2 1 t\n",
        *("1 0 n -2\n1 0 m -1\n1 0 a 2\n", 1 / log2(4), 1 / log2(4), 1 / 5, 1, 3 / 5),
    ),
    "grades with decimals: relevant from 1, and the script cuts them": (
        "1 Q0 a 1 3 t\n1 Q0 b 2 2 t\n1 Q0 c 3 1 t\n",
        "1 0 a 0.5\n1 0 b 1.5\n1 0 c 2.000\n",
        (0.5 + 1.5 / log2(3) + 2 / log2(4)) / (2 + 1.5 / log2(3) + 0.5 / log2(4)),
        *((1 / log2(3) + 2 / log2(4)) / IDEAL, 2 / 5, 1, 3 / 5),
    ),
    "a judgment that is there twice counts once": (
        "1 Q0 a 1 3 t\n1 Q0 b 2 2 t\n",
        *(QRELS + "1 0 a 2.0\n", 1, 1, 2 / 5, 1, 2 / 5),
    ),
    "an id that C would cut short is another document": (
        "1 Q0 a\0x 1 3 t\n1 Q0 a 2 2 t\n",
        *(QRELS, 2 / log2(3) / IDEAL, 2 / IDEAL, 1 / 5, 1 / 2, 1 / 5),
    ),
}

documents = st.sampled_from([f"d{number:02}" for number in range(20)])
judgments: st.SearchStrategy[Grades] = st.dictionaries(
    st.sampled_from("12345"),
    st.dictionaries(documents, st.sampled_from([-2.0, -1.0, 0.0, 1.0, 2.0, 3.0]), min_size=1),
).filter(bool)
rankings = st.dictionaries(st.sampled_from("12345"), st.lists(documents, unique=True, min_size=1))


@pytest.mark.parametrize("case", CASES)
def test_each_edge_case_has_its_value(tmp_path: Path, case: str) -> None:
    run, qrels, *expected = CASES[case]
    values = values_of(evaluated(tmp_path, run, qrels))
    names = ("nDCG@5", "touche_nDCG@5", "P@5", "R@10", "judged@5")
    assert [values[name] for name in names] == pytest.approx(expected, nan_ok=True)


def test_topics_that_count_in_another_way_are_told(tmp_path: Path) -> None:
    found = evaluated(
        tmp_path, "1 Q0 a 1 3 t\n3 Q0 a 1 1 t\n9 Q0 a 1 1 t\n", QRELS + "2 0 a 1\n3 0 a 0\n"
    )
    assert all(note.startswith("relevance: ") for note in found.notes)
    missing, foreign, without = found.notes
    assert "not in the run" in missing and missing.endswith(": 2")
    assert "without a grade above 0" in without and without.endswith(": 3")
    assert "not judged" in foreign and foreign.endswith(": 9")
    with pytest.raises(DataError, match=r"relevance.*topic 7, document a.*: 1\)"):
        evaluated(tmp_path, "7 Q0 a 1 3 t\n", QRELS)


def test_a_run_does_not_win_by_leaving_hard_documents_without_a_label() -> None:
    documents = ["a", "b", "c"]
    rankings = {topic: documents for topic in "12"}
    truth = {topic: {"a": "FIRST", "b": "SECOND", "c": "NO"} for topic in "12"}
    every = {(topic, name): "FIRST" for topic in "12" for name in documents}
    few = {key: label for key, label in every.items() if key[1] == "a"}
    qrels = qrels_of({}, truth)
    whole, part = (
        evaluate_run(name, run_of(rankings, labels), qrels)
        for name, labels in (("all", every), ("few", few))
    )
    assert part.estimates[ACCURACY].value == 1.0
    assert whole.estimates[ACCURACY].value == pytest.approx(1 / 3)
    comparison = compare_runs(whole, [part])
    row = comparison.rows.set_index("measure").loc[ACCURACY]
    assert (row["value"], row["baseline_value"], row["difference"]) == (1.0, 1.0, 0.0)
    assert (row["n"], row["documents"], row["ties"]) == (2, 2, 2)
    assert any(
        "over the 2 judged documents that both label; it labels 2, and all 6" in each
        for each in comparison.notes
    )


def test_the_share_of_judged_documents_is_at_the_cutoff_of_each_measure() -> None:
    grades = {"1": {"a": 3.0, "b": 2.0, "c": 1.0, **dict.fromkeys("defgh", 0.0)}}
    qrels = qrels_of(grades, {"1": {"a": "FIRST", "x": "NO"}})
    stances = {("1", name): "FIRST" for name in "abxy"}
    found = evaluate_run("run", run_of({"1": list("axbycdzefg")}, stances), qrels, 8)
    judged = found.summary().set_index("measure")["judged"]
    expected = {
        "nDCG@5": 3 / 5,
        "nDCG@10": 7 / 10,
        "P@5": 3 / 5,
        "R@8": 5 / 8,
        "touche_nDCG@5": 3 / 5,
    }
    graded = {
        measure.short_text: share
        for measure, share in judged.items()
        if measure.short_text in expected
    }
    assert graded == pytest.approx(expected)
    # Without a cutoff the whole ranking counts; stances are judged apart.
    assert judged[MACRO_F1] == pytest.approx(2 / 10)
    assert judged[Measure("stance", MeasureName.MACRO_F1, 5)] == pytest.approx(2 / 5)
    precision = Measure("stance", MeasureName.LABEL_PRECISION, label="FIRST")
    assert judged[precision] == pytest.approx(2 / 10)


def test_a_difference_that_the_judging_could_make_is_told() -> None:
    qrels = qrels_of({"1": {"a": 1, "b": 0, "c": 1, "d": 0, "e": 0}})
    known, unknown = (
        evaluate_run(name, run_of({"1": list(names)}), qrels, 5)
        for name, names in (("known", "abcde"), ("new", "avwxy"))
    )
    (note,) = compare_runs(unknown, [known]).notes
    assert "known: relevance judged@5 is 1.000, and 0.200 for new" in note
    same = evaluate_run("same", run_of({"1": list("bacde")}), qrels, 5)
    assert compare_runs(known, [same]).notes == []


def test_tables_have_one_row_for_each_measure_and_topic(tmp_path: Path) -> None:
    found = evaluated(tmp_path, "1 Q0 a 1 3 t\n", QRELS + "2 0 a 1\n")
    summary, per_topic = found.summary(), found.per_topic()
    columns = [
        "run",
        "measure",
        "value",
        "low",
        "high",
        "n",
        "topics",
        "missing",
        "judged_topics",
        "judged",
    ]
    assert list(summary.columns) == columns
    assert set(summary[columns[-4:-1]].itertuples(index=False, name=None)) == {(2, 1, 2)}
    assert list(per_topic.columns) == ["run", "measure", "topic", "value", "judged"]
    counted = summary.set_index("measure")["n"]
    assert counted[make_headline_ndcg("relevance")] == 2
    assert counted[Measure("relevance", MeasureName.TOUCHE_NDCG, 5)] == 1
    means = per_topic.groupby("measure", sort=False)[["value", "judged"]].mean()
    for row in summary.itertuples():
        assert (row.value, row.judged) == pytest.approx(tuple(means.loc[row.measure]))


@given(judgments, rankings)
@settings(max_examples=25, deadline=None)
def test_ndcg_precision_and_recall_are_those_of_the_textbook(
    grades: Grades, ranked: dict[str, list[str]]
) -> None:
    if not any(
        document in grades.get(topic, {})
        for topic, ranking in ranked.items()
        for document in ranking
    ):
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
            figure = found.estimates[Measure.parse(f"relevance {measure}")]
            assert figure.by_topic()[figure.topics.index(topic)] == pytest.approx(value)


@st.composite
def judged_runs(draw: st.DrawFn) -> tuple[Grades, dict[str, list[str]]]:
    """Judgments and a run of the same topics.

    In some, all of the first 5 are judged, in some only a part of them.
    """
    grades, ranked = {}, {}
    for topic in map(str, range(draw(st.integers(1, 4)))):
        names = [f"d{number}" for number in range(draw(st.integers(5, 9)))]
        ranked[topic] = draw(st.permutations(names))
        judged = (
            names
            if draw(st.booleans())
            else draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
        )
        grades[topic] = {
            name: float(draw(st.integers(-2, 3))) for name in (*judged, "not in the run")
        }
    return grades, ranked


@given(judged_runs())
@settings(max_examples=25, deadline=None)
def test_ours_and_ir_measures_agree_where_they_define_the_same(
    both: tuple[Grades, dict[str, list[str]]],
) -> None:
    grades, ranked = both
    found = evaluate_run("run", run_of(ranked), qrels_of(grades))
    whole = {
        topic: {name: max(int(grade), 0) for name, grade in each.items()}
        for topic, each in grades.items()
    }

    def theirs(measure: Any, rankings: Mapping[str, list[str]]) -> dict[str, float]:
        scored = {
            topic: {name: -float(place) for place, name in enumerate(each)}
            for topic, each in rankings.items()
        }
        return {
            metric.query_id: metric.value
            for metric in ir_measures.iter_calc([measure], whole, scored)
        }

    def ours(measure: str) -> dict[str, float]:
        figure = found.estimates[Measure.parse(f"relevance {measure}")]
        return dict(zip(figure.topics, figure.by_topic(), strict=True))

    assert ours("judged@5") == pytest.approx(theirs(ir_measures.Judged @ 5, ranked))
    # The script's value is nDCG of what is left when the unjudged of the first 5 are dropped.
    left = {
        topic: [name for name in each[:5] if name in grades[topic]]
        for topic, each in ranked.items()
    }
    expected = theirs(ir_measures.nDCG @ 5, left)
    counted = [topic for topic in grades if left[topic] and max(grades[topic].values()) > 0]
    event(f"topics that count: {len(counted)} of {len(grades)}")
    assert ours("touche_nDCG@5") == pytest.approx({topic: expected[topic] for topic in counted})


@pytest.mark.filterwarnings("ignore::touche_llm.errors.ToucheWarning")
@pytest.mark.skipif(not REAL.is_dir(), reason=f"the real judgments are missing: {REAL}")
def test_real_judgments_give_the_values_of_the_independent_implementation() -> None:
    aspects = ("relevance", "quality")
    qrels = read_qrels({aspect: REAL / f"qrels-{aspect}.txt" for aspect in aspects}, TASK)
    table = evaluate(read_run(REAL / "candidates.run.txt"), qrels).set_index("measure")["value"]
    # From the README beside the data.
    assert table["relevance nDCG@5"] == pytest.approx(0.2596, abs=5e-5)
    assert table["relevance touche_nDCG@5"] == pytest.approx(0.3154, abs=5e-5)
    assert table["quality nDCG@5"] == pytest.approx(0.2683, abs=5e-5)
    assert table["quality touche_nDCG@5"] == pytest.approx(0.3230, abs=5e-5)
    assert table["relevance judged@5"] == pytest.approx(0.568, abs=5e-5)


def dcg(gains: list[float]) -> float:
    return math.fsum(gain / log2(place + 2) for place, gain in enumerate(gains))
