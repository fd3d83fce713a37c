"""The command that stores a corpus and builds its index: here, or in Elasticsearch."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from touche_llm.api.corpora import DenseCorpus, open_local_corpus
from touche_llm.cli import options as o
from touche_llm.cli import setting_options as s
from touche_llm.cli.interrupts import until_interrupted
from touche_llm.cli.output import Column, Format, FormatOption, emit, print_result, say, show_lines
from touche_llm.cli.setting_options import CommandProgress
from touche_llm.data.files import check_output
from touche_llm.engines.identification import ServerCheck
from touche_llm.engines.settings import EngineConfig
from touche_llm.errors import EngineError, UsageError
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.settings import CacheConfig, SamplingConfig
from touche_llm.prompts.purposes import load_named
from touche_llm.retrieval.dense import DenseSettings, find_dense_problem
from touche_llm.retrieval.elasticsearch import ElasticsearchSettings, load_corpus
from touche_llm.retrieval.registry import RetrieverConfig
from touche_llm.runs.context import list_schemas
from touche_llm.tasks import DEFAULT_TASK, find_dataset_task, get_task
from touche_llm.tasks.task import Task


@s.takes_settings(
    *(f"engine.{name}" for name in ("model", "context", "tokenizer", "request_timeout")),
    *(f"sampling.{name}" for name in ("logprobs", "system_message", "thinking")),
)
def doctor(
    given: s.GivenSettings,
    url: Annotated[
        str, typer.Argument(metavar="URL", help="Address of the server, as http://127.0.0.1:8000.")
    ],
    thorough: Annotated[
        bool,
        typer.Option(
            "--thorough", help="Also repeat a request sixteen times, to see if its answers differ."
        ),
    ] = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Check what a server can do, and name the options for the rest.

    Sends about fifteen short requests. Exit code 1 if a run is impossible.
    """
    engine = s.read_section(EngineConfig, {**given, "engine.base_url": url}, "engine")
    sampling = s.read_section(SamplingConfig, given, "sampling")
    checks, failure = until_interrupted(
        _examine(engine, sampling, thorough), lambda: "nothing was stored"
    )
    if failure is not None and not any(check.is_ok for check in checks):
        raise failure
    checks = [replace(check, remedy=s.name_options(check.remedy)) for check in checks]
    emit(output, [asdict(check) for check in checks], _CHECKS)
    if output is Format.TABLE:
        show_lines(f"{check.name}: {check}" for check in checks if not check.is_ok)
    if failure is not None:
        raise failure
    is_possible = not any(check.is_blocking for check in checks)
    say(output, f"{url}: a run {'can' if is_possible else 'could not'} be made")
    if not is_possible:
        raise typer.Exit(1)


_CHECKS = (
    Column("check", is_text=True, value="name"),
    Column("ok", is_text=True, value=lambda row: "?" if row["is_ok"] is None else row["is_ok"]),
    Column("found", is_cut=True, value="value"),
)


async def _examine(
    engine: EngineConfig, sampling: SamplingConfig, is_thorough: bool
) -> tuple[list[ServerCheck], EngineError | None]:
    """Return the checks of a server, and the error that ended them early."""
    # Imported here because the HTTP libraries are slow to load.
    from touche_llm.doctor.card import Survey
    from touche_llm.doctor.checks import DOCTOR_PROBES, THOROUGH_PROBES, examine
    from touche_llm.engines.chat import ChatServer

    async with ChatServer(
        engine.base_url,
        concurrency=engine.concurrency,
        request_timeout=engine.request_timeout,
        chat_template_kwargs=sampling.chat_template_kwargs,
    ) as server:
        server.address, server.patience = "URL", 1
        _, prompt = load_named(get_task(DEFAULT_TASK), "judge")
        schemas, progress = list_schemas([prompt]), CommandProgress()
        probes = THOROUGH_PROBES if is_thorough else DOCTOR_PROBES
        with progress.stage("checking the server", len(probes)) as step:
            survey = Survey(server, engine, sampling, schemas, progress.warn, step)
            try:
                await examine(survey, probes)
            except EngineError as error:
                return survey.checks, error
            return survey.checks, None


CacheFile = Annotated[Path, typer.Option("--cache", help="The cache.")]
_DEFAULT_CACHE = CacheConfig().file


