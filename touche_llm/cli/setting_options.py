"""Progress of the commands."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, get_args, get_origin

import typer
from pydantic import BaseModel, ValidationError

from touche_llm.cli.options import CommandFunction, HelpAllOption, make_parameter, set_signature
from touche_llm.config import Config, find_settings, is_one_of
from touche_llm.data.settings import Option, Scope, YamlError, parse_yaml
from touche_llm.errors import DataError, UsageError, describe_problem, list_fields
from touche_llm.judging.labels import read_thresholds
from touche_llm.llm.cache import CacheMode
from touche_llm.pipeline.config_file import CONFIG, find_task_folder, is_copy, load_config
from touche_llm.pipeline.progress import ConsoleProgress
from touche_llm.pipeline.run_directory import RunDirectory
from touche_llm.tasks import get_task
from touche_llm.tasks.definition import TASK_FILE

ModelT = TypeVar("ModelT", bound=BaseModel)
# Settings given on the command line, by dotted name.
GivenSettings = dict[str, Any]
INPUTS = ("task", "dataset", "topics", "corpus", "index")
_OF_RETRIEVE, _OF_JUDGE, _OF_RANK = map(find_settings, (Scope.RETRIEVE, Scope.JUDGE, Scope.RANK))
# Settings that a stage can take from the command line; it may run with another server, or where files have moved.
OF_STAGE: Mapping[str, tuple[str, ...]] = {
    "retrieve": (*_OF_RETRIEVE, "elasticsearch", "depth", "tag", "prompts.folder", "engine", "cache"),
    "judge": (*INPUTS, *_OF_JUDGE, "engine", "cache"),
    "rank": (*INPUTS, *_OF_RANK, "engine", "cache"),
}
# How requests reach the engine.
DELIVERY = tuple(name for name in find_settings(Scope.DELIVERY) if name.startswith("engine."))
# Settings of all stages.
OF_RUN = tuple(dict.fromkeys(name for names in OF_STAGE.values() for name in names))
# A command with more options of settings lists the common ones in `--help`, and all of them in `--help-all`.
_MAX_LISTED = 11
_METAVARS = {int: "N", float: "NUMBER", Path: "FILE", str: "TEXT"}
# Settings of the stages before a command; a change of them would make the configuration differ from what was done.
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
_ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help="YAML file of settings; options override it.", rich_help_panel="Input"
    ),
]


@dataclass(frozen=True, slots=True)
class SettingOption:
    """Option of a setting.

    Attributes:
        setting: Dotted name of the setting.
        option: Declaration of the option.
        kind: Type of a value; a repeatable option takes several.
        is_repeatable: Whether the setting is a list.
        default: Default of the setting, as text; empty if it has none.
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

    def to_parameter(self, *, hidden: bool) -> inspect.Parameter:
        """Return the parameter that typer makes the option of; its default None means that it was not given."""
        default = f" [default: {self.default}]" if self.default else ""
        declared = typer.Option(
            self.option.flag,
            help=f"{self.option.help}.{default}",
            metavar=None if self.kind is bool else self.option.metavar or _METAVARS[self.kind],
            rich_help_panel=self.option.panel,
            hidden=hidden,
        )
        kind: Any = list[self.kind] if self.is_repeatable else self.kind  # type: ignore[name-defined]
        return make_parameter(self.parameter_name, Annotated[kind | None, declared], None)


