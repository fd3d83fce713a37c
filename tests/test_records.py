"""Conventions of all records: frozen where nothing assigns to a field, and with slots."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import pkgutil
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import pydantic

import touche_llm
from touche_llm.data.json_records import JsonStruct


def classes() -> Iterator[type]:
    """Yield every class of the package."""
    for found in pkgutil.walk_packages(touche_llm.__path__, "touche_llm."):
        if not found.name.endswith("__main__"):
            for value in vars(importlib.import_module(found.name)).values():
                if isinstance(value, type) and value.__module__ == found.name:
                    yield value


def assigned_names() -> set[str]:
    """Return the names of all attributes that some code assigns to."""
    trees = [ast.parse(path.read_text()) for path in Path(touche_llm.__file__).parent.rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    return {node.attr for node in nodes if isinstance(node.ctx, ast.Store)}


def test_a_dataclass_is_frozen_unless_code_assigns_to_its_fields() -> None:
    assigned = assigned_names()
    records = [found for found in classes() if "__dataclass_params__" in vars(found)]
    mutable = [found for found in records if not vars(found)["__dataclass_params__"].frozen]
    assert len(mutable) > 5
    for found in mutable:
        assert assigned & {field.name for field in dataclasses.fields(found)}, found


def test_a_dataclass_has_slots_unless_it_extends_another_or_caches_a_property() -> None:
    found = [
        each for each in classes() if dataclasses.is_dataclass(each) and not dataclasses.is_dataclass(each.__base__)
    ]
    # RunFolder keeps what it reads in further attributes.
    without = [each for each in found if "__slots__" not in vars(each) and each.__name__ != "RunFolder"]
    assert len(found) > 80
    for each in without:
        assert any(isinstance(value, cached_property) for value in vars(each).values()), each


def test_records_that_are_written_and_settings_are_frozen() -> None:
    written = [each for each in classes() if issubclass(each, JsonStruct) and each is not JsonStruct]
    assert len(written) > 10
    assert all(each.__struct_config__.frozen for each in written)
    models = [each for each in classes() if issubclass(each, pydantic.BaseModel)]
    closed = [each for each in models if each.model_config.get("extra") == "forbid" and each.__name__ != "_Topic"]
    assert len(closed) > 15
    assert all(each.model_config.get("frozen") for each in closed)
