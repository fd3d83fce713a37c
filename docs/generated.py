"""Parts of the reference that are generated from the code.

A line `<!-- generated: NAME -->` of a page becomes the Markdown that the function of this name
returns. It replaces the line in italics below it too, which says in the plain file where to find
that part.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from dataclasses import field as make_field
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

import touche_llm
from benchmarks import gpu_time
from touche_llm import cli, errors
from touche_llm.cli.commands import PANELS
from touche_llm.cli.lazy_commands import LazyCommand
from touche_llm.cli.options import OPTIONS
from touche_llm.cli.shared_options import find_panel
from touche_llm.config.configuration import Config, list_key_declarations, list_trust_declarations
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
from touche_llm.settings.section import AnswerKey, Trust
from touche_llm.tasks import TASKS
from touche_llm.tasks.published import PublishedFile, read_published
from touche_llm.tasks.task import Task

_MARKER = re.compile(r"^<!-- generated: (\w+) -->(?:\n\*.+\*)?$", re.MULTILINE)
_ATTRIBUTE = re.compile(r"^    (\w+): (.*(?:\n     .*)*)", re.MULTILINE)
_BOUNDS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
_KINDS: Mapping[object, str] = {
    int: "whole number",
    float: "number",
    str: "text",
    bool: "true or false",
    Path: "path",
}
_JSON_TYPES: Mapping[object, str] = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
}
# Fields with more labels are listed without them.
_MAX_LABELS = 8
_KEY_DECLARATIONS = list_key_declarations()
_TRUST_DECLARATIONS = list_trust_declarations()
# Files of a run's folder and the record of a line.
_RECORDS: Mapping[str, type] = {
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
    program = typer.main.get_command(cli.app)
    assert isinstance(program, TyperGroup)
    panels = {entries[0].name: panel for panel, entries in PANELS.items()}
    context = typer.Context(program, info_name="touche-llm")

    parts: list[str] = []
    for name in program.list_commands(context):
        if name in panels:
            parts.append(f"## {panels[name]}\n")
        parts.append(f"### {name}\n")
        parts += _describe_command(_load(program, name), context, f"touche-llm {name}")
    return "\n".join(parts)


def _load(group: TyperGroup, name: str) -> TyperCommand | TyperGroup:
    """Return a command of a group, or a group in it.

    A stand-in is replaced by the command.
    """
    command = group.commands[name]
    if isinstance(command, LazyCommand):
        return command.loaded
    assert isinstance(command, TyperCommand | TyperGroup)
    return command


def _describe_command(
    command: TyperCommand | TyperGroup, parent: typer.Context, path: str
) -> Iterator[str]:
    """Yield the description of a command, or of a group with its commands.

    Args:
        command: Command or group.
        parent: Context of the group.
        path: Command line up to the command.
    """
    context = typer.Context(command, info_name=command.name, parent=parent)
    yield f"{_escape(command.help or '')}\n"
    if not isinstance(command, TyperGroup):
        yield from _describe_arguments(command, context, path)
        return

    for name in command.list_commands(context):
        heading = f"{path} {name}".removeprefix("touche-llm ")
        yield f"#### {heading}\n"
        yield from _describe_command(_load(command, name), context, f"{path} {name}")


def _describe_arguments(command: TyperCommand, context: typer.Context, path: str) -> Iterator[str]:
    """Yield the usage of a command, and its arguments and options by panel."""
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"```sh\n{path} {usage}\n```\n"

    panels: dict[str, list[str]] = {"Arguments": []}
    for parameter in command.get_params(context):
        assert isinstance(parameter, TyperArgument | TyperOption)
        # A hidden option has no help record.
        parameter.hidden = False
        record = parameter.get_help_record(context)
        assert record is not None
        names, text = record
        name = names.partition(" <")[0].strip()
        description = _escape(" ".join(text.split()))
        panels.setdefault(find_panel(parameter), []).append(f"`{name}`\n: {description}\n")

    for panel, entries in panels.items():
        if entries:
            yield f"**{panel}**\n"
            yield from entries


def _escape(text: str) -> str:
    """Return text, apart from code, with the special characters of Markdown escaped."""
    parts: list[str] = []
    for part in re.split(r"(`[^`]*`)", text):
        is_code = part.startswith("`")
        parts.append(part if is_code else re.sub(r"([<*\[_])", r"\\\1", part))
    return "".join(parts)


@dataclass(frozen=True, slots=True)
class _Setting:
    """A setting of a configuration.

    Attributes:
        name: Dotted name.
        field: Its field with the type and the default.
        text: Description; empty if there is none.
    """

    name: str
    field: FieldInfo
    text: str

    @property
    def section(self) -> str:
        """Name of its section; empty at the top level."""
        return self.name.rpartition(".")[0]


def settings() -> str:
    """Return all settings of a configuration, by section."""
    sections: dict[str, list[str]] = {}
    for setting in _list_settings(Config, ""):
        sections.setdefault(setting.section, []).append(_describe_setting(setting))

    parts: list[str] = []
    for section, entries in sections.items():
        title = f"`{section}`" if section else "At the top level"
        parts += [f"## {title}\n", *entries]
    return "\n".join(parts)


def _list_settings(section: type[BaseModel], prefix: str) -> Iterator[_Setting]:
    """Yield the settings of a section and of the sections in it.

    Names begin with `prefix`.
    """
    attributes = _read_attributes(section)
    for name, field in section.model_fields.items():
        inner = _find_section(field)
        if inner is not None:
            yield from _list_settings(inner, f"{prefix}{name}.")
        else:
            yield _Setting(f"{prefix}{name}", field, attributes.get(name, ""))


def _find_section(field: FieldInfo) -> type[BaseModel] | None:
    """Return the section that a field holds; None for a setting."""
    for kind in (field.annotation, *get_args(field.annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _describe_setting(setting: _Setting) -> str:
    """Return the type, bounds, default, options and description of a setting."""
    options = [
        option
        for name, option in OPTIONS.items()
        if name == setting.name or name.startswith(f"{setting.name}.")
    ]
    facts = [_name_kind(setting.field.annotation), *_list_bounds(setting.field)]
    if not setting.field.is_required() and setting.field.default is not None:
        facts.append(f"default {_format_value(setting.field.default)}")
    if options:
        facts.append(", ".join(f"`{option.flag}`" for option in options))
    if _KEY_DECLARATIONS[setting.name] is AnswerKey.ENTERS:
        facts.append("enters [answer keys](answer-key.md)")
    if _TRUST_DECLARATIONS[setting.name] is Trust.ACTS:
        facts.append("[acts](../how-to/shared-runs.md)")

    text = setting.text
    own = [option for option in options if option.setting == setting.name]
    if not text and own:
        text = f"{own[0].option.help}."
    return _format_entry(setting.name, "; ".join(facts), text)


def _format_entry(name: str, facts: str, text: str) -> str:
    """Return an entry of a definition list: name, facts, and any description."""
    description = f" {_escape(text)}" if text else ""
    return f"`{name}`\n: {facts}.{description}\n"


def _name_kind(kind: object) -> str:
    """Return the type of a setting as people read it."""
    origin = get_origin(kind)
    inner = [item for item in get_args(kind) if item is not type(None)]
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
    """Yield the bounds of a numeric setting."""
    for item in field.metadata:
        for name, words in _BOUNDS.items():
            bound = getattr(item, name, None)
            if bound is not None:
                yield f"{words} {bound:,}"


def _format_value(value: object) -> str:
    """Return a default as a file of settings has it."""
    match value:
        case bool():
            return f"`{str(value).lower()}`"
        case tuple() | list():
            return f"`[{', '.join(map(str, value))}]`"
        case _:
            return f"`{value}`" if str(value) else "empty"


def _read_attributes(documented: type) -> dict[str, str]:
    """Return the descriptions of attributes in a docstring of Google's style, by name."""
    _, _, section = (documented.__doc__ or "").partition("Attributes:\n")
    lines = re.sub(r"^    ", "", section, flags=re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in _ATTRIBUTE.findall(lines)}


