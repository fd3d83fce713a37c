"""Bounded parser for untrusted YAML with unique keys, and a YAML writer."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from touche_llm.data.lines import open_regular

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
