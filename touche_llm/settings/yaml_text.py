"""YAML from outside: bounded, safe, without duplicate keys."""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from touche_llm.data.files import read_bounded
from touche_llm.errors import DataError, ToucheError, describe_first_problem
from touche_llm.settings.section import ModelT

# The configuration of a run has a few thousand bytes, the published results have 30,000.
MAX_BYTES = 2**20
# The C loader composes nodes recursively and crashes on some 10,000 levels; our files have five.
MAX_DEPTH = 50
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class YamlError(ValueError):
    """Text that is not YAML, is too long or too deeply nested, or repeats a key.

    The message begins with the line, if known.
    """


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML loader that refuses duplicate keys, and reads YES, NO, off and dates as words, as YAML 1.2 does."""

    yaml_implicit_resolvers = {
        first: [
            (tag, pattern)
            for tag, pattern in resolvers
            if not tag.endswith((":bool", ":timestamp"))
        ]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Return the mapping of a node; raise YamlError if it has a key twice."""
        seen_keys: set[tuple[str, str]] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                continue

            key = (key_node.tag, key_node.value)
            if key in seen_keys:
                line = key_node.start_mark.line + 1
                raise YamlError(
                    f"line {line}: the key {key_node.value!r:.80} occurs twice; keep one"
                )
            seen_keys.add(key)
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return mapping


# Labels such as TRUE stay words.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:[Tt]rue|[Ff]alse)$"), list("tTfF")
)


def parse_yaml(content: bytes | str) -> Any:
    """Parse a YAML document of at most `MAX_BYTES`, with at most `MAX_DEPTH` levels.

    Raises:
        YamlError: The text is not YAML, too long or too deeply nested, or repeats a key.
    """
    if len(content) > MAX_BYTES:
        raise YamlError(f"longer than {MAX_BYTES:,} bytes")
    try:
        _check_depth(content)
        return yaml.load(content, _Loader)
    except (yaml.YAMLError, ValueError) as error:  # also invalid Unicode
        raise YamlError(" ".join(str(error).split())) from error


def _check_depth(content: bytes | str) -> None:
    """Raise YamlError if lists and mappings are nested more than `MAX_DEPTH` levels deep."""
    depth = 0
    for event in yaml.parse(content, _Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1

        if depth > MAX_DEPTH:
            assert event.start_mark is not None  # the C loader marks all events
            line = event.start_mark.line + 1
            problem = f"nested more than {MAX_DEPTH} levels deep"
            raise YamlError(f"line {line}: {problem}; write it flatter, or restore the file")


def read_yaml(
    path: Path, *, text: bytes | str | None = None, error: type[ToucheError] = DataError
) -> dict[str, Any]:
    """Read a YAML file of names and values; an empty one has none.

    Args:
        path: File to read.
        text: Content of the file, or the part of it that is YAML; None to read it.
        error: Type of the errors.

    Raises:
        ToucheError: The file cannot be read, is not YAML, or holds something else; of the type
            `error`.
    """
    try:
        content = read_bounded(path, MAX_BYTES, error) if text is None else text
        values = parse_yaml(content) or {}
    except OSError as cause:
        raise error(f"{path}: cannot read the file: {cause.strerror}") from cause
    except YamlError as cause:
        raise error(f"{path}: not YAML: {cause}") from cause
    if not isinstance(values, dict):
        raise error(f"{path}: must hold names and values")
    return values


def load_yaml(
    path: Path,
    model: type[ModelT],
    *,
    text: str | None = None,
    error: type[ToucheError] = DataError,
) -> ModelT:
    """Read a YAML file into a model.

    Args:
        path: File to read.
        model: Type of the values.
        text: Content of the file, or the part of it that is YAML; None to read it.
        error: Type of the errors.

    Raises:
        ToucheError: As `read_yaml`, or a value is invalid; the message names file and key.
    """
    values = read_yaml(path, text=text, error=error)
    try:
        return model.model_validate(values)
    except ValidationError as invalid:
        raise error(f"{path}: {describe_first_problem(invalid, model=model)}") from invalid


def to_yaml(value: Any) -> bytes:
    """Return a trusted value of plain types as YAML; keys keep their order."""
    text: str = yaml.dump(value, Dumper=_DUMPER, sort_keys=False, allow_unicode=True)
    return text.encode()