def _split_pairs(option: SettingOption, text: str) -> GivenSettings:
    """Return the settings in a text as `judge=512,stance=0`, by dotted name."""
    found: GivenSettings = {}
    for pair in text.split(","):
        name, separator, number = pair.strip().partition("=")
        if not separator or not name.isidentifier() or not number.isdecimal():
            raise UsageError(f"{option.flag}: {pair!r:.80} must be {option.option.metavar}, as judge=512")
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
    *settings: str, without: Collection[str] = (), max_listed: int = _MAX_LISTED
) -> Callable[[CommandFunction], CommandFunction]:
    """Return a decorator that adds the options of settings to a command.

    The command receives the given values by dotted name as its first argument, and its own options by keyword.

    Args:
        settings: Dotted names of settings or sections.
        without: Settings or sections among them whose options are left out.
        max_listed: Max number of options of which `--help` lists all.
    """
    options = [option for name, option in OPTIONS.items() if is_one_of(name, settings) and not is_one_of(name, without)]
    is_long = len(options) > max_listed

    def decorate(command: CommandFunction) -> CommandFunction:
        _, *own = inspect.signature(command, eval_str=True).parameters.values()
        parameters = [option.to_parameter(hidden=is_long and not option.option.is_common) for option in options]
        help_all = [make_parameter("help_all", HelpAllOption, False)] if is_long else []

        @wraps(command)
        def expanded(**values: Any) -> None:
            values.pop("help_all", None)
            given: GivenSettings = {}
            for option in options:
                value = values.pop(option.parameter_name)
                if value is not None and value != []:
                    given |= _split_pairs(option, value) if option.option.is_pairs else {option.setting: value}
            command(given, **values)

        set_signature(expanded, [*parameters, *own, *help_all])
        return expanded

    return decorate


_SETTINGS = {name for name, _ in list_fields(Config)}
# Arguments of the library that are options of commands, but no settings.
_ARGUMENTS = ("overwrite", "run")
# A dotted setting in a message of the library, or any setting or argument with its value; other words are commands.
_NAMED = re.compile(r"`(?=[^`]*[.:])([a-z][a-z0-9_.]*)(?:: ([^`\n]+))?`")

Complete = Callable[[GivenSettings, Mapping[str, Any]], None]


def configured(
    *settings: str, without: Collection[str] = (), complete: Complete | None = None
) -> Callable[[CommandFunction], CommandFunction]:
    """Return a decorator that adds the options of settings, `--config` and `--set` to a command.

    The command receives the loaded configuration as its first argument, and its own options by keyword.

    Args:
        settings: Dotted names of settings or sections.
        without: Settings or sections among them whose options are left out.
        complete: Called with the given values by dotted name, which it may change, and the command's own options.
    """

    def decorate(command: CommandFunction) -> CommandFunction:
        _, *own = inspect.signature(command, eval_str=True).parameters.values()
        has_context = any(parameter.name == "context" for parameter in own)

        @wraps(command)
        def loaded(
            given: GivenSettings, context: typer.Context, config: Path | None, values: list[str], **others: Any
        ) -> None:
            stage = str(others.get("stage") or context.info_name)
            if config is None and stage in ("judge", "rank"):
                config = _find_stage_config(others["out"])
                _use_task_copy(config, given)
            if complete is not None:
                complete(given, {**others, "config": config})
            _replace_thresholds(given)
            loaded_config = _load(config, given, set_values(values or [], stage))
            if is_one_of("engine.name", settings) and not is_one_of("engine.name", without):
                _check_batch(loaded_config, stage)
            command(loaded_config, **others, **({"context": context} if has_context else {}))

        first = inspect.Parameter("given", inspect.Parameter.POSITIONAL_ONLY)
        context = [] if has_context else [make_parameter("context", typer.Context, inspect.Parameter.empty)]
        config = make_parameter("config", _ConfigOption, None)
        values = make_parameter("values", SetOption, None)
        set_signature(loaded, [first, *context, *own, config, values])
        return takes_settings(*settings, without=without)(loaded)

    return decorate


def _find_stage_config(folder: Path) -> Path:
    """Return the configuration that an earlier stage wrote; raises DataError if there is none."""
    RunDirectory(folder).check_path()
    written = folder / CONFIG
    if not written.exists():
        raise DataError(f"{written}: missing; run `touche-llm retrieve` for this folder first, or give --config")
    return written


def _use_task_copy(config: Path, given: GivenSettings) -> None:
    """Use the copy of the task in a run's folder, unless the task's own folder still has the same definition."""
    if "task" not in given and (folder := find_task_folder(config)) is not None:
        given["task"] = folder
        if is_copy(get_task(folder), config.parent):
            ConsoleProgress().warn(f"{folder}: used as the task, since its own folder moved or {TASK_FILE} changed")


def _replace_thresholds(given: GivenSettings) -> None:
    """Replace the file of thresholds by the settings in it."""
    if file := given.get("stance.thresholds"):
        settings = read_thresholds(file)
        given |= {
            "stance.thresholds": settings.thresholds,
            "stance.calibrated_on": list(settings.calibrated_on),
            "stance.calibrated_for": settings.calibrated_for,
        }


