"""Check of the attributes that a template names, by the types of its record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from jinja2 import Environment, nodes

# Variables of Jinja itself.
_UNTYPED = frozenset({"loop", "bar"})


class _Unknown:
    """Type of an expression that nothing is known of."""


@dataclass
class TemplateCheck:
    """Walk through a template and its macros that follows the types of variables.

    Attributes:
        environment: Environment of the templates.
        macros: Macros by name.
        problems: Attributes that a type lacks, or that are of an expression of unknown type.
    """

    environment: Environment
    macros: dict[str, nodes.Macro] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def check(self, source: str, page: type) -> list[str]:
        """Return the problems of a template whose variable `page` is such a record."""
        self._visit_all(self.environment.parse(source), {"page": page})
        return self.problems

    def _visit_all(self, node: nodes.Node, scope: dict[str, Any]) -> None:
        for child in node.iter_child_nodes():
            self._visit(child, scope)

    def _visit(self, node: nodes.Node, scope: dict[str, Any]) -> None:
        match node:
            case nodes.FromImport():
                self._import(node)
            case nodes.Include():
                self._visit_all(self._parse(node), scope)
            case nodes.Macro():
                self.macros[node.name] = node
            case nodes.For():
                inner = dict(scope)
                self._bind(node.target, _find_element(self._infer(node.iter, scope)), inner)
                for child in (node.test, *node.body, *node.else_):
                    if child is not None:
                        self._visit(child, inner)
            case nodes.Assign():
                self._bind(node.target, self._infer(node.node, scope), scope)
            case nodes.Expr():
                self._infer(node, scope)
            case _:
                self._visit_all(node, scope)

    def _import(self, node: nodes.FromImport) -> None:
        """Read the macros of another template; its names are used as they are there."""
        macros = {macro.name: macro for macro in self._parse(node).find_all(nodes.Macro)}
        self.problems += [f"no macro {name}" for name in node.names if name not in macros]
        self.macros |= macros

    def _parse(self, node: nodes.FromImport | nodes.Include) -> nodes.Template:
        """Return the template that another one imports from or includes."""
        assert isinstance(node.template, nodes.Const) and self.environment.loader is not None
        source, _, _ = self.environment.loader.get_source(self.environment, node.template.value)
        return self.environment.parse(source)

    def _bind(self, target: nodes.Node, kind: Any, scope: dict[str, Any]) -> None:
        """Give the variables of a loop or an assignment their types."""
        if isinstance(target, nodes.Name):
            scope[target.name] = kind
        elif isinstance(target, nodes.Tuple):
            kinds = get_args(kind) if get_origin(kind) is tuple else ()
            for index, item in enumerate(target.items):
                self._bind(item, kinds[index] if kinds else _Unknown, scope)

    def _infer(self, node: nodes.Node, scope: dict[str, Any]) -> Any:
        """Return the type of an expression, and note what is wrong in it."""
        match node:
            case nodes.Const():
                return type(node.value)
            case nodes.Name():
                return scope.get(node.name, _Unknown)
            case nodes.Getattr():
                return self._find_member(node, scope)
            case nodes.Getitem():
                kind = self._infer(node.node, scope)
                self._infer(node.arg, scope)
                return kind if isinstance(node.arg, nodes.Slice) else _find_item(kind)
            case nodes.Call():
                arguments = [self._infer(argument, scope) for argument in node.args]
                if isinstance(node.node, nodes.Name) and node.node.name in self.macros:
                    self._call(self.macros[node.node.name], arguments, scope["page"])
                    return str
                return self._infer(node.node, scope)
            case nodes.Filter(name="list", node=nodes.Node() as items):
                return self._infer(items, scope)
            case _:
                for child in node.iter_child_nodes():
                    self._infer(child, scope)
                return _Unknown

    def _call(self, macro: nodes.Macro, arguments: Sequence[Any], page: type) -> None:
        """Check the body of a macro with arguments of these types.

        Those left out have a default.
        """
        scope = {parameter.name: _Unknown for parameter in macro.args}
        scope |= {parameter.name: kind for parameter, kind in zip(macro.args, arguments)}  # noqa: B905
        self._visit_all(nodes.Scope(macro.body), scope | {"page": page})

    def _find_member(self, node: nodes.Getattr, scope: dict[str, Any]) -> Any:
        """Return the type of an attribute, or of what the method of that name returns."""
        if isinstance(node.node, nodes.Name) and node.node.name in _UNTYPED:
            return _Unknown
        kind = _remove_none(self._infer(node.node, scope))
        owner = get_origin(kind) or kind
        if not isinstance(owner, type) or owner is _Unknown:
            self.problems.append(f"line {node.lineno}: .{node.attr} of an unknown type")
            return _Unknown

        hints = get_type_hints(owner)
        if node.attr in hints:
            return hints[node.attr]
        if not hasattr(owner, node.attr):
            self.problems.append(f"line {node.lineno}: {owner.__name__} has no {node.attr}")
            return _Unknown
        if issubclass(owner, Mapping) and get_args(kind):
            return _find_view(node.attr, *get_args(kind))
        return _find_result(getattr(owner, node.attr))


def _find_view(method: str, key: Any, value: Any) -> Any:
    """Return the type of what a method of a mapping returns."""
    match method:
        case "items":
            return Sequence[tuple[key, value]]
        case "values":
            return Sequence[value]
        case "get":
            return value
        case _:
            return _Unknown


def _find_result(member: object) -> Any:
    """Return the type of a property; nothing is known of what methods return."""
    function: object = None
    if isinstance(member, property):
        function = member.fget
    elif isinstance(member, cached_property):
        function = member.func
    return _Unknown if function is None else get_type_hints(function).get("return", _Unknown)


def _remove_none(kind: Any) -> Any:
    """Return the one other type of an optional value."""
    if get_origin(kind) not in (Union, UnionType):
        return kind
    others = [part for part in get_args(kind) if part is not NoneType]
    return others[0] if len(others) == 1 else _Unknown


def _find_element(kind: Any) -> Any:
    """Return the type of what a loop takes from a value."""
    kind = _remove_none(kind)
    arguments = get_args(kind)
    return arguments[0] if arguments else _Unknown


def _find_item(kind: Any) -> Any:
    """Return the type of what an index takes from a value."""
    kind = _remove_none(kind)
    arguments = get_args(kind)
    return arguments[-1] if arguments else _Unknown
