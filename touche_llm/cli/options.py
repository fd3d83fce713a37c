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
from pydantic.fields import FieldInfo

from touche_llm.api.progress import ConsoleProgress
from touche_llm.cli.shared_options import CommandFunction, make_parameter, replace_parameter
from touche_llm.config.configuration import Config, find_settings, is_one_of
from touche_llm.config.files import CONFIG, UserOptions, load_run_config, load_with_origins
from touche_llm.config.origins import ARGUMENT, DEFAULT, LoadedConfig, OriginKind, ValueOrigin
from touche_llm.config.task_copies import is_copy
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
_OF_RETRIEVE = find_settings(Scope.RETRIEVE)
_OF_JUDGE = find_settings(Scope.JUDGE)
_OF_RANK = find_settings(Scope.RANK)
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
FolderConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The run's config.yaml, to use its settings although it was not written here.",
        rich_help_panel="Input",
    ),
]
# Parameters of these options in commands that do not declare them.
_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_CONFIG = inspect.Parameter("config_file", _KEYWORD, default=None, annotation=ConfigOption)
_SET = inspect.Parameter("assigned", _KEYWORD, default=None, annotation=SetOption)


@dataclass(frozen=True, slots=True)
class SettingOption:
    """Option of a setting.

    Attributes:
        setting: Dotted name of the setting.
        option: Declaration on the field of the setting.
        kind: Type of one value.
        default: Default value as a text; None if the help shows none.
    """

    setting: str
    option: Option
    kind: type
    is_repeatable: bool
    default: str | None

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
        kind: Any = self.kind
        if self.is_repeatable:
            kind = list[self.kind]  # type: ignore[name-defined]

        text = self.option.help
        if self.default is not None:
            text += f" (default: {self.default})"

        metavar = None
        if self.kind is not bool:
            metavar = self.option.metavar or _METAVARS[self.kind]

        return make_parameter(
            self.parameter_name,
            kind | None,
            self.option.flag,
            help=f"{text}.",
            metavar=metavar,
            rich_help_panel=self.option.panel,
        )


def _split_numbers(option: SettingOption, text: str) -> GivenSettings:
    """Return the settings in a text as `judge=512,stance=0`, by dotted name.

    Raises:
        UsageError: The text has another form.
    """
    settings: GivenSettings = {}
    for pair in text.split(","):
        name, _, number = pair.strip().partition("=")
        if not name.isidentifier() or not number.isdecimal():
            raise UsageError(
                f"{option.flag}: {pair!r:.80} must be {option.option.metavar}, as judge=512"
            )
        settings[f"{option.setting}.{name}"] = int(number)
    return settings


def _list_options() -> Iterator[SettingOption]:
    """Yield the options that the fields of the configuration declare."""
    for name, field in list_fields(Config):
        for option in field.metadata:
            if isinstance(option, Option):
                yield _make_option(name, field, option)


def _make_option(name: str, field: FieldInfo, option: Option) -> SettingOption:
    """Return an option that a field declares.

    Args:
        name: Dotted name of the field.
        field: Field of the configuration.
        option: Its declaration.
    """
    default = None
    if not field.is_required():
        default = _format_default(field.default, option)

    is_tuple = get_origin(field.annotation) is tuple
    return SettingOption(
        setting=f"{name}.{option.key}" if option.key else name,
        option=option,
        kind=Path if option.is_file else _find_kind(field.annotation),
        is_repeatable=is_tuple and not option.is_text,
        default=default,
    )


def _find_kind(annotation: Any) -> type:
    """Return the type that typer parses a value into.

    Names are texts, so that the configuration checks them and lists the valid ones.
    """
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if origin is dict:
        section = arguments[1]
        return _find_kind(get_args(section)[0])

    is_optional = origin is UnionType
    if origin is not None and not is_optional:
        return str

    kind: type = arguments[0] if arguments else annotation
    if kind is bool or kind in _METAVARS:
        return kind
    return str


def _format_default(value: Any, option: Option) -> str | None:
    """Format a default value for the help; None if it shows none."""
    match value:
        case bool():
            return _format_switch(value, option)
        case float():
            return f"{value:g}"
        case tuple():
            return ",".join(value) or None
        case None | dict() | BaseModel():
            return None
        case _:
            return str(value) or None


