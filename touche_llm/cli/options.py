"""Commands whose help cuts nothing and whose errors are one line that names options, and options that they share."""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from pydantic import ValidationError
from typer.core import TyperCommand, TyperGroup

from touche_llm.data.settings import Panel
from touche_llm.errors import BadLine, UsageError, describe_problem

# Error of the option parser; its class has no public name of its own.
ParserError: Any = typer.BadParameter.__base__
# Commands that begin a run, and what these need unless a configuration has it; any one option gives it.
_BEGIN = ("run", "retrieve")
_OF_CONFIGURATION = {
    "--topics": ("topics", "dataset"),
    "--corpus": ("corpus", "index", "retriever__name", "dataset"),
}
_OTHER_PANEL = "Options"
# Longer names of options have their own line in the help.
_MAX_NAME = 26
_TYPE = re.compile(r"<([^<>]+)>")
_TYPE_NAMES = {
    **{"str": "TEXT", "int": "N", "float": "NUMBER", "int range": "N", "path": "FILE"},
    **{"list[str]": "TEXT", "list[float]": "NUMBER"},
}
# Likeness, from 0 to 1, from which a known option is suggested for a misspelt one.
_LIKE = 0.75
_PANELS = ("Arguments", *get_args(Panel), _OTHER_PANEL)
# Key of the context: whether the help lists all options.
_ALL = f"{__name__}.all"


def _show_all(context: typer.Context, is_given: bool) -> None:
    if is_given:
        context.meta[_ALL] = True
        typer.echo(context.get_help())
        raise typer.Exit()


HelpAllOption = Annotated[
    bool, typer.Option("--help-all", help="Show all options and exit.", is_eager=True, callback=_show_all)
]


class Command(TyperCommand):
    """Command whose errors name all missing options, not the first one, and how to leave out bad lines."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options by panel, required and common ones first; hidden ones only if all are requested."""
        _write_panels(formatter, self.list_options(ctx, with_hidden=bool(ctx.meta.get(_ALL))))

    def list_options(self, ctx: Any, *, with_hidden: bool) -> dict[str, list[tuple[str, str]]]:
        """Return names and descriptions of the arguments and options by panel, required and common ones first."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in sorted(
            self.get_params(ctx), key=lambda item: (not item.required, getattr(item, "hidden", False))
        ):
            if with_hidden:
                parameter = copy(parameter)
                parameter.hidden = False  # type: ignore[attr-defined]
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            if parameter.param_type_name == "argument":
                panels.setdefault(_PANELS[0], []).append((_describe_argument(parameter), record[1]))
            else:
                panel = getattr(parameter, "rich_help_panel", None) or _OTHER_PANEL
                panels.setdefault(panel, []).append((_TYPE.sub(_name_type, record[0]), record[1]))
        return {panel: panels[panel] for panel in _PANELS if panel in panels}

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the arguments as the list below names them, in brackets if they can be left out."""
        arguments = [item for item in self.get_params(ctx) if item.param_type_name == "argument"]
        names = [(_describe_argument(item), item.required) for item in arguments]
        return ["[OPTIONS]", *(name if is_required else f"[{name}]" for name, is_required in names)]

    def get_help(self, ctx: Any) -> str:
        """Return the help, in characters that standard output can show."""
        return _to_encodable(super().get_help(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; raise UsageError if required ones are missing."""
        if not ctx.resilient_parsing:
            given, _, _ = self.make_parser(ctx).parse_args(list(args))
            if not given.get("help") and not given.get("help_all"):
                self._check(ctx.command_path, {name for name, value in given.items() if value not in (None, ())})
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; add to the error of a bad line the option that leaves it out, if the command has it."""
        try:
            return super().invoke(ctx)
        except BadLine as error:
            if any("--skip-bad-lines" in parameter.opts for parameter in self.params):
                error.add_note("--skip-bad-lines leaves such lines out, counts and lists them")
            raise

    def _check(self, path: str, given: set[str]) -> None:
        missing = [
            max(parameter.opts, key=len) if parameter.param_type_name == "option" else _describe_argument(parameter)
            for parameter in self.params
            if parameter.required and parameter.name not in given
        ]
        if not missing:
            return
        hint = ""
        if self.name in _BEGIN and "config" not in given:
            others = [option for option, names in _OF_CONFIGURATION.items() if given.isdisjoint(names)]
            missing += others
            hint = f"; --config FILE can hold {' and '.join(others)}" if others else ""
        raise UsageError(f"{self.name}: missing {', '.join(missing)}{hint}; see {path} --help")


class Group(TyperGroup):
    """Group of commands whose help lists the first sentence of each command in full.

    Attributes:
        panels: Names of commands by the heading under which the help lists them; by default one panel has all.
    """

    panels: Mapping[str, Iterable[str]] = {}

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, then the options."""
        self.format_commands(ctx, formatter)
        records = filter(None, (parameter.get_help_record(ctx) for parameter in self.get_params(ctx)))
        panel = "Options" if ctx.parent else "Options, before or after the command"
        _write_panels(formatter, {panel: [(_TYPE.sub(_name_type, name), text) for name, text in records]})

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands with what they do."""
        panels = self.panels or {"Commands": self.list_commands(ctx)}
        _write_panels(
            formatter, {panel: [self._summarise(ctx, name) for name in names] for panel, names in panels.items()}
        )

    def _summarise(self, ctx: Any, name: str) -> tuple[str, str]:
        command = self.get_command(ctx, name)
        summary = " ".join((command.help or "").split("\n\n")[0].split()) if command else ""
        return name, summary.split(". ")[0].removesuffix(".")

    def get_help(self, ctx: Any) -> str:
        """Return the help, in characters that standard output can show."""
        return _to_encodable(super().get_help(ctx))


def _to_encodable(text: str) -> str:
    # Typer's echo writes UTF-8 to a stream that is meant to be ASCII.
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _describe_argument(parameter: Any) -> str:
    """Return the name of an argument in the help, with dots if it can be given several times."""
    return f"{parameter.metavar or parameter.name.upper()}{'...' if parameter.nargs == -1 else ''}"


def _name_type(match: re.Match[str]) -> str:
    """Return the name of a value in the help: typer writes `<path>`, or `<json|tsv>` for choices."""
    name = match[1]
    return _TYPE_NAMES.get(name, name if "|" in name else name.upper())


def _write_panels(formatter: Any, panels: Mapping[str, list[tuple[str, str]]]) -> None:
    """Write rows of names and descriptions; a long name has its own line, and nothing is broken inside a word."""
    names = [name for rows in panels.values() for name, _ in rows]
    width = max((len(name) for name in names if len(name) <= _MAX_NAME), default=0)
    for panel, rows in panels.items():
        formatter.write(f"\n{panel}:\n")
        for name, text in rows:
            # A default stays on one line with its label.
            text = " ".join(text.split()).replace("default: ", "default:\xa0")
            lines = textwrap.wrap(text, formatter.width - width - 4, break_long_words=False, break_on_hyphens=False)
            if len(name) > width:
                lines.insert(0, "")
            first, *others = lines or [""]
            formatter.write(f"  {name:<{width}}  {first}".rstrip().replace("\xa0", " ") + "\n")
            for line in others:
                formatter.write(f"{'':<{width + 4}}{line}\n".replace("\xa0", " "))


def describe_parser_error(error: Any) -> str:
    """Return an error of the option parser as one line."""
    command = error.ctx.command_path if error.ctx else "touche-llm"
    parameter, option = getattr(error, "param", None), getattr(error, "option_name", None)
    if option is not None and "such option" in error.format_message():
        near = get_close_matches(option, error.possibilities or (), n=1, cutoff=_LIKE)
        problem = f"{option}: no such option" + (f"; did you mean {near[0]}" if near else "")
    elif parameter is not None:
        invalid = error.__cause__
        message = describe_problem(invalid.errors()[0]) if isinstance(invalid, ValidationError) else error.message
        problem = f"{max(parameter.opts, key=len)}: {message}"
    else:
        problem = error.format_message()
    return f"{problem.rstrip('.?')}; see {command} --help"


CommandFunction = Callable[..., None]
# Qrels files given on the command line, by aspect.
QrelsFiles = Mapping[str, Path]
OutOption = Annotated[
    Path, typer.Option("--out", metavar="FOLDER", help="Folder of the run.", rich_help_panel="Output")
]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace existing files.", rich_help_panel="Output")]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Only estimate the requests and tokens.", rich_help_panel="Output")
]
_QRELS = {
    "relevance": "Relevance qrels: qid 0 doc grade.",
    "quality": "Quality qrels.",
    "stance": "Stance qrels: qid 0 doc LABEL.",
    "coherence": "Coherence qrels, for pairs of sentences.",
}

