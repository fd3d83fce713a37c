"""Parts of the reference that are generated from the code when the documentation is built.

A line `<!-- generated: NAME -->` of a page becomes the Markdown that the function of this name
returns. It replaces the line in italics below it too, which says in the plain file where to find
that part.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

import touche_llm
from benchmarks import gpu_time
from touche_llm import cli, errors
from touche_llm.cli.commands import PANELS
from touche_llm.cli.lazy_commands import LazyCommand
from touche_llm.cli.options import OPTIONS
from touche_llm.cli.shared_options import find_panel
from touche_llm.config.configuration import Config, list_key_declarations
from touche_llm.data import records
from touche_llm.engines import use
from touche_llm.evaluation.known_measures import KINDS
from touche_llm.evaluation.registry import LabelMeasure, MeasureKind
from touche_llm.llm.label_statistics import LabelCounts
from touche_llm.prompts.prompt import Purpose
from touche_llm.prompts.purposes import load, purposes_of
from touche_llm.ranking.steps import STEPS
from touche_llm.retrieval.corpus import CorpusRecord
from touche_llm.runs import record as stage_record
from touche_llm.settings.section import AnswerKey
from touche_llm.tasks import TASKS
from touche_llm.tasks.published import read_published
from touche_llm.tasks.task import Task

_MARKER = re.compile(r"^<!-- generated: (\w+) -->(?:\n\*.+\*)?$", re.MULTILINE)
_ATTRIBUTE = re.compile(r"^    (\w+): (.*(?:\n     .*)*)", re.MULTILINE)
_BOUNDS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
_KINDS = {int: "whole number", float: "number", str: "text", bool: "true or false", Path: "path"}
_KEY_DECLARATIONS = list_key_declarations()
# Files of a run's folder and the record of a line.
_RECORDS: Mapping[str, type[Any]] = {
    "judgments.jsonl, sentence_judgments.jsonl": records.Judgment,
    "stances.jsonl": records.StanceReading,
    "comparisons.jsonl": records.Comparison,
    "objects.jsonl": records.Objects,
    "queries.jsonl": records.Queries,
    "failures.jsonl, comparison_failures.jsonl, query_failures.jsonl": records.Failure,
}
_INNER_RECORDS = (records.Reading, records.Cut, records.Attempt)
# Records in the metadata of a run.
_METADATA_RECORDS = (
    stage_record.RunRecord,
    stage_record.StageRecords,
    stage_record.StageRecord,
    stage_record.RetrieveRecord,
    stage_record.JudgeRecord,
    stage_record.RankRecord,
    stage_record.ModelUse,
    use.ModelRecord,
    stage_record.RequestCounts,
    LabelCounts,
    use.PoolingUse,
    use.PoolingCounts,
    CorpusRecord,
)


def command_line() -> str:
    """Return all commands with their arguments and options."""
    return "\n".join(_describe_commands(typer.main.get_command(cli.app), None, "touche-llm"))


def _describe_commands(group: Any, parent: Any, path: str) -> Iterator[str]:
    context = typer.Context(group, info_name=path.split()[-1], parent=parent)
    if not hasattr(group, "list_commands"):
        yield from _describe_command(group, context, path)
        return
    is_program = parent is None
    panels = {entries[0].name: panel for panel, entries in PANELS.items()}
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, LazyCommand):
            command = command.loaded
        if is_program and name in panels:
            yield f"## {panels[name]}\n"
        if is_program:
            yield f"### {name}\n"
        if hasattr(command, "list_commands"):
            yield _escape(command.help or "") + "\n"
        yield from _describe_commands(command, context, f"{path} {name}")


def _describe_command(command: Any, context: Any, path: str) -> Iterator[str]:
    if len(path.split()) > 2:
        yield f"#### {path.removeprefix('touche-llm ')}\n"
    yield _escape(command.help or "") + "\n"
    yield f"```sh\n{path} {' '.join(command.collect_usage_pieces(context))}\n```\n"
    panels: dict[str, list[str]] = {"Arguments": []}
    for parameter in command.get_params(context):
        parameter.hidden = False
        name, text = parameter.get_help_record(context)
        entry = f"`{name.partition(' <')[0].strip()}`\n: {_escape(' '.join(text.split()))}\n"
        panels.setdefault(find_panel(parameter), []).append(entry)
    for panel, entries in panels.items():
        yield from (f"**{panel}**\n", *entries) if entries else ()


def _escape(text: str) -> str:
    """Return text with the characters that Markdown would interpret escaped, apart from code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"([<*\[_])", r"\\\1", part) for part in parts
    )


