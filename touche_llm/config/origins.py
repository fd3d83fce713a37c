"""Origins of the values of a configuration, and errors that name them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from touche_llm.config.configuration import Config, is_one_of
from touche_llm.config.own_folders import NOT_USED, UnusedSettings
from touche_llm.errors import ToucheError, to_printable


class OriginKind(StrEnum):
    """Where a value comes from."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    OPTION = "option"
    # The configuration that a run recorded, perhaps that of somebody else.
    FOLDER = "run's folder"


# An error names the origin that the user can change most easily.
_PRIORITIES = (
    OriginKind.OPTION,
    OriginKind.ENVIRONMENT,
    OriginKind.FILE,
    OriginKind.FOLDER,
    OriginKind.DEFAULT,
)


@dataclass(frozen=True, slots=True)
class ValueOrigin:
    """Origin of a value.

    Attributes:
        kind: Kind of the origin.
        place: Path of the file, flag of the option, or name of the environment variable; empty for
            a default, and for an argument in Python.
    """

    kind: OriginKind
    place: str = ""


DEFAULT = ValueOrigin(OriginKind.DEFAULT)
ARGUMENT = ValueOrigin(OriginKind.OPTION)


@dataclass(frozen=True, slots=True)
class Origins:
    """Origins of the values of a configuration.

    Attributes:
        by_name: Origins by dotted name, of settings or of whole sections; a value without one is a
            default.
    """

    by_name: Mapping[str, ValueOrigin] = field(default_factory=dict)

    def find(self, name: str) -> ValueOrigin:
        """Return the origin of a setting: its own, or else that of its section."""
        around = [given for given in self.by_name if is_one_of(name, (given,))]
        if not around:
            return DEFAULT
        return self.by_name[max(around, key=len)]

    def find_decisive(self, names: Collection[str]) -> Mapping[str, ValueOrigin]:
        """Return the origins to name in an error about settings or sections, by dotted name.

        Only those of the kind that the user can change most easily are named: of options, for
        example, rather than of files. Empty if all values are defaults.
        """
        related: dict[str, ValueOrigin] = {}
        for given, origin in self.by_name.items():
            is_section_of_name = any(is_one_of(name, [given]) for name in names)
            if is_section_of_name or is_one_of(given, names):
                related[given] = origin

        kinds = {
            origin.kind for origin in related.values() if origin.kind is not OriginKind.DEFAULT
        }
        if not kinds:
            return {}
        decisive_kind = min(kinds, key=_PRIORITIES.index)
        return {given: origin for given, origin in related.items() if origin.kind is decisive_kind}

    def locate(self, problem: str) -> str:
        """Return a message about a setting with the origin of its value in front.

        `depth: must be above 0` becomes `config.yaml: depth: must be above 0`, or `--depth: must be
        above 0`, since a flag takes the place of the setting that it sets. A message about a
        default, an argument in Python, or anything but a setting stays as it is.
        """
        location, separator, rest = problem.partition(": ")
        if not separator:
            return problem

        decisive = self.find_decisive(location.split(", "))
        places = ", ".join(dict.fromkeys(origin.place for origin in decisive.values()))
        if not places:
            return problem

        is_flag = location in decisive and decisive[location].kind is OriginKind.OPTION
        if is_flag and len(decisive) == 1:
            return f"{places}: {rest}"
        return f"{places}: {problem}"

    @contextmanager
    def locate_errors(self) -> Iterator[None]:
        """Add the origin to an error about a setting that the block raises, see `locate`."""
        try:
            yield
        except ToucheError as error:
            error.args = (to_printable(self.locate(str(error))),)
            raise


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A configuration with the origins of its values.

    Attributes:
        unused: Settings of a run's folder that somebody else wrote; None for other files, and for a
            folder that was written here.
    """

    config: Config
    origins: Origins
    unused: UnusedSettings | None = None

    def is_without(self, name: str) -> bool:
        """Return whether an input is that of somebody else's folder, and therefore not read.

        Args:
            name: `topics` or `index`.
        """
        if self.unused is None:
            return False
        path: Path | None = getattr(self.config, name)
        return path == self.unused.file.parent / NOT_USED
