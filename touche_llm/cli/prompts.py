"""Commands about prompts: list, show, check, copy, render, try and compare them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from touche_llm.cli import options as o
from touche_llm.cli import prompts_compare, prompts_render, prompts_try
from touche_llm.cli import setting_options as s
from touche_llm.cli.emit import TEXT_WIDTH, Column, Format, FormatOption, print_rows, say, show_lines, show_table
from touche_llm.cli.prompts_render import NameArgument, TokenizerOption
from touche_llm.cli.setting_options import CommandProgress
from touche_llm.corpus.ir_dataset import topics_file
from touche_llm.data.records import Topic
from touche_llm.data.topics import read_topics
from touche_llm.errors import UsageError, to_printable
from touche_llm.llm.answers import get_labels
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.settings import CacheConfig, SamplingConfig
from touche_llm.llm.tokenizers import ChatTokenizer
from touche_llm.pipeline.context import Dataset, check_examples
from touche_llm.pipeline.corpora import LocalCorpus, open_local_corpus
from touche_llm.prompt_lab.lint import CheckedPrompt, Finding, Share, check, detect_changed_text
from touche_llm.prompt_lab.prefix_sharing import Count, estimate
from touche_llm.prompt_lab.trial import make_invented_material, take_corpus_material
from touche_llm.prompts.prompt import Prompt, Purpose, examples_path
from touche_llm.prompts.purposes import CatalogEntry, find_prompt, find_prompts, load_named
from touche_llm.prompts.templates import read_text
from touche_llm.tasks import DEFAULT_TASK, TASK_HELP, TASKS, find_dataset_task, get_task

EveryTaskOption = Annotated[
    str | None,
    typer.Option("--task", metavar="NAME|FOLDER", help=f"{TASK_HELP} (default: all).", rich_help_panel="Input"),
]
_COLUMNS = ("task", "name", "version", "hash", "answer", "fields", "purpose", "examples", "path", "error")
_LIST = (
    Column("prompt", is_text=True),
    Column("version", drop=1),
    Column("hash", drop=2, is_text=True),
    Column("answer", cut=TEXT_WIDTH),
    Column("purpose", drop=3, cut=TEXT_WIDTH),
    Column("folder", drop=4, is_text=True),
)
_DEFAULT_CACHE = CacheConfig().file

prompts_app = typer.Typer(no_args_is_help=True, help="See, check, render and try prompts, and compare them.")


@prompts_app.command("list")
@s.takes_settings("prompts.folder")
def list_(
    given: s.Given,
    task: EveryTaskOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """List the prompts of the tasks: the project's own, or those of a folder that replace them.

    Exit code 1 if one does not load.
    """
    folder = given.get("prompts.folder")
    tasks = TASKS.values() if task is None else [get_task(task)]
    found = [entry for task_ in tasks for entry in find_prompts(task_, folder)]
    _check_folder(folder, found)
    if output is Format.TABLE:
        show_table(_LIST, [_cells(entry) for entry in found])
    else:
        print_rows(output, [_row(entry) for entry in found], _COLUMNS)
    invalid = [entry for entry in found if entry.error]
    for entry in invalid:
        say(output, f"error: {entry.error}")
    if invalid:
        raise typer.Exit(1)


@prompts_app.command("show")
@s.takes_settings("task", "prompts.folder")
def show_(given: s.Given, name: NameArgument, output: FormatOption = Format.TABLE) -> None:
    """Print a prompt's template and the files that it includes."""
    purpose, prompt = load_named(get_task(given.get("task", DEFAULT_TASK)), name, given.get("prompts.folder"))
    texts = {prompt.path: read_text(prompt.path)}
    texts |= {prompt.path.parent / part: text for part, text in prompt.files.texts.items()}
    if output is not Format.TABLE:
        rows = [{"prompt": prompt.label, "answer": purpose.name, "file": path, "text": texts[path]} for path in texts]
        print_rows(output, [row | {"examples": len(prompt.examples)} for row in rows])
        return
    header = prompt.header
    print(to_printable(f"{prompt.name}, version {header.version}, hash {prompt.hash}: {header.purpose}"))
    print(to_printable(f"answer: {purpose.name}: {describe_fields(purpose, prompt)}"))
    if prompt.examples:
        print(to_printable(f"{len(prompt.examples)} examples: {examples_path(prompt.path)}"))
    for path, text in texts.items():
        print(to_printable(f"\n── {path} ──\n{text.strip().expandtabs()}"))


