"""Facts about engines, read from the cache where no engine is asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.expect import raises_at
from touche_llm.engines.cached_info import (
    assume_engine_info,
    replay_engine_info,
    store_engine_info,
)
from touche_llm.engines.settings import EngineConfig, PoolingConfig
from touche_llm.errors import UsageError
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.protocol import EngineInfo


def info(model: str, revision: str = "", context: int = 4096, overhead: int = 9) -> EngineInfo:
    return EngineInfo(
        model=model, revision=revision, context=context, overhead=overhead, engine="vLLM"
    )


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


def test_the_engine_of_the_cache_is_the_one_that_is_configured_and_one_of_several_has_to_be_chosen(
    cache: Cache,
) -> None:
    known: list[tuple[dict[str, Any], EngineInfo]] = [
        ({"model": "one"}, info("one")),
        ({"model": "one", "revision": "2"}, info("one", "2")),
        ({"model": "other", "context": 4096}, info("other")),
        # The smallest overhead.
        ({"model": "other", "context": 512}, info("other", context=512, overhead=8)),
    ]
    for find in (assume_engine_info, replay_engine_info):
        for asked, expected in known:
            assert find(EngineConfig(**asked), cache) == expected
        with raises_at(UsageError, cache.path, "one, other", "`engine.model`"):
            find(EngineConfig(), cache)
        with raises_at(UsageError, cache.path, "512, 4096", "`engine.context`"):
            find(EngineConfig(model="other"), cache)


def test_an_unknown_engine_is_assumed_as_configured_but_not_replayed(cache: Cache) -> None:
    asked = EngineConfig(model="third", revision="5")
    assumed = assume_engine_info(asked, cache)
    assert (assumed.model, assumed.revision, assumed.overhead, assumed.engine) == (
        "third",
        "5",
        0,
        "",
    )
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