def settings() -> str:
    """Return all settings of a configuration, by section."""
    sections: dict[str, list[str]] = {}
    for name, field, attributes in _list_settings(Config, ""):
        section = name.rpartition(".")[0]
        sections.setdefault(section, []).append(_describe_setting(name, field, attributes))
    return "\n".join(
        "\n".join([f"## {f'`{section}`' if section else 'At the top level'}\n", *entries])
        for section, entries in sections.items()
    )


def _list_settings(
    section: type[BaseModel], prefix: str
) -> Iterator[tuple[str, FieldInfo, Mapping[str, str]]]:
    attributes = _read_attributes(section)
    for name, field in section.model_fields.items():
        inner = [
            kind
            for kind in (field.annotation, *get_args(field.annotation))
            if isinstance(kind, type) and issubclass(kind, BaseModel)
        ]
        if inner:
            yield from _list_settings(inner[0], f"{prefix}{name}.")
        else:
            yield prefix + name, field, attributes


def _describe_setting(name: str, field: FieldInfo, attributes: Mapping[str, str]) -> str:
    options = [
        option
        for setting, option in OPTIONS.items()
        if setting == name or setting.startswith(f"{name}.")
    ]
    own = [option for option in options if option.setting == name]
    facts = [_name_kind(field.annotation), *_list_bounds(field)]
    if not field.is_required() and field.default is not None:
        facts.append(f"default {_format_value(field.default)}")
    if options:
        facts.append(", ".join(f"`{option.flag}`" for option in options))
    if _KEY_DECLARATIONS[name] is AnswerKey.ENTERS:
        facts.append("enters [answer keys](answer-key.md)")
    text = attributes.get(name.rpartition(".")[2]) or (f"{own[0].option.help}." if own else "")
    heading = f"`{name}`"
    return f"{heading}\n: {'; '.join(facts)}.{f' {_escape(text)}' if text else ''}\n"


def _name_kind(kind: Any) -> str:
    origin, inner = get_origin(kind), [item for item in get_args(kind) if item is not type(None)]
    if origin in (Union, types.UnionType):
        return " or ".join(map(_name_kind, inner))
    if origin is Literal:
        return ", ".join(f"`{item}`" for item in inner)
    if origin is not None and hasattr(kind, "__metadata__"):
        return _name_kind(inner[0])
    if origin in (tuple, list):
        return "list"
    if origin is dict or kind is dict:
        return "names and values"
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return ", ".join(f"`{item}`" for item in kind)
    return _KINDS.get(kind, "value")


def _list_bounds(field: FieldInfo) -> Iterator[str]:
    for item in field.metadata:
        for bound, words in _BOUNDS.items():
            if getattr(item, bound, None) is not None:
                yield f"{words} {getattr(item, bound):,}"


def _format_value(value: Any) -> str:
    match value:
        case bool():
            return f"`{str(value).lower()}`"
        case tuple() | list():
            return f"`[{', '.join(map(str, value))}]`"
        case _:
            return f"`{value}`" if str(value) else "empty"


def _read_attributes(documented: type[Any]) -> dict[str, str]:
    """Return the descriptions of attributes in a docstring of Google's style."""
    _, found, section = (documented.__doc__ or "").partition("Attributes:\n")
    lines = re.sub(r"^    ", "", section, flags=re.MULTILINE)
    return (
        {name: " ".join(text.split()) for name, text in _ATTRIBUTE.findall(lines)} if found else {}
    )


def file_records() -> str:
    """Return the fields of the records in the JSON Lines of a run's folder."""
    parts = []
    for files, record in _RECORDS.items():
        names = ", ".join(f"`{name}`" for name in files.split(", "))
        parts.append(f"## {names}\n\n{_describe_record(record)}")
    parts.append("## Records in these lines\n")
    parts += [f"### {record.__name__}\n\n{_describe_record(record)}" for record in _INNER_RECORDS]
    return "\n".join(parts)


def run_record() -> str:
    """Return the fields of the record of a run in its metadata."""
    parts = [f"## {record.__name__}\n\n{_describe_record(record)}" for record in _METADATA_RECORDS]
    return "\n".join(parts)


def _describe_record(record: type[Any]) -> str:
    """Return the summary of a record and its own fields, without those that it inherits."""
    attributes = _read_attributes(record)
    summary = (record.__doc__ or "").partition("Attributes:")[0].strip()
    lines = [" ".join(_escape(summary).split()), ""]
    hints = get_type_hints(record)
    for field, name in _name_fields(record).items():
        if field not in record.__annotations__:
            continue
        kind = _name_type(hints[field])
        if _omits_defaults(record):
            kind = kind.replace("null", "left out")
        text = attributes.get(field, "")
        lines.append(f"`{name}`\n: {kind}.{f' {_escape(text)}' if text else ''}\n")
    return "\n".join(lines)


def _omits_defaults(record: type[Any]) -> bool:
    """Return whether a record leaves out the fields that have their default."""
    return not is_dataclass(record) and bool(record.__struct_config__.omit_defaults)


