"""Facts about engines, read from the cache where no engine is asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.expect import raises_at
from touche_llm.errors import UsageError
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.engine import EngineInfo
from touche_llm.llm.settings import EngineConfig, PoolingConfig
from touche_llm.pipeline.engines import assume_engine_info, replay_engine_info, store_engine_info


def info(model: str, revision: str = "", context: int = 4096, overhead: int = 9) -> EngineInfo:
    return EngineInfo(model=model, revision=revision, context=context, overhead=overhead, engine="vLLM")


KNOWN = (
    info("one"),
    info("one", "2"),
    info("other"),
    info("other", context=512),
    info("other", context=512, overhead=8),
)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    """A cache of chats with `KNOWN`, and of a cross-encoder with the first two."""
    with Cache(tmp_path / "answers.sqlite") as opened:
        for known in KNOWN:
            store_engine_info(known, opened)
        for known in KNOWN[:2]:
            store_engine_info(known, opened, "score")
        yield opened


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"model": "one"}, info("one")),
        ({"model": "one", "revision": "2"}, info("one", "2")),
        ({"model": "one", "context": 4096}, info("one")),
        ({"model": "other", "context": 4096}, info("other")),
        # The smallest overhead.
        ({"model": "other", "context": 512}, info("other", context=512, overhead=8)),
    ],
)
def test_the_engine_of_the_cache_is_the_one_that_is_configured(
    asked: dict[str, Any], expected: EngineInfo, cache: Cache
) -> None:
    assert assume_engine_info(EngineConfig(**asked), cache) == expected
    assert replay_engine_info(EngineConfig(**asked), cache) == expected


@pytest.mark.parametrize(
    ("asked", "values"),
    [({}, ["one, other", "`engine.model`"]), ({"model": "other"}, ["512, 4096", "`engine.context`"])],
)
def test_one_of_several_engines_has_to_be_chosen(asked: dict[str, Any], values: list[str], cache: Cache) -> None:
    for find in (assume_engine_info, replay_engine_info):
        with raises_at(UsageError, cache.path, *values):
            find(EngineConfig(**asked), cache)


def test_an_unknown_engine_is_assumed_as_configured_but_not_replayed(cache: Cache) -> None:
    asked = EngineConfig(model="third", revision="5")
    assumed = assume_engine_info(asked, cache)
    assert (assumed.model, assumed.revision, assumed.overhead, assumed.engine) == ("third", "5", 0, "")
    assert assumed.context > 10**9  # nothing is truncated
    assert assume_engine_info(asked.model_copy(update={"context": 77}), cache).context == 77
    with raises_at(UsageError, cache.path, "one, other", "third", "'5'"):
        replay_engine_info(asked, cache)


def test_a_pooling_model_is_found_apart_from_engines_of_chats(cache: Cache) -> None:
    assert replay_engine_info(PoolingConfig(), cache, "score") == info("one")
    assert assume_engine_info(PoolingConfig(revision="2"), cache, "score") == info("one", "2")
    with raises_at(UsageError, "dense.url"):
        replay_engine_info(PoolingConfig(), cache, "embedding")
    with (
        Cache(cache.path, CacheMode.REPLAY) as replayed,
        raises_at(UsageError, cache.path, "one", "other"),
    ):
        replay_engine_info(PoolingConfig(model="other"), replayed, "score")
