"""Candidates and datasets that are no valid input of a run."""

from __future__ import annotations

import pytest

from tests.expect import raises_at
from touche_llm.data.records import Topic
from touche_llm.errors import DataError, UsageError
from touche_llm.pipeline.candidates import Candidates
from touche_llm.pipeline.context import Dataset
from touche_llm.tasks import get_task


def test_a_topic_can_be_given_only_once() -> None:
    topics = [Topic("1", "one"), Topic("2", "two"), Topic("1", "other")]
    with raises_at(DataError, "topics", "topic 1 "):
        Candidates(get_task("comparative"), topics, None, {}, 10)


@pytest.mark.parametrize("name", ["", "no id", "../outside"])
def test_a_malformed_id_of_a_dataset_is_wrong_usage(name: str) -> None:
    with raises_at(UsageError, "dataset", repr(name)):
        Dataset(name)
