"""Definitions of tasks in folders: what they may hold, and the error of each mistake."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from math import nan
from pathlib import Path
from typing import Any

import pytest
import yaml

from touche_llm.api.corpora import open_local_corpus
from touche_llm.data.records import Document, Topic
from touche_llm.errors import BadLine, DataError, UsageError
from touche_llm.kinds.known import get_kind
from touche_llm.llm.answer_schema import get_labels
from touche_llm.tasks import TASKS, get_task
from touche_llm.tasks.published import LEADERBOARD_FILE, read_tables
from touche_llm.text.passages import RankedPassages

GOOD: Mapping[str, Any] = {
    "name": "essays",
    "title": "Essays for a seminar",
    "corpus": {"reader": "json_lines", "files": ["essays.jsonl"], "id": "key", "text": "body"},
    "aspects": {"relevance": "0..2", "depth": "1..5"},
    "stance": {
        "labels": ["FOR", "RATHER_FOR", "AGAINST", "OPEN"],
        "no_side": ["OPEN"],
        "unanswered": "OPEN",
    },
    "documents_per_topic": {"min": 1, "max": 50},
    "weights": {"both": {"relevance": 1.0, "depth": 0.5}},
    "measures": {"relevance": "nDCG@10", "stance": "macro-F1"},
}
PAIRS = {
    **{"kind": "pairs", "corpus": {"reader": "args_me"}, "sentence_aspects": ["relevance"]},
    "stance": {"labels": ["PRO", "CON"], "unanswered": "omit"},
}
TEMPLATES = ("judge", "stance", "objects", "sentence")


def write_task(folder: Path, values: Mapping[str, Any] | str, without: str = "") -> str:
    folder.mkdir()
    text = values if isinstance(values, str) else yaml.safe_dump(dict(values), sort_keys=False)
    (folder / "task.yaml").write_text(text)
    for name in TEMPLATES:
        if name != without:
            (folder / f"{name}.jinja").write_text("---\n---\n")
    return str(folder)


def changed(place: str, value: Any) -> dict[str, Any]:
    """Return the good task with another value at a dotted place, or without it if the value is None."""
    values = deepcopy(dict(GOOD))
    *sections, key = place.split("/")
    target = values
    for section in sections:
        target = target[section]
    target.pop(key, None)
    if value is not None:
        target[key] = value
    return values


def test_a_folder_is_a_task(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "mine", GOOD)
    task = get_task(folder)
    assert (get_task("comparative").reference, task.reference) == ("comparative", folder)
    labels = get_labels(task.question.answer)
    assert labels == {
        "relevance": (0, 1, 2),
        "depth": (1, 2, 3, 4, 5),
        "stance": ("FOR", "RATHER_FOR", "AGAINST", "OPEN"),
    }
    assert (task.name, task.sides, task.unknown_stance) == (
        "essays",
        ("FOR", "RATHER_FOR", "AGAINST"),
        "OPEN",
    )
    assert task.objectives["quality"] == {"relevance": 1.0, "depth": 0.5, "first_stage": 0.0}
    assert list(task.questions) == ["judge"] and task.objects_answer is None


def test_features_add_prompts(tmp_path: Path) -> None:
    task = get_task(
        write_task(
            tmp_path / "mine", {**GOOD, "features": ["objects", "excerpts", "stance_prompt"]}
        )
    )
    assert list(task.questions) == ["judge", "stance"] and task.objects_answer is not None
    assert get_labels(task.questions["stance"].answer) == {
        "position": ("YES", "NO"),
        "stance": ("FOR", "RATHER_FOR", "AGAINST"),
    }
    # A template need not name the objects.
    variables = {"topic": True, "document": True, "first": False, "second": False}
    assert task.question.template_variables == variables
    topic = Topic("1", "Tea or coffee?", objects=("tea", "coffee"))
    rendered = task.question.render(topic, Document("d", "Tea.\n\nCoffee."))
    assert isinstance(rendered.document, RankedPassages)
    assert rendered.variables == {"first": "tea", "second": "coffee"}
    pairs = get_task(write_task(tmp_path / "pairs", {**GOOD, **PAIRS, "measures": {}}))
    assert list(pairs.questions) == ["judge", "sentence"] and pairs.unknown_stance is None
    assert get_kind(pairs).name == "pairs"
    assert get_labels(pairs.questions["sentence"].answer) == {
        "role": ("CLAIM", "PREMISE", "NONE"),
        "relevance": (0, 1, 2),
        "stance": ("PRO", "CON", "NONE"),
    }


def test_a_task_can_map_the_grades_of_its_prompt_to_those_of_people(tmp_path: Path) -> None:
    values = {**GOOD, "qrels": {"depth": "0..2"}, "qrels_mapping": {"depth": [0, 0, 1, 1, 2]}}
    task = get_task(write_task(tmp_path / "mine", values))
    assert task.qrels_mapping_of("depth") == {1: 0, 2: 0, 3: 1, 4: 1, 5: 2}


@pytest.mark.parametrize(
    "mapping",
    [
        {"depth": [0, 1, 2]},
        {"depth": [0, 0, 1, 1, 3]},
        {"depth": [2, 1, 1, 0, 0]},
        {"relevance": [0, 1, 2]},
    ],
)
def test_a_mapping_has_an_ascending_grade_of_people_for_each_of_the_prompt(
    tmp_path: Path, mapping: dict[str, list[int]]
) -> None:
    values = {**GOOD, "qrels": {"depth": "0..2"}, "qrels_mapping": mapping}
    with pytest.raises(DataError, match="qrels_mapping"):
        get_task(write_task(tmp_path / "mine", values))


def test_the_scale_of_human_judgments_is_apart_from_that_of_the_prompt(tmp_path: Path) -> None:
    task = get_task(write_task(tmp_path / "mine", changed("qrels", {"depth": "0..2"})))
    assert get_labels(task.question.answer)["depth"] == (1, 2, 3, 4, 5)
    assert task.qrels_scales == {"relevance": (0, 2), "depth": (0, 2)}
    assert task.qrels_mapping_of("relevance") == {0: 0, 1: 1, 2: 2}
    assert task.qrels_mapping_of("depth") is None
    # A changed definition is another task; grades up to 10 are for people and for scales without a
    # 1.
    values = {
        **GOOD,
        "aspects": {"relevance": "2..10", "depth": "0..9"},
        "qrels": {"depth": "0..10"},
    }
    (tmp_path / "mine" / "task.yaml").write_text(yaml.safe_dump(values))
    task = get_task(str(tmp_path / "mine"))
    assert get_labels(task.question.answer)["relevance"] == tuple(range(2, 11))
    assert task.qrels_scales["depth"] == (0, 10)


BROKEN = [
    ("name", "My essays", "name", "a-z"),
    ("name", "comparative", "name", "is a task of the project"),
    ("titel", "x", "titel", "expected one of name, title"),
    ("corpus/reader", "xml", "corpus.reader", "'json_lines' or 'args_me'"),
    ("corpus/reader", "args_me", "corpus.id", "json_lines"),
    ("aspects/relevance", "3..0", "aspects.relevance", "0 to 10"),
    # Where a model writes digits one by one, a 1 can be a 10.
    ("aspects/relevance", "0..10", "aspects.relevance", "up to 9"),
    ("aspects/relevance", "1..10", "aspects.relevance", "qrels.relevance"),
    ("aspects/stance", "0..3", "aspects.stance", "another meaning"),
    ("aspects/how deep", "0..3", "aspects.how deep", "a-z"),
    ("stance/labels", [f"L{number}" for number in range(21)], "stance.labels", "at most 20"),
    ("stance/labels", ["FOR", "AGAINST", "for"], "stance.labels", "same label"),
    ("stance/labels", ["FOR", "Q0"], "stance.labels.1", "another meaning"),
    ("stance/no_side", ["OPENED"], "stance.no_side", "FOR, RATHER_FOR, AGAINST, OPEN"),
    (
        "stance/no_side",
        ["FOR", "RATHER_FOR", "AGAINST", "OPEN"],
        "stance.no_side",
        "must take a side",
    ),
    ("stance/unanswered", "NO", "stance.unanswered", "OPEN, omit"),
    ("stance/swapped", {"FOR": "FOR"}, "stance.swapped", "two different labels"),
    ("stance/swapped", {"FOR": "OPEN", "RATHER_FOR": "OPEN"}, "stance.swapped", "one pair only"),
    ("stance/swapped", {"FOR": "AGAINST"}, "stance.swapped", "objects"),
    ("features", ["pairs"], "features.0", "'objects', 'stance_prompt'"),
    ("kind", "pairs", "kind", "args_me"),
    ("kind", "triples", "kind", "documents, pairs"),
    ("sentence_aspects", ["relevance"], "sentence_aspects", "args_me"),
    ("documents_per_topic/min", 60, "documents_per_topic.min", "above max, 50"),
    ("templates", "argument", "templates", "arguments_2020, arguments_2021, comparative"),
    ("weights/both/depht", 1.0, "weights.both", "depth"),
    ("measures/depth", "macro-F1", "measures.depth", "nDCG@5 or nDCG@10"),
    ("measures/width", "nDCG@5", "measures", "relevance, depth, stance"),
]


@pytest.mark.parametrize(
    ("place", "value", "key", "hint"), BROKEN, ids=[f"{item[0]} {item[1]}" for item in BROKEN]
)
def test_a_mistake_is_one_line_with_file_key_and_what_is_allowed(
    place: str, value: Any, key: str, hint: str, tmp_path: Path
) -> None:
    folder = write_task(tmp_path / "mine", changed(place, value))
    with pytest.raises(DataError) as caught:
        get_kind(get_task(folder))
    assert caught.value.location == f"{folder}/task.yaml"
    assert str(caught.value).startswith(f"{folder}/task.yaml: {key}: ")
    assert hint in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "key"),
    [
        (
            {"stance": {"labels": ["PRO", "CON"], "no_side": ["CON"], "unanswered": "omit"}},
            "kind",
        ),
        ({"stance": {"labels": ["PRO", "NONE"], "unanswered": "omit"}}, "kind"),
        ({"stance": None}, "kind"),
        ({"features": ["objects"]}, "kind"),
        ({"sentence_aspects": []}, "kind"),
        ({"kind": "documents"}, "sentence_aspects"),
        ({"sentence_aspects": ["relevance", "depht"]}, "sentence_aspects"),
        ({"features": ["excerpts"], "sentence_aspects": []}, "features"),
    ],
)
def test_pairs_need_sides_and_known_aspects_of_sentences(
    values: Mapping[str, Any], key: str, tmp_path: Path
) -> None:
    folder = write_task(tmp_path / "mine", {**GOOD, **PAIRS, "measures": {}, **values})
    with pytest.raises(DataError, match=f"^{folder}/task.yaml: {key}: "):
        get_kind(get_task(folder))


def test_templates_that_the_folder_lacks_are_those_of_another_task(tmp_path: Path) -> None:
    values = {**GOOD, "features": ["stance_prompt"], "templates": "controversial"}
    task = get_task(write_task(tmp_path / "mine", values, without="stance"))
    shared = TASKS["controversial"].folder
    assert task.find_template("stance.jinja") == shared / "stance.jinja"
    assert task.find_template("best.jinja") == shared / "best.jinja"
    assert task.find_template("judge.jinja") == tmp_path / "mine" / "judge.jinja"
    assert task.find_template("none.jinja") == tmp_path / "mine" / "none.jinja"
    assert get_task("controversial").shared_folders == ()


@pytest.mark.parametrize(
    ("features", "missing"),
    [([], "judge"), (["stance_prompt"], "stance"), (["objects"], "objects")],
)
def test_a_missing_template_is_named_with_the_key_that_needs_it(
    features: list[str], missing: str, tmp_path: Path
) -> None:
    folder = write_task(tmp_path / "mine", {**GOOD, "features": features}, without=missing)
    with pytest.raises(
        DataError, match=rf"(features|aspects): .*{missing}\.jinja, which is missing"
    ) as caught:
        get_task(folder)
    assert caught.value.location == f"{folder}/task.yaml"


def test_a_folder_without_a_definition_and_an_unknown_name_are_errors(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError) as caught:
        get_task(str(tmp_path / "empty"))
    assert caught.value.location == f"{tmp_path}/empty/task.yaml"
    with pytest.raises(UsageError, match="comparative, .*sentence_pairs"):
        get_task(str(tmp_path / "nothing"))


@pytest.mark.parametrize(
    ("measure", "value", "key"),
    [
        ("depth", 0.5, "tables"),
        ("relevance", 1.5, "tables.0.runs.0.value"),
        ("relevance", nan, "tables.0.runs.0.value"),
    ],
)
def test_published_results_of_a_folder_are_checked(
    measure: str, value: float, key: str, tmp_path: Path
) -> None:
    task = get_task(write_task(tmp_path / "mine", GOOD))
    assert read_tables(task) == []
    file = task.folder / LEADERBOARD_FILE
    table = {
        "measure": measure,
        "url": "https://a.org",
        "runs": [{"value": value, "team": "a", "tag": "b", "low": 0.1}],
    }
    file.write_text(yaml.safe_dump({"title": "t", "tables": [table]}))
    with pytest.raises(DataError, match=f"^{file}: {key}: "):
        read_tables(task)


def test_the_keys_of_documents_are_those_of_the_task(tmp_path: Path) -> None:
    corpus = tmp_path / "essays.jsonl"
    corpus.write_text('{"key": "a", "body": "one tea", "id": 7, "text": "two coffee"}\n')
    with pytest.raises(BadLine):
        list(TASKS["comparative"].read_corpus(corpus, None))
    index = tmp_path / "index"
    texts, notes = [], list[str]()
    for number, text in enumerate(("body", "text", "text")):
        values = changed("corpus/text", text)
        task = get_task(write_task(tmp_path / str(number), values))
        with open_local_corpus(
            corpus, index, task, skip_bad_lines=False, warn=notes.append
        ) as opened:
            texts.append(opened.documents.get("a").text)
    assert texts == ["one tea", "two coffee", "two coffee"]
    assert [("stor" in note, "other keys" in note) for note in notes] == [
        (True, False),
        (True, True),
    ]


def test_the_text_of_a_document_may_have_several_parts(tmp_path: Path) -> None:
    task = get_task(write_task(tmp_path / "mine", changed("corpus/text", ["title", "body"])))
    corpus = tmp_path / "essays.jsonl"
    lines = (
        {"key": "a", "title": "Tea", "body": "It is hot."},
        {"key": "b", "title": None, "body": "Cold.", "no": 1},
    )
    corpus.write_text("".join(json.dumps(line) + "\n" for line in lines))
    texts = {document.id: document.text for _, document in task.read_corpus(corpus, None)}
    assert texts == {"a": "Tea\nIt is hot.", "b": "Cold."}
    for line, key in (
        ({"key": "a", "body": "It is hot."}, "`title`"),
        ({"key": "a", "title": 7, "body": "It is hot."}, "`title`"),
        ({"key": "a", "title": "", "body": " "}, "`title` or `body`"),
    ):
        corpus.write_text(json.dumps(line))
        with pytest.raises(BadLine, match=key):
            list(task.read_corpus(corpus, None))
