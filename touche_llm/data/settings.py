"""Sections of settings, the command-line options of their values, and their dotted names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo

from touche_llm.errors import UsageError

Panel = Literal["Input", "Model", "Retrieval", "Judging", "Ranking", "Output"]


class Section(BaseModel):
    """Section of a configuration."""

    # Errors do not quote values: a value may be a key in the wrong place.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


@dataclass(frozen=True, slots=True)
class Option:
    """Command-line option of a setting, attached to its field with `Annotated`; type and default are the field's.

    Attributes:
        flag: Name of the option, as `--depth`; with its negation for a truth value, as `--logprobs/--no-logprobs`.
        help: Description without a full stop or the default, which is added.
        panel: Heading of the help under which the option is listed.
        is_common: Whether `--help` of a command with many options lists it; `--help-all` lists all.
        metavar: Name of the value in the help; by default that of its type.
        key: Key that the option sets if the field is a dictionary.
        is_file: Whether the option names a file that holds the value.
        is_text: Whether a list is given as one text, which the field's validator splits; by default the option repeats.
    """

    flag: str
    help: str
    panel: Panel
    is_common: bool = False
    metavar: str | None = None
    key: str = ""
    is_file: bool = False
    is_text: bool = False


def list_fields(section: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield all fields of a section and of the sections in it, with their dotted names."""
    for name, field in section.model_fields.items():
        yield prefix + name, field
        # Includes optional sections, which only some tasks have.
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from list_fields(kind, f"{prefix}{name}.")


def set_values(values: dict[str, Any], given: Mapping[str, Any], source: str) -> None:
    """Set values by dotted name; raises UsageError if `source` has a value in place of a section."""
    for name, value in given.items():
        *sections, key = name.split(".")
        target = values
        for section in sections:
            # A section that the task does not have is written as null.
            target[section] = {} if target.get(section) is None else target[section]
            target = target[section]
            if not isinstance(target, dict):
                raise UsageError(f"{source}: {section}: must hold names and values, since {name} is one of them")
        target[key] = value


def find_booleans(given: Any, read: Any, place: str = "") -> Iterator[str]:
    """Yield a problem for each true or false that pydantic read as 1 or 0."""
    if isinstance(given, bool) and isinstance(read, int | float) and not isinstance(read, bool):
        yield f"{place}: must be a number, not {str(given).lower()}"
    elif isinstance(given, dict) and isinstance(read, dict):
        for name in given.keys() & read.keys():
            yield from find_booleans(given[name], read[name], f"{place}.{name}" if place else str(name))