def file_records() -> str:
    """Return the fields of the records in the JSON Lines of a run's folder."""
    parts: list[str] = []
    for files, record in _RECORDS.items():
        names = ", ".join(f"`{name}`" for name in files.split(", "))
        parts.append(f"## {names}\n\n{_describe_record(record)}")
    parts.append("## Records in these lines\n")
    for record in _INNER_RECORDS:
        parts.append(f"### {record.__name__}\n\n{_describe_record(record)}")
    return "\n".join(parts)


def run_record() -> str:
    """Return the fields of the record of a run in its metadata."""
    parts = [f"## {record.__name__}\n\n{_describe_record(record)}" for record in _METADATA_RECORDS]
    return "\n".join(parts)


def _describe_record(record: type) -> str:
    """Return the summary of a record and its own fields, not the inherited ones."""
    summary, _, _ = (record.__doc__ or "").partition("Attributes:")
    attributes = _read_attributes(record)
    hints = get_type_hints(record)

    lines = [" ".join(_escape(summary.strip()).split()), ""]
    for field, name in _name_fields(record).items():
        if field not in record.__annotations__:
            continue
        kind = _name_type(hints[field])
        if _omits_defaults(record):
            kind = kind.replace("null", "left out")
        lines.append(_format_entry(name, kind, attributes.get(field, "")))
    return "\n".join(lines)


