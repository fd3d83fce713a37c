"""Task: all differences between the shared tasks, read from a `task.yaml`, and what the stages derive from them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, get_args

from pydantic import Field, PrivateAttr, model_validator

from touche_llm.corpus.args_me import read_arguments, read_whole_arguments
from touche_llm.corpus.ir_dataset import DatasetDocuments, DocumentKind, Source
from touche_llm.corpus.json_lines import (
    TOUCHE_KEYS,
    CorpusFile,
    DocumentKeys,
    Reader,
    read_passages,
)
from touche_llm.data.measure import Measure
from touche_llm.data.records import Model, Topic
from touche_llm.data.runs.writing import NO_STANCE_COLUMN
from touche_llm.errors import DataError
from touche_llm.llm.answer_schema import AnswerModel
from touche_llm.settings.yaml_text import load_yaml
from touche_llm.tasks.objects import name_objects, objects_answer
from touche_llm.tasks.parts import (
    FIRST_STAGE,
    NO_SIDE,
    OMIT,
    TASK_FILE,
    Aspect,
    CorpusDefinition,
    DocumentLimits,
    Feature,
    GradeScale,
    Line,
    Name,
    Objective,
    OfficialMeasure,
    Scale,
    StanceDefinition,
    Weight,
)
from touche_llm.tasks.questions import (
    ROLES,
    Question,
    add_objects,
    create_answer,
    render_argument,
    render_excerpts,
    render_sentence,
    render_text,
)

_INSTALLED = Path(__file__).parent.parent / "_prompts"
_CHECKOUT = Path(__file__).parents[2] / "prompts"


class Task(Model, strict=True):
    """Task; the fields are the keys of its `task.yaml`, which docs/reference/tasks.md describes.

    Attributes:
        name: Name of the task, also of the folder of its templates below `prompts.folder`.
        title: Title for people.
        features: Features that need code.
        templates: Task of the project whose templates are used where the folder has none.
        corpus: Reader and file names of the corpus.
        aspects: Scale of each aspect that the judge prompt grades, in the order of the answer.
        qrels: Scale of the human judgments of each aspect where it is another than that of the
            prompt.
        qrels_mapping: Grade of people for each grade of the prompt, from the lowest on, of an aspect
            whose scales differ; without it, grades of different scales are not compared one by one.
        sentence_aspects: Aspects that are graded for single sentences, with the feature `pairs`.
        stance: Stance labels; None if documents have no stance, so that runs have `Q0` in its
            place.
        documents_per_topic: Limits of a ranking.
        weights: Weights of the aspects and of the first stage by objective; an objective that is
            left out has those of `both`, and a weight that is left out is 0.
        measures: Official measure of each aspect and of the stance.
    """

    name: Name
    title: Line
    features: list[Feature] = []
    templates: Name | None = None
    corpus: CorpusDefinition = CorpusDefinition(reader="json_lines")
    aspects: Annotated[dict[Aspect, GradeScale], Field(min_length=1, max_length=10)]
    qrels: dict[str, GradeScale] = {}
    qrels_mapping: dict[str, list[int]] = {}
    sentence_aspects: list[str] = []
    stance: StanceDefinition | None = None
    documents_per_topic: DocumentLimits = DocumentLimits()
    weights: dict[Objective, dict[str, Weight]]
    measures: dict[str, OfficialMeasure] = {}

    _folder: Path = PrivateAttr(default=Path())

    @model_validator(mode="after")
    def _check_parts(self) -> Task:
        for name, scale in self.aspects.items():
            if scale.lowest <= 1 and scale.highest == 10:
                raise ValueError(
                    f"aspects.{name}: {scale} has 1 and 10, whose probabilities cannot be told apart where a model "
                    f"writes digits one by one; give a scale up to 9, and qrels.{name} for human judgments up to 10"
                )
        known_by_place: dict[str, tuple[Collection[str], Collection[str]]] = {
            "qrels": (self.qrels, self.aspects),
            "qrels_mapping": (self.qrels_mapping, self.qrels),
            "sentence_aspects": (self.sentence_aspects, self.aspects),
            "measures": (self.measures, self.judged_aspects),
            **{
                f"weights.{objective}": (of, self.weight_names)
                for objective, of in self.weights.items()
            },
        }
        for place, (names, known) in known_by_place.items():
            for name in names:
                if name not in known:
                    raise ValueError(
                        f"{place}: {name!r:.40} is unknown; it must be {', '.join(known)}"
                    )
        self._check_mapping()
        for name, measure in self.measures.items():
            if (name == "stance") is not (measure == "macro-F1"):
                allowed = "macro-F1" if name == "stance" else "nDCG@5 or nDCG@10"
                raise ValueError(f"measures.{name}: must be {allowed}, not {measure}")
        if "both" not in self.weights:
            raise ValueError("weights.both: missing; it is the default objective")
        has = self.features
        is_for_pairs = (
            has == ["pairs"] and self.reads_arguments and self.sentence_aspects and self.stances
        )
        if "pairs" in has and (not is_for_pairs or self.no_stances or NO_SIDE in self.stances):
            raise ValueError(
                "features: pairs needs no other feature, `corpus.reader: args_me`, `sentence_aspects`, and stance "
                f"labels that all take a side, without {NO_SIDE}"
            )
        if self.sentence_aspects and "pairs" not in has:
            raise ValueError("sentence_aspects: only with the feature pairs; leave it out")
        if "excerpts" in has and self.reads_arguments:
            raise ValueError(
                "features: excerpts are of web pages, not of arguments (args_me); leave it out"
            )
        if "stance_prompt" in has and not self.no_stances:
            raise ValueError(
                "stance.no_side: missing; stance_prompt finds out whether a document takes a side"
            )
        if self.swapped_stances and "objects" not in has:
            raise ValueError("stance.swapped: only with the feature objects; leave it out")
        return self

    def _check_mapping(self) -> None:
        """Raise ValueError if a mapping does not give each grade of the prompt a grade of people."""
        for name, targets in self.qrels_mapping.items():
            grades = self.aspects[name].grades
            is_complete = len(targets) == len(grades)
            allowed = self.qrels[name].grades
            is_ascending = targets == sorted(targets)
            if not is_complete or not is_ascending or not set(targets) <= set(allowed):
                raise ValueError(
                    f"qrels_mapping.{name}: must be {len(grades)} ascending grades of {self.qrels[name]}, one for "
                    f"each of {self.aspects[name]}, not {targets!s:.60}"
                )

    @property
    def folder(self) -> Path:
        """Folder of the definition, with the templates."""
        return self._folder

    @property
    def is_own(self) -> bool:
        """Whether it is one of the project's own tasks."""
        return self.folder.parent == prompts_folder()

    @property
    def reference(self) -> str:
        """Value of the setting `task`: the name of one of the project's own tasks, else the path of the folder."""
        return self.name if self.is_own else str(self.folder)

    @cached_property
    def shared_folders(self) -> tuple[Path, ...]:
        """Folders of other tasks, whose templates are used where those before have none."""
        folders: list[Path] = []
        task = self
        while (name := task.templates) is not None:
            shared = prompts_folder() / name
            if not (shared / TASK_FILE).is_file():
                known = ", ".join(
                    sorted(path.parent.name for path in prompts_folder().glob(f"*/{TASK_FILE}"))
                )
                raise DataError(
                    f"{self.folder / TASK_FILE}: templates: {name!r} is no task of the project; it must be {known}"
                )
            folders.append(shared)
            task = load_yaml(shared / TASK_FILE, Task)
        return tuple(folders)

    def find_template(self, file: str) -> Path:
        """Return the path of a template of this name: in the first shared folder with it if the own one lacks it."""
        paths = [folder / file for folder in (self.folder, *self.shared_folders)]
        return next(filter(Path.is_file, paths), paths[0])

    @property
    def stances(self) -> tuple[str, ...]:
        """Labels that a run may contain, in order of declaration.

        Empty if documents have no stance.
        """
        return () if self.stance is None else tuple(self.stance.labels)

    @property
    def run_labels(self) -> tuple[str, ...]:
        """Values of the second column of a run: the labels, or `Q0` if documents have no stance."""
        return self.stances or (NO_STANCE_COLUMN,)

    @property
    def no_stances(self) -> tuple[str, ...]:
        """Labels that take no side, in the order in which they are ruled out."""
        return () if self.stance is None else tuple(self.stance.no_side)

    @property
    def sides(self) -> tuple[str, ...]:
        """Labels that take a side."""
        return tuple(label for label in self.stances if label not in self.no_stances)

    @property
    def unknown_stance(self) -> str | None:
        """Label of a document without usable answer, counted as imputed.

        None if such documents are left out.
        """
        if self.stance is None:
            return NO_STANCE_COLUMN
        return None if self.stance.unanswered == OMIT else self.stance.unanswered

    @property
    def swapped_stances(self) -> Mapping[str, str]:
        """Labels that are exchanged when the two objects are, in both directions."""
        pairs = {} if self.stance is None else self.stance.swapped
        return {**pairs, **{other: label for label, other in pairs.items()}}

    @property
    def judged_aspects(self) -> tuple[str, ...]:
        """Aspects that qrels may judge: those of the judge prompt, and the stance if documents have one."""
        return (*self.aspects, *(["stance"] if self.stances else []))

    @property
    def official_measures(self) -> dict[str, Measure]:
        """Official measures by aspect, of the aspects that have one."""
        return {aspect: Measure.parse(f"{aspect} {text}") for aspect, text in self.measures.items()}

    @property
    def qrels_scales(self) -> Mapping[str, Scale]:
        """Scale of each aspect in human judgments."""
        return {**self.aspects, **self.qrels}

    def qrels_mapping_of(self, aspect: str) -> dict[int, int] | None:
        """Return the grade of people for each grade of the prompt; None if there is no such mapping."""
        grades = self.aspects[aspect].grades
        if self.aspects[aspect] == self.qrels_scales[aspect]:
            return dict(zip(grades, grades, strict=True))
        if aspect not in self.qrels_mapping:
            return None
        return dict(zip(grades, self.qrels_mapping[aspect], strict=True))

    @property
    def weight_names(self) -> tuple[str, ...]:
        """Names of all weights of a document's score."""
        return (*self.aspects, FIRST_STAGE)

    @property
    def objectives(self) -> Mapping[Objective, Mapping[str, float]]:
        """Default weights of each grade and of the first stage, by objective.

        Those of a run are those of `both`.
        """
        of = {
            objective: self.weights.get(objective, self.weights["both"])
            for objective in get_args(Objective)
        }
        return {
            objective: {name: w.get(name, 0.0) for name in self.weight_names}
            for objective, w in of.items()
        }

    @property
    def before_judging(self) -> str:
        """Name of the content of `candidates.run.txt`: pairs consist of judged sentences, so are no first stage."""
        return "pairs before they are judged" if "pairs" in self.features else "first stage"

    @property
    def reads_arguments(self) -> bool:
        """Whether the corpus is args.me, whose arguments have a conclusion and a side.

        No search engine has these.
        """
        return self.corpus.reader == "args_me"

    @property
    def document_kind(self) -> DocumentKind:
        """What a document of the corpus is."""
        return (
            "sentences"
            if "pairs" in self.features
            else "argument"
            if self.reads_arguments
            else "text"
        )

    @property
    def document_keys(self) -> DocumentKeys:
        """Keys of a document's id and text in JSON Lines."""
        texts = tuple((key,) for key in self.corpus.text)
        return DocumentKeys(
            (self.corpus.id,) if self.corpus.id else TOUCHE_KEYS.id, texts or TOUCHE_KEYS.text
        )

    @property
    def read_corpus(self) -> Reader:
        """Streaming reader of the corpus."""
        readers: dict[DocumentKind, Reader] = {
            "argument": read_whole_arguments,
            "sentences": read_arguments,
        }
        return readers.get(self.document_kind) or partial(read_passages, keys=self.document_keys)

    def make_source(self, corpus: Path | str) -> Source:
        """Return the source of a document store: a corpus file, or the documents of a dataset, given by its id."""
        if isinstance(corpus, str):
            return DatasetDocuments(corpus, self.document_kind)
        keys = "" if self.document_keys == TOUCHE_KEYS else str(tuple(self.document_keys))
        return CorpusFile(
            corpus,
            self.read_corpus,
            "whole arguments" if self.document_kind == "argument" else keys,
        )

    @cached_property
    def question(self) -> Question:
        """Question of the judge prompt about a document."""
        grades = {name: scale.grades for name, scale in self.aspects.items()}
        stance = {"stance": self.stances} if self.stances else {}
        position = (
            create_answer("Judgment", **grades, **self._position_and_side)
            if self.no_stances
            else None
        )
        return self._make_question(create_answer("Judgment", **grades, **stance), position)

    @cached_property
    def stance_question(self) -> Question | None:
        """Question of the stance prompt; None if there is no such prompt.

        It is whether the document takes a `position` (YES or NO, the first of `no_stances`), and
        which of the other labels is its `stance`.
        """
        if "stance_prompt" not in self.features:
            return None
        return self._make_question(create_answer("Stance", **self._position_and_side))

    @cached_property
    def sentence_question(self) -> Question | None:
        """Question about a sentence, if the documents are pairs of sentences; else None."""
        if "pairs" not in self.features:
            return None
        grades = {
            name: scale.grades
            for name, scale in self.aspects.items()
            if name in self.sentence_aspects
        }
        answer = create_answer(
            "SentenceJudgment", role=ROLES, **grades, stance=(*self.stances, NO_SIDE)
        )
        return Question(answer, render_sentence, {"conclusion": False, "side": False})

    @property
    def objects_answer(self) -> Callable[[Topic], type[AnswerModel]] | None:
        """Function that returns the answer model with the objects (`first`, `second`) of a topic that names none.

        None if topics have no objects.
        """
        return objects_answer if "objects" in self.features else None

    @property
    def _position_and_side(self) -> dict[str, tuple[str, ...]]:
        return {
            "position": ("YES", "NO"),
            "stance": tuple(x for x in self.stances if x != self.no_stances[0]),
        }

    def _make_question(
        self, answer: type[AnswerModel], position_answer: type[AnswerModel] | None = None
    ) -> Question:
        neutral_label = None if position_answer is None else self.no_stances[0]
        render = render_excerpts if "excerpts" in self.features else render_text
        if self.document_kind == "argument":
            render = render_argument
        if "objects" not in self.features:
            return Question(
                answer,
                render,
                position_answer=position_answer,
                neutral_label=neutral_label,
            )
        variables = {"first": False, "second": False}
        return Question(
            answer,
            add_objects(render),
            variables,
            name_objects,
            position_answer,
            neutral_label,
        )


def prompts_folder() -> Path:
    """Return the folder of the project's own tasks: in the installed package, or at the top of a checkout."""
    return _INSTALLED if _INSTALLED.is_dir() else _CHECKOUT


def load_task(folder: Path) -> Task:
    """Read the task of a folder with a `task.yaml` and templates.

    Raises:
        DataError: The folder has no valid `task.yaml`, or lacks a template that it needs, or names
            a task of the project that does not exist; names file, key and allowed values.
    """
    task = load_yaml(folder / TASK_FILE, Task)
    task._folder = folder
    for purpose, feature in (
        ("judge", None),
        ("objects", "objects"),
        ("stance", "stance_prompt"),
        ("sentence", "pairs"),
    ):
        path = task.find_template(f"{purpose}.jinja")
        if (feature is None or feature in task.features) and not path.is_file():
            needed_by = f"features: {feature}" if feature else "aspects"
            raise DataError(
                f"{folder / TASK_FILE}: {needed_by}: needs the template {path}, which is missing; write it"
            )
    return task
