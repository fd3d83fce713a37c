"""Sections of settings, the options and dotted names of their values, and messages for invalid ones."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from touche_llm.data.io import open_regular
from touche_llm.errors import UsageError, describe_first_problem

# The configuration of a run has a few thousand bytes, the published results have 30,000.
MAX_BYTES = 2**20
# Max nodes with all aliases expanded, as when a value is validated or printed.
MAX_NODES = 100_000
MAX_DEPTH = 50
# Max characters of a number: parsing one in base 60 takes quadratic time.
MAX_DIGITS = 100

_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class YamlError(ValueError):
    """Text that is not YAML, exceeds a bound or repeats a key; the message begins with the line, if known."""


# The C loader composes nodes recursively and crashes on deep nesting, so `_check_bounds` runs first.
class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML loader that refuses merge keys and duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        lines: dict[Hashable, int] = {}
        for key_node, _ in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag == "tag:yaml.org,2002:merge":
                raise YamlError(f"line {line}: a merge key (<<); write out the merged keys")
            key = self.construct_object(key_node)
            if isinstance(key, Hashable):
                if key in lines:
                    raise YamlError(f"line {line}: the key {key!r:.80} is in line {lines[key]} already; keep one")
                lines[key] = line
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return mapping


class _WordLoader(_Loader):
    """YAML loader that reads YES, NO and dates as words, such as labels of answers."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":bool", ":timestamp"))]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def parse_yaml(content: bytes | str, *, words: bool = False) -> Any:
    """Parse a YAML document into strings, numbers, dates, lists and dictionaries.

    Args:
        content: Document of at most `MAX_BYTES` bytes or characters.
        words: Whether to read YES, NO and dates as words.

    Raises:
        YamlError: The text is not YAML, exceeds a bound, or has a merge key, a tag or a duplicate key.
    """
    if len(content) > MAX_BYTES:
        raise YamlError(f"longer than {MAX_BYTES:,} bytes")
    loader = _WordLoader if words else _Loader
    try:
        _check_bounds(content, loader)
        return yaml.load(content, loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        message = ", ".join(part for part in (error.context, error.problem) if part)
        raise YamlError(f"{place}{message}") from error
    except yaml.YAMLError as error:
        raise YamlError(" ".join(str(error).split())) from error
    except YamlError:
        raise
    except ValueError as error:  # a date such as 2001-02-31, or invalid Unicode
        raise YamlError(str(error)) from error


def read_yaml(path: Path, *, words: bool = False) -> Any:
    """Parse a YAML file; raises YamlError as `parse_yaml`, and OSError."""
    with open_regular(path) as stream:
        return parse_yaml(stream.read(MAX_BYTES + 1), words=words)


def to_yaml(value: Any) -> bytes:
    """Return a trusted value of plain types as YAML; keys keep their order."""
    text: str = yaml.dump(value, Dumper=_DUMPER, sort_keys=False, allow_unicode=True)
    return text.encode()


def _check_bounds(content: bytes | str, loader: type[_Loader]) -> None:
    """Raise YamlError for deep nesting, too many nodes (with aliases expanded), or tags."""
    nodes = 0
    sizes: dict[str, int] = {}  # nodes below each anchor
    opened: list[tuple[str | None, int]] = []  # anchors of the open collections, with the nodes before each
    for event in yaml.parse(content, loader):
        mark = event.start_mark
        line = mark.line + 1 if mark is not None else 0
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, before = opened.pop()
            if anchor is not None:
                sizes[anchor] = nodes - before
        elif isinstance(event, yaml.AliasEvent):
            # An alias within its own anchor would make a recursive value.
            if event.anchor not in sizes:
                raise YamlError(f"line {line}: no anchor {event.anchor!r:.80} is complete before this alias")
            nodes += sizes[event.anchor]
        elif isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent):
            nodes += 1
            if event.tag is not None:
                raise YamlError(f"line {line}: the tag {event.tag!r:.80}; write the value without a tag")
            if isinstance(event, yaml.CollectionStartEvent):
                opened.append((event.anchor, nodes - 1))
            elif event.anchor is not None:
                sizes[event.anchor] = 1
        if len(opened) > MAX_DEPTH:
            raise YamlError(f"line {line}: nested more than {MAX_DEPTH} levels deep")
        if nodes > MAX_NODES:
            raise YamlError(f"line {line}: more than {MAX_NODES:,} values (aliases count as expanded)")


def _limit_number(convert: Any) -> Any:
    def number(loader: _Loader, node: yaml.ScalarNode) -> Any:
        if len(node.value) > MAX_DIGITS:
            line = node.start_mark.line + 1
            raise YamlError(f"line {line}: a number of more than {MAX_DIGITS} characters; text goes in quotation marks")
        return convert(loader, node)

    return number


for _name in ("int", "float"):
    _tag = f"tag:yaml.org,2002:{_name}"
    _Loader.add_constructor(_tag, _limit_number(yaml.SafeLoader.yaml_constructors[_tag]))


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


def read_settings(model: type[SectionT], given: object, name: str) -> SectionT:
    """Return a record of settings: the given one, one of a mapping, or the defaults for None.

    Raises:
        UsageError: It is of another type, or a value is invalid; names the argument and the setting.
    """
    try:
        return model() if given is None else model.model_validate(given)
    except ValidationError as error:
        raise UsageError(describe_first_problem(error, name, model=model)) from error


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
