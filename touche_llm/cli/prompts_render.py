"""The command that copies a prompt to change it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from touche_llm.cli import setting_options as s
from touche_llm.cli.emit import Format, FormatOption, print_rows, say, show_lines
from touche_llm.cli.setting_options import CommandProgress
from touche_llm.config import Config
from touche_llm.data.io import open_atomic
from touche_llm.data.records import Cut
from touche_llm.errors import UsageError, to_printable
from touche_llm.llm.cache import CacheMode
from touche_llm.llm.model import ModelClient
from touche_llm.llm.recorder import make_dry_engine, open_known_answers
from touche_llm.llm.tokenizers import ChatTokenizer
from touche_llm.pipeline.context import RunContext
from touche_llm.pipeline.engines import assume_engine_info, make_request_builder
from touche_llm.pipeline.progress import Progress
from touche_llm.prompt_lab.prefix_sharing import (
    PromptPart,
    Shared,
    estimate,
    make_other_subject,
    split_by_sharing,
)
from touche_llm.prompt_lab.trial import TrialContext, ask
from touche_llm.prompts.prompt import Prompt, examples_path
from touche_llm.prompts.purposes import load_named
from touche_llm.prompts.templates import read_text
from touche_llm.tasks import DEFAULT_TASK, get_task

NameArgument = Annotated[str, typer.Argument(metavar="NAME|FILE", help="A prompt's name, or a .jinja file.")]
TopicOption = Annotated[str, typer.Option("--topic", metavar="ID", help="Topic.", rich_help_panel="Input")]
DocumentsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--doc",
        metavar="ID",
        rich_help_panel="Input",
        help="Document; repeatable; prompts about a topic alone take none.",
    ),
]
TokenizerOption = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer",
        metavar="FOLDER",
        rich_help_panel="Model",
        help="The model's tokeniser; without it, four characters count as a token.",
    ),
]
_NAMES: dict[Shared, str] = {"all": "shared by all", "topic": "shared by the topic", "nobody": "this request alone"}
_STYLES: dict[Shared, str] = {"all": "cyan", "topic": "green", "nobody": "yellow"}
_COLUMNS = ("prompt", "topic", "documents", "message", "role", "shared", "characters", "tokens", "estimated", "text")
# Settings of commands that render or send one prompt.
OF_TRIAL = (
    *s.INPUTS,
    "skip_bad_lines",
    "prompts.folder",
    "prompts.objects",
    "objective",
    "engine",
    "sampling",
    "cache",
)
# Path of an index that is never opened, for prompts without documents.
NO_INDEX = Path(".touche-llm/index/none")


def complete(given: s.GivenSettings, own: Mapping[str, Any]) -> None:
    """Add the topic to the settings; a prompt without documents needs no corpus."""
    given["topic"] = (own["topic"],)
    if not own["documents"] and own["config"] is None and not given.keys() & {"corpus", "index"}:
        given["index"] = NO_INDEX


@s.configured(*OF_TRIAL, without=(*s.DELIVERY, "sampling", "cache.mode", "cache.retry_failures"), complete=complete)
def render(
    config: Config,
    name: NameArgument,
    topic: TopicOption,
    documents: DocumentsOption = None,
    tokens: Annotated[
        bool,
        typer.Option("--tokens", help="Colour the parts shared with all requests, with those of the topic, or none."),
    ] = False,
    tokenizer: TokenizerOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Print the messages that would be sent about a topic and documents. Nothing is sent.

    Documents are truncated if the context is known, from --context or the cache: as the engine measured them if the
    cache holds the counts, otherwise by the tokeniser or an estimate.
    """
    counting = None if tokenizer is None else ChatTokenizer(tokenizer, config.sampling.chat_template_kwargs)
    progress = CommandProgress()
    with RunContext(config, progress) as run:
        trial = TrialContext(run, name, tuple(documents or ()))
        prompt, found = asyncio.run(_render(trial, counting, progress))
    rows: list[dict[str, Any]] = []
    for ids, parts in found:
        if output is Format.TABLE:
            _show(prompt, topic, ids, parts, tokens, counting is None)
        label = {"prompt": prompt.label, "topic": topic, "documents": " ".join(ids) or None}
        for part in parts:
            row = {"message": part.message, "role": part.role, "shared": part.shared, "characters": len(part.text)}
            rows.append(label | row | {"tokens": part.tokens, "estimated": counting is None, "text": part.text})
    if output is not Format.TABLE:
        print_rows(output, rows, _COLUMNS)


