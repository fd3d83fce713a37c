"""Jinja environment in which templates run.

It protects the run from documents, not the machine from templates, which their users write: rendering has no limit
of time or memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from jinja2 import BaseLoader, Environment, StrictUndefined, Template, TemplateNotFound
from jinja2.exceptions import SecurityError
from jinja2.runtime import BlockReference, Context, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from touche_llm.data.records import LabelledDocument, Topic

_FIELDS = {kind: frozenset(field.name for field in fields(kind)) for kind in (Topic, LabelledDocument)}


class _Words(str):
    """The text of a base's block: the template's own words, and inserted values that `finalize` already sanitized."""


class _Super(BlockReference):
    """`super()`: the block of the base, whose own words stay unchanged, like those of the template itself."""

    @property
    def super(self) -> BlockReference | Undefined:
        """Return the block of the base's base."""
        return _with_words(BlockReference.super.__get__(self))

    def __call__(self) -> str:
        return _Words(self._context.environment.concat(self._stack[self._depth](self._context)))


class _Context(Context):
    def super(self, name: str, current: Any) -> BlockReference | Undefined:
        """Return the block of the base."""
        return _with_words(Context.super(self, name, current))


def _with_words(found: BlockReference | Undefined) -> BlockReference | Undefined:
    if not isinstance(found, BlockReference):
        return found
    return _Super(found.name, found._context, found._stack, found._depth)


class Loader(BaseLoader):
    """Loader of the checked files alone."""

    def __init__(self, templates: Mapping[str, Template]) -> None:
        """Keep the compiled `templates`, by name."""
        self._templates = templates

    def load(self, environment: Environment, name: str, globals: Any = None) -> Template:
        """Return the template `name`; raise TemplateNotFound if it was not checked."""
        if name not in self._templates:
            raise TemplateNotFound(name)
        return self._templates[name]


class Sandbox(ImmutableSandboxedEnvironment):
    """A Jinja environment that makes unsafe attributes unreachable and undefined variables errors."""

    context_class = _Context

    def __init__(self, finalize: Callable[[Any], str]) -> None:
        """Apply `finalize` to the value of each expression, but not to the template's own words from `super()`."""

        def finalize_values(value: Any) -> str:
            return value if type(value) is _Words else finalize(value)

        super().__init__(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=finalize_values)
        # Both give another text each time, so that no cached answer would match the request.
        del self.globals["lipsum"], self.filters["random"]

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return an attribute; the fields of the project's own records are safe."""
        if attribute in _FIELDS.get(type(obj), ()):
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)

    def call(self, context: Context, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call `called` for a template; `{% call %}` accepts only macros, since its result is not sanitized."""
        if "caller" in kwargs and not isinstance(called, Macro):
            raise SecurityError("`call` takes macros of the template and of what it imports, and nothing else")
        return super().call(context, called, *args, **kwargs)