def _load(file: Path | None, given: Mapping[str, Any], assigned: Mapping[str, Any]) -> Config:
    flags = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    names = {name: option.flag for name, option in OPTIONS.items()} | {name: f"--set {name}" for name in assigned}
    return load_config(file, flags | dict(assigned), names)


def _check_batch(config: Config, command: str) -> None:
    """Raise UsageError for the engine `batch` if a command sends requests one by one."""
    is_sent = config.engine.name == "batch" and config.cache.mode is not CacheMode.REPLAY
    if is_sent and command not in (*OF_STAGE, "run"):
        raise UsageError(
            f"--engine batch: `{command}` sends no batch files; give --engine server or managed, or replay answers "
            "with --cache-mode replay"
        )


def set_values(given: list[str], command: str) -> dict[str, Any]:
    """Return the values of `--set` by dotted name, read as in a configuration.

    Raises:
        UsageError: A value is not `NAME=VALUE`, or a stage before this command depends on the setting.
    """
    values = {}
    for assignment in given:
        where = f"--set {assignment:.80}"
        name, separator, text = assignment.partition("=")
        if not separator or not all(part.isidentifier() for part in name.split(".")):
            raise UsageError(f"{where}: must be NAME=VALUE, as --set ranking.listwise.window=10")
        if is_one_of(name, _DONE_BEFORE.get(command, ())):
            raise UsageError(f"{where}: a stage before `{command}` depends on it; give it to `touche-llm run`")
        try:
            values[name] = parse_yaml(text)
        except YamlError as error:
            raise UsageError(f"{where}: the value is not YAML: {error}") from error
        if values[name] is None:
            raise UsageError(f"{where}: has no value; to unset it, leave it out of a configuration file")
    return values


@dataclass(frozen=True, slots=True)
class GivenInputs:
    """Inputs given on the command line; None for one that was not given."""

    dataset: str | None
    topics: Path | None
    corpus: Path | None
    index: Path | None

    @property
    def documents(self) -> str | Path | None:
        """Dataset or corpus with the documents."""
        return self.dataset or self.corpus

    @property
    def has_documents(self) -> bool:
        """Whether documents were given, perhaps only by their index."""
        return self.documents is not None or self.index is not None


def read_inputs(given: GivenSettings) -> GivenInputs:
    """Return the given inputs; raise UsageError for files beside a dataset."""
    inputs = GivenInputs(*(given.get(name) for name in ("dataset", "topics", "corpus", "index")))
    if inputs.dataset is not None and (inputs.topics is not None or inputs.corpus is not None):
        raise UsageError(f"--dataset {inputs.dataset:.200}: has topics and documents; leave out --topics and --corpus")
    return inputs


def name_options(text: str) -> str:
    """Return a message of the library with options in place of the settings and arguments that it names.

    `engine.context` becomes --context, `cache.mode: reuse` --cache-mode reuse, and a setting without an option
    --set NAME=VALUE.
    """
    location, separator, rest = text.partition(": ")
    if separator and "." in location and location in OPTIONS:
        text = f"{OPTIONS[location].flag}: {rest}"
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


def validate(
    model: type[ModelT], values: Mapping[str, Any], section: str, arguments: Mapping[str, str] | None = None
) -> ModelT:
    """Return a record of settings; raises UsageError, with the option's name, if a value is invalid.

    Args:
        model: Record.
        values: Values by dotted name; those outside the record's section are ignored.
        section: Dotted name of the section; empty for a record of a command's own options.
        arguments: Names of the arguments that the command has in place of options, by dotted name.
    """
    prefix = section and f"{section}."
    own = {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}
    try:
        return model.model_validate(own)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        known = OPTIONS.get(f"{prefix}{name}")
        flag = known.flag if known else f"--set {prefix}{name}" if section else f"--{name.replace('_', '-')}"
        flag = (arguments or {}).get(f"{prefix}{name}", flag)
        raise UsageError(f"{flag}: {describe_problem(first)}") from error


class CommandProgress(ConsoleProgress):
    """Progress on standard error whose notes name options in place of settings."""

    def warn(self, message: str) -> None:
        """Print a line."""
        super().warn(name_options(message))