def export_(
    out: Annotated[
        Path, typer.Argument(metavar="FILE", help="The cassette to write, a .jsonl file.")
    ],
    cache: CacheFile = _DEFAULT_CACHE,
    overwrite: o.OverwriteOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Write all entries as JSON Lines sorted by key: a cassette, to be kept with a run or a test."""
    if out.suffix != ".jsonl":
        raise UsageError(f"{out}: a cassette ends in .jsonl")
    check_output(out, overwrite, [cache])
    with Cache(cache, CacheMode.REPLAY) as opened:
        entries = opened.export_cassette(out)
    print_result(output, f"{entries:,} entries written to {out}", {"file": out, "entries": entries})


def import_(
    cassette: Annotated[Path, typer.Argument(metavar="FILE", help="The cassette to read.")],
    cache: CacheFile = _DEFAULT_CACHE,
    output: FormatOption = Format.TABLE,
) -> None:
    """Add the entries of a cassette to a cache: all of them, or none if one does not fit."""
    if not cassette.is_file():
        raise UsageError(f"{cassette}: no such file; give a cassette, a .jsonl file")
    with Cache(cache) as opened:
        new, known = opened.import_cassette(cassette)
    sentence = f"{new:,} new entries in {cache}, {known:,} were there already"
    print_result(output, sentence, {"file": cache, "new": new, "known": known})


@s.takes_settings(
    *(
        "task",
        "dataset",
        "corpus",
        "index",
        "skip_bad_lines",
        "retriever",
        "elasticsearch",
        "dense",
    ),
    without=("retriever.query",),
)
def index(
    given: s.GivenSettings, assigned: s.SetOption = None, output: FormatOption = Format.TABLE
) -> None:
    """Store a corpus and build its BM25 index. Does nothing if both exist and are up to date.

    With `--retriever dense` or `hybrid` a model embeds the documents, with `--retriever
    elasticsearch` they are loaded into an index there; what was stopped resumes.
    """
    s.check_inputs(given)
    dataset = given.get("dataset")
    corpus = dataset or given.get("corpus")
    if corpus is None:
        raise UsageError("index: missing --corpus or --dataset; see touche-llm index --help")
    task = get_task(given.get("task") or (find_dataset_task(dataset) if dataset else DEFAULT_TASK))
    retriever = s.read_section(RetrieverConfig, given, "retriever")
    if retriever.name in ("chatnoir", "okapi"):
        raise UsageError(
            f"--retriever {retriever.name}: needs no index; give bm25, dense, hybrid or elasticsearch"
        )
    section = (
        "elasticsearch"
        if retriever.name == "elasticsearch"
        else "dense"
        if retriever.is_dense
        else None
    )
    values = s.set_values(assigned or [], "index")
    for name in (*given, *values):
        of = name.partition(".")[0]
        if of != section and (name in values or of in ("elasticsearch", "dense")):
            raise UsageError(
                f"{'--set ' * (name in values)}{name}: not used with --retriever {retriever.name}"
            )
    given |= values
    if section == "elasticsearch":
        _load_elasticsearch(task, retriever, given, output)
        return
    if section == "dense" and (problem := find_dense_problem(task)):
        raise UsageError(problem)
    progress = CommandProgress()
    with open_local_corpus(
        corpus,
        given.get("index"),
        task,
        skip_bad_lines=given.get("skip_bad_lines", False),
        warn=progress.warn,
        retriever=retriever,
    ) as opened:
        if retriever.name != "dense":
            opened.open_first_stages()
        if section == "dense":
            settings = s.read_section(DenseSettings, given, "dense")
            work = DenseCorpus(opened, settings, CacheConfig(mode=CacheMode.OFF), progress).embed()
            until_interrupted(
                work, lambda: "the vectors so far are stored; the same command resumes"
            )
        store = opened.store
        documents, sentences = len(store), len(store.parts)
        parts = f" and their {sentences:,} sentences" if sentences else ""
        sentence = f"{documents:,} documents of {corpus}{parts} are indexed in {store.folder}"
        row = {
            "corpus": corpus,
            "documents": documents,
            "sentences": sentences or None,
            "folder": store.folder,
        }
        print_result(output, sentence, row)


def _load_elasticsearch(
    task: Task, retriever: RetrieverConfig, given: s.GivenSettings, output: Format
) -> None:
    if "index" in given or given.get("retriever.method", "lucene") != "lucene":
        raise UsageError(
            "--retriever elasticsearch: stores the index itself and scores as --bm25-method lucene"
        )
    if "dataset" in given:
        raise UsageError(
            "--dataset: cannot be loaded into Elasticsearch; give its file as --corpus"
        )
    if task.reads_arguments:
        what = "arguments of args.me" if task.sentence_question is None else "pairs of sentences"
        raise UsageError(f"--retriever elasticsearch: {task.name} ranks {what}; use bm25")
    settings = s.read_section(ElasticsearchSettings, given, "elasticsearch")
    corpus = given["corpus"]
    work = load_corpus(
        corpus,
        task.read_corpus,
        settings,
        k1=retriever.k1,
        b=retriever.b,
        skip_bad_lines=given.get("skip_bad_lines", False),
        warn=CommandProgress().warn,
    )
    documents = until_interrupted(
        work, lambda: "the documents so far are stored; the same command resumes"
    ).documents
    sentence = f"{documents:,} documents of {corpus} are in {settings.url}, index {settings.index}"
    row = {"corpus": corpus, "documents": documents, "url": settings.url, "index": settings.index}
    print_result(output, sentence, row)
