"""The settings of a configuration that are not the default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from touche_llm.config.changes import list_changed_settings
from touche_llm.config.files import load_config, write_config
from touche_llm.tasks import TASKS, get_task

FILES = {"topics": Path("topics.xml"), "corpus": Path("passages.jsonl")}


def list_changes(**flags: Any) -> dict[str, Any]:
    given = {name.replace("__", "."): value for name, value in flags.items()}
    changes = list_changed_settings(load_config(None, FILES | given))
    assert (changes.pop("topics"), changes.pop("corpus")) == ("topics.xml", "passages.jsonl")
    return changes


@pytest.mark.parametrize("task", TASKS)
def test_what_a_task_brings_is_a_default(task: str) -> None:
    assert list_changes(task=task) == ({} if task == "comparative" else {"task": task})


def test_changed_values_are_listed_by_dotted_name() -> None:
    flags: dict[str, Any] = {
        "depth": 7,
        "topic": ("3", "5"),
        "retriever__k1": 0.9,
        "engine__options": {"seed": 1},
        "rank": "judge,pairwise:5",
        "stance__thresholds": {"NO": 0.5},
        "index": Path("mine"),
    }
    assert list_changes(**flags) == {
        "depth": 7,
        "topic": ["3", "5"],
        "retriever.k1": 0.9,
        "engine.options.seed": 1,
        "rank": ["judge", "pairwise:5"],
        "stance.thresholds.NO": 0.5,
        "index": "mine",
    }


def test_the_weights_of_the_objective_are_defaults_and_others_are_not() -> None:
    assert list_changes(objective="quality") == {"objective": "quality"}
    changes = list_changes(objective="quality", weights__relevance=0.75)
    assert changes == {"objective": "quality", "weights.relevance": 0.75}


def test_a_value_that_the_section_of_a_retriever_has_by_default_is_not_listed() -> None:
    changes = list_changes(retriever__name="hybrid", dense__url="http://127.0.0.1:1")
    assert changes == {"retriever.name": "hybrid", "dense.url": "http://127.0.0.1:1"}


def test_an_index_without_a_corpus_and_a_dataset_are_listed() -> None:
    config = load_config(None, {"topics": Path("t.xml"), "index": Path("folder")})
    assert list_changed_settings(config) == {"topics": "t.xml", "index": "folder"}

    (dataset, *_) = get_task("comparative").corpus.datasets
    changes = list_changed_settings(load_config(None, {"dataset": dataset}))
    assert changes == {"dataset": dataset}


def test_the_defaults_that_a_run_records_are_not_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_config(load_config(None, FILES | {"depth": 7}), Path("config.yaml"))
    changes = list_changed_settings(load_config(Path("config.yaml"), {}))
    assert changes == {"topics": "topics.xml", "corpus": "passages.jsonl", "depth": 7}
