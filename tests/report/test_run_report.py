from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from msgspec.structs import replace

from tests.expect import raises_at
from touche_llm.data.files import read_records, write_records
from touche_llm.data.records import Attempt, Comparison, Cut, Failure, Judgment, Reading
from touche_llm.data.runs.reading import read_run
from touche_llm.errors import DataError
from touche_llm.report.run_pages import gather_report
from touche_llm.runs.open_folder import find_differences, summarize_comparisons
from touche_llm.tasks import get_task
from touche_llm.text.passages import GAP_MARK


def copied(run: Path, folder: Path, **changes: object) -> Path:
    """A copy of a run's folder with other values in its configuration."""
    out = folder / "copy"
    shutil.copytree(run, out)
    config = yaml.safe_load((out / "config.yaml").read_text())
    for name, value in changes.items():
        section, _, key = name.partition("__")
        if key:
            config[section][key] = value
        else:
            config[section] = value
    (out / "config.yaml").write_text(yaml.safe_dump(config))
    return out


def test_each_document_has_its_way_from_the_first_stage_over_the_judgments_to_the_run(
    comparative: Path, judged: SimpleNamespace
) -> None:
    run, first = read_run(comparative / "run.txt"), read_run(comparative / "candidates.run.txt")
    for view in judged.topics:
        candidates = {each.document_id: each.rank for each in first.rankings[view.topic.id]}
        rows = [*(document.row for document in view.documents), *view.rows]
        assert [row.document_id for row in rows] == [
            each.document_id for each in run.rankings[view.topic.id]
        ]
        assert [row.rank for row in rows] == list(range(1, len(rows) + 1)) and view.omitted == 0
        assert all(row.first == candidates[row.document_id] for row in rows)
        # Only the best five were compared, so the others stand where the judgments put them.
        assert sorted(row.judge or 0 for row in rows[:5]) == [1, 2, 3, 4, 5]
        assert all(
            row.judge == row.rank and row.places == [row.first, row.rank, row.rank]
            for row in rows[5:]
        )


@pytest.mark.parametrize("steps", [["judge"], ["pairwise:5", "setwise:3"]])
def test_a_ranking_by_judgments_alone_or_without_them_has_no_way_over_them(
    comparative: Path, tmp_path: Path, steps: list[str]
) -> None:
    rows = [
        each.row
        for each in gather_report(copied(comparative, tmp_path, rank=steps), None, 3)
        .topics[0]
        .documents
    ]
    assert all(row.judge is None and row.places == [row.first, row.rank] for row in rows)


def test_documents_carry_text_probabilities_answers_and_what_people_said(
    comparative: Path, judged: SimpleNamespace
) -> None:
    judgments = {
        (j.topic_id, j.document_id): j
        for j in read_records(comparative / "judgments.jsonl", Judgment, "j")
    }
    passages = (
        Path(yaml.safe_load((comparative / "config.yaml").read_text())["corpus"])
    ).read_text()
    for view in judged.topics:
        for document in view.documents:
            judgment = judgments[view.topic.id, document.row.document_id]
            assert document.text and document.text.splitlines()[0][:40] in passages
            assert document.row.grades == judgment.grades
            assert document.readings["quality"].shares == judgment.readings["quality"].shares
            # The judge prompt, and the stance prompt with the objects in both orders.
            assert [text is not None for _, text in document.answers] == [True] * 3
            text = document.answers[0][1] or ""
            assert text.startswith(
                f"[{judgment.readings['relevance'].answered},"
            ) and text.endswith("]")
    assert any(document.row.people for view in judged.topics for document in view.documents)
    assert not all(document.row.people for view in judged.topics for document in view.documents)


def test_pairs_show_their_sentences_and_their_arguments(pairs: Path) -> None:
    report = gather_report(pairs, None, 4)
    assert report.task.name == "sentence_pairs"
    for view in report.topics:
        assert (len(view.documents), len(view.rows)) == (4, 96)
        assert 100 + view.omitted == len(read_run(pairs / "run.txt").rankings[view.topic.id]) > 100
        for document in view.documents:
            one, other = document.sentences
            assert document.row.document_id == f"{one[0]},{other[0]}"
            assert one[1] and one[2] in ("PRO", "CON")
            assert list(other[3]) == ["role", "relevance", "quality", "stance"]
            assert document.text is not None and document.text.count("\n") == 1