def _omits_defaults(record: type) -> bool:
    """Return whether a record leaves out the fields that have their default."""
    return issubclass(record, msgspec.Struct) and record.__struct_config__.omit_defaults


def _name_fields(record: type) -> dict[str, str]:
    """Return the name in files of each field of a record."""
    if is_dataclass(record):
        return {field.name: field.name for field in fields(record)}
    assert issubclass(record, msgspec.Struct)
    return dict(zip(record.__struct_fields__, record.__struct_encode_fields__, strict=True))


def _name_type(kind: object) -> str:
    """Return the type of a value in JSON."""
    origin = get_origin(kind)
    inner = get_args(kind)
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
    return _JSON_TYPES.get(kind, "number")


def prompt_variables() -> str:
    """Return the variables and the answer of each prompt of each task."""
    parts: list[str] = []
    for task in TASKS.values():
        table = _Table(["prompt", "must use", "may use", "answer"])
        for purpose in purposes_of(task).values():
            needed = [name for name, is_needed in purpose.variables.items() if is_needed]
            optional = [name for name, is_needed in purpose.variables.items() if not is_needed]
            table.add(
                f"`{purpose.name}`",
                ", ".join(map(_quote, needed)),
                ", ".join(map(_quote, optional)),
                _describe_answer(task, purpose),
            )
        parts.append(f"### `{task.name}`\n\n{table}\n")
    return "\n".join(parts)


def _quote(text: str) -> str:
    """Return text as code."""
    return f"`{text}`"


def _describe_answer(task: Task, purpose: Purpose) -> str:
    """Return the fields of the answer to a prompt, with their labels if these are few."""
    topic = records.Topic("1", "Is tea better than coffee?", "", "", ("tea", "coffee"))
    answer = load(task, purpose, purpose.name).answer_for(topic, document_count=3)

    parts: list[str] = []
    for name, field in answer.model_fields.items():
        has_labels = get_origin(field.annotation) is Literal
        labels = get_args(field.annotation) if has_labels else ()
        text = _quote(name)
        if 0 < len(labels) <= _MAX_LABELS:
            text += ": " + " ".join(f"`{label}`" for label in labels)
        parts.append(text)
    return "; ".join(parts)


@dataclass(slots=True)
class _Table:
    """A table in Markdown.

    Attributes:
        heads: Heads of the columns.
        numbers: Heads of the columns with numbers, which are aligned to the right.
    """

    heads: Sequence[str]
    numbers: Collection[str] = ()
    _rows: list[str] = make_field(default_factory=list)

    def add(self, *cells: str) -> None:
        """Add a row with the text of each column."""
        self._rows.append(f"| {' | '.join(cells)} |")

    def __str__(self) -> str:
        rules = ["--:" if head in self.numbers else "---" for head in self.heads]
        return "\n".join([f"| {' | '.join(self.heads)} |", f"|{'|'.join(rules)}|", *self._rows])


def tasks() -> str:
    """Return a table of the project's own tasks."""
    table = _Table(["`--task`", "shared task", "corpus", "aspects", "stances", "official measures"])
    for task in TASKS.values():
        table.add(
            _quote(task.name),
            task.title,
            " or ".join(map(_quote, task.corpus.files)),
            ", ".join(task.aspects),
            " ".join(map(_quote, task.stances)) or "none",
            ", ".join(f"{aspect} {measure}" for aspect, measure in task.measures.items()),
        )
    return str(table)


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
    parts: list[str] = []
    for task in TASKS.values():
        table = _Table(
            ["what", "file", "bytes", "records", "licence"],
            numbers=("bytes", "records"),
        )
        for file in read_published():
            if task.name in file.tasks:
                table.add(
                    file.role,
                    _link_file(file),
                    _format_count(file.bytes),
                    _format_count(file.records),
                    file.licence or "",
                )
        parts.append(f"## `{task.name}`\n\n{task.title}.\n\n{table}\n")
    return "\n".join(parts)


def _link_file(file: PublishedFile) -> str:
    """Return a link to a published file, and the file in an archive."""
    link = f"[{file.name}]({file.url})"
    return f"{link}, with `{file.holds}`" if file.holds else link


