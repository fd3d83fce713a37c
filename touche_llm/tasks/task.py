"""Task: what its `task.yaml` declares, and what the stages derive from that."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
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
    Render,
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
        kind: Name of the kind of task, as `kinds` registers it.
        features: Features that need code.
        templates: Task of the project whose templates are used where the folder has none.
        corpus: Reader and file names of the corpus.
        aspects: Scale of each aspect that the judge prompt grades, in the order of the answer.
        qrels: Scale of the human judgments of each aspect where it is another than that of the
            prompt.
        qrels_mapping: Grade of people for each grade of the prompt, from the lowest on, of an aspect
            whose scales differ; without it, grades of different scales are not compared one by one.
        sentence_aspects: Aspects that are graded for single sentences, if the kind judges these.
        stance: Stance labels; None if documents have no stance, so that runs have `Q0` in its
            place.
        documents_per_topic: Limits of a ranking.
        weights: Weights of the aspects and of the first stage by objective; an objective that is
            left out has those of `both`, and a weight that is left out is 0.
        measures: Official measure of each aspect and of the stance.
    """

    name: Name
    title: Line
    kind: Name = "documents"
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
        """Raise ValueError unless the keys of the definition fit together."""
        self._check_scales()
        self._check_names()
        self._check_mapping()
        self._check_measures()
        self._check_features()
        return self

    def _check_scales(self) -> None:
        """Raise ValueError for a scale in whose grades one begins another as it is written."""
        for name, scale in self.aspects.items():
            if scale.lowest <= 1 and scale.highest == 10:
                raise ValueError(
                    f"aspects.{name}: {scale} has 1 and 10, whose probabilities cannot be told apart where a model "
                    f"writes digits one by one; give a scale up to 9, and qrels.{name} for human judgments up to 10"
                )

    def _check_names(self) -> None:
        """Raise ValueError if a key of the definition names an aspect or weight that it lacks."""
        _require_known("qrels", self.qrels, self.aspects)
        _require_known("qrels_mapping", self.qrels_mapping, self.qrels)
        _require_known("sentence_aspects", self.sentence_aspects, self.aspects)
        _require_known("measures", self.measures, self.judged_aspects)
        for objective, weights in self.weights.items():
            _require_known(f"weights.{objective}", weights, self.weight_names)

    def _check_mapping(self) -> None:
        """Raise ValueError unless each mapping gives each grade of the prompt a grade of people."""
        for name, targets in self.qrels_mapping.items():
            prompt_scale = self.aspects[name]
            qrels_scale = self.qrels[name]
            is_complete = len(targets) == len(prompt_scale.grades)
            is_ascending = targets == sorted(targets)
            has_only_grades = all(target in qrels_scale.grades for target in targets)
            if not (is_complete and is_ascending and has_only_grades):
                raise ValueError(
                    f"qrels_mapping.{name}: must be {len(prompt_scale.grades)} ascending grades of {qrels_scale}, "
                    f"one for each of {prompt_scale}, not {targets!s:.60}"
                )

    def _check_measures(self) -> None:
        """Raise ValueError for a measure that does not fit its aspect, or missing default weights."""
        for name, measure in self.measures.items():
            allowed = ["macro-F1"] if name == "stance" else ["nDCG@5", "nDCG@10"]
            if measure not in allowed:
                raise ValueError(f"measures.{name}: must be {' or '.join(allowed)}, not {measure}")
        if "both" not in self.weights:
            raise ValueError("weights.both: missing; it is the default objective")

    def _check_features(self) -> None:
        """Raise ValueError if features, corpus and stance labels contradict each other."""
        if self.sentence_aspects and not self.reads_arguments:
            raise ValueError(
                "sentence_aspects: needs `corpus.reader: args_me`, whose arguments have sentences"
            )
        if "excerpts" in self.features and self.reads_arguments:
            raise ValueError(
                "features: excerpts are of web pages, not of arguments (args_me); leave it out"
            )
        if "stance_prompt" in self.features and not self.no_stances:
            raise ValueError(
                "stance.no_side: missing; stance_prompt finds out whether a document takes a side"
            )
        if self.swapped_stances and "objects" not in self.features:
            raise ValueError("stance.swapped: only with the feature objects; leave it out")

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
        """Value of the setting `task`: the name of a task of the project, else the path of the folder."""
        return self.name if self.is_own else str(self.folder)

    @cached_property
    def shared_folders(self) -> tuple[Path, ...]:
        """Folders to search for the templates that the own folder lacks, in this order.

        They are those of the task that the key `templates` names, of the task that its definition
        names, and so on.

        Raises:
            DataError: A task names one that is not one of the project's own.
        """
        folders: list[Path] = []
        next_name = self.templates
        while next_name is not None:
            folder = self._find_shared_folder(next_name)
            folders.append(folder)
            next_name = load_yaml(folder / TASK_FILE, Task).templates
        return tuple(folders)

    def _find_shared_folder(self, task_name: str) -> Path:
        """Return the folder of one of the project's own tasks.

        Raises:
            DataError: There is no such task.
        """
        folder = prompts_folder() / task_name
        if not (folder / TASK_FILE).is_file():
            known = ", ".join(_list_own_names())
            raise DataError(
                f"{self.folder / TASK_FILE}: templates: {task_name!r} is no task of the project; "
                f"it must be {known}"
            )
        return folder

    def find_template(self, file: str) -> Path:
        """Return the path of a template of this name.

        It is that of the own folder, or of the first shared folder with it if the own one lacks it.
        """
        own = self.folder / file
        for folder in (self.folder, *self.shared_folders):
            path = folder / file
            if path.is_file():
                return path
        return own

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
        if self.stance.unanswered == OMIT:
            return None
        return self.stance.unanswered

    @property
    def swapped_stances(self) -> Mapping[str, str]:
        """Labels that are exchanged when the two objects are, in both directions."""
        if self.stance is None:
            return {}
        reverse = {second: first for first, second in self.stance.swapped.items()}
        return {**self.stance.swapped, **reverse}

    @property
    def judged_aspects(self) -> tuple[str, ...]:
        """Aspects that qrels may judge: those of the judge prompt, and the stance if documents have one."""
        if self.stances:
            return (*self.aspects, "stance")
        return tuple(self.aspects)

    @property
    def official_measures(self) -> dict[str, Measure]:
        """Official measures by aspect, of the aspects that have one."""
        return {aspect: Measure.parse(f"{aspect} {text}") for aspect, text in self.measures.items()}

    @property
    def qrels_scales(self) -> Mapping[str, Scale]:
        """Scale of each aspect in human judgments."""
        return {**self.aspects, **self.qrels}

    def qrels_mapping_of(self, aspect: str) -> dict[int, int] | None:
        """Return the grade of people for each grade of the prompt; None if it is not known.

        It is the same grade if prompt and people have the same scale.
        """
        prompt_scale = self.aspects[aspect]
        if prompt_scale == self.qrels_scales[aspect]:
            return {grade: grade for grade in prompt_scale.grades}
        if aspect not in self.qrels_mapping:
            return None
        return dict(zip(prompt_scale.grades, self.qrels_mapping[aspect], strict=True))

    @property
    def weight_names(self) -> tuple[str, ...]:
        """Names of all weights of a document's score."""
        return (*self.aspects, FIRST_STAGE)

    @property
    def objectives(self) -> Mapping[Objective, Mapping[str, float]]:
        """Default weights of each grade and of the first stage, by objective.

        An objective that the definition leaves out has the weights of `both`, which are also those
        of a run that names no objective.
        """
        objectives: dict[Objective, Mapping[str, float]] = {}
        for objective in get_args(Objective):
            given_weights = self.weights.get(objective, self.weights["both"])
            # A weight that is left out is 0.
            weights = {name: given_weights.get(name, 0.0) for name in self.weight_names}
            objectives[objective] = weights
        return objectives

    @property
    def reads_arguments(self) -> bool:
        """Whether the corpus is args.me, whose arguments have a conclusion and a side.

        No search engine has these.
        """
        return self.corpus.reader == "args_me"

    @property
    def document_kind(self) -> DocumentKind:
        """What a document of the corpus is."""
        if self.sentence_aspects:
            return "sentences"
        if self.reads_arguments:
            return "argument"
        return "text"

    @property
    def document_keys(self) -> DocumentKeys:
        """Keys of a document's id and text in JSON Lines: those given, or those of Touché.

        The id is under one of several keys. The text has parts, each under one of several keys.
        """
        id_keys = TOUCHE_KEYS.id
        if self.corpus.id is not None:
            id_keys = (self.corpus.id,)

        text_keys = TOUCHE_KEYS.text
        if self.corpus.text:
            # A given key is the only one of its part.
            text_keys = tuple((key,) for key in self.corpus.text)
        return DocumentKeys(id_keys, text_keys)

    @property
    def read_corpus(self) -> Reader:
        """Streaming reader of the corpus."""
        match self.document_kind:
            case "argument":
                return read_whole_arguments
            case "sentences":
                return read_arguments
            case "text":
                return partial(read_passages, keys=self.document_keys)

    def make_source(self, corpus: Path | str) -> Source:
        """Return the source of a document store.

        Args:
            corpus: Corpus file, or the id of a dataset.
        """
        if isinstance(corpus, str):
            return DatasetDocuments(corpus, self.document_kind)
        return CorpusFile(corpus, self.read_corpus, self._describe_reader())

    def _describe_reader(self) -> str:
        """Return how a corpus file is read, for the manifest of a store; empty for the default."""
        if self.document_kind == "argument":
            return "whole arguments"
        if self.document_keys == TOUCHE_KEYS:
            return ""
        return str(tuple(self.document_keys))

    @cached_property
    def question(self) -> Question:
        """Question of the judge prompt about a document.

        Its answer has a grade for each aspect, and a stance if documents have one. If there is a
        label that takes no side, another answer first says whether the document takes a position.
        """
        grades = {name: scale.grades for name, scale in self.aspects.items()}
        if not self.stances:
            return self._make_question(create_answer("Judgment", **grades))

        answer = create_answer("Judgment", **grades, stance=self.stances)
        if not self.no_stances:
            return self._make_question(answer)

        position_answer = create_answer("Judgment", **grades, **self._position_and_side)
        return self._make_question(answer, position_answer)

    @cached_property
    def questions(self) -> Mapping[str, Question]:
        """Questions about documents, by the purpose of the prompt.

        - `judge` is about a document.
        - `sentence` is about a sentence of a document, if the task has `sentence_aspects`.
        - `stance`, if the task has a stance prompt, is whether a document takes a `position` (YES or
          NO), and which label is its `stance` if it does.
        """
        questions = {"judge": self.question}
        if self.sentence_aspects:
            questions["sentence"] = self._make_sentence_question()
        if "stance_prompt" in self.features:
            answer = create_answer("Stance", **self._position_and_side)
            questions["stance"] = self._make_question(answer)
        return questions

    def _make_sentence_question(self) -> Question:
        """Return the question about a sentence: its role in the argument, its grades and its side."""
        grades = {
            name: self.aspects[name].grades
            for name in self.aspects
            if name in self.sentence_aspects
        }
        answer = create_answer(
            "SentenceJudgment",
            role=ROLES,
            **grades,
            stance=(*self.stances, NO_SIDE),
        )
        return Question(
            answer=answer,
            render=render_sentence,
            variables={"conclusion": False, "side": False},
        )

    @property
    def objects_answer(self) -> Callable[[Topic], type[AnswerModel]] | None:
        """Function that returns the answer model with the objects (`first`, `second`) of a topic.

        It is for topics that name none; None if topics have no objects.
        """
        return objects_answer if "objects" in self.features else None

    @property
    def _position_and_side(self) -> dict[str, tuple[str, ...]]:
        """Labels of the fields `position` and `stance` where the position is a field of its own."""
        ruled_out_first = self.no_stances[0]
        sides = tuple(label for label in self.stances if label != ruled_out_first)
        return {"position": ("YES", "NO"), "stance": sides}

    def _make_question(
        self,
        answer: type[AnswerModel],
        position_answer: type[AnswerModel] | None = None,
    ) -> Question:
        """Return a question about a document, and about the objects of its topic if it has some.

        Args:
            answer: Answer model.
            position_answer: Answer model with a position before the stance; None if there is none.
        """
        neutral_label: str | None = None
        if position_answer is not None:
            # The stance of a document that takes no position.
            neutral_label = self.no_stances[0]
        question = Question(
            answer=answer,
            render=self._choose_renderer(),
            position_answer=position_answer,
            neutral_label=neutral_label,
        )

        has_objects = "objects" in self.features
        if not has_objects:
            return question
        return replace(
            question,
            render=add_objects(question.render),
            variables={"first": False, "second": False},
            topic_variables=name_objects,
        )

    def _choose_renderer(self) -> Render:
        """Return the function that renders a document for a prompt."""
        if self.document_kind == "argument":
            return render_argument
        if "excerpts" in self.features:
            return render_excerpts
        return render_text


