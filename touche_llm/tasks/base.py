"""Task: its definition, and what is derived from it for the stages of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from touche_llm.corpus.args_me import read_arguments, read_whole_arguments
from touche_llm.corpus.ir_dataset import DatasetDocuments, DocumentKind
from touche_llm.corpus.json_lines import TOUCHE_KEYS, CorpusFile, DocumentKeys, Reader, Source, read_collection
from touche_llm.data.records import Document, Topic
from touche_llm.data.trec_runs import NO_STANCE_COLUMN
from touche_llm.llm.answers import AnswerModel, get_labels
from touche_llm.tasks.definition import FIRST_STAGE, OMIT, Objective, Scale, TaskDefinition
from touche_llm.text.passages import RankedPassages


@dataclass(frozen=True, slots=True)
class RenderedDocument:
    """Document as variables of a prompt template: its text or passages, and the other variables."""

    document: str | RankedPassages
    variables: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Question:
    """Question that a prompt puts to the model about a document.

    Attributes:
        answer: Answer model; its integer fields are grades, and a field `stance` has labels.
        position_answer: The same with the field `position`, whether the document takes one (YES or NO), before its
            `stance`, which has the other labels; None if all labels take a side.
        variables: Variables of the template beside `topic` and `document`, and whether each is required.
        render: Renders a document for a topic.
        topic_variables: Returns the values of the variables that depend on the topic alone.
    """

    answer: type[AnswerModel]
    render: Callable[[Topic, Document], RenderedDocument]
    variables: Mapping[str, bool] = field(default_factory=dict)
    topic_variables: Callable[[Topic], Mapping[str, Any]] = lambda topic: {}
    position_answer: type[AnswerModel] | None = None

    @property
    def template_variables(self) -> dict[str, bool]:
        """All variables of the template, and whether each is required."""
        return {"topic": True, **self.variables, "document": True}

    @property
    def grades(self) -> tuple[str, ...]:
        """Fields of the answer that are grades."""
        return _grades_of(self.answer)


@lru_cache(maxsize=64)
def _grades_of(answer: type[AnswerModel]) -> tuple[str, ...]:
    return tuple(name for name, labels in get_labels(answer).items() if all(isinstance(label, int) for label in labels))


@dataclass(frozen=True, slots=True)
class Task:
    """Task: all differences between the shared tasks, in one record.

    Attributes:
        definition: Content of its `task.yaml`.
        folder: Folder of this file, with the templates.
        is_own: Whether it is one of the project's own tasks.
        shared_folders: Folders of other tasks, whose templates are used where those before have none.
        question: Question of the judge prompt about a document.
        objects_answer: Returns the answer model with the objects (`first`, `second`) of a topic that names none; None
            if topics have no objects.
        sentence_question: Question about a sentence, if the documents are pairs of sentences; else None.
        stance_question: Question of the stance prompt: whether the document takes a `position` (YES or NO, the first of
            `no_stances`), and which of the other labels is its `stance`; None if there is no such prompt.
    """

    definition: TaskDefinition
    folder: Path
    is_own: bool
    shared_folders: tuple[Path, ...]
    question: Question
    objects_answer: Callable[[Topic], type[AnswerModel]] | None = None
    sentence_question: Question | None = None
    stance_question: Question | None = None

    @property
    def name(self) -> str:
        """Name of the task, and of the folder of its templates below `prompts.folder`."""
        return self.definition.name

    @property
    def reference(self) -> str:
        """Value of the setting `task`: the name of one of the project's own tasks, else the path of the folder."""
        return self.name if self.is_own else str(self.folder)

    def find_template(self, file: str) -> Path:
        """Return the path of a template of this name: in the first shared folder with it if the own one lacks it."""
        own = self.folder / file
        if own.exists():
            return own
        return next((folder / file for folder in self.shared_folders if (folder / file).is_file()), own)

    @property
    def title(self) -> str:
        """Title for people."""
        return self.definition.title

    @property
    def stances(self) -> tuple[str, ...]:
        """Labels that a run may contain, in order of declaration; empty if documents have no stance."""
        return () if self.definition.stance is None else tuple(self.definition.stance.labels)

    @property
    def run_labels(self) -> tuple[str, ...]:
        """Values of the second column of a run: the labels, or `Q0` if documents have no stance."""
        return self.stances or (NO_STANCE_COLUMN,)

    @property
    def judged_aspects(self) -> tuple[str, ...]:
        """Aspects that qrels may judge: those of the judge prompt, and the stance if documents have one."""
        return (*self.scales, *(["stance"] if self.stances else []))

    @property
    def no_stances(self) -> tuple[str, ...]:
        """Labels that take no side, in the order in which they are ruled out."""
        return () if self.definition.stance is None else tuple(self.definition.stance.no_side)

    @property
    def sides(self) -> tuple[str, ...]:
        """Labels that take a side."""
        return tuple(label for label in self.stances if label not in self.no_stances)

    @property
    def unknown_stance(self) -> str | None:
        """Label of a document without usable answer, counted as imputed; None if such documents are left out."""
        stance = self.definition.stance
        if stance is None:
            return NO_STANCE_COLUMN
        return None if stance.unanswered == OMIT else stance.unanswered

    @property
    def swapped_stances(self) -> Mapping[str, str]:
        """Labels that are exchanged when the two objects are, in both directions."""
        pairs = {} if self.definition.stance is None else self.definition.stance.swapped
        return {**pairs, **{other: label for label, other in pairs.items()}}

    @property
    def scales(self) -> Mapping[str, Scale]:
        """Scale of each aspect in the answers of the model."""
        return self.definition.aspects

    @property
    def qrels_scales(self) -> Mapping[str, Scale]:
        """Scale of each aspect in human judgments."""
        return {**self.definition.aspects, **self.definition.qrels}

    @property
    def min_per_topic(self) -> int:
        """Minimum length of a ranking, set by the organisers."""
        return self.definition.documents_per_topic.min

    @property
    def max_per_topic(self) -> int:
        """Maximum length of a ranking, set by the organisers."""
        return self.definition.documents_per_topic.max

    @property
    def corpus_files(self) -> tuple[str, ...]:
        """Names of the published corpus files."""
        return tuple(self.definition.corpus.files)

    @property
    def read_corpus(self) -> Reader:
        """Streaming reader of the corpus."""
        if self.reads_arguments:
            return read_whole_arguments if self.sentence_question is None else read_arguments
        return partial(read_collection, keys=self.document_keys)

    @property
    def document_kind(self) -> DocumentKind:
        """What a document of the corpus is."""
        if self.sentence_question is not None:
            return "sentences"
        return "argument" if self.reads_arguments else "text"

    def make_source(self, corpus: Path | str) -> Source:
        """Return the source of a document store: a corpus file, or the documents of a dataset, given by its id."""
        if isinstance(corpus, str):
            return DatasetDocuments(corpus, self.document_kind)
        keys = "" if self.document_keys == TOUCHE_KEYS else str(tuple(self.document_keys))
        if self.document_kind == "argument":
            keys = "whole arguments"
        return CorpusFile(corpus, self.read_corpus, keys)

    @property
    def reads_arguments(self) -> bool:
        """Whether the corpus is args.me, whose arguments have a conclusion and a side; no search engine has these."""
        return self.definition.corpus.reader == "args_me"

    @property
    def document_keys(self) -> DocumentKeys:
        """Keys of a document's id and text in JSON Lines."""
        corpus = self.definition.corpus
        texts = tuple(corpus.text)
        return DocumentKeys((corpus.id,) if corpus.id else TOUCHE_KEYS.id, texts or TOUCHE_KEYS.text, len(texts) > 1)

    @property
    def objectives(self) -> Mapping[Objective, Mapping[str, float]]:
        """Default weights of each grade and of the first stage, by objective."""
        given = self.definition.weights
        objectives: tuple[Objective, ...] = ("relevance", "quality", "both")
        return {
            objective: {name: given.get(objective, given["both"]).get(name, 0.0) for name in self.weight_names}
            for objective in objectives
        }

    @property
    def weights(self) -> Mapping[str, float]:
        """Default weights of a run."""
        return self.objectives["both"]

    @property
    def before_judging(self) -> str:
        """Name of the content of `candidates.run.txt`: pairs consist of judged sentences, so are no first stage."""
        return "first stage" if self.sentence_question is None else "pairs before they are judged"

    @property
    def weight_names(self) -> tuple[str, ...]:
        """Names of all weights of a document's score."""
        return (*self.question.grades, FIRST_STAGE)
