from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from touche_llm.data.settings import Section
from touche_llm.retrieval.bm25 import Bm25Settings
from touche_llm.retrieval.dense import DenseSettings
from touche_llm.retrieval.elasticsearch_server import ElasticsearchSettings
from touche_llm.retrieval.sentences import SentenceSettings
from touche_llm.retrieval.settings import to_texts


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        (2, ("2",)),
        ("title", ("title",)),
        ([2, "b", 10**20], ("2", "b", "100000000000000000000")),
        (("a",), ("a",)),
        ([], ()),
        # Not an id by any reading, so it is left to be refused.
        (True, (True,)),
        ([False, 2.5, None], (False, 2.5, None)),
    ],
)
def test_ids_that_yaml_reads_as_whole_numbers_are_texts(value: Any, texts: tuple[Any, ...]) -> None:
    assert to_texts(value) == texts


INFINITY = float("inf")


@pytest.mark.parametrize(
    ("section", "name", "valid", "invalid"),
    [
        (Bm25Settings, "k1", [0.0, 100.0], [-0.1, 100.1, INFINITY]),
        (Bm25Settings, "b", [0.0, 1.0], [-0.1, 1.1]),
        (DenseSettings, "dimensions", [1, 16384], [0, 16385]),
        (DenseSettings, "pool", [1], [0]),
        (DenseSettings, "weight", [0.1], [0.0, INFINITY]),
        (DenseSettings, "k", [0.0], [-0.1, INFINITY]),
        (ElasticsearchSettings, "shards", [1, 1024], [0, 1025]),
        (ElasticsearchSettings, "request_timeout", [0.1], [0.0, INFINITY]),
        (ElasticsearchSettings, "retry_for", [0.0], [-0.1, INFINITY]),
        (SentenceSettings, "pool", [2, 100_000], [1, 100_001]),
        (SentenceSettings, "arguments", [0], [-1]),
        (SentenceSettings, "argument_share", [0.0, 1.0], [-0.1, 1.1]),
        (SentenceSettings, "least_words", [1], [0]),
        (SentenceSettings, "most_chars", [1], [0]),
        (SentenceSettings, "duplicate", [0.1, 1.0], [0.0, 1.1]),
    ],
)
def test_a_setting_has_bounds(section: type[Section], name: str, valid: list[float], invalid: list[float]) -> None:
    assert [getattr(section.model_validate({name: value}), name) for value in valid] == valid
    for value in invalid:
        with pytest.raises(ValidationError) as caught:
            section.model_validate({name: value})
        assert [error["loc"] for error in caught.value.errors()] == [(name,)]
