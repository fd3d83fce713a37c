"""Sections of settings, the options and dotted names of their values, and messages for invalid ones."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ValidationError

from touche_llm.data.files import read_bounded
from touche_llm.data.records import Model
from touche_llm.errors import DataError, ToucheError, UsageError, describe_first_problem

# The configuration of a run has a few thousand bytes, the published results have 30,000.
MAX_BYTES = 2**20

ModelT = TypeVar("ModelT", bound=BaseModel)
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class YamlError(ValueError):
    """Text that is not YAML, is too long or repeats a key.

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
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    raise YamlError(
                        f"line {key.start_mark.line + 1}: the key {key.value!r:.80} occurs twice; keep one"
                    )
                seen.add((key.tag, key.value))
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return mapping


# Labels such as TRUE stay words.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:[Tt]rue|[Ff]alse)$"), list("tTfF")
)


def parse_yaml(content: bytes | str) -> Any:
    """Parse a YAML document of at most `MAX_BYTES`.

    Raise YamlError for other text, and if it repeats a key.
    """
    if len(content) > MAX_BYTES:
        raise YamlError(f"longer than {MAX_BYTES:,} bytes")
    try:
        return yaml.load(content, _Loader)
    except (yaml.YAMLError, ValueError) as error:  # also invalid Unicode
        raise YamlError(" ".join(str(error).split())) from error


def read_yaml(
    path: Path, *, text: str | None = None, error: type[ToucheError] = DataError
) -> dict[str, Any]:
    """Read a YAML file of names and values, or its part `text`.

    Raise an error of the type `error`.
    """
    try:
        values = parse_yaml(read_bounded(path, MAX_BYTES, error) if text is None else text) or {}
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

    Arguments and errors are those of `read_yaml`, the message names file and key.
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


# Errors do not quote values: a value may be a key in the wrong place.
class Section(Model, metaclass=_SectionType, hide_input_in_errors=True):
    """Section of a configuration."""


class Scope(StrEnum):
    """What a setting decides, attached to its field with `Annotated`.

    A section's scope is that of its fields.

    Runs are compared by their settings: those of `DELIVERY` change neither an answer nor an output.
    A setting without a scope decides the ranking, so that a new one is compared.
    """

    RETRIEVE = "retrieve"
    JUDGE = "judge"
    RANK = "rank"
    # Which model answers.
    MODEL = "model"
    # Where files and servers are, how fast requests are sent, and names of people.
    DELIVERY = "delivery"


class AnswerKey(StrEnum):
    """Whether a setting enters the keys of stored answers, attached to its field with `Annotated`.

    Every setting declares it, or its section does for all settings without an own declaration. No
    scope implies it: those of the stages have settings of both kinds.

    Keys identify an answer about a topic, a document, or documents compared in an order, and the
    scores and vectors of pooling models; the vectors of a corpus are identified by the folder of
    their index. `tests/answer_keys` changes each setting and checks its declaration.
    """

    # Another value changes what is sent about the same documents, and so what is looked up. It may
    # need a condition: a context enters only where it truncates a document.
    ENTERS = "enters"
    # The value decides which documents are sent and how often, what is made of the answers, where
    # files and servers are, or how fast requests are sent.
    STAYS_OUT = "stays out"


@dataclass(frozen=True, slots=True)
class Option:
    """Command-line option of a setting, attached to its field with `Annotated`.

    Type and default are the field's.

    Attributes:
        flag: Name of the option; with its negation for a truth value, as
            `--logprobs/--no-logprobs`.
        help: Description without a full stop or the default, which is added.
        metavar: Name of the value in the help; by default that of its type.
        key: Key that the option sets if the field is a dictionary.
        is_file: Whether the option names a file that holds the value.
        is_pairs: Whether the option sets whole numbers of a section, as `judge=512,stance=0`.
        is_text: Whether a list is given as one text, which the field's validator splits; by default
            the option repeats.
    """

    flag: str
    help: str
    panel: Panel
    metavar: str | None = None
    key: str = ""
    is_file: bool = False
    is_text: bool = False
    is_pairs: bool = False


def set_values(values: dict[str, Any], given: Mapping[str, Any], source: str) -> None:
    """Set values by dotted name.

    Raises UsageError if `source` has a value in place of a section.
    """
    for name, value in given.items():
        *sections, key = name.split(".")
        target = values
        for section in sections:
            # A section that the task does not have is written as null.
            target[section] = {} if target.get(section) is None else target[section]
            target = target[section]
            if not isinstance(target, dict):
                raise UsageError(
                    f"{source}: {section}: must hold names and values, since {name} is one of them"
                )
        target[key] = value


def read_settings(model: type[ModelT], given: object, name: str) -> ModelT:
    """Return a record of settings: the given one, one of a mapping, or the defaults for None.

    A UsageError for another type or an invalid value names the argument and the setting.
    """
    try:
        return model() if given is None else model.model_validate(given)
    except ValidationError as error:
        raise UsageError(describe_first_problem(error, name, model=model)) from error


def check_address(url: str, secret: str) -> str:
    """Return the address of a server without a slash at its end.

    A ValueError for another text, or one with a password or key, which belongs into `secret`.
    """
    parts = urlsplit(url)
    if "@" in url or parts.query or parts.fragment:
        raise ValueError(
            f"must not hold a password or a key (no @, ? or #), since it is written to files: give the key in {secret}"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
        raise ValueError("must be an address like http://127.0.0.1:8000")
    return url.rstrip("/")
