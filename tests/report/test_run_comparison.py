from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.expect import raises_at
from tests.report.reports import POISON, poisoned
from tests.report.test_run_page import Page
from touche_llm.config.files import load_config, write_config
from touche_llm.data.measure import MACRO_F1, make_headline_ndcg
from touche_llm.data.runs.reading import ParsedRun, read_run
from touche_llm.errors import DataError, UsageError
from touche_llm.evaluation.comparisons import compare_runs
from touche_llm.evaluation.measures import evaluate_run
from touche_llm.evaluation.qrels import Qrels
from touche_llm.report.comparison_page import ComparisonPage, check_number, gather_comparison
from touche_llm.report.page import render
from touche_llm.tasks import get_task

# Pages of several runs take a while to make.
pytestmark = pytest.mark.slow


TASK = get_task("comparative")
TOP = 6
# The name of a run, its rankings, and its folder, if any.
Named = tuple[str, ParsedRun, Path | None]


@pytest.fixture(scope="module", autouse=True)
def few_resamples() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("touche_llm.evaluation.randomisation.RESAMPLES", 200)
        yield


@pytest.fixture(scope="module")
def runs(comparative: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Named]:
    """The sample's run, one with the best ten the other way round and no position, and a file with an own document."""
    folder = tmp_path_factory.mktemp("runs")
    shutil.copytree(comparative, folder / "turned")
    config = load_config(folder / "turned" / "config.yaml", {"weights.quality": 3.0})
    write_config(config, folder / "turned" / "config.yaml")
    turned, alone = [], []
    for topic, ranking in read_run(comparative / "run.txt").rankings.items():
        ordered = [each.document_id for each in (*ranking[9::-1], *ranking[10:])]
        turned += [
            f"{topic} NO {document} {rank} {-rank} turned\n"
            for rank, document in enumerate(ordered, start=1)
        ]
        kept = [f"new-{topic}", *(each.document_id for each in ranking[14:17])]
        alone += [
            f"{topic} Q0 {document} {rank} {-rank} alone\n"
            for rank, document in enumerate(kept, start=1)
        ]
    (folder / "turned" / "run.txt").write_text("".join(turned))
    (folder / "alone.txt").write_text("".join(alone))
    return [
        ("first", read_run(comparative / "run.txt"), comparative),
        ("turned", read_run(folder / "turned" / "run.txt"), folder / "turned"),
        ("alone.txt", read_run(folder / "alone.txt"), None),
    ]


def gathered(runs: Sequence[Named], qrels: Qrels, top: int = TOP) -> ComparisonPage:
    evaluations = [evaluate_run(name, run, qrels, 30) for name, run, _ in runs]
    comparison = compare_runs(evaluations[0], evaluations[1:])
    return gather_comparison(
        evaluations,
        [run[2] for run in runs],
        TASK,
        {"relevance": Path("qrels.txt")},
        comparison,
        top,
    )


@pytest.fixture(scope="module")
def found(runs: list[Named], qrels: Qrels) -> ComparisonPage:
    return gathered(runs, qrels)


def test_every_document_at_the_top_of_some_run_is_there_with_its_place_in_each(
    runs: list[Named], found: ComparisonPage
) -> None:
    for topic in found.topics:
        assert topic.topic.objects
        rankings = [run.rankings[topic.topic.id] for _, run, _ in runs]
        tops = {each.document_id for ranking in rankings for each in ranking[:TOP]}
        assert {document.document_id for document in topic.documents} == tops
        best = [
            min(place.rank for place in document.places if place) for document in topic.documents
        ]
        assert best == sorted(best)
        for document in topic.documents:
            for (_, run, _), ranking, place in zip(runs, rankings, document.places, strict=True):
                expected = {each.document_id: each.rank for each in ranking}.get(
                    document.document_id
                )
                assert (place.rank if place else None) == expected
                stance = run.stances.get((topic.topic.id, document.document_id), "")
                assert place is None or place.stance == stance
            labels = {place.stance for place in document.places if place} - {""}
            at_top = [place is not None and place.rank <= 5 for place in document.places]
            assert document.stances_differ is (len(labels) == 2)
            assert document.top_differs is (True in at_top and False in at_top)
            *folders, alone = document.places
            assert all(place is None or place.grades for place in folders)
            assert alone is None or alone.grades == {}