def _format_switch(value: bool, option: Option) -> str | None:
    """Return the flag, without dashes, that sets a switch to a value; None if only one is set."""
    flag, has_negation, negation = option.flag.partition("/")
    if not has_negation:
        return None
    return (flag if value else negation).removeprefix("--")


OPTIONS: Mapping[str, SettingOption] = {option.setting: option for option in _list_options()}


def takes_settings(
    *settings: str, without: Collection[str] = ()
) -> Callable[[CommandFunction], CommandFunction]:
    """Return a decorator that adds the options of settings to a command.

    The command receives the settings that are given as `given`, by dotted name.

    Args:
        settings: Dotted names of settings, or of sections with all of their settings.
        without: Names of settings that get no option.
    """
    options = _choose(settings, without)
    parameters = [option.to_parameter() for option in options]
    return replace_parameter("given", parameters, lambda values, _: _collect(options, values))


def configured(
    *settings: str, without: Collection[str] = ()
) -> Callable[[CommandFunction], CommandFunction]:
    """Return a decorator that adds the options of settings, `--config` and `--set` to a command.

    The command receives the configuration that they make, as `config`. An error about a setting
    names the option or file that set it.

    Args:
        settings: Dotted names of settings, or of sections with all of their settings.
        without: Names of settings that get no option.
    """
    options = _choose(settings, without)
    parameters = [*(option.to_parameter() for option in options), _CONFIG, _SET]

    def decorate(command: CommandFunction) -> CommandFunction:
        @wraps(command)
        def run_command(config: LoadedConfig, **own: Any) -> None:
            with config.origins.locate_errors():
                command(config=config.config, **own)

        def load(values: Mapping[str, Any], own: Mapping[str, Any]) -> LoadedConfig:
            return _load_for_command(command.__name__, options, values, own)

        return replace_parameter("config", parameters, load)(run_command)

    return decorate


def _load_for_command(
    command: str,
    options: Sequence[SettingOption],
    values: Mapping[str, Any],
    own: Mapping[str, Any],
) -> LoadedConfig:
    """Load the configuration of a command.

    Args:
        command: Name of the command.
        options: Options of settings.
        values: Values of these options, of `--config` and of `--set`, by parameter.
        own: Values of the command's own parameters; a `stage` among them counts as the command.
    """
    return load_settings(
        command=str(own.get("stage") or command),
        given=_collect(options, values),
        file=values["config_file"],
        assigned=values["assigned"],
        folder=own.get("out"),
    )


def _choose(settings: Collection[str], without: Collection[str]) -> list[SettingOption]:
    return [
        option
        for name, option in OPTIONS.items()
        if is_one_of(name, settings) and not is_one_of(name, without)
    ]


def _collect(options: Sequence[SettingOption], values: Mapping[str, Any]) -> GivenSettings:
    """Return the settings of the options that were given, by dotted name."""
    given: GivenSettings = {}
    for option in options:
        value = values[option.parameter_name]
        if value is None or value == []:
            continue
        if option.option.is_split:
            given |= _split_numbers(option, value)
        else:
            given[option.setting] = value
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
    origins = list_option_origins(given)
    if given.get("stance.thresholds"):
        _read_thresholds(given, origins)

    settings: GivenSettings = {}
    for name, value in given.items():
        settings[name] = tuple(value) if isinstance(value, list) else value
    for name, value in set_values(assigned or [], command).items():
        settings[name] = value
        origins[name] = ValueOrigin(OriginKind.OPTION, f"--set {name}")

    is_later_stage = command in ("judge", "rank")
    if file is None and is_later_stage and folder is not None:
        return _load_from_folder(folder, settings, origins)
    return load_with_origins(file, settings, origins)


def _read_thresholds(given: GivenSettings, origins: dict[str, ValueOrigin]) -> None:
    """Replace the file of thresholds that is given by the settings in it.

    Args:
        given: Settings of the command line, with the file; it gets the settings.
        origins: Their origins; those of the settings are added.
    """
    calibration = read_thresholds(given["stance.thresholds"])
    given["stance.thresholds"] = calibration.thresholds
    given["stance.calibrated_on"] = list(calibration.calibrated_on)
    given["stance.calibrated_for"] = calibration.calibrated_for

    origin = origins["stance.thresholds"]
    origins["stance.calibrated_on"] = origin
    origins["stance.calibrated_for"] = origin


