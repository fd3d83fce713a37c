from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.expect import raises_at
from tests.report.reports import ATTACKS, POISON, changed, poisoned
from tests.report.test_run_page import Page, count
from touche_llm.data.trec_runs import read_run
from touche_llm.errors import DataError, UsageError
from touche_llm.evaluation.measures import compare_runs, evaluate_run
from touche_llm.evaluation.qrels import Qrels
from touche_llm.pipeline.config_file import load_config, write_config
from touche_llm.report.run_comparison import (
    NamedRun,
    check_runs,
    gather_comparison,
    render_comparison,
)
from touche_llm.tasks import get_task

# Pages of several runs take a while to make.
pytestmark = pytest.mark.slow


TASK = get_task("comparative")
TOP = 6


@pytest.fixture(scope="module", autouse=True)
def few_resamples() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("touche_llm.evaluation.significance.RESAMPLES", 200)
        yield


@pytest.fixture(scope="module")
def runs(comparative: Path, tmp_path_factory: pytest.TempPathFactory) -> list[NamedRun]:
    """The sample's run, one with the best ten the other way round and no position, and a file with an own document."""
    folder = tmp_path_factory.mktemp("runs")
    shutil.copytree(comparative, folder / "turned")
    config = load_config(folder / "turned" / "config.yaml", {"weights.quality": 3.0})
    write_config(config, folder / "turned" / "config.yaml")
    turned, alone = [], []
    for topic, ranking in read_run(comparative / "run.txt").rankings.items():
        ordered = [each.document_id for each in (*ranking[9::-1], *ranking[10:])]
        turned += [f"{topic} NO {document} {rank} {-rank} turned\n" for rank, document in enumerate(ordered, start=1)]
        kept = [f"new-{topic}", *(each.document_id for each in ranking[14:17])]
        alone += [f"{topic} Q0 {document} {rank} {-rank} alone\n" for rank, document in enumerate(kept, start=1)]
    (folder / "turned" / "run.txt").write_text("".join(turned))
    (folder / "alone.txt").write_text("".join(alone))
    return [
        NamedRun("first", read_run(comparative / "run.txt"), comparative),
        NamedRun("turned", read_run(folder / "turned" / "run.txt"), folder / "turned"),
        NamedRun("alone.txt", read_run(folder / "alone.txt"), None),
    ]


def gathered(runs: Sequence[NamedRun], qrels: Qrels, baseline: int = 0, top: int = TOP) -> SimpleNamespace:
    evaluations = [evaluate_run(each.name, each.run, qrels, 30) for each in runs]
    others = [each for each in evaluations if each is not evaluations[baseline]]
    frame, remarks = compare_runs(evaluations[baseline], others)
    return gather_comparison(runs, TASK, {"relevance": Path("qrels.txt")}, evaluations, frame, remarks, top)


@pytest.fixture(scope="module")
def found(runs: list[NamedRun], qrels: Qrels) -> SimpleNamespace:
    return gathered(runs, qrels, baseline=1)


def test_every_document_at_the_top_of_some_run_is_there_with_its_place_in_each(
    runs: list[NamedRun], found: SimpleNamespace
) -> None:
    for topic in found.topics:
        assert topic.topic.objects
        rankings = [each.run.rankings[topic.topic.id] for each in runs]
        tops = {each.document_id for ranking in rankings for each in ranking[:TOP]}
        assert {document.document_id for document in topic.documents} == tops
        best = [min(place.rank for place in document.places if place) for document in topic.documents]
        assert best == sorted(best)
        for document in topic.documents:
            for given, ranking, place in zip(runs, rankings, document.places, strict=True):
                expected = {each.document_id: each.rank for each in ranking}.get(document.document_id)
                assert (place.rank if place else None) == expected
                stance = given.run.stances.get((topic.topic.id, document.document_id), "")
                assert place is None or place.stance == stance
            labels = {place.stance for place in document.places if place} - {""}
            at_top = [place is not None and place.rank <= 5 for place in document.places]
            assert document.stances_differ is (len(labels) == 2)
            assert document.top_differs is (True in at_top and False in at_top)
            # Folders give grades for all and details for their own top.
            *folders, alone = document.places
            for place in folders:
                assert place is None or (place.row is not None and place.row.grades)
                assert place is None or (place.details is not None) is (place.rank <= TOP)
            assert alone is None or (alone.row, alone.details) == (None, None)


def test_texts_are_those_of_the_corpus_also_for_documents_of_a_run_file(found: SimpleNamespace) -> None:
    documents = [document for topic in found.topics for document in topic.documents]
    without = [document.document_id for document in documents if document.text is None]
    assert sorted(without) == sorted(f"new-{topic.topic.id}" for topic in found.topics)
    assert any(
        f"missing in every available corpus: {len(without)} of {len(documents)}." in note for note in found.notes
    )


