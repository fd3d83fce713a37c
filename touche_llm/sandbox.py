"""The Jinja environment in which templates run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from jinja2 import BaseLoader, Environment, StrictUndefined, Template, TemplateNotFound, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.runtime import BlockReference, Context, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from touche_llm.records import LabelledDocument, Topic
from touche_llm.template_limits import Meter, size_of

_FIELDS = {kind: frozenset(each.name for each in fields(kind)) for kind in (Topic, LabelledDocument)}


class _Words(str):
    """What a base's block gave: words of a template, and text from outside that passed `finalize` there."""


class _Super(BlockReference):
    """`super()`: the block of the base, whose words are left as they are, like those of the template itself."""

    @property
    def super(self) -> BlockReference | Undefined:
        """The block of the base's base."""
        return _with_words(BlockReference.super.__get__(self))

    def __call__(self) -> str:
        return _Words(self._context.environment.concat(self._stack[self._depth](self._context)))


class _Context(Context):
    environment: Sandbox

    def resolve_or_missing(self, key: str) -> Any:
        """The value of a name."""
        self.environment.looked_up.add(key)
        return Context.resolve_or_missing(self, key)

    def get_all(self) -> dict[str, Any]:
        """All values, for a file that is included: which of them it looks at is not seen here."""
        self.environment.looked_up |= self.parent.keys()
        return Context.get_all(self)

    def super(self, name: str, current: Any) -> BlockReference | Undefined:
        """The block of the base."""
        return _with_words(Context.super(self, name, current))


def _with_words(found: BlockReference | Undefined) -> BlockReference | Undefined:
    if not isinstance(found, BlockReference):
        return found
    return _Super(found.name, found._context, found._stack, found._depth)


class Loader(BaseLoader):
    """Gives the files that were checked, and no other."""

    def __init__(self, templates: Mapping[str, Template]) -> None:
        """`templates` by name, compiled."""
        self._templates = templates

    def load(self, environment: Environment, name: str, globals: Any = None) -> Template:
        """The template of this name."""
        if name not in self._templates:
            raise TemplateNotFound(name)
        return self._templates[name]


class _Code(CodeGenerator):
    """Python code that counts the rounds of loops, and the characters that `~` joins."""

    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        """A loop: each round of it is counted, and each that its condition leaves out."""
        # Calls the method at once, where `nodes.Call` would take the long way of a template's own calls.
        step = nodes.EnvironmentAttribute("step()", lineno=node.lineno)
        test = None if node.test is None else nodes.And(step, node.test, lineno=node.lineno)
        body = [nodes.ExprStmt(step, lineno=node.lineno), *node.body]
        counted = nodes.For(node.target, node.iter, body, node.else_, test, node.recursive, lineno=node.lineno)
        counted.set_environment(self.environment)
        super().visit_For(counted, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        """Values joined to a text."""
        self.write("environment.joined((")
        for each in node.nodes:
            self.visit(each, frame)
            self.write(", ")
        self.write("))")


class Sandbox(ImmutableSandboxedEnvironment):
    """A Jinja environment in which what is unsafe cannot be reached, and a rendering costs what its `meter` lets.

    `looked_up` holds the names whose values templates have asked for since somebody emptied it.
    Products and powers are not computed while a template is compiled, so that a constant expression is bounded too.
    """

    code_generator_class = _Code
    context_class = _Context
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, finalize: Callable[[Any], str]) -> None:
        """What an expression inserts passes `finalize`."""
        self.meter = Meter()
        self.looked_up: set[str] = set()

        def counted(value: Any) -> str:
            self.meter.text(len(value) if isinstance(value, str) else size_of(value))
            return value if type(value) is _Words else finalize(value)

        super().__init__(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=counted)
        self.concat = self._concat  # type: ignore[method-assign]
        self.filters = {name: self._counted(name, each) for name, each in self.filters.items()}
        # Makes any amount of text, and another one each time; so does the other, and no answer would be found again.
        del self.globals["lipsum"], self.filters["random"]

    def getattr(self, obj: Any, attribute: str) -> Any:
        """An attribute for a template. The fields of our own records are safe."""
        if attribute in _FIELDS.get(type(obj), ()):
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)

    def step(self) -> bool:
        """Count a round of a loop; True."""
        self.meter.step()
        return True

    def joined(self, values: tuple[Any, ...]) -> str:
        """The values as one text."""
        self.meter.text(size_of(values))
        return "".join(map(str, values))

    def call(self, context: Context, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call something for a template."""
        self.meter.step()
        if not isinstance(called, Macro):
            # What it gives would be written as it is.
            if "caller" in kwargs:
                raise SecurityError("`call` takes macros of the template and of what it imports, and nothing else")
            made = getattr(called, "__wrapped__", called)
            name = getattr(made, "__name__", "")
            args = _listed(name, args)
            self.meter.call(name, getattr(made, "__self__", ""), args, kwargs)
        return super().call(context, called, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Apply an operator."""
        self.meter.operator(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def _concat(self, parts: Iterable[str]) -> str:
        found = []
        for part in parts:
            self.meter.text(len(part))
            found.append(part)
        return "".join(found)

    def _counted(self, name: str, made: Callable[..., Any]) -> Callable[..., Any]:
        first = int(hasattr(made, "jinja_pass_arg"))

        @functools.wraps(made)
        def run(*args: Any, **kwargs: Any) -> Any:
            args = _listed(name, args)
            self.meter.call(name, args[first], args[first + 1 :], kwargs)
            return made(*args, **kwargs)

        return run


def _listed(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments; those of which `join` could not tell how many texts they give become lists."""
    return tuple(list(each) if name == "join" and isinstance(each, Iterator) else each for each in args)


def sandbox(finalize: Callable[[Any], str]) -> Sandbox:
    """A Jinja environment for templates: undefined variables are errors, and what is unsafe cannot be reached.

    What an expression inserts passes `finalize`; of what `super()` gives, that which the block of the base inserts.
    """
    return Sandbox(finalize)
