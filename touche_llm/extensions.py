"""Registries of objects that extend the program, and packages that add to them.

A package registers through an entry point of the group `touche_llm`, whose value is a module. The
import of the module registers its objects.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, Protocol, TypeVar

from touche_llm.errors import ExtensionError

ENTRY_POINT_GROUP = "touche_llm"


class Named(Protocol):
    """An object that declares its name."""

    @property
    def name(self) -> str:
        """Name, unique in its registry."""


EntryT = TypeVar("EntryT", bound=Named)


class Registry(Generic[EntryT]):
    """Declared objects by name, in the order in which they were registered.

    Attributes:
        kind: What the objects are, for errors.
        by_name: The registered objects.
        is_closed: Whether no more objects can be registered.
    """

    def __init__(self, kind: str) -> None:
        """Begin without objects."""
        self.kind = kind
        self.by_name: dict[str, EntryT] = {}
        self.is_closed = False

    def register(self, entry: EntryT) -> EntryT:
        """Add an object and return it.

        Raises:
            ExtensionError: Another object has its name, or the registry is closed.
        """
        if self.is_closed:
            raise ExtensionError(
                f"{entry.name}: registered as a {self.kind} after the options were made; import its "
                f"module first, or name it in an entry point of the group {ENTRY_POINT_GROUP}"
            )
        if entry.name in self.by_name:
            raise ExtensionError(
                f"{entry.name}: is already registered as a {self.kind}; give this one another name"
            )
        self.by_name[entry.name] = entry
        return entry

    def close(self) -> None:
        """Let no more objects be registered, since what was made of them is not made again."""
        self.is_closed = True


@cache
def load_extensions() -> None:
    """Import the modules that installed packages name in the group `touche_llm`, once.

    Raises:
        ExtensionError: A module cannot be imported.
    """
    for entry_point in entry_points(group=ENTRY_POINT_GROUP):
        _load(entry_point)


def _load(entry_point: EntryPoint) -> None:
    """Import the module of an entry point.

    Raises:
        ExtensionError: The import fails, for whatever reason; it names the package.
    """
    try:
        entry_point.load()
    except Exception as error:
        package = "unknown" if entry_point.dist is None else entry_point.dist.name
        raise ExtensionError(
            f"package {package}: its extension {entry_point.value} of touche-llm cannot be imported: "
            f"{type(error).__name__}: {error}; update the package, or remove it with "
            f"`pip uninstall {package}`"
        ) from error
