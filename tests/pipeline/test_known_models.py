"""What servers say about models is recorded, and leaves the configuration as it is."""

from __future__ import annotations

from pathlib import Path

from tests.sample_runs import config_for
from touche_llm.engines.use import ModelRecord
from touche_llm.retrieval.dense import DenseSettings
from touche_llm.runs.known_models import KnownModels, complete_config


def describe_model(name: str, context: int) -> ModelRecord:
    return ModelRecord(name=name, revision="", context=context, engine="fake", serving={})


def test_names_and_contexts_of_servers_are_recorded_beside_the_configuration(
    tmp_path: Path,
) -> None:
    config = config_for(tmp_path).model_copy(update={"dense": DenseSettings()})
    before = config.model_dump_json()
    models = KnownModels(
        language_model=describe_model("judge", 4096),
        embedding_model=describe_model("vectors", 512),
        cross_encoder=describe_model("pairs", 256),
    )

    recorded = complete_config(config, models)

    assert (recorded.engine.model, recorded.engine.context) == ("judge", 4096)
    assert recorded.dense is not None
    assert (recorded.dense.model, recorded.dense.context) == ("vectors", None)
    cross_encoder = recorded.ranking.cross_encoder
    assert (cross_encoder.model, cross_encoder.context) == ("pairs", 256)
    assert config.model_dump_json() == before


def test_a_configured_folder_of_a_model_is_recorded_in_place_of_its_name(tmp_path: Path) -> None:
    config = config_for(tmp_path, engine__model="models/judge")
    models = KnownModels(language_model=describe_model("judge", 4096))
    assert complete_config(config, models).engine.model == "models/judge"


def test_without_a_known_model_the_configuration_is_recorded_as_it_is(tmp_path: Path) -> None:
    config = config_for(tmp_path)
    assert complete_config(config, KnownModels()) == config
