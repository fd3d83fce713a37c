"""The configuration of a run, composed of the settings of the packages below.

See `config.files` for files.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar, get_args

from pydantic import AfterValidator, BeforeValidator, Field, create_model, model_validator

from touche_llm.engines.settings import EngineConfig
from touche_llm.errors import ExtensionError, list_fields
from touche_llm.judging.stance_labels import StanceSettings
from touche_llm.llm.settings import CacheConfig, SamplingConfig
from touche_llm.pairs.settings import PairSettings
from touche_llm.prompts.fields import JudgePer
from touche_llm.prompts.prompt import PromptsConfig
from touche_llm.ranking.steps import (
    BALANCE,
    FUSION,
    JUDGE,
    METHODS,
    RankingSettings,
    Step,
    check_balance,
    parse_steps,
)
from touche_llm.retrieval.chatnoir import ChatNoirSettings
from touche_llm.retrieval.dense import DenseSettings
from touche_llm.retrieval.elasticsearch import ElasticsearchSettings
from touche_llm.retrieval.first_stages import SECTIONS, RetrieverConfig
from touche_llm.retrieval.sentences import SentenceSettings
from touche_llm.retrieval.settings import ExpansionSettings, to_texts
from touche_llm.settings.section import AnswerKey, Option, Scope, Section, Trust
from touche_llm.tasks import DEFAULT_TASK, TASK_HELP, get_task
from touche_llm.tasks.parts import FIRST_STAGE, Objective, Weight
from touche_llm.tasks.task import Task

DeclarationT = TypeVar("DeclarationT", AnswerKey, Trust)


def _require_one_word(tag: str) -> str:
    if tag.split() != [tag] or not tag.isprintable():
        raise ValueError("must be one word: a run line has six columns")
    return tag


class ActorConfig(Section):
    """The person who makes the run, for its metadata; omitted fields are not written."""

    team: str | None = None
    name: str | None = None
    orcid: str | None = None
    mail: str | None = None
    role: str | None = None
    github: str | None = None
    # Of the software, for `implementation.source.repository`.
    repository: str | None = None


class BaseConfig(Section):
    """The configuration of a run without the sections of first stages of other packages."""

    task: Annotated[
        str,
        Option("--task", TASK_HELP, "Input", metavar="NAME|FOLDER"),
        Scope.RETRIEVE,
        AnswerKey.ENTERS,
        Trust.ACTS,
    ] = DEFAULT_TASK
    # Of ir_datasets, whose topics and documents take the place of `topics` and `corpus`.
    dataset: Annotated[
        str | None,
        Option("--dataset", "Dataset of ir_datasets, instead of files", "Input", metavar="ID"),
        Scope.RETRIEVE,
        AnswerKey.STAYS_OUT,
        Trust.ACTS,
    ] = None
    topics: Annotated[
        Path,
        Option("--topics", "topics.xml, or queries.jsonl or queries.xml of TIRA", "Input"),
        Scope.RETRIEVE,
        AnswerKey.STAYS_OUT,
        Trust.ACTS,
    ]
    corpus: Annotated[
        Path | None,
        Option("--corpus", "Corpus as published: .jsonl, .csv (args.me), or .gz", "Input"),
        Scope.RETRIEVE,
        AnswerKey.STAYS_OUT,
        Trust.ACTS,
    ] = None
    # None only if the first stage is a search engine, which stores the documents.
    index: Annotated[
        Path | None,
        Option(
            "--index",
            "Folder of the index (default: one per corpus in .touche-llm/index)",
            "Input",
            metavar="FOLDER",
        ),
        Scope.RETRIEVE,
        AnswerKey.STAYS_OUT,
        Trust.ACTS,
    ] = None
    candidates: Annotated[
        Path | None,
        Option("--candidates", "TREC run of any tool to use as first stage", "Input"),
        Scope.RETRIEVE,
        AnswerKey.STAYS_OUT,
        Trust.ACTS,
    ] = None
    skip_bad_lines: Annotated[
        bool,
        Option(
            "--skip-bad-lines",
            "Skip bad lines of the corpus, count them and show the first",
            "Input",
        ),
        Scope.RETRIEVE,
        AnswerKey.STAYS_OUT,
        Trust.DATA,
    ] = False
    depth: Annotated[
        int,
        Option("--depth", "Candidates per topic", "Retrieval"),
        Scope.JUDGE,
        AnswerKey.STAYS_OUT,
        Trust.DATA,
    ] = Field(100, ge=1)
    limit_topics: Annotated[
        int | None,
        Option("--limit-topics", "Only the first N topics of the file", "Input"),
        Scope.RETRIEVE,
        AnswerKey.STAYS_OUT,
        Trust.DATA,
    ] = Field(None, ge=1)
    topic: Annotated[
        tuple[str, ...],
        BeforeValidator(to_texts),
        Option("--topic", "Only this topic; repeatable", "Input", metavar="ID"),
        Scope.RETRIEVE,
        AnswerKey.STAYS_OUT,
        Trust.DATA,
    ] = ()
    retriever: Annotated[RetrieverConfig, Scope.RETRIEVE, AnswerKey.STAYS_OUT, Trust.DATA] = (
        RetrieverConfig()
    )
    engine: Annotated[EngineConfig, Trust.ACTS] = EngineConfig()
    sampling: Annotated[SamplingConfig, Scope.JUDGE, AnswerKey.ENTERS, Trust.DATA] = (
        SamplingConfig()
    )
    prompts: Annotated[PromptsConfig, AnswerKey.ENTERS, Trust.ACTS] = PromptsConfig()
    judge_per: Annotated[
        JudgePer,
        Option(
            "--judge-per",
            "One judge request per document, or per field of the answer (each aspect, the stance): as many times the "
            "requests",
            "Judging",
            metavar="NAME",
        ),
        Scope.JUDGE,
        AnswerKey.ENTERS,
        Trust.DATA,
    ] = "document"
    objective: Annotated[
        Objective,
        Option(
            "--objective",
            "Rank for relevance, quality or both: the default weights, and the criterion of comparisons",
            "Ranking",
            metavar="NAME",
        ),
        AnswerKey.ENTERS,
        Trust.DATA,
    ] = "both"
    # By default those of the task for the objective.
    weights: Annotated[
        dict[str, Weight],
        Option("--weight-relevance", "Weight of relevance", "Ranking", key="relevance"),
        Option("--weight-quality", "Weight of quality", "Ranking", key="quality"),
        Option("--weight-coherence", "Weight of a pair's coherence", "Ranking", key="coherence"),
        Option(
            "--weight-first-stage", "Weight of the first stage's score", "Ranking", key=FIRST_STAGE
        ),
        AnswerKey.STAYS_OUT,
        Trust.DATA,
    ]
    rank: Annotated[
        tuple[str, ...],
        # On the command line, steps are one word.
        BeforeValidator(lambda value: tuple(value.split(",")) if isinstance(value, str) else value),
        AfterValidator(lambda texts: tuple(map(str, parse_steps(texts)))),
        Option(
            "--rank",
            f"Steps, as judge,pairwise:10; each ranks the best N so far: {', '.join((JUDGE, *METHODS))}, "
            f"{FUSION}, {BALANCE}",
            "Ranking",
            metavar="STEPS",
            is_text=True,
        ),
        AnswerKey.STAYS_OUT,
        Trust.DATA,
    ] = (JUDGE,)
    ranking: Annotated[RankingSettings, Scope.RANK, Trust.DATA] = RankingSettings()
    # Only for tasks in which a document may take no side.
    # The other order of the objects is another request, beside that of the order in the topic.
    stance: Annotated[StanceSettings | None, AnswerKey.STAYS_OUT, Trust.DATA] = None
    expansion: Annotated[ExpansionSettings, Scope.RETRIEVE, AnswerKey.STAYS_OUT, Trust.DATA] = (
        ExpansionSettings()
    )
    # Only for tasks that rank pairs of sentences.
    sentences: Annotated[
        SentenceSettings | None, Scope.RETRIEVE, AnswerKey.STAYS_OUT, Trust.DATA
    ] = None
    pairs: Annotated[PairSettings | None, Scope.JUDGE, AnswerKey.STAYS_OUT, Trust.DATA] = None
    # Only with ChatNoir as first stage.
    chatnoir: Annotated[
        ChatNoirSettings | None, Scope.RETRIEVE, AnswerKey.STAYS_OUT, Trust.ACTS
    ] = None
    # Only with Elasticsearch as first stage.
    elasticsearch: Annotated[ElasticsearchSettings | None, AnswerKey.STAYS_OUT, Trust.ACTS] = None
    # Only with vectors as first stage.
    dense: Annotated[DenseSettings | None, Scope.RETRIEVE, Trust.ACTS] = None
    cache: Annotated[CacheConfig, Scope.DELIVERY, AnswerKey.STAYS_OUT, Trust.ACTS] = CacheConfig()
    tag: Annotated[
        str,
        AfterValidator(_require_one_word),
        Option("--tag", "Last column of the run, one word", "Output"),
        AnswerKey.STAYS_OUT,
        Trust.DATA,
    ] = "touche-llm"
    actor: Annotated[ActorConfig, Scope.DELIVERY, AnswerKey.STAYS_OUT, Trust.DATA] = ActorConfig()

    @model_validator(mode="after")
    def _check_task(self) -> Self:
        task = get_task(self.task)
        if self.sentences is None and self.depth > task.documents_per_topic.max:
            raise ValueError(
                f"depth: {task.name} takes at most {task.documents_per_topic.max} documents per topic"
            )
        for name in self.weights:
            if name not in task.weight_names:
                raise ValueError(
                    f"weights.{name}: no such name; {task.name} has {', '.join(task.weight_names)}"
                )
        if not sum(self.weights.values()):
            raise ValueError(
                f"weights: {', '.join(self.weights)} are all 0; give at least one above 0"
            )
        check_balance(self.steps, task.sides, "rank")
        if task.sentence_question is None and (self.sentences or self.pairs):
            raise ValueError(f"sentences, pairs: {task.name} does not rank pairs of sentences")
        if self.sentences and self.depth > self.sentences.pool:
            raise ValueError(
                f"depth: more than the {self.sentences.pool} sentences of sentences.pool"
            )
        if self.pairs and self.pairs.most > task.documents_per_topic.max:
            raise ValueError(
                f"pairs.most: {task.name} takes at most {task.documents_per_topic.max} pairs per topic"
            )
        self._check_first_stage(task)
        self._check_stance(task)
        if self.expansion.use and self.candidates is not None:
            raise ValueError(
                "expansion: the candidates come from a run, so there is no search; leave one of them out"
            )
        return self

    def _check_first_stage(self, task: Task) -> None:
        """Raise ValueError if the retriever cannot search the documents, or has the settings of another one."""
        name = self.retriever.name
        chosen = self.retriever.kind
        problem = chosen.find_problem(task)
        if problem:
            raise ValueError(f"retriever.name: {problem}")
        if chosen.has_documents and (self.corpus or self.index):
            problem = f"{name} has its own documents; leave out corpus and index"
            if chosen.load_corpus is not None:
                problem += f" (`touche-llm index --retriever {name}` loads a corpus there)"
            raise ValueError(f"retriever.name: {problem}")
        if chosen.bm25_method not in ("", self.retriever.method):
            raise ValueError(
                f"retriever.method: {name} scores like {chosen.bm25_method}; use {chosen.bm25_method}"
            )
        for section in SECTIONS:
            has_section = getattr(self, section) is not None
            if has_section is not (section == chosen.section):
                raise ValueError(
                    f"{section}: settings of a retriever that is not the chosen one; see `retriever.name`"
                )

    def _check_stance(self, task: Task) -> None:
        """Raise ValueError if the task has no stances to choose, no prompt for them, or no label of a threshold."""
        if self.stance is None:
            return
        if not task.no_stances:
            why = (
                f"every document of {task.name} takes a side"
                if task.stances
                else f"{task.name} has no stances"
            )
            raise ValueError(f"stance: {why}; leave the section out")
        if self.stance.depth and task.stance_question is None:
            raise ValueError(f"stance.depth: {task.name} has no stance prompt; leave it out")
        for label in self.stance.thresholds:
            if label not in task.no_stances:
                known = ", ".join(task.no_stances)
                raise ValueError(
                    f"stance.thresholds.{label}: no such label; {task.name} has {known}"
                )

    @property
    def retriever_settings(self) -> Any:
        """The section of the chosen first stage; None if it has none."""
        section = self.retriever.kind.section
        return getattr(self, section) if section else None

    @property
    def has_chosen_topics(self) -> bool:
        """Whether the run covers only some topics of the file."""
        return self.limit_topics is not None or bool(self.topic)

    @property
    def first_stage_depth(self) -> int:
        """Number of documents, or of sentences if pairs are made of them, that the first stage finds per topic."""
        return self.depth if self.sentences is None else self.sentences.pool

    @property
    def fitted_on(self) -> tuple[str, ...]:
        """Topics that the stance thresholds were fitted on; none if there are no thresholds."""
        return (
            self.stance.calibrated_on if self.stance is not None and self.stance.thresholds else ()
        )

    @property
    def criterion(self) -> str:
        """Objective of the ranking, with the weights of grades and of the first stage in its scores."""
        weights = ", ".join(
            f"{name.replace('_', ' ')} {weight:g}"
            for name, weight in self.weights.items()
            if weight
        )
        return f"{self.objective} (weights: {weights})"

    @property
    def steps(self) -> tuple[Step, ...]:
        """Steps of the ranking."""
        return parse_steps(self.rank)


def _make_config_type() -> type[BaseConfig]:
    """Return the type of a configuration, with a section for each first stage that has settings.

    Raises:
        ExtensionError: A section has the name of another setting.
    """
    fields: dict[str, Any] = {}
    for section, settings in SECTIONS.items():
        known = BaseConfig.model_fields.get(section)
        if known is None:
            # It may hold an address or a path.
            kind = Annotated[settings | None, Scope.RETRIEVE, AnswerKey.STAYS_OUT, Trust.ACTS]  # type: ignore[valid-type]
            fields[section] = (kind, None)
        elif settings not in get_args(known.annotation):
            raise ExtensionError(
                f"{section}: section of a first stage with the name of another setting; name it otherwise"
            )
    return create_model(
        "Config",
        __base__=BaseConfig,
        __doc__="The complete configuration of a run.",
        __module__=__name__,
        **fields,
    )


if TYPE_CHECKING:
    Config = BaseConfig
else:
    Config = _make_config_type()


def find_settings(scope: Scope) -> tuple[str, ...]:
    """Return the dotted names of the settings of a scope, and of the sections that have it themselves."""
    scopes: dict[str, Scope] = {}
    own: set[str] = set()
    for name, field in list_fields(Config):
        given = next((item for item in field.metadata if isinstance(item, Scope)), None)
        scopes[name] = given or scopes.get(name.rpartition(".")[0], Scope.RANK)
        own |= {name} if given else set()
    sections = {name.rpartition(".")[0] for name in scopes}
    return tuple(
        name for name in scopes if scopes[name] is scope and (name in own or name not in sections)
    )


def list_key_declarations() -> dict[str, AnswerKey | None]:
    """Return what each setting declares about answer keys, see `_list_declarations`."""
    return _list_declarations(AnswerKey)


def list_trust_declarations() -> dict[str, Trust | None]:
    """Return what each setting declares about other people's folders, see `_list_declarations`."""
    return _list_declarations(Trust)