def _name_fields(record: type[Any]) -> dict[str, str]:
    """Return the name in files of each field of a record."""
    if is_dataclass(record):
        return {field.name: field.name for field in fields(record)}
    return dict(zip(record.__struct_fields__, record.__struct_encode_fields__, strict=True))


def _name_type(kind: Any) -> str:
    """Return the type of a value in JSON."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(map(_name_type, inner))
    if kind is type(None):
        return "null"
    if kind is msgspec.UnsetType:
        return "left out"
    if origin is Literal:
        return ", ".join(f'`"{item}"`' for item in inner)
    if origin is dict:
        return f"object of {_name_type(inner[1])}"
    if origin in (list, tuple):
        return f"list of {_name_type(inner[0])}"
    if isinstance(kind, type) and kind in (*_INNER_RECORDS, *_METADATA_RECORDS):
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    return {str: "text", int: "whole number", float: "number", bool: "true or false"}.get(
        kind, "number"
    )


def prompt_variables() -> str:
    """Return the variables and the answer of each prompt of each task."""
    parts = []
    for task in TASKS.values():
        rows = ["| prompt | must use | may use | answer |", "|---|---|---|---|"]
        for purpose in purposes_of(task).values():
            needed = ", ".join(
                f"`{name}`" for name, is_needed in purpose.variables.items() if is_needed
            )
            others = ", ".join(
                f"`{name}`" for name, is_needed in purpose.variables.items() if not is_needed
            )
            rows.append(
                f"| `{purpose.name}` | {needed} | {others} | {_describe_answer(task, purpose)} |"
            )
        parts.append(f"### `{task.name}`\n\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def _describe_answer(task: Task, purpose: Purpose) -> str:
    topic = records.Topic("1", "Is tea better than coffee?", "", "", ("tea", "coffee"))
    answer = load(task, purpose, purpose.name).answer_for(topic, 3)
    fields = []
    for name, field in answer.model_fields.items():
        labels = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
        fields.append(
            f"`{name}`"
            + (f": {' '.join(f'`{label}`' for label in labels)}" if 0 < len(labels) < 9 else "")
        )
    return "; ".join(fields)


def tasks() -> str:
    """Return a table of the project's own tasks."""
    rows = [
        "| `--task` | shared task | corpus | aspects | stances | official measures |",
        "|---|---|---|---|---|---|",
    ]
    for task in TASKS.values():
        cells = (
            f"`{task.name}`",
            task.title,
            " or ".join(f"`{name}`" for name in task.corpus.files),
            ", ".join(task.aspects),
            " ".join(f"`{label}`" for label in task.stances) or "none",
            ", ".join(f"{aspect} {measure}" for aspect, measure in task.measures.items()),
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def ranking_steps() -> str:
    """Return a table of the registered ranking steps."""
    rows = [
        "| step | what it does | requests for N documents | source |",
        "|---|---|---|---|",
    ]
    for step in STEPS.values():
        source = _link_preprints(step.reference)
        rows.append(f"| `{step.name}` | {step.summary} | {step.requests} | {source} |")
    return "\n".join(rows)


def measures() -> str:
    """Return a table of the registered measures."""
    rows = ["| measure | judgments | definition | source |", "|---|---|---|---|"]
    for kind in KINDS.values():
        names = ", ".join(f"`{text}`" for text in _list_measure_texts(kind))
        is_of_stances = kind.is_of_label or isinstance(kind, LabelMeasure)
        judgments = "stances" if is_of_stances else "grades"
        source = _link_preprints(kind.reference)
        rows.append(f"| {names} | {judgments} | {kind.definition} | {source} |")
    return "\n".join(rows)


def _list_measure_texts(kind: MeasureKind) -> list[str]:
    """Return the texts of a kind's measures without the aspect: `N` is a depth, `LABEL` a label."""
    if kind.is_of_label:
        return [f"{kind.name} LABEL"]
    if kind.is_at_depth:
        return [f"{kind.name}@N"]
    return [kind.name if cutoff is None else f"{kind.name}@{cutoff}" for cutoff in kind.cutoffs]


def _link_preprints(reference: str) -> str:
    """Link the numbers of preprints at arXiv in a reference."""
    return re.sub(r"arXiv (\d{4}\.\d{5})", r"[\1](https://arxiv.org/abs/\1)", reference)


def published_files() -> str:
    """Return a table of the published files of each task."""
    parts = []
    for task in TASKS.values():
        rows = ["| what | file | bytes | records | licence |", "|---|---|--:|--:|---|"]
        for file in read_published():
            if task.name in file.tasks:
                size, records = (
                    "" if count is None else f"{count:,}" for count in (file.bytes, file.records)
                )
                name = f"[{file.name}]({file.url})" + (
                    f", with `{file.holds}`" if file.holds else ""
                )
                rows.append(f"| {file.role} | {name} | {size} | {records} | {file.licence or ''} |")
        parts.append(f"## `{task.name}`\n\n{task.title}.\n\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def published_models() -> str:
    """Return a table of the published facts of models."""
    rows = [
        "| model | parameters | context | keys and values a token | thinks | licence | source |",
        "|---|--:|--:|--:|---|---|---|",
    ]
    for model in gpu_time.MODELS:
        active = (
            ""
            if model.active == model.parameters
            else f", {model.active / 1e9:.1f} of them for a token"
        )
        cells = (
            model.name,
            f"{model.parameters / 1e9:.1f} billion{active}",
            f"{model.context:,}",
            f"{model.key_value_bytes:,} bytes",
            "can be switched off" if model.thinks else "no",
            model.licence,
            f"[card](https://huggingface.co/{model.card}), [arXiv:{model.paper}](https://arxiv.org/abs/{model.paper})",
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def fitting_models() -> str:
    """Return a table of the tokens that fit beside the weights of each model in the memory of each GPU."""
    return _compare_models(
        lambda model, gpu: f"{round(gpu_time.tokens_at_a_time(model, gpu), -3):,.0f}"
    )


def run_minutes() -> str:
    """Return a table of minutes by the formula: 5,000 requests of 800 tokens, 200 of which are not shared."""
    requests = 5_000

    def format_minutes(model: gpu_time.PublishedModel, gpu: gpu_time.PublishedGpu) -> str:
        prompts = gpu_time.prompt_seconds(requests * 200, model, gpu)
        return (
            f"{(prompts + gpu_time.output_seconds(requests, requests * 800, model, gpu)) / 60:.1f}"
        )

    return _compare_models(format_minutes)


def _compare_models(
    describe: Callable[[gpu_time.PublishedModel, gpu_time.PublishedGpu], str],
) -> str:
    """Return a table with a row for each model and a column for each GPU.

    A dash where the weights do not fit.
    """
    heads = (f"{gpu.name}, {gpu.memory / 1e9:.0f} GB" for gpu in gpu_time.GPUS)
    rows = [f"| model, weights | {' | '.join(heads)} |", f"|---|{'--:|' * len(gpu_time.GPUS)}"]
    for model in gpu_time.MODELS:
        cells = (
            describe(model, gpu) if gpu_time.tokens_at_a_time(model, gpu) > 0 else "\N{EN DASH}"
            for gpu in gpu_time.GPUS
        )
        rows.append(f"| {model.name}, {model.weight_bytes / 1e9:.1f} GB | {' | '.join(cells)} |")
    return "\n".join(rows)


def exceptions() -> str:
    """Return a table of the exceptions with the exit codes of the command line."""
    rows = ["| exception | exit code | raised for |", "|---|---|---|"]
    for value in vars(errors).values():
        if isinstance(value, type) and issubclass(value, errors.ToucheError):
            summary = " ".join((value.__doc__ or "").split())
            rows.append(f"| `{value.__name__}` | {value.exit_code} | {_escape(summary)} |")
    return "\n".join(rows)


def python_interface() -> str:
    """Return directives of autodoc for the public names."""
    groups: dict[str, list[str]] = {
        "Functions": [],
        "Classes": [],
        "Settings": [],
        "Errors and warnings": [],
    }
    for name in touche_llm.__all__:
        value = getattr(touche_llm, name)
        if not isinstance(value, type):
            groups["Functions"].append(f".. autofunction:: touche_llm.{name}")
        elif issubclass(value, Exception):
            groups["Errors and warnings"].append(f".. autoexception:: touche_llm.{name}")
        elif issubclass(value, BaseModel):
            groups["Settings"].append(f".. autoclass:: touche_llm.{name}()")
        else:
            groups["Classes"].append(f".. autoclass:: touche_llm.{name}\n   :members:")
    return "\n".join(
        f"## {title}\n\n"
        + "".join(f"```{{eval-rst}}\n{directive}\n```\n\n" for directive in directives)
        for title, directives in groups.items()
    )


# By the name in a page.
GENERATORS: Mapping[str, Callable[[], str]] = {
    function.__name__: cache(function)
    for function in (
        command_line,
        settings,
        file_records,
        run_record,
        prompt_variables,
        tasks,
        ranking_steps,
        measures,
        published_files,
        published_models,
        fitting_models,
        run_minutes,
        exceptions,
        python_interface,
    )
}


def generate(source: str) -> str:
    """Return a page with its markers replaced; raises KeyError for an unknown name."""
    return _MARKER.sub(lambda match: GENERATORS[match[1]](), source)


def _replace_markers(app: Any, document: str, source: list[str]) -> None:
    source[0] = generate(source[0])


def setup(app: Any) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("source-read", _replace_markers)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