def test_figures_are_those_of_the_evaluations_and_differences_those_to_the_baseline(
    runs: list[NamedRun], qrels: Qrels, found: SimpleNamespace
) -> None:
    assert found.baseline == "B"
    expected = [evaluate_run(each.name, each.run, qrels, 30) for each in runs]
    assert [each.name for each in found.measures if each.headline] == [
        "relevance nDCG@5",
        "quality nDCG@5",
        "stance macro-F1",
    ]
    for measure in found.measures[:2]:
        values = [each.estimates[measure.name].value for each in expected]
        assert [each.summary["value"] for each in measure.runs if each is not None] == values
        assert measure.runs[1] is not None and measure.runs[1].difference is None
        for each, value in zip(measure.runs, values, strict=True):
            if each is not None and (change := each.difference) is not None:
                assert change["difference"] == pytest.approx(value - values[1])
                assert change["wins"] + change["ties"] + change["losses"] == each.summary["n"]
    first, turned, third = found.measures[0].runs
    assert first is not None and turned is not None and third is not None
    assert third.unjudged > first.unjudged and third.bounds is not None
    assert [set(each.by_topic) for each in (first, turned, third)] == [set(qrels.grades["relevance"])] * 3


def test_only_folders_tell_what_failed_and_what_it_cost(found: SimpleNamespace) -> None:
    first, turned, alone = found.sides
    assert first.costs == turned.costs and first.costs is not None and first.costs["judge"]["requests"] is not None
    assert first.failures == {} and (alone.failures, alone.costs) == (None, None)
    assert any(note.startswith("C: only a run file") for note in found.notes)
    text = " ".join(Page(render_comparison(found)).text.split())
    assert "None of A B : every request has a usable answer." in text


def test_run_files_alone_make_a_page_too(runs: list[NamedRun], qrels: Qrels) -> None:
    page = Page(render_comparison(gathered([changed(each, folder=None) for each in runs], qrels)))
    text = " ".join(page.text.split())
    # The third run has no stances, so that nothing can be said of a difference.
    assert "difference –, p Holm" in text and "nan" not in text
    assert "Run files do not record failures" in text
    assert sum("doc" == attributes.get("class") for _, attributes in page.elements) > 0


def test_hostile_texts_stay_texts(hostile: Path, tmp_path: Path) -> None:
    name = f"{hostile} {ATTACKS[0]}"
    given = [NamedRun(name, read_run(hostile / "run.txt"), hostile)]
    given.append(NamedRun(f"{ATTACKS[1]}{ATTACKS[5]}", given[0].run, None))
    documents = [each.document_id for each in given[0].run.rankings["1"]]
    grades = {"relevance": {"1": {document: 1.0 for document in documents[:3]}}}
    hard = Qrels(grades, {}, TASK.stances, TASK.aspects)
    page = Page(render_comparison(gathered(given, hard, top=20)))
    assert [count(page, tag) for tag in ("script", "style", "main", "body")] == [1, 1, 1, 1]
    assert not {"img", "iframe", "link", "object", "b/onclick"} & {tag for tag, _ in page.elements}
    for _, attributes in page.elements:
        assert not any(each.startswith("on") or each in ("style", "src", "srcdoc", "srcset") for each in attributes)
        assert (attributes.get("href") or "#").startswith("#")
    assert all(page.text.count(attack) >= 2 for attack in ATTACKS)


def test_no_text_of_the_page_leaves_its_place(found: SimpleNamespace) -> None:
    sides = [changed(side, failures={("not_json", "failures.jsonl"): 3}) for side in found.sides]
    full = changed(found, sides=sides, topics=found.topics[:1], notes=["note"])
    places = [place for document in full.topics[0].documents for place in document.places]
    said = [text for place in places if place and place.details for _, text in place.details.answers]
    assert said and said[0]
    page = Page(render_comparison(poisoned(full)))
    assert [tag for tag, _ in page.elements if tag.startswith("x-")] == []
    for _, attributes in page.elements:
        assert not any(name.startswith("on") or POISON in name for name in attributes)
    for text in ("note", said[0], "not_json", found.sides[0].name):
        assert POISON + text in page.text


def test_what_cannot_stand_side_by_side_is_told(runs: list[NamedRun], pairs: Path, tmp_path: Path) -> None:
    first, _, alone = runs
    for number in (1, 9):
        with pytest.raises(UsageError, match=f"^{number} .*2 to 8"):
            check_runs([first] * number, TASK)
    check_runs([first] * 8, TASK)
    with raises_at(UsageError, pairs, "sentence_pairs", "comparative"):
        check_runs([first, alone, NamedRun("pairs", alone.run, pairs)], TASK)
    with raises_at(DataError, "pairs", "topic ", "document ", "stance '", "FIRST, SECOND, NEUTRAL, NO"):
        check_runs([first, NamedRun("pairs", read_run(pairs / "run.txt"), None)], TASK)
    with raises_at(DataError, tmp_path, "config.yaml"):
        check_runs([first, NamedRun("bare", alone.run, tmp_path)], TASK)