@prompts_app.command("check")
@s.takes_settings("prompts.folder", "dataset", "topics", "corpus", "index", "skip_bad_lines")
def check_(
    given: s.Given,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME|FILE", help="Prompts: names or .jinja files (default: all)."),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            metavar="NAME",
            help=f"{TASK_HELP} (default: all; {DEFAULT_TASK} with names, topics or a corpus).",
            rich_help_panel="Input",
        ),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(
            "--cache",
            metavar="FILE",
            help=f"Answer cache to compare versions with (default: {_DEFAULT_CACHE} if it exists).",
            rich_help_panel="Model",
        ),
    ] = None,
    tokenizer: TokenizerOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Check prompts without a model: whether they load, name all labels and share what they can with other requests.

    Without topics and a corpus, invented ones are used. Exit code 1 if there are errors; warnings leave it at 0.
    """
    folder, inputs = given.get("prompts.folder"), s.read_inputs(given)
    dataset, topics = inputs.dataset, inputs.topics
    if task is None and not (names or topics or inputs.has_documents):
        tasks = list(TASKS.values())
    else:
        tasks = [get_task(task or (find_dataset_task(dataset) if dataset else DEFAULT_TASK))]
    if cache is not None:
        o.require_cache(cache)
    count = _make_counter(tokenizer)
    read = [] if topics is None else read_topics(topics)
    if dataset is not None:
        read, topics = Dataset(dataset, tasks[0].reference).topics, topics_file(dataset)
    warn = CommandProgress().warn
    if names:
        found = [find_prompt(tasks[0], name, folder) for name in names]
    else:
        found = [entry for task_ in tasks for entry in find_prompts(task_, folder)]
        _check_folder(folder, found)
    with ExitStack() as stack:
        answers = None
        if cache is not None or _DEFAULT_CACHE.is_file():
            answers = stack.enter_context(Cache(cache or _DEFAULT_CACHE, CacheMode.REPLAY))
        opened = None
        if inputs.has_documents:
            skip = given.get("skip_bad_lines", False)
            corpus = open_local_corpus(inputs.documents, inputs.index, tasks[0], skip_bad_lines=skip, warn=warn)
            opened = stack.enter_context(corpus)
        rows = [(entry, _check_entry(entry, read, topics, opened, count, answers, warn)) for entry in found]
    _print_checks(output, rows, tokenizer)
    if any(checked.of("error") for _, checked in rows):
        raise typer.Exit(1)


def _check_folder(folder: Path | None, found: Sequence[CatalogEntry]) -> None:
    """Raise UsageError if a folder of templates has none of the prompts."""
    if folder is not None and not any(each.path.is_relative_to(folder) for each in found):
        raise UsageError(
            f"{folder}: no template found; put them in folders named like the tasks, as {DEFAULT_TASK}/judge.jinja"
        )


def _check_entry(
    found: CatalogEntry,
    topics: Sequence[Topic],
    file: Path | None,
    corpus: LocalCorpus | None,
    count: Count,
    answers: Cache | None,
    warn: Callable[[str], None],
) -> CheckedPrompt:
    if found.loaded is None:
        return CheckedPrompt([Finding("error", found.error)])
    purpose, prompt = found.loaded
    material = make_invented_material(topics) if corpus is None else take_corpus_material(topics, corpus, purpose)
    checked = asyncio.run(check(found.task, purpose, prompt, material, count))
    if file is not None:
        try:
            check_examples(prompt, list(topics), file, warn)
        except UsageError as error:
            checked.findings.append(Finding("error", str(error)))
    if answers is not None:
        checked.findings += detect_changed_text(prompt, answers)
    return checked


def _make_counter(tokenizer: Path | None) -> Count:
    if tokenizer is None:
        return estimate
    return ChatTokenizer(tokenizer, SamplingConfig().chat_template_kwargs).count_tokens


def _print_checks(output: Format, rows: Sequence[tuple[CatalogEntry, CheckedPrompt]], tokenizer: Path | None) -> None:
    if output is not Format.TABLE:
        print_rows(output, [_check_row(found, checked, tokenizer) for found, checked in rows])
        return
    estimated = "" if tokenizer else "about "
    columns = [
        Column("prompt", is_text=True),
        Column("version and hash", drop=3, is_text=True),
        Column(f"{estimated}tokens"),
        Column("two topics share", drop=1),
        Column("two documents share", drop=2),
        Column("result", is_text=True),
    ]
    table = []
    for found, checked in rows:
        tokens = "" if checked.tokens is None else f"{checked.tokens:,}"
        shares = (_share(checked.between_topics), _share(checked.between_documents))
        counts = ((len(checked.of(kind)), kind) for kind in ("error", "warning"))
        result = ", ".join(f"{count} {kind}{'s' * (count > 1)}" for count, kind in counts if count) or "good"
        prompt = found.loaded[1] if found.loaded else None
        name, version = (prompt.name, f"{prompt.header.version} {prompt.hash}") if prompt else (found.name, "")
        table.append((name, version, tokens, *shares, result))
    show_table(columns, table)
    counted = (
        "" if tokenizer else "; estimated at four characters each, the chat template left out (--tokenizer counts)"
    )
    show_lines([f"tokens: of the longest topic's prompt, documents left out{counted}"])
    show_lines(
        f"{finding.level}: {found.task.name} {found.name}: {finding.message}"
        for found, checked in rows
        for finding in checked.findings
    )


def _check_row(found: CatalogEntry, checked: CheckedPrompt, tokenizer: Path | None) -> dict[str, Any]:
    prompt = found.loaded[1] if found.loaded else None
    topics, documents = checked.between_topics, checked.between_documents
    return {
        "task": found.task.name,
        "name": found.name,
        "version": prompt and prompt.header.version,
        "hash": prompt and prompt.hash,
        "path": found.path,
        "longest_topic": checked.longest_topic,
        "tokens": checked.tokens,
        "estimated": tokenizer is None,
        **_share_row("topics", topics),
        **_share_row("documents", documents),
        "errors": len(checked.of("error")),
        "warnings": len(checked.of("warning")),
        "problems": "; ".join(f"{finding.level}: {finding.message}" for finding in checked.findings) or None,
    }


def _share_row(name: str, share: Share | None) -> Mapping[str, Any]:
    return {
        f"{name}_share_characters": share and share.chars,
        f"{name}_share_of_characters": share and share.of_chars,
        f"{name}_share_tokens": share and share.tokens,
        f"{name}_share_of_tokens": share and share.of_tokens,
    }


def _share(share: Share | None) -> str:
    if share is None:
        return ""
    return f"{100 * share.chars / max(share.of_chars, 1):.0f} %, {share.tokens:,} tokens"


def _cells(found: CatalogEntry) -> tuple[str, ...]:
    name = found.name if found.name.endswith(".jinja") else f"{found.task.name}/{found.name}"
    place = "the project" if found.is_builtin else str(found.path.parent)
    if found.loaded is None:
        return name, "", "", "does not load, see below", "", place
    purpose, prompt = found.loaded
    examples = f" ({len(prompt.examples)} examples)" if prompt.examples else ""
    answer = f"{purpose.name}: {describe_fields(purpose, prompt)}"
    return name, str(prompt.header.version), prompt.hash, answer, prompt.header.purpose + examples, place


def _row(found: CatalogEntry) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(_COLUMNS)
    row |= {"task": found.task.name, "name": found.name, "path": found.path, "error": found.error or None}
    if found.loaded is not None:
        purpose, prompt = found.loaded
        row |= {
            "version": prompt.header.version,
            "hash": prompt.hash,
            "answer": purpose.name,
            "fields": describe_fields(purpose, prompt),
        }
        row |= {"purpose": prompt.header.purpose, "examples": len(prompt.examples)}
    return row


def describe_fields(purpose: Purpose, prompt: Prompt) -> str:
    """Describe the fields of the answer and their labels."""
    if purpose.depends_on == "documents":
        what = "a label" if purpose.name == "best" else "all labels"
        return f"{what} of the documents"
    if purpose.depends_on == "topic":
        return "first, second (words of the title)"
    model = prompt.answer_for(Topic("", ""), 1)
    labels = get_labels(model)
    return ", ".join(
        f"{name} ({_format_labels(labels[name])})" if name in labels else name for name in model.model_fields
    )


def _format_labels(labels: Sequence[int | str]) -> str:
    if all(isinstance(label, int) for label in labels):
        return f"{labels[0]} to {labels[-1]}"
    return " ".join(map(str, labels))


for _name, _command in (
    ("copy", prompts_render.copy),
    ("render", prompts_render.render),
    ("try", prompts_try.try_),
    ("compare", prompts_compare.compare),
):
    prompts_app.command(_name)(_command)
