"""Declaration and registry of first stages."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from touche_llm.corpus.store import TextTable
from touche_llm.errors import Warn
from touche_llm.extensions import Registry
from touche_llm.retrieval.corpus import Corpus, FirstStage
from touche_llm.retrieval.settings import Bm25Settings
from touche_llm.settings.section import NamedSection
from touche_llm.tasks.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class StageInputs:
    """Inputs of a first stage that scores documents on disk.

    Attributes:
        table: Documents, or the sentences of documents.
        bm25: Settings of BM25.
        settings: Settings of its section; None if it declares none.
        warn: Receives notices; None if an index may be opened, but not built.
    """

    table: TextTable
    bm25: Bm25Settings
    settings: Any
    warn: Warn | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInputs:
    """Inputs of a search engine that has the documents.

    Attributes:
        task: Task of the run.
        bm25: Settings of BM25.
        settings: Settings of its section; None if it declares none.
        warn: Receives notices.
    """

    task: Task
    bm25: Bm25Settings
    settings: Any
    warn: Warn


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedCorpus:
    """A corpus that was loaded into a search engine.

    Attributes:
        documents: Number of documents.
        place: Where they are, for the message.
        columns: Further columns of the result, by name.
    """

    documents: int
    place: str
    columns: Mapping[str, str]


OpenStage = Callable[[StageInputs], FirstStage]
OpenEngine = Callable[[EngineInputs], Corpus]
# Of the inputs, the corpus, and whether its bad lines are skipped.
LoadCorpus = Callable[[EngineInputs, Path, bool], Coroutine[Any, Any, LoadedCorpus]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retriever:
    """A first stage.

    It scores documents on disk (`open_stage`), searches their vectors (`needs_embeddings`), fuses
    both, or is a search engine that has the documents (`open_engine`).

    Attributes:
        name: Value of `retriever.name`.
        help: A few words for the help of `--retriever`.
        method: Name of the method in the metadata of a run.
        section: Section of the configuration with its own settings; None if it has none.
        open_stage: Opens the first stage of documents on disk.
        has_index: Whether `open_stage` stores an index, which `touche-llm index` builds.
        needs_embeddings: Whether an embedding model makes vectors of the documents; its section is
            `dense` then.
        open_engine: Opens a search engine.
        load_corpus: Loads a corpus into the search engine, for `touche-llm index`.
        bm25_method: The only variant of BM25 that it can be; None for any, or if it is none.
        find_problem: Returns why it cannot search the documents of a task; None if it can.
        describe: Returns the name of the search engine's documents in reports, of its settings;
            None for documents on disk.
        find_needed_file: Returns a file without which documents cannot be shown offline, of its
            settings; None if there is no such file.
        order: Place in lists; lower ones come first.
    """

    name: str
    help: str
    method: str
    section: NamedSection | None = None
    open_stage: OpenStage | None = None
    has_index: bool = False
    needs_embeddings: bool = False
    open_engine: OpenEngine | None = None
    load_corpus: LoadCorpus | None = None
    bm25_method: str | None = None
    find_problem: Callable[[Task], str | None] = lambda _: None
    describe: Callable[[Any], str | None] = lambda _: None
    find_needed_file: Callable[[Any], Path | None] = lambda _: None
    order: int = 100

    @property
    def has_documents(self) -> bool:
        """Whether it is a search engine, which stores the documents itself."""
        return self.open_engine is not None

    @property
    def can_index(self) -> bool:
        """Whether `touche-llm index` has something to do for it."""
        return self.has_index or self.needs_embeddings or self.load_corpus is not None


RETRIEVERS: Registry[Retriever] = Registry("retriever")


def register(retriever: Retriever) -> Retriever:
    """Add a first stage to those of the configuration, and return it.

    Raises:
        ExtensionError: Another one has its name, or the configuration is made already.
    """
    return RETRIEVERS.register(retriever)


def find_engine_problem(task: Task) -> str | None:
    """Return why a task cannot be searched in a search engine with documents; None if it can."""
    if not task.reads_arguments:
        return None
    what = "sentences" if task.sentence_aspects else "arguments"
    return f"{task.name} retrieves {what} of args.me; use bm25"