def _load_from_folder(
    folder: Path,
    given: Mapping[str, Any],
    origins: Mapping[str, ValueOrigin],
) -> LoadedConfig:
    """Load the configuration that the stages before recorded in the folder of a run.

    Args:
        folder: Folder of the run.
        given: Settings of the command line, by dotted name.
        origins: Their origins.

    Raises:
        DataError: The folder has no configuration.
        UsageError: Somebody else wrote it, and topics or corpus are not given.
    """
    file = folder / CONFIG
    if not file.exists():
        raise DataError(
            f"{file}: missing; run `touche-llm retrieve` for this folder first, or give --config"
        )
    loaded = load_run_config(file, UserOptions(given, origins))

    if loaded.unused is not None:
        if loaded.is_without("topics") or loaded.is_without("index"):
            raise UsageError(
                f"{file}: its topics and corpus are not used: {loaded.unused.explain()}, or give both "
                "with --topics and --corpus"
            )
        line = loaded.unused.describe()
        if line:
            ConsoleProgress().warn(line)
    elif "task" not in given and is_copy(get_task(loaded.config.task), folder):
        ConsoleProgress().warn(
            f"{loaded.config.task}: used as the task, since its own folder moved or {TASK_FILE} changed"
        )
    return loaded


def make_user_options(given: GivenSettings, file: Path | None) -> UserOptions:
    """Return what the user says about a run's folder with options and `--config`."""
    return UserOptions(given, list_option_origins(given), file)


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
    if source is None:
        return DEFAULT

    match source.name:
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
    """Return the values of `--set` by dotted name, read as in a configuration.

    Args:
        given: Assignments, as `ranking.listwise.window=10`.
        command: Command or stage; a setting that earlier stages used cannot be set any more.

    Raises:
        UsageError: An assignment has another form, no value, or a setting of an earlier stage.
    """
    values: dict[str, Any] = {}
    for assignment in given:
        name, separator, text = assignment.partition("=")
        option = f"--set {assignment:.80}"
        is_name = all(part.isidentifier() for part in name.split("."))
        if not separator or not is_name:
            raise UsageError(f"{option}: must be NAME=VALUE, as --set ranking.listwise.window=10")
        if is_one_of(name, _DONE_BEFORE.get(command, ())):
            raise UsageError(
                f"{option}: a stage before `{command}` depends on it; give it to `touche-llm run`"
            )

        try:
            value = parse_yaml(text)
        except YamlError as error:
            raise UsageError(f"{option}: the value is not YAML: {error}") from error
        if value is None:
            raise UsageError(
                f"{option}: has no value; to unset it, leave it out of a configuration file"
            )
        values[name] = value
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
    if separator and location in OPTIONS:
        text = f"{OPTIONS[location].flag}: {rest}"
    elif separator and "." in location and location in _SETTINGS:
        text = f"--set {location}: {rest}"
    return _NAMED.sub(_name_option, text)


def _name_option(match: re.Match[str]) -> str:
    """Return the option of a setting or argument that a message names; the match for other words."""
    name = match[1]
    value = match[2]
    if name in OPTIONS:
        return _format_option(OPTIONS[name], value)
    if name in _ARGUMENTS:
        return f"--{name}"
    if name in _SETTINGS:
        return f"--set {name}={value or '…'}"
    return match[0]


def _format_option(option: SettingOption, value: str | None) -> str:
    """Return an option as it is given on the command line, with its value if a message has one."""
    if option.kind is bool:
        flag, _, negation = option.option.flag.partition("/")
        return negation if value == "false" else flag
    if value is None:
        return option.flag
    return f"{option.flag} {value}"


def read_section(model: type[ModelT], given: Mapping[str, Any], section: str) -> ModelT:
    """Return the section of the given settings.

    Raises:
        UsageError: A value is invalid; the message has the name of the setting.
    """
    prefix = f"{section}."
    own_values: dict[str, Any] = {}
    for name, value in given.items():
        if name.startswith(prefix):
            own_values[name.removeprefix(prefix)] = value

    nested: dict[str, Any] = {}
    nest_values(nested, own_values, section)
    return read_settings(model, nested, section)


class CommandProgress(ConsoleProgress):
    """Progress on standard error whose notes name options in place of settings."""

    def warn(self, message: str) -> None:
        """Print a line."""
        super().warn(name_options(message))
