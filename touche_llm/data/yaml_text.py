"""YAML from outside, read within bounds and with each key once, and YAML that the program writes."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

# The configuration of a run has a few thousand bytes, the published results have 30,000.
MAX_BYTES = 2**20
# Nodes with every alias written out: that many are made where a value is checked or printed.
MAX_NODES = 100_000
MAX_DEPTH = 50
# Characters of a number. YAML has numbers in base 60, and reading one takes the square of its length in time.
MAX_DIGITS = 100

_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class YamlError(ValueError):
    """A text that is no YAML, exceeds a bound or repeats a key; the message begins with the line where known."""


# The loader in C composes nested nodes by recursion and crashes where they nest deeply: `_check_bounds` comes first.
class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML without merge keys, where no key of a mapping may stand twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        lines: dict[Hashable, int] = {}
        for key_node, _ in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag == "tag:yaml.org,2002:merge":
                raise YamlError(f"line {line}: a merge key (<<); write out the keys that it brings")
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable):
                if key in lines:
                    raise YamlError(f"line {line}: the key {key!r:.80} is in line {lines[key]} already; keep one")
                lines[key] = line
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return mapping


class _WordLoader(_Loader):
    """YAML in which YES, NO and dates are words, as the labels of answers are."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":bool", ":timestamp"))]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def parse_yaml(content: bytes | str, *, words: bool = False) -> Any:
    """Return the value of a YAML document: texts, numbers, dates, lists and dictionaries.

    Args:
        content: the document, of at most `MAX_BYTES` bytes or characters.
        words: whether YES, NO and dates are words.

    Raises:
        YamlError: not YAML, beyond a bound, a merge key, a tag, or a key twice in one mapping.
    """
    if len(content) > MAX_BYTES:
        raise YamlError(f"longer than {MAX_BYTES:,} bytes, the most that is read")
    loader = _WordLoader if words else _Loader
    try:
        _check_bounds(content, loader)
        return yaml.load(content, loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        said = ", ".join(part for part in (error.context, error.problem) if part)
        raise YamlError(f"{place}{said}") from error
    except yaml.YAMLError as error:
        raise YamlError(" ".join(str(error).split())) from error
    except YamlError:
        raise
    except ValueError as error:  # of a date such as 2001-02-31, or text that is no Unicode
        raise YamlError(str(error)) from error


def read_yaml(path: Path) -> Any:
    """Return the value of a YAML file; raises YamlError as `parse_yaml`, and OSError."""
    with path.open("rb") as stream:
        return parse_yaml(stream.read(MAX_BYTES + 1))


def to_yaml(value: Any) -> bytes:
    """A value of the program's own, of plain types, as YAML; keys stay in their order."""
    text: str = yaml.dump(value, Dumper=_DUMPER, sort_keys=False, allow_unicode=True)
    return text.encode()


def _check_bounds(content: bytes | str, loader: type[_Loader]) -> None:
    """Raise YamlError where nodes nest too deeply, are too many with aliases written out, or have tags."""
    nodes = 0
    sizes: dict[str, int] = {}  # nodes below each anchor
    opened: list[tuple[str | None, int]] = []  # anchors of the collections around, with the nodes before each
    for event in yaml.parse(content, loader):
        mark = event.start_mark
        line = mark.line + 1 if mark is not None else 0
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, before = opened.pop()
            if anchor is not None:
                sizes[anchor] = nodes - before
        elif isinstance(event, yaml.AliasEvent):
            # An alias of what is not complete yet would make a value that holds itself.
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
            raise YamlError(f"line {line}: more than {MAX_NODES:,} values (an alias counts as what it stands for)")


def _bounded_number(convert: Any) -> Any:
    def number(loader: _Loader, node: yaml.ScalarNode) -> Any:
        if len(node.value) > MAX_DIGITS:
            line = node.start_mark.line + 1
            raise YamlError(f"line {line}: a number of more than {MAX_DIGITS} characters; text goes in quotation marks")
        return convert(loader, node)

    return number


for _name in ("int", "float"):
    _tag = f"tag:yaml.org,2002:{_name}"
    _Loader.add_constructor(_tag, _bounded_number(yaml.SafeLoader.yaml_constructors[_tag]))
