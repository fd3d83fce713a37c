"""Conventions of all records: frozen where nothing assigns to a field."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import msgspec
import orjson
import pydantic
import pytest

import touche_llm
from touche_llm.data import records
from touche_llm.data.records import JsonStruct, Malformed, Objects


def classes() -> Iterator[type]:
    """Yield every class of the package."""
    for found in pkgutil.walk_packages(touche_llm.__path__, "touche_llm."):
        if not found.name.endswith("__main__"):
            for value in vars(importlib.import_module(found.name)).values():
                if isinstance(value, type) and value.__module__ == found.name:
                    yield value


def test_records_that_are_written_and_settings_are_frozen() -> None:
    written = [
        each for each in classes() if issubclass(each, JsonStruct) and each is not JsonStruct
    ]
    assert len(written) > 10
    assert all(each.__struct_config__.frozen for each in written)
    held = [
        each
        for each in classes()
        if issubclass(each, msgspec.Struct) and each.__module__ == records.__name__
    ]
    assert {"RunLine", "Candidate"} < {each.__name__ for each in held}
    assert all(each.__struct_config__.frozen for each in held)
    models = [each for each in classes() if issubclass(each, pydantic.BaseModel)]
    closed = [
        each
        for each in models
        if each.model_config.get("extra") == "forbid" and each.__name__ != "_Topic"
    ]
    assert len(closed) > 15
    assert all(each.model_config.get("frozen") for each in closed)


def test_objects_name_the_prompt_that_found_them() -> None:
    record = Objects(topic_id="1", objects=("tea", "coffee"), prompt="comparative/objects@1-a")
    fields = orjson.loads(record.to_json())
    assert Objects.from_json(orjson.dumps(fields)) == record
    for changed in ({"prompt": ""}, {"prompt": None}):
        with pytest.raises(Malformed):
            Objects.from_json(orjson.dumps(fields | changed))
    del fields["prompt"]
    with pytest.raises(Malformed):
        Objects.from_json(orjson.dumps(fields))