# Only one task has this aspect, and `--qrels` takes it too.
_HIDDEN = ("coherence",)


def make_parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    """Make a keyword parameter of a command."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def takes_qrels(command: CommandFunction) -> CommandFunction:
    """Add the options of qrels files to a command, which receives those given by aspect, as `qrels_files`."""
    own = [item for item in inspect.signature(command, eval_str=True).parameters.values() if item.name != "qrels_files"]

    @wraps(command)
    def expanded(*arguments: Any, **values: Any) -> None:
        given = {aspect: path for aspect in _QRELS if (path := values.pop(aspect)) is not None}
        for text in values.pop("qrels") or ():
            aspect, separator, path = text.partition("=")
            if not (aspect and separator and path):
                raise UsageError(f"--qrels {text:.80}: must be ASPECT=FILE, as --qrels depth=qrels-depth.txt")
            if aspect in given:
                raise UsageError(f"--qrels {text:.80}: the qrels of {aspect} are given twice; leave one out")
            given[aspect] = Path(path)
        command(*arguments, qrels_files=given, **values)

    for aspect, help_ in _QRELS.items():
        option = typer.Option(
            f"--{aspect}", metavar="FILE", help=help_, rich_help_panel="Input", hidden=aspect in _HIDDEN
        )
        own.append(make_parameter(aspect, Annotated[Path | None, option], None))
    option = typer.Option(
        "--qrels",
        metavar="ASPECT=FILE",
        help="Qrels of another aspect, as coherence; repeatable.",
        rich_help_panel="Input",
    )
    own.append(make_parameter("qrels", Annotated[list[str] | None, option], None))
    set_signature(expanded, own)
    return expanded


def format_qrels_option(aspect: str, file: str = "FILE") -> str:
    """Return the option that gives the qrels of an aspect, with its value."""
    return f"--{aspect} {file}" if aspect in _QRELS else f"--qrels {aspect}={file}"


def set_signature(command: CommandFunction, parameters: list[inspect.Parameter]) -> None:
    """Set the signature that typer reads."""
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [item if item.kind is item.POSITIONAL_ONLY else item.replace(kind=item.KEYWORD_ONLY) for item in parameters]
    )
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}


def require_cache(cache: Path) -> None:
    """Raise UsageError if a cache does not exist, instead of creating it."""
    if not cache.is_file():
        raise UsageError(f"{cache}: no such cache; name one with --cache")
