"""The structure of the package: layers and unique class names."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import touche_llm

PACKAGE = Path(touche_llm.__file__).parent
# From the bottom up.
LAYERS = (
    "interrupts",
    "errors",
    "extensions",
    "data",
    "settings",
    "text",
    "llm",
    "engines",
    "doctor",
    "corpus",
    "tasks",
    "retrieval",
    "prompts",
    "judging",
    "ranking",
    "kinds",
    "evaluation",
    "config",
    "api",
    "runs",
    "prompt_lab",
    "regression",
    "integrations",
    "report",
    "lab",
    "cli",
)
# The facade names objects of any layer, and loads them when they are used.
TOP = ("touche_llm", "touche_llm.__main__")


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(
        ".__init__"
    )


MODULES = {module_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def walk(module: str) -> list[ast.AST]:
    """Return all nodes of a module's syntax tree."""
    return list(ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))))


def imports_of(module: str) -> Iterator[str]:
    """Yield the modules of the package that a module imports, inside functions and for type checks too."""
    for node in walk(module):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name in MODULES)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: a relative import"
            for each in node.names:
                submodule = f"{node.module}.{each.name}"
                if submodule in MODULES:
                    yield submodule
                elif node.module in MODULES:
                    yield node.module


def layer_of(module: str) -> int:
    return LAYERS.index(module.split(".")[1])


def test_every_module_has_a_place_in_a_layer() -> None:
    assert {module.split(".")[1] for module in MODULES if module not in TOP} == set(LAYERS)


def test_no_import_points_upwards_and_no_modules_import_each_other_in_a_circle() -> None:
    graph = {module: set(imports_of(module)) - {module} for module in MODULES if module not in TOP}
    arrows = [
        (module, imported) for module, found in sorted(graph.items()) for imported in sorted(found)
    ]
    assert len(arrows) > 500
    upward = [(a, b) for a, b in arrows if b != "touche_llm" and layer_of(b) > layer_of(a)]
    assert upward == []
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError
    assert set(order) >= set(graph)


def test_no_class_name_is_used_twice() -> None:
    names = Counter(
        node.name for module in MODULES for node in walk(module) if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_the_table_of_layers_in_the_documentation_agrees_with_the_code() -> None:
    page = (PACKAGE.parent / "docs" / "how-to" / "develop.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert tuple(rows) == LAYERS