def _require_known(place: str, names: Iterable[str], known: Collection[str]) -> None:
    """Raise ValueError, naming the place, if a name is not among the known ones."""
    for name in names:
        if name not in known:
            raise ValueError(f"{place}: {name!r:.40} is unknown; it must be {', '.join(known)}")


def _list_own_names() -> list[str]:
    """Return the names of the project's own tasks."""
    return sorted(path.parent.name for path in prompts_folder().glob(f"*/{TASK_FILE}"))


def prompts_folder() -> Path:
    """Return the folder of the project's own tasks.

    It is in the installed package, or at the top of a checkout.
    """
    return _INSTALLED if _INSTALLED.is_dir() else _CHECKOUT


def load_task(folder: Path) -> Task:
    """Read the task of a folder with a `task.yaml` and templates.

    Raises:
        DataError: The folder has no valid `task.yaml`, lacks a template that it needs, or names a
            task of the project that does not exist; names file, key and allowed values.
    """
    task = load_yaml(folder / TASK_FILE, Task)
    task._folder = folder

    _require_template(task, "judge", needed_by="aspects")
    if "objects" in task.features:
        _require_template(task, "objects", needed_by="features: objects")
    if "stance_prompt" in task.features:
        _require_template(task, "stance", needed_by="features: stance_prompt")
    if task.sentence_aspects:
        _require_template(task, "sentence", needed_by="sentence_aspects")
    return task


def _require_template(task: Task, purpose: str, needed_by: str) -> None:
    """Raise DataError if a task lacks the template of a purpose.

    Args:
        task: Task that needs it.
        purpose: Name of the template.
        needed_by: Key of the definition that needs it.
    """
    path = task.find_template(f"{purpose}.jinja")
    if not path.is_file():
        raise DataError(
            f"{task.folder / TASK_FILE}: {needed_by}: needs the template {path}, which is missing; write it"
        )
