"""Defaults of settings, which decide the results of every run that does not set them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from touche_llm.config import Config
from touche_llm.data.settings import Section
from touche_llm.judging.labels import StanceSettings
from touche_llm.judging.sentence_pairs import PairSettings
from touche_llm.llm.cache import CacheMode
from touche_llm.llm.settings import CacheConfig, EngineConfig, Runner, SamplingConfig, ThinkingConfig
from touche_llm.ranking.cross_encoder import CrossEncoderSettings
from touche_llm.ranking.fusion import FusionSettings, FusionStepSettings
from touche_llm.ranking.listwise import Listwise, Tournament
from touche_llm.ranking.order import BalanceSettings
from touche_llm.ranking.pairwise import Pairwise, Sliding
from touche_llm.ranking.setwise import Insertion, Setwise
from touche_llm.ranking.steps import RankingSettings
from touche_llm.retrieval.base import Bm25Settings, ExpansionSettings
from touche_llm.retrieval.chatnoir import ChatNoirSettings
from touche_llm.retrieval.dense import DenseSettings
from touche_llm.retrieval.elasticsearch_server import ElasticsearchSettings
from touche_llm.retrieval.retrievers import RetrieverConfig
from touche_llm.retrieval.sentences import SentenceSettings

# Optional settings, which are None or empty by default, and sections are left out.
_POOLING: Mapping[str, object] = {
    "batch": 32,
    "concurrency": 16,
    "request_timeout": 300.0,
    "retry_for": 600.0,
    "preset": "plain",
    "instruction": "Given a web search query, retrieve relevant passages that answer the query",
}
DEFAULTS: Mapping[type[Section], Mapping[str, object]] = {
    Config: {
        "task": "comparative",
        "skip_bad_lines": False,
        "depth": 100,
        "judge_per": "document",
        "objective": "both",
        "rank": ("judge",),
        "tag": "touche-llm",
    },
    PairSettings: {
        "judged": 100,
        "both_orders": 20,
        "most": 1000,
        "most_share": 0.1,
        "no_side_above": 0.5,
        "same_argument": 0.1,
    },
    StanceSettings: {"prompt": "shared", "depth": 20},
    EngineConfig: {
        "name": "server",
        "runner": Runner.VLLM,
        "base_url": "http://127.0.0.1:8000",
        "concurrency": 256,
        "request_timeout": 300.0,
        "retry_for": 600.0,
    },
    SamplingConfig: {
        "temperature": 0.0,
        "resample_temperature": 0.7,
        "seed": 0,
        "max_tokens": 64,
        "logprobs": True,
        "chat_template_kwargs": {"enable_thinking": False, "thinking": False},
        "system_message": "role",
    },
    CacheConfig: {"file": Path(".touche-llm/answers.sqlite"), "mode": CacheMode.REUSE, "retry_failures": False},
    ThinkingConfig: {
        "chains": 1,
        "delimiters": ("<think>\n", "\n</think>\n\n"),
        "temperature": 0.6,
        "chat_template_kwargs": {"enable_thinking": True, "thinking": True},
        **dict.fromkeys(("judge", "stance", "compare"), 0),
    },
    BalanceSettings: {"margin": 0.05, "places": 3},
    CrossEncoderSettings: {**_POOLING, "query": ("title",)},
    DenseSettings: {**_POOLING, "pool": 1000, "weight": 1.0, "k": 60.0},
    ExpansionSettings: {"use": False, "weight": 0.5, "k": 60.0},
    FusionSettings: {"method": "rrf", "k": 60.0},
    FusionStepSettings: {"method": "rrf", "k": 60.0},
    Listwise: {"window": 20, "stride": 10, "shuffles": 1, "seed": 0},
    Pairwise: {"both_orders": True},
    Setwise: {"children": 3, "top": 10, "both_orders": False},
    Insertion: {"children": 3, "top": 10, "both_orders": False},
    Sliding: {"passes": 10, "both_orders": True},
    RankingSettings: {"document_tokens": 512},
    Tournament: {"group": 10, "rounds": 2, "seed": 0},
    Bm25Settings: {"method": "robertson", "k1": 1.5, "b": 0.75},
    RetrieverConfig: {"method": "robertson", "k1": 1.5, "b": 0.75, "name": "bm25", "query": ("title",)},
    ChatNoirSettings: {
        "base_url": "https://chatnoir.eu/",
        "index": "clueweb22/b",
        "cache": Path(".touche-llm/chatnoir.sqlite"),
        "requests_per_second": 2.0,
        "page_size": 100,
        "request_timeout": 60.0,
        "retry_for": 300.0,
    },
    ElasticsearchSettings: {
        "url": "http://127.0.0.1:9200",
        "index": "touche-llm",
        "request_timeout": 60.0,
        "retry_for": 300.0,
    },
    SentenceSettings: {
        "pool": 1000,
        "arguments": 100,
        "argument_share": 0.3,
        "least_words": 4,
        "most_chars": 1000,
        "duplicate": 0.8,
    },
}


@pytest.mark.parametrize("section", DEFAULTS, ids=lambda section: section.__name__)
def test_defaults_change_only_on_purpose(section: type[Section]) -> None:
    fields = {name: field for name, field in section.model_fields.items() if not field.is_required()}
    defaults = {name: field.get_default(call_default_factory=True) for name, field in fields.items()}
    plain = {name: value for name, value in defaults.items() if not isinstance(value, Section)}
    assert {name: value for name, value in plain.items() if value not in (None, "", (), {}, [])} == DEFAULTS[section]