def test_an_index_does_where_the_corpus_is_gone_and_what_is_missing_is_noted(
    comparative: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    gone = {"corpus": str(tmp_path / "gone.jsonl"), "cache__file": str(tmp_path / "empty.jsonl")}
    run = copied(comparative, tmp_path, **gone)
    report = gather_report(run, None, 2)
    documents = [document for view in report.topics for document in view.documents]
    assert len(documents) == 2 * len(report.topics) > 0 and all(
        document.text for document in documents
    )
    assert [text for _, text in documents[0].answers] == [None] * 3


def test_what_a_run_lacks_is_an_error_that_names_it(comparative: Path, tmp_path: Path) -> None:
    run = copied(comparative, tmp_path)
    candidates = run / "candidates.run.txt"
    candidates.write_text("".join(candidates.read_text().splitlines(keepends=True)[1:]))
    with raises_at(DataError, "topic 3", "document sample-"):
        gather_report(run, None, 1)
    for name, stage in (("run.txt", "rank"), ("judgments.jsonl", "judge")):
        (run / name).rename(run / "kept")
        with raises_at(DataError, run / name, f"`touche-llm {stage}`"):
            gather_report(run, None, 1)
        (run / "kept").rename(run / name)
    (run / "ir-metadata.yml").write_text("- a list\n")
    with raises_at(DataError, run / "ir-metadata.yml"):
        gather_report(run, None, 1)


def test_comparisons_are_summed_up_for_each_document_and_step() -> None:
    def best(documents: list[str], shares: dict[str, float]) -> Comparison:
        reading = Reading(
            answered=max(shares, key=lambda label: shares[label]), probabilities=shares
        )
        return Comparison(
            topic_id="1", step="pairwise:2", documents=documents, best=reading, prompt="p", key="k"
        )

    order = Comparison(
        topic_id="1",
        step="listwise:3",
        documents=["a", "b", "c"],
        order=["c", "a", "b"],
        prompt="p",
        key="k",
    )
    found = summarize_comparisons(
        [best(["a", "b"], {"A": 0.9, "B": 0.1}), best(["b", "a"], {"A": 0.5, "B": 0.5}), order]
    )
    assert found["1", "a"] == [
        "pairwise:2: best with mean probability 0.70 (2×)",
        "listwise:3: mean rank 2.0 (1×)",
    ]
    assert found["1", "c"] == ["listwise:3: mean rank 1.0 (1×)"]


def test_of_a_cut_document_what_the_model_saw_is_shown_and_its_failures_stand_beside_it(
    comparative: Path, tmp_path: Path
) -> None:
    run = copied(comparative, tmp_path)
    whole = gather_report(run, None, 2).topics[0]
    first, second = whole.documents
    assert first.text and second.text and (first.truncation, first.failures) == ("", [])
    cut = Cut(kept_chars=1010, of_chars=2345, prompt_tokens=7, parts=[(0, 5), (10, 15)])
    judgments = [
        replace(each, cut=cut)
        if (each.topic_id, each.document_id) == (whole.topic.id, first.row.document_id)
        else each
        for each in read_records(run / "judgments.jsonl", Judgment, "judgments")
    ]
    write_records(run / "judgments.jsonl", judgments)
    attempt = Attempt(sample=0, kind="not_json", reason="no JSON", text="{")
    failed = Failure(
        topic_id=whole.topic.id,
        document_id=second.row.document_id,
        kind="not_json",
        prompt="p",
        attempts=[attempt],
    )
    write_records(run / "failures.jsonl", [failed])
    one, other = gather_report(run, None, 2).topics[0].documents
    assert one.truncation == "the model saw 1,010 of 2,345 characters"
    assert one.text == f"{first.text[:5]}\n{GAP_MARK}\n{first.text[10:15]}"
    assert (one.failures, other.failures, other.text, other.truncation) == (
        [],
        [failed],
        second.text,
        "",
    )


@pytest.mark.parametrize(
    ("grades", "stance", "people", "expected"),
    [
        (
            {"relevance": 2.4, "quality": 1.5},
            "PRO",
            {"relevance": "2", "quality": "2", "stance": "PRO"},
            [],
        ),
        (
            {"relevance": 2.5, "quality": 1.4},
            "PRO",
            {"relevance": "2", "quality": "1"},
            ["relevance"],
        ),
        ({"relevance": 0.1}, "PRO", {"relevance": "-2", "stance": "CON"}, ["stance"]),
        ({"relevance": 1.0}, "PRO", {"quality": "1"}, None),
        ({}, "NO", {"relevance": "0", "stance": "PRO"}, None),
    ],
)
def test_the_model_differs_from_assessors_where_rounded_grades_or_stances_do(
    grades: dict[str, float], stance: str, people: dict[str, str], expected: list[str] | None
) -> None:
    assert find_differences(grades, stance, people, get_task("controversial")) == expected


def test_grades_of_another_scale_than_people_s_are_not_compared() -> None:
    grades = {"relevance": 3.0, "quality": 0.0}
    people = {"relevance": "2", "quality": "2"}
    task = get_task("comparative")
    assert find_differences(grades, "FIRST", people, task) is None
    assert find_differences(grades, "FIRST", {**people, "stance": "NO"}, task) == ["stance"]