def test_texts_are_those_of_the_corpus_also_for_documents_of_a_run_file(
    found: ComparisonPage,
) -> None:
    documents = [document for topic in found.topics for document in topic.documents]
    without = [document.document_id for document in documents if document.text is None]
    assert sorted(without) == sorted(f"new-{topic.topic.id}" for topic in found.topics)
    assert any(
        f"missing in every available corpus: {len(without)} of {len(documents)}." in note
        for note in found.notes
    )


def test_figures_are_those_of_the_evaluations_and_differences_those_to_the_baseline(
    runs: list[Named], qrels: Qrels, found: ComparisonPage
) -> None:
    assert found.baseline.letter == "A"
    expected = [evaluate_run(name, run, qrels, 30) for name, run, _ in runs]
    measured = found.measured
    relevance_ndcg = make_headline_ndcg("relevance")
    headline = [row.measure for row in measured.headline]
    assert headline == [relevance_ndcg, make_headline_ndcg("quality"), MACRO_F1]
    for row in measured.rows[:2]:
        values = [each.estimates[row.measure].value for each in expected]
        shown = [estimate for estimate in row.runs if estimate is not None]
        assert [estimate.value for estimate in shown] == values
        baseline, *others = shown
        assert baseline.change is None
        for estimate in others:
            change = estimate.change
            assert change is not None
            assert change.difference == pytest.approx(estimate.value - baseline.value)
            assert change.wins + change.ties + change.losses == estimate.n
    assert [set(each) for each in measured.by_topic[relevance_ndcg]] == [
        set(qrels.grades["relevance"])
    ] * 3


def test_only_folders_say_what_failed_and_what_it_cost(found: ComparisonPage) -> None:
    first, turned, alone = found.runs
    assert first.stages is not None and first.stages.judge is not None
    assert first.stages == turned.stages and alone.stages is None
    assert first.facts["failures"] == "0" and "failures" not in alone.facts
    requests = f"{first.stages.judge.llm.counts.requests:,}"
    (row,) = (row for row in found.costs["judge"] if row.label == "requests")
    assert row.texts == [requests, requests]
    assert any(note.startswith("C: Only a run file") for note in found.notes)


def test_run_files_alone_make_a_page_too(runs: list[Named], qrels: Qrels) -> None:
    page = Page(render(gathered([(name, run, None) for name, run, _ in runs], qrels)))
    text = " ".join(page.text.split())
    # The third run has no stances, so that nothing can be said of a difference.
    assert "difference –, p Holm" in text and "nan" not in text
    assert "Run files do not record costs" in text
    assert sum("doc" == attributes.get("class") for _, attributes in page.elements) > 0


def test_no_text_of_the_page_leaves_its_place(found: ComparisonPage) -> None:
    full = replace(found, topics=found.topics[:1], notes=["note"])
    page = Page(render(poisoned(full)))
    assert [tag for tag, _ in page.elements if tag.startswith("x-")] == []
    for _, attributes in page.elements:
        assert not any(name.startswith("on") or POISON in name for name in attributes)
    for text in ("note", full.topics[0].documents[0].document_id, found.runs[0].name):
        assert POISON + text in page.text


def test_runs_that_do_not_fit_on_a_page_and_folders_without_configuration_are_errors(
    runs: list[Named], qrels: Qrels, tmp_path: Path
) -> None:
    for number in (1, 9):
        with pytest.raises(UsageError, match=f"^{number} .*2 to 8"):
            check_number(number)
    check_number(8)
    with raises_at(DataError, tmp_path / "config.yaml"):
        gathered([runs[0], ("bare", runs[2][1], tmp_path)], qrels)