def _list_declarations(kind: type[DeclarationT]) -> dict[str, DeclarationT | None]:
    """Return the declaration of each setting, by dotted name; None for nothing.

    Sections have no entry: what they declare is that of their settings without an own declaration.

    Args:
        kind: Type of the declarations.
    """
    declarations: dict[str, DeclarationT | None] = {}
    for name, field in list_fields(Config):
        own = next((item for item in field.metadata if isinstance(item, kind)), None)
        section = name.rpartition(".")[0]
        declarations[name] = own or declarations.get(section)

    sections = {name.rpartition(".")[0] for name in declarations}
    return {name: found for name, found in declarations.items() if name not in sections}


def is_one_of(name: str, places: Collection[str]) -> bool:
    """Return whether a setting or one of its sections is among these names."""
    return any(section in places for section in accumulate(name.split("."), "{}.{}".format))


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested values to dotted names; lists and empty sections are values."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            found |= flatten(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = list(value) if isinstance(value, tuple) else value
    return found


# Purposes of the prompts that a stage may use. Those of the ranking depend on its steps.
PURPOSES: Mapping[str, tuple[str, ...]] = {
    scope: tuple(
        purpose
        for name in find_settings(scope)
        if (purpose := name.removeprefix("prompts.")) != name and purpose != "folder"
    )
    for scope in (Scope.RETRIEVE, Scope.JUDGE)
}
