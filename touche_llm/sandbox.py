"""The Jinja environment in which templates run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jinja2 import BaseLoader, Environment, StrictUndefined, Template, TemplateNotFound
from jinja2.runtime import BlockReference, Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment


class _Words(str):
    """What a base's block gave: words of a template, and text from outside that passed `finalize` there."""


class _Super(BlockReference):
    """`super()`: the block of the base, whose words are left as they are, like those of the template itself."""

    @property
    def super(self) -> BlockReference | Undefined:
        """The block of the base's base."""
        return _with_words(BlockReference.super.__get__(self))

    def __call__(self) -> str:
        return _Words("".join(self._stack[self._depth](self._context)))


class _Context(Context):
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


def sandbox(finalize: Callable[[Any], str]) -> ImmutableSandboxedEnvironment:
    """A Jinja environment for templates: undefined variables are errors, and what is unsafe cannot be reached.

    What an expression inserts passes `finalize`; of what `super()` gives, that which the block of the base inserts.
    """
    environment = ImmutableSandboxedEnvironment(
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if type(value) is _Words else finalize(value),
    )
    environment.context_class = _Context
    return environment
