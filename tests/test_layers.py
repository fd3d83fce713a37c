"""The structure of the package: layers, unique class names, functions that fit a screen."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import touche_llm

PACKAGE = Path(touche_llm.__file__).parent
# From the bottom up.
LAYERS = (
    "errors",
    "data",
    "text",
    "corpus",
    "llm",
    "tasks",
    "retrieval",
    "prompts",
    "judging",
    "ranking",
    "evaluation",
    "config",
    "pipeline",
    "prompt_lab",
    "regression",
    "report",
    "integrations",
    "cli",
)
# The facade names objects of any layer, and loads them when they are used.
TOP = ("touche_llm", "touche_llm.__main__")


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imports_of(module: str) -> Iterator[str]:
    """Yield the modules of the package that a module imports, inside functions and for type checks too."""
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
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


def test_no_import_points_upwards() -> None:
    arrows = {(module, imported) for module in MODULES if module not in TOP for imported in imports_of(module)}
    assert len(arrows) > 500
    upwards = [(a, b) for a, b in sorted(arrows) if b != "touche_llm" and layer_of(b) > layer_of(a)]
    assert upwards == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {module: set(imports_of(module)) - {module} for module in MODULES if module not in TOP}
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError
    assert set(order) >= set(graph)


def test_no_class_name_is_used_twice() -> None:
    names = Counter(
        node.name
        for path in MODULES.values()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_functions_fit_a_screen_and_take_few_arguments() -> None:
    checked, too_long, too_many = 0, [], []
    for module, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                checked += 1
                arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                count = sum(argument.arg not in ("self", "cls") for argument in arguments)
                assert node.end_lineno is not None
                if node.end_lineno - node.lineno >= 60:
                    too_long.append(f"{module}.{node.name}")
                # The parameters of a command are its options.
                if count > 8 and not module.startswith("touche_llm.cli."):
                    too_many.append(f"{module}.{node.name}")
    assert checked > 1500
    assert (too_long, too_many) == ([], [])
