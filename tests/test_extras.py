"""Optional libraries: what the core does without them, and the extras that bring them."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator

import pytest

from tests.extras.features import APART, FEATURES
from tests.test_layers import MODULES, PACKAGE, walk
from touche_llm.errors import UsageError
from touche_llm.retrieval.chatnoir import ChatNoirSettings

PROJECT = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Libraries of the extras, by the names that they are imported by.
OPTIONAL = {
    *(
        "chatnoir_api",
        "elasticsearch",
        "ir_datasets",
        "matplotlib",
        "ray",
        "resiliparse",
        "statsmodels",
    ),
    *("transformers", "vllm", "warc"),
}


def imported_at_once(module: str) -> Iterator[str]:
    """Yield the libraries that are imported as soon as a module is."""
    tree = walk(module)[0]
    assert isinstance(tree, ast.Module)
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (each.name.partition(".")[0] for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module).partition(".")[0]


def test_only_modules_of_a_feature_import_its_optional_library() -> None:
    found = [
        (module, library)
        for module in MODULES
        for library in imported_at_once(module)
        if library in OPTIONAL
    ]
    assert found == []


def test_every_extra_in_a_message_exists() -> None:
    named = {extra for module in MODULES for extra in named_extras(module)}
    assert {"chatnoir", "elasticsearch"} <= named
    assert named <= PROJECT["optional-dependencies"].keys()


def test_each_extra_is_installed_alone_by_make_nightly() -> None:
    makefile = (PACKAGE.parent / "Makefile").read_text()
    installed = next(
        line for line in makefile.splitlines() if line.startswith("EXTRAS ?=")
    ).split()[2:]
    assert {*installed, *APART} == {"none", *PROJECT["optional-dependencies"]}
    assert {name if name != "none" else "" for name in installed} == FEATURES.keys()


def named_extras(module: str) -> Iterator[str]:
    """Yield the first arguments of `needs_extra`, called or given to `partial`."""
    for node in walk(module):
        if isinstance(node, ast.Call):
            names = [
                item.id if isinstance(item, ast.Name) else "" for item in (node.func, *node.args)
            ]
            texts = [item.value for item in node.args if isinstance(item, ast.Constant)]
            if "needs_extra" in names[:2]:
                yield str(texts[0])


def test_without_its_library_a_feature_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "chatnoir_api.model", None)
    with pytest.raises(UsageError, match=r"pip install 'touche-llm\[chatnoir\]'"):
        _ = ChatNoirSettings().index_id
