"""Sections of settings, and the options and dotted names of their values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError

from touche_llm.data.records import Model
from touche_llm.errors import UsageError, describe_first_problem

ModelT = TypeVar("ModelT", bound=BaseModel)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSection:
    """A section that an extension declares.

    Attributes:
        name: Name of the section in the configuration.
        settings: Type of the section.
    """

    name: str
    settings: type[Section]


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


class Trust(StrEnum):
    """What a value does by itself, attached to its field with `Annotated`.

    It decides whether a value from the folder of a run is used although somebody else wrote the
    folder, see `config.own_folders`. Every setting declares it, or its section does for all settings
    without an own declaration.
    """

    # A number, a name or a text: it decides what is computed.
    DATA = "data"
    # The value decides which program starts, where requests and keys are sent, or which files
    # outside of the folder are read or written.
    ACTS = "acts"


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
        is_split: Whether the option sets several whole numbers of a section, as `judge=512,stance=0`.
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
    is_split: bool = False


def set_values(values: dict[str, Any], given: Mapping[str, Any], source: str) -> None:
    """Set settings of a configuration by dotted name, as `engine.model`.

    Args:
        values: Values by section, which are changed.
        given: New values by dotted name.
        source: File of the values, for messages.

    Raises:
        UsageError: A value stands in place of a section.
    """
    for name, value in given.items():
        key = name.rpartition(".")[2]
        settings = _open_section(values, name, source)
        settings[key] = value


def _open_section(values: dict[str, Any], name: str, source: str) -> dict[str, Any]:
    """Return the section that holds a setting; missing sections are added.

    For `engine.options.seed`, this is the mapping `values["engine"]["options"]`.

    Args:
        values: Values by section, which are changed.
        name: Dotted name of the setting.
        source: File of the values, for messages.

    Raises:
        UsageError: A value stands in place of a section.
    """
    *sections, _ = name.split(".")
    settings = values
    for section in sections:
        # A file has null for a section that its task does not use.
        if settings.get(section) is None:
            settings[section] = {}

        settings = settings[section]
        if not isinstance(settings, dict):
            raise UsageError(
                f"{source}: {section}: must hold names and values, since {name} is one of them"
            )
    return settings


def read_settings(model: type[ModelT], given: object, name: str) -> ModelT:
    """Return the settings that a caller gives as an argument, checked.

    Args:
        model: Type of the settings.
        given: Settings of this type, a mapping, or None for the defaults.
        name: Name of the argument, for messages.

    Raises:
        UsageError: The argument has another type, or a setting is invalid.
    """
    if given is None:
        return model()
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise UsageError(describe_first_problem(error, name, model=model)) from error


def check_address(url: str, secret: str) -> str:
    """Return the address of a server without a slash at its end.

    Args:
        url: Address that a user gives.
        secret: Environment variable that holds the key of the server, for messages.

    Raises:
        ValueError: The text is no address, or it contains a password or a key.
    """
    parts = urlsplit(url)
    if "@" in url or parts.query or parts.fragment:
        raise ValueError(
            f"must not hold a password or a key (no @, ? or #), since it is written to files: give the key in {secret}"
        )

    is_http = parts.scheme in ("http", "https")
    if not is_http or not parts.hostname or parts.port == 0:
        raise ValueError("must be an address like http://127.0.0.1:8000")
    return url.rstrip("/")
