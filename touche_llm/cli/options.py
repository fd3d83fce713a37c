"""Options of settings: each is declared once, on its field of the configuration."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, get_args, get_origin

import typer
from pydantic import BaseModel

from touche_llm.api.progress import ConsoleProgress
from touche_llm.cli.shared_options import CommandFunction, make_parameter, replace_parameter
from touche_llm.config.configuration import Config, find_settings, is_one_of
from touche_llm.config.files import CONFIG, load_with_origins
from touche_llm.config.origins import ARGUMENT, DEFAULT, LoadedConfig, OriginKind, ValueOrigin
from touche_llm.config.task_copies import find_task_folder, is_copy
from touche_llm.errors import DataError, UsageError, list_fields
from touche_llm.judging.stance_labels import read_thresholds
from touche_llm.retrieval.first_stages import SECTIONS
from touche_llm.settings.section import Option, Scope, read_settings
from touche_llm.settings.section import set_values as nest_values
from touche_llm.settings.yaml_text import YamlError, parse_yaml
from touche_llm.tasks import get_task
from touche_llm.tasks.parts import TASK_FILE

ModelT = TypeVar("ModelT", bound=BaseModel)
# Settings given on the command line, by dotted name.
GivenSettings = dict[str, Any]
INPUTS = ("task", "dataset", "topics", "corpus", "index")
_OF_RETRIEVE, _OF_JUDGE, _OF_RANK = map(find_settings, (Scope.RETRIEVE, Scope.JUDGE, Scope.RANK))
# Settings that a stage can take from the command line; it may run with another server, or where
# files have moved.
OF_STAGE: Mapping[str, tuple[str, ...]] = {
    "retrieve": (
        *_OF_RETRIEVE,
        # Some of their settings are of another scope, such as the address of a server.
        *SECTIONS,
        "depth",
        "tag",
        "prompts.folder",
        "engine",
        "cache",
    ),
    "judge": (*INPUTS, *_OF_JUDGE, "engine", "cache"),
    "rank": (*INPUTS, *_OF_RANK, "engine", "cache"),
}
# How requests reach the engine.
DELIVERY = tuple(name for name in find_settings(Scope.DELIVERY) if name.startswith("engine."))
# Settings of all stages.
OF_RUN = tuple(dict.fromkeys(name for names in OF_STAGE.values() for name in names))
_SETTINGS = {name for name, _ in list_fields(Config)}
# Arguments of the library that are options of commands, but no settings.
_ARGUMENTS = ("overwrite",)
# A dotted setting in a message of the library, or any setting or argument with its value; other
# words are commands.
_NAMED = re.compile(r"`(?=[^`]*[.:])([a-z][a-z0-9_.]*)(?:: ([^`\n]+))?`")
_METAVARS = {int: "N", float: "NUMBER", Path: "FILE", str: "TEXT"}
# Settings of the stages before a command; a change of them would make the configuration differ from
# what was done.
_DONE_BEFORE = {"judge": _OF_RETRIEVE, "rank": (*_OF_RETRIEVE, *_OF_JUDGE)}

SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any setting, as ranking.listwise.window=10; repeatable.",
        rich_help_panel="Input",
    ),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="YAML file of settings; options override it.",
        rich_help_panel="Input",
    ),
]
# Parameters of these options in commands that do not declare them.
_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_CONFIG = inspect.Parameter("config_file", _KEYWORD, default=None, annotation=ConfigOption)
_SET = inspect.Parameter("assigned", _KEYWORD, default=None, annotation=SetOption)


@dataclass(frozen=True, slots=True)
class SettingOption:
    """Option of a setting, by dotted name.

    `kind` is the type of one value, `default` a text, empty for none.
    """

    setting: str
    option: Option
    kind: type
    is_repeatable: bool
    default: str

    @property
    def flag(self) -> str:
        """Name of the option, without its negation."""
        return self.option.flag.partition("/")[0]

    @property
    def parameter_name(self) -> str:
        """Name of the parameter of a command."""
        return self.setting.replace(".", "__")

    def to_parameter(self) -> inspect.Parameter:
        """Return the parameter that typer makes the option of.

        Its default None means that it was not given.
        """
        kind: Any = list[self.kind] if self.is_repeatable else self.kind  # type: ignore[name-defined]
        return make_parameter(
            self.parameter_name,
            kind | None,
            self.option.flag,
            help=f"{self.option.help}{f' (default: {self.default})' if self.default else ''}.",
            metavar=None if self.kind is bool else self.option.metavar or _METAVARS[self.kind],
            rich_help_panel=self.option.panel,
        )


def _split_numbers(option: SettingOption, text: str) -> GivenSettings:
    """Return the settings in a text as `judge=512,stance=0`, by dotted name."""
    found: GivenSettings = {}
    for pair in text.split(","):
        name, separator, number = pair.strip().partition("=")
        if not separator or not name.isidentifier() or not number.isdecimal():
            raise UsageError(
                f"{option.flag}: {pair!r:.80} must be {option.option.metavar}, as judge=512"
            )
        found[f"{option.setting}.{name}"] = int(number)
    return found


def _list_options() -> Iterator[SettingOption]:
    for name, field in list_fields(Config):
        for option in field.metadata:
            if isinstance(option, Option):
                setting = f"{name}.{option.key}" if option.key else name
                kind = Path if option.is_file else _find_kind(field.annotation)
                is_repeatable = get_origin(field.annotation) is tuple and not option.is_text
                default = "" if field.is_required() else _format_default(field.default, option)
                yield SettingOption(setting, option, kind, is_repeatable, default)


def _find_kind(annotation: Any) -> type:
    """Return the type that typer parses a value into.

    Names are texts, so that the configuration checks them and lists the valid ones.
    """
    origin, kinds = get_origin(annotation), get_args(annotation)
    if origin is dict:
        return _find_kind(get_args(kinds[1])[0])
    if origin is not None and origin is not UnionType:
        return str
    kind: type = kinds[0] if kinds else annotation
    return kind if kind in _METAVARS or kind is bool else str


def _format_default(value: Any, option: Option) -> str:
    match value:
        case bool():
            names = option.flag.split("/")
            return names[not value].removeprefix("--") if len(names) > 1 else ""
        case float():
            return f"{value:g}"
        case tuple():
            return ",".join(value)
        case None | dict() | BaseModel():
            return ""
        case _:
            return str(value)


OPTIONS: Mapping[str, SettingOption] = {option.setting: option for option in _list_options()}


def takes_settings(
    *settings: str, without: Collection[str] = ()
) -> Callable[[CommandFunction], CommandFunction]:
    """Return a decorator that adds the options of settings to a command, which receives those given as `given`.

    Settings are dotted names, also of sections; options of those in `without` are left out.
    """
    options = _choose(settings, without)
    parameters = [option.to_parameter() for option in options]
    return replace_parameter("given", parameters, lambda values, _: _collect(options, values))


def configured(
    *settings: str, without: Collection[str] = ()
) -> Callable[[CommandFunction], CommandFunction]:
    """Return a decorator that adds the options of settings, `--config` and `--set` to a command.

    The command receives the configuration that they make, as `config`; see `takes_settings` for the
    arguments.
    """
    options = _choose(settings, without)
    parameters = [*(option.to_parameter() for option in options), _CONFIG, _SET]

    def decorate(command: CommandFunction) -> CommandFunction:
        def load(values: dict[str, Any], own: Mapping[str, Any]) -> LoadedConfig:
            name = str(own.get("stage") or command.__name__)
            given = _collect(options, values)
            return load_settings(
                name, given, values["config_file"], values["assigned"], own.get("out")
            )

        @wraps(command)
        def run_command(config: LoadedConfig, **own: Any) -> None:
            with config.origins.locate_errors():
                command(config=config.config, **own)

        return replace_parameter("config", parameters, load)(run_command)

    return decorate


def _choose(settings: Collection[str], without: Collection[str]) -> list[SettingOption]:
    return [
        option
        for name, option in OPTIONS.items()
        if is_one_of(name, settings) and not is_one_of(name, without)
    ]


def _collect(options: Sequence[SettingOption], values: Mapping[str, Any]) -> GivenSettings:
    given: GivenSettings = {}
    for option in options:
        value = values[option.parameter_name]
        if value is not None and value != []:
            given |= (
                _split_numbers(option, value) if option.option.is_split else {option.setting: value}
            )
    return given


def load_settings(
    command: str,
    given: GivenSettings,
    file: Path | None,
    assigned: list[str] | None,
    folder: Path | None = None,
) -> LoadedConfig:
    """Load the configuration of a command or stage from its options, `--config` and `--set`.

    Stages after the first use the configuration in the folder of the run.
    """
    file_kind = OriginKind.FILE
    origins = list_option_origins(given)
    if file is None and command in ("judge", "rank") and folder is not None:
        file = folder / CONFIG
        file_kind = OriginKind.FOLDER
        if not file.exists():
            raise DataError(
                f"{file}: missing; run `touche-llm retrieve` for this folder first, or give --config"
            )
        # The copy in a run's folder, unless the task's own folder still has the same definition.
        if "task" not in given and (task := find_task_folder(file)) is not None:
            given["task"] = task
            origins["task"] = ValueOrigin(OriginKind.FOLDER, str(file))
            if is_copy(get_task(task), folder):
                ConsoleProgress().warn(
                    f"{task}: used as the task, since its own folder moved or {TASK_FILE} changed"
                )
    if thresholds := given.get("stance.thresholds"):
        found = read_thresholds(thresholds)
        given |= {
            "stance.thresholds": found.thresholds,
            "stance.calibrated_on": list(found.calibrated_on),
        }
        given |= {"stance.calibrated_for": found.calibrated_for}
        thresholds_origin = origins["stance.thresholds"]
        origins["stance.calibrated_on"] = thresholds_origin
        origins["stance.calibrated_for"] = thresholds_origin
    values = set_values(assigned or [], command)
    for name in values:
        origins[name] = ValueOrigin(OriginKind.OPTION, f"--set {name}")
    flags = {
        name: tuple(value) if isinstance(value, list) else value for name, value in given.items()
    }
    return load_with_origins(file, flags | values, origins, file_kind)


def list_option_origins(given: Iterable[str]) -> dict[str, ValueOrigin]:
    """Return the origins of settings that are given as options, by dotted name."""
    return {name: _find_option_origin(name) for name in given}


def find_parameter_origin(context: typer.Context, name: str) -> ValueOrigin:
    """Return the origin of the value of a command's own parameter.

    Args:
        context: Context of the command.
        name: Name of the parameter in Python.
    """
    parameter = next(item for item in context.command.params if item.name == name)
    source = context.get_parameter_source(name)
    match source.name if source is not None else "DEFAULT":
        case "COMMANDLINE":
            return ValueOrigin(OriginKind.OPTION, max(parameter.opts, key=len))
        case "ENVIRONMENT":
            return ValueOrigin(OriginKind.ENVIRONMENT, str(parameter.envvar))
        case _:
            return DEFAULT


def _find_option_origin(name: str) -> ValueOrigin:
    """Return the origin of a setting that an option of the command sets."""
    if name in OPTIONS:
        return ValueOrigin(OriginKind.OPTION, OPTIONS[name].flag)

    # An option as --thinking judge=512 sets the values of a section.
    section, _, key = name.rpartition(".")
    if section in OPTIONS:
        return ValueOrigin(OriginKind.OPTION, f"{OPTIONS[section].flag} {key}")
    return ARGUMENT


def set_values(given: list[str], command: str) -> dict[str, Any]:
    """Return the values of `--set` by dotted name, read as in a configuration."""
    values = {}
    for assignment in given:
        where = f"--set {assignment:.80}"
        name, separator, text = assignment.partition("=")
        if not separator or not all(part.isidentifier() for part in name.split(".")):
            raise UsageError(f"{where}: must be NAME=VALUE, as --set ranking.listwise.window=10")
        if is_one_of(name, _DONE_BEFORE.get(command, ())):
            raise UsageError(
                f"{where}: a stage before `{command}` depends on it; give it to `touche-llm run`"
            )
        try:
            values[name] = parse_yaml(text)
        except YamlError as error:
            raise UsageError(f"{where}: the value is not YAML: {error}") from error
        if values[name] is None:
            raise UsageError(
                f"{where}: has no value; to unset it, leave it out of a configuration file"
            )
    return values


def check_inputs(given: GivenSettings) -> None:
    """Raise UsageError for files beside a dataset, which has topics and documents."""
    if given.get("dataset") is not None and given.keys() & {"topics", "corpus"}:
        raise UsageError(
            f"--dataset {given['dataset']:.200}: has topics and documents; leave out --topics and --corpus"
        )


def name_options(text: str) -> str:
    """Return a message of the library with options in place of the settings and arguments that it names.

    `engine.context` becomes --context, `cache.mode: reuse` --cache-mode reuse, and a setting
    without an option --set NAME=VALUE.
    """
    location, separator, rest = text.partition(": ")
    if separator and (location in OPTIONS or ("." in location and location in _SETTINGS)):
        text = f"{OPTIONS[location].flag if location in OPTIONS else f'--set {location}'}: {rest}"
    return _NAMED.sub(_name_option, text)


def _name_option(match: re.Match[str]) -> str:
    name, value = match[1], match[2]
    if name in OPTIONS and OPTIONS[name].kind is bool:
        flag, _, negation = OPTIONS[name].option.flag.partition("/")
        return negation if value == "false" else flag
    if name in OPTIONS:
        return OPTIONS[name].flag + (f" {value}" if value else "")
    if name in _ARGUMENTS:
        return f"--{name}"
    return f"--set {name}={value or '…'}" if name in _SETTINGS else match[0]


def read_section(model: type[ModelT], given: Mapping[str, Any], section: str) -> ModelT:
    """Return the section of the given settings.

    Raises UsageError, with the setting's name, if a value is invalid.
    """
    prefix = f"{section}."
    own: dict[str, Any] = {}
    nest_values(
        own,
        {name.removeprefix(prefix): given[name] for name in given if name.startswith(prefix)},
        section,
    )
    return read_settings(model, own, section)


class CommandProgress(ConsoleProgress):
    """Progress on standard error whose notes name options in place of settings."""

    def warn(self, message: str) -> None:
        """Print a line."""
        super().warn(name_options(message))
