"""Sections of settings, the options and dotted names of their values, and messages for invalid ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from touche_llm.data.yaml_text import YamlError, read_yaml
from touche_llm.errors import UsageError

SectionT = TypeVar("SectionT", bound=BaseModel)
Panel = Literal["Input", "Model", "Retrieval", "Judging", "Ranking", "Output"]


if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass as _SectionType
else:

    class _SectionType(type(BaseModel)):
        """Type of the sections, whose construction in Python raises the errors of this program."""

        def __call__(cls, *values, **named):
            """Return a section; raise UsageError if a value is invalid."""
            try:
                return super().__call__(*values, **named)
            except ValidationError as error:
                raise UsageError(describe_first_problem(error, cls.__name__, model=cls)) from error


class Section(BaseModel, metaclass=_SectionType):
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
        is_pairs: Whether the option sets whole numbers of a section, as `judge=512,stance=0`.
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
    is_pairs: bool = False


def list_fields(section: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield all fields of a section and of the sections in it, with their dotted names."""
    for name, field in section.model_fields.items():
        yield prefix + name, field
        # Includes optional sections, which only some tasks have.
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from list_fields(kind, f"{prefix}{name}.")


def read_values(path: Path, what: str) -> dict[str, Any]:
    """Read a YAML file of names and values, empty for an empty file; raise UsageError if it is another file.

    Messages say `what` it holds.
    """
    try:
        values = read_yaml(path)
    except OSError as error:
        raise UsageError(f"{path}: cannot read the {what}: {error.strerror}") from error
    except YamlError as error:
        raise UsageError(f"{path}: not YAML: {error}") from error
    if values is not None and not isinstance(values, dict):
        raise UsageError(f"{path}: must hold names and values")
    return values or {}


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


_MAX_QUOTE_CHARS = 40
# Expected value by the type of pydantic's error; placeholders come from the context of the error.
_EXPECTED = {
    "greater_than_equal": "{ge} or more",
    "greater_than": "more than {gt}",
    "less_than_equal": "{le} or less",
    "less_than": "less than {lt}",
    "finite_number": "a finite number",
    "literal_error": "{expected}",
    "enum": "{expected}",
    "string_pattern_mismatch": "text of the form {pattern}",
    "string_too_short": "text of at least {min_length} characters",
    "string_too_long": "text of at most {max_length} characters",
    "too_short": "a list of at least {min_length}",
    "too_long": "a list of at most {max_length}",
    **dict.fromkeys(("int_type", "int_parsing", "int_parsing_size", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("string_type", "string_unicode", "string_sub_type"), "text"),
    "path_type": "a path",
    **dict.fromkeys(("list_type", "tuple_type", "set_type"), "a list"),
    **dict.fromkeys(("dict_type", "mapping_type", "model_type", "model_attributes_type"), "names and values"),
    **dict.fromkeys(("datetime_type", "datetime_parsing", "datetime_from_date_parsing", "timezone_aware"), "a time"),
}
# Other text is not quoted: it may be an API key in the wrong place.
_QUOTED = (bool, int, float, type(None))
_QUOTED_TEXT = ("literal_error", "enum", "int_parsing", "float_parsing", "bool_parsing")


def describe_problem(error: ErrorDetails) -> str:
    """Return the expected value and, if it may be quoted, the actual one; the caller adds the location."""
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    if kind == "missing":
        return "missing"
    if kind == "extra_forbidden":
        return "no such name"
    if kind not in _EXPECTED:
        return error["msg"].removeprefix("Value error, ")
    if kind == "too_short" and isinstance(value, dict):
        return f"must be at least {context['min_length']} name and value"
    is_quoted = isinstance(value, _QUOTED) or (isinstance(value, str) and kind in _QUOTED_TEXT)
    return f"must be {_EXPECTED[kind].format(**context)}{f', not {_quote(value)}' if is_quoted else ''}"


def describe_first_problem(error: ValidationError, *location: str, model: type[BaseModel] | None = None) -> str:
    """Return `place: problem` of the first error, with the place below `location`.

    With the `model`, the known names follow an unknown one.
    """
    first = error.errors(include_url=False)[0]
    place = ".".join(map(str, (*location, *first["loc"])))
    problem = describe_problem(first)
    if model is not None and first["type"] == "extra_forbidden":
        section = "".join(f"{name}." for name in first["loc"][:-1])
        inner = [name.removeprefix(section) for name, _ in list_fields(model) if name.startswith(section)]
        problem += f"; expected one of {', '.join(name for name in inner if '.' not in name)}"
    return f"{place}: {problem}" if place else problem


def read_settings(model: type[SectionT], given: object, name: str) -> SectionT:
    """Return a record of settings: the given one, one of a mapping, or the defaults for None.

    Raises:
        UsageError: It is of another type, or a value is invalid; names the argument and the setting.
    """
    try:
        return model() if given is None else model.model_validate(given)
    except ValidationError as error:
        raise UsageError(describe_first_problem(error, name, model=model)) from error


def _quote(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_QUOTE_CHARS else f"{text[:_MAX_QUOTE_CHARS]}…"


def check_address(url: str, secret: str) -> str:
    """Return the address of a server without a slash at its end.

    Raises:
        ValueError: It is no address of HTTP, or holds a password or key, which belongs into `secret`.
    """
    parts = urlsplit(url)
    if "@" in url or parts.query or parts.fragment:
        raise ValueError(
            f"must not hold a password or a key (no @, ? or #), since it is written to files: give the key in {secret}"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
        raise ValueError("must be an address like http://127.0.0.1:8000")
    return url.rstrip("/")