def _format_count(count: int | None) -> str:
    """Return a number with separators; empty if it is unknown."""
    return "" if count is None else f"{count:,}"


def published_models() -> str:
    """Return a table of the published facts of models."""
    numbers = ("parameters", "context", "keys and values a token")
    table = _Table(["model", *numbers, "thinks", "licence", "source"], numbers)
    for model in gpu_time.MODELS:
        card = f"[card](https://huggingface.co/{model.card})"
        paper = f"[arXiv:{model.paper}](https://arxiv.org/abs/{model.paper})"
        table.add(
            model.name,
            _describe_parameters(model),
            f"{model.context:,}",
            f"{model.key_value_bytes:,} bytes",
            "can be switched off" if model.thinks else "no",
            model.licence,
            f"{card}, {paper}",
        )
    return str(table)


def _describe_parameters(model: gpu_time.PublishedModel) -> str:
    """Return the number of parameters, and of those that a token uses."""
    text = f"{model.parameters / 1e9:.1f} billion"
    if model.active == model.parameters:
        return text
    return f"{text}, {model.active / 1e9:.1f} of them for a token"


def fitting_models() -> str:
    """Return a table of the tokens that fit beside the weights of each model.

    The columns are GPUs.
    """

    def format_tokens(model: gpu_time.PublishedModel, gpu: gpu_time.PublishedGpu) -> str:
        tokens = gpu_time.tokens_at_a_time(model, gpu)
        return f"{round(tokens, -3):,.0f}"

    return _compare_models(format_tokens)


def run_minutes() -> str:
    """Return a table of minutes by the formula.

    5,000 requests have 800 tokens, 200 of which are not shared.
    """
    requests = 5_000

    def format_minutes(model: gpu_time.PublishedModel, gpu: gpu_time.PublishedGpu) -> str:
        prompts = gpu_time.prompt_seconds(requests * 200, model, gpu)
        output = gpu_time.output_seconds(requests, requests * 800, model, gpu)
        return f"{(prompts + output) / 60:.1f}"

    return _compare_models(format_minutes)


def _compare_models(
    describe: Callable[[gpu_time.PublishedModel, gpu_time.PublishedGpu], str],
) -> str:
    """Return a table with a row for each model and a column for each GPU.

    A dash where the weights do not fit.
    """
    heads = [f"{gpu.name}, {gpu.memory / 1e9:.0f} GB" for gpu in gpu_time.GPUS]
    table = _Table(["model, weights", *heads], numbers=heads)
    for model in gpu_time.MODELS:
        cells: list[str] = []
        for gpu in gpu_time.GPUS:
            fits = gpu_time.tokens_at_a_time(model, gpu) > 0
            cells.append(describe(model, gpu) if fits else "\N{EN DASH}")
        table.add(f"{model.name}, {model.weight_bytes / 1e9:.1f} GB", *cells)
    return str(table)


def exceptions() -> str:
    """Return a table of the exceptions with the exit codes of the command line."""
    table = _Table(["exception", "exit code", "raised for"])
    for value in vars(errors).values():
        if isinstance(value, type) and issubclass(value, errors.ToucheError):
            summary = " ".join((value.__doc__ or "").split())
            table.add(_quote(value.__name__), str(value.exit_code), _escape(summary))
    return str(table)


def python_interface() -> str:
    """Return directives of autodoc for the public names."""
    functions: list[str] = []
    classes: list[str] = []
    sections: list[str] = []
    raised: list[str] = []
    for name in touche_llm.__all__:
        value = getattr(touche_llm, name)
        if not isinstance(value, type):
            functions.append(f".. autofunction:: touche_llm.{name}")
        elif issubclass(value, Exception):
            raised.append(f".. autoexception:: touche_llm.{name}")
        elif issubclass(value, BaseModel):
            sections.append(f".. autoclass:: touche_llm.{name}()")
        else:
            classes.append(f".. autoclass:: touche_llm.{name}\n   :members:")

    parts = [
        _list_directives("Functions", functions),
        _list_directives("Classes", classes),
        _list_directives("Settings", sections),
        _list_directives("Errors and warnings", raised),
    ]
    return "\n".join(parts)


def _list_directives(title: str, directives: Iterable[str]) -> str:
    """Return a section with directives of Sphinx."""
    blocks = [f"```{{eval-rst}}\n{directive}\n```\n\n" for directive in directives]
    return f"## {title}\n\n{''.join(blocks)}"


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