async def _render(
    context: TrialContext, tokenizer: ChatTokenizer | None, progress: Progress
) -> tuple[Prompt, list[tuple[tuple[str, ...], list[PromptPart]]]]:
    """Return the prompt, and for each request its documents and its parts."""
    config = context.run.config
    purpose, prompt = context.load()
    engine = make_dry_engine(tokenizer)
    count = estimate if tokenizer is None else tokenizer.count_tokens
    make_builder = partial(make_request_builder, engine=config.engine, sampling=config.sampling)
    with open_known_answers(config.cache.file, CacheMode.REUSE) as cache:
        facts = assume_engine_info(config.engine, cache)
        subject = await context.subject(purpose, make_builder(ModelClient(engine_info=facts, engine=None, cache=cache)))
        builder = make_builder(ModelClient(engine_info=facts, engine=engine, cache=cache))
        how: dict[str, Any] = {"objective": config.objective, "document_tokens": config.ranking.document_tokens}
        mine, same_topic, other_topic = [
            await ask(prompt, variant, builder, **how)
            for variant in (subject, make_other_subject(subject, topic=False), make_other_subject(subject, topic=True))
        ]
    if context.ids and not (facts.engine or config.engine.context):
        progress.warn("the context is not known (--context, or a cache with answers), so no document is truncated")
    found = []
    for trial, same, other in zip(mine, same_topic, other_topic, strict=True):
        for document_id, cut in trial.cut.items():
            progress.warn(f"document {document_id} is truncated: {describe_cut(cut)}")
        found.append((trial.ids, split_by_sharing(trial.messages, same.messages, other.messages, count)))
    return prompt, found


def describe_cut(cut: Cut) -> str:
    """Return how much of a document is shown."""
    pieces = f" in {len(cut.parts)} pieces" if cut.parts else ""
    return f"{cut.kept_chars:,} of {cut.of_chars:,} characters{pieces}"


def print_messages(messages: Iterable[tuple[str, str]]) -> None:
    """Print the messages of a chat: roles and texts."""
    for role, text in messages:
        print(to_printable(f"── {role} ──\n{text.expandtabs()}\n"))


def _show(
    prompt: Prompt, topic: str, ids: tuple[str, ...], parts: list[PromptPart], marked: bool, estimated: bool
) -> None:
    print(to_printable(f"{prompt.label}, topic {topic}" + (f", {' '.join(ids)}" if ids else "")) + "\n")
    messages: dict[int, list[PromptPart]] = {}
    for part in parts:
        messages.setdefault(part.message, []).append(part)
    if not marked:
        print_messages((of[0].role, "".join(part.text for part in of)) for of in messages.values())
        return
    console = Console(soft_wrap=True)
    coloured = console.color_system is not None and not console.no_color
    before: Shared | None = None
    for of in messages.values():
        text = Text(f"── {of[0].role} ──\n", style="bold")
        for part in of:
            if not coloured and part.shared != before:
                text.append(f"‹{_NAMES[part.shared]}› ")
            text.append(to_printable(part.text.expandtabs()), style=f"not bold {_STYLES[part.shared]}")
            before = part.shared
        console.print(text, end="\n\n")
    for shared, named in _NAMES.items():
        of_kind = [part for part in parts if part.shared == shared]
        chars, number = sum(len(part.text) for part in of_kind), sum(part.tokens for part in of_kind)
        about = "about " if estimated else ""
        console.print(Text(f"{named}: {chars:,} characters, {about}{number:,} tokens", style=_STYLES[shared]))


@s.takes_settings("task", "prompts.folder")
def copy(
    given: s.GivenSettings,
    name: NameArgument,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="The template to write (default: NAME.jinja, here).")
    ] = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Write a prompt as a file of your own to change, with the files that it includes and its examples.

    No file is overwritten; the same command completes a copy that was interrupted.
    """
    of_task = get_task(given.get("task", DEFAULT_TASK))
    _, prompt = load_named(of_task, name, given.get("prompts.folder"))
    mine = file or Path(prompt.path.name)
    if mine.suffix != ".jinja":
        raise UsageError(f"{mine}: not the name of a template; end it in .jinja")
    texts = [(mine.parent / part, text) for part, text in prompt.files.texts.items()]
    if prompt.examples:
        texts.append((examples_path(mine), read_text(examples_path(prompt.path))))
    for path in (path for path, _ in texts if path == mine):
        raise UsageError(f"{path}: {prompt.path} includes a file of this name; give another FILE")
    there = [str(path) for path, text in texts if os.path.lexists(path) and not _holds(path, text)]
    if os.path.lexists(mine):
        there.insert(0, str(mine))
    if there:
        raise UsageError(f"{', '.join(there)}: exists; give another FILE, or one in another folder")
    # The template comes last, so that a copy that has it is complete.
    texts.append((mine, read_text(prompt.path)))
    for path, text in texts:
        try:
            with open_atomic(path) as stream:
                stream.write(text.encode())
        except OSError as error:
            raise UsageError(f"{path}: cannot write it: {error.strerror}") from error
    if output is not Format.TABLE:
        print_rows(output, [{"prompt": prompt.label, "file": path} for path, _ in texts])
    else:
        show_lines(f"wrote {path}" for path, _ in texts)
    version = prompt.header.version
    say(
        output,
        f"next: change a sentence of {mine} and raise its version, {version} to {version + 1}; then\n"
        f"  touche-llm prompts check {mine} --task {of_task.reference}",
    )


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_bytes() == text.encode()
