"""Options that commands share, and errors of the option parser as one line that names the option."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from touche_llm.errors import UsageError, describe_problem

# Error of the option parser; its class has no public name of its own.
ParserError: Any = typer.BadParameter.__base__

CommandFunction = Callable[..., None]
# Qrels files given on the command line, by aspect.
QrelsFiles = Mapping[str, Path]


class Command(TyperCommand):
    """Command whose help lists its options by panel.

    Typer does so only with rich, which cuts names of options.
    """

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then the options by panel."""
        panels: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        for parameter in self.get_params(ctx):
            # A hidden parameter has no record.
            record = parameter.get_help_record(ctx)
            if record:
                panels.setdefault(find_panel(parameter), []).append(record)

        for panel, records in panels.items():
            if records:
                with formatter.section(panel):
                    formatter.write_dl(records)


def find_panel(parameter: Any) -> str:
    """Return the heading of the help under which a parameter is listed."""
    return parameter.rich_help_panel or (
        "Arguments" if parameter.param_type_name == "argument" else "Options"
    )


OutOption = Annotated[
    Path,
    typer.Option("--out", metavar="FOLDER", help="Folder of the run.", rich_help_panel="Output"),
]
OverwriteOption = Annotated[
    bool, typer.Option("--overwrite", help="Replace existing files.", rich_help_panel="Output")
]
DryRunOption = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Only estimate the requests and tokens.", rich_help_panel="Output"
    ),
]


def describe_parser_error(error: Any) -> str:
    """Return an error of the option parser as one line."""
    command = error.ctx.command_path if error.ctx else "touche-llm"
    problem = _describe_parser_problem(error).rstrip(".?")
    return f"{problem}; see {command} --help"


def _describe_parser_problem(error: Any) -> str:
    """Return the option or argument at fault, and what is wrong with it."""
    option = getattr(error, "option_name", None)
    if option is not None and "such option" in error.format_message():
        return _describe_unknown_option(option, error.possibilities or ())

    parameter = getattr(error, "param", None)
    if parameter is None:
        message: str = error.format_message()
        return message

    message = _describe_wrong_value(error) or "missing"
    return f"{_name_parameter(parameter)}: {message}"


def _describe_unknown_option(option: str, known_options: Sequence[str]) -> str:
    """Return the problem of an option that the command does not have, with the nearest one."""
    problem = f"{option}: no such option"
    nearest = get_close_matches(option, known_options, n=1, cutoff=0.75)
    if nearest:
        return f"{problem}; did you mean {nearest[0]}"
    return problem


def _describe_wrong_value(error: Any) -> str:
    """Return what is wrong with the value of a parameter; empty if there is no value."""
    # Imported here because pydantic is slow to load, and every command imports this module.
    from pydantic import ValidationError

    cause = error.__cause__
    if isinstance(cause, ValidationError):
        return describe_problem(cause.errors()[0])
    message: str = error.message
    return message


def _name_parameter(parameter: Any) -> str:
    """Return the name of a parameter as the help shows it."""
    if parameter.param_type_name == "option":
        longest: str = max(parameter.opts, key=len)
        return longest
    name: str = parameter.metavar or parameter.name.upper()
    return name


def replace_parameter(
    name: str,
    options: Sequence[inspect.Parameter],
    collect: Callable[[dict[str, Any], Mapping[str, Any]], Any],
) -> Callable[[CommandFunction], CommandFunction]:
    """Return a decorator that gives a command options in place of one of its parameters.

    A parameter `config`, for example, becomes `--task`, `--topics` and so on.

    Args:
        name: Name of the parameter.
        options: Options that replace it.
        collect: Returns the value of the parameter, given the values of the options and those of
            the command's other parameters.
    """

    def decorate(command: CommandFunction) -> CommandFunction:
        @wraps(command)
        def expanded(**values: Any) -> None:
            given = {option.name: values.pop(option.name) for option in options}
            command(**values, **{name: collect(given, values)})

        own = inspect.signature(command, eval_str=True).parameters.values()
        kept = [parameter for parameter in own if parameter.name != name]
        _set_signature(expanded, [*options, *kept])
        return expanded

    return decorate


def _set_signature(function: Any, parameters: Sequence[inspect.Parameter]) -> None:
    """Declare the parameters of a function, of which typer makes options and arguments."""
    keywords = [item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in parameters]
    function.__signature__ = inspect.Signature(keywords)
    function.__annotations__ = {item.name: item.annotation for item in keywords}


def make_parameter(name: str, kind: Any, *declared: str, **attributes: Any) -> inspect.Parameter:
    """Make a keyword parameter of a command from the declaration of its option, whose arguments are those of typer."""
    annotation = Annotated[kind, typer.Option(*declared, **attributes)]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


_QRELS = {
    "relevance": "Relevance qrels: qid 0 doc grade.",
    "quality": "Quality qrels.",
    "stance": "Stance qrels: qid 0 doc LABEL.",
}


def _collect_qrels(values: dict[str, Any], _: Mapping[str, Any]) -> QrelsFiles:
    """Return the qrels files by aspect, of the options of aspects and of `--qrels ASPECT=FILE`."""
    files: dict[str, Path] = {}
    for aspect in _QRELS:
        if values[aspect] is not None:
            files[aspect] = values[aspect]

    for text in values["qrels"] or ():
        aspect, _, path = text.partition("=")
        if not aspect or not path or aspect in files:
            raise UsageError(
                f"--qrels {text:.80}: must be ASPECT=FILE, as --qrels depth=qrels.txt, once for an aspect"
            )
        files[aspect] = Path(path)
    return files


# Adds the options of qrels files to a command, which receives those given by aspect, as
# `qrels_files`.
takes_qrels = replace_parameter(
    "qrels_files",
    [
        *(
            make_parameter(
                aspect,
                Path | None,
                f"--{aspect}",
                metavar="FILE",
                help=text,
                rich_help_panel="Input",
            )
            for aspect, text in _QRELS.items()
        ),
        make_parameter(
            "qrels",
            list[str] | None,
            "--qrels",
            metavar="ASPECT=FILE",
            help="Qrels of another aspect, as coherence; repeatable.",
            rich_help_panel="Input",
        ),
    ],
    _collect_qrels,
)


def format_qrels_option(aspect: str, file: str = "FILE") -> str:
    """Return the option that gives the qrels of an aspect, with its value."""
    return f"--{aspect} {file}" if aspect in _QRELS else f"--qrels {aspect}={file}"
