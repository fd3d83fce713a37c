"""The configuration of a run, composed of the settings of the packages below.

See `config.files` for files.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar, get_args

from pydantic import AfterValidator, BeforeValidator, Field, create_model, model_validator
from pydantic.fields import FieldInfo

from touche_llm.engines.settings import EngineConfig
from touche_llm.errors import ExtensionError, list_fields
from touche_llm.judging.stance_labels import StanceSettings
from touche_llm.kinds.known import KINDS, get_kind
from touche_llm.kinds.pairs.settings import PairSettings
from touche_llm.kinds.registry import Kind
from touche_llm.llm.settings import CacheConfig, SamplingConfig
from touche_llm.prompts.fields import JudgePer
from touche_llm.prompts.prompt import PromptsConfig
from touche_llm.ranking.steps import (
    JUDGE,
    STEPS,
    RankingSettings,
    Step,
    check_sides,
    parse_steps,
)
from touche_llm.retrieval.chatnoir import ChatNoirSettings
from touche_llm.retrieval.dense import DenseSettings
from touche_llm.retrieval.elasticsearch import ElasticsearchSettings
from touche_llm.retrieval.first_stages import SECTIONS, RetrieverConfig
from touche_llm.retrieval.sentences import SentenceSettings
from touche_llm.retrieval.settings import ExpansionSettings, to_texts
from touche_llm.settings.section import AnswerKey, NamedSection, Option, Scope, Section
from touche_llm.tasks import DEFAULT_TASK, TASK_HELP, get_task
from touche_llm.tasks.parts import FIRST_STAGE, Objective, Weight
from touche_llm.tasks.task import Task

DeclarationT = TypeVar("DeclarationT")


def _require_one_word(tag: str) -> str:
    """Return a tag; raise ValueError unless it is one printable word."""
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
    """The configuration of a run without the sections that other packages declare."""

    task: Annotated[
        str,
        Option("--task", TASK_HELP, "Input", metavar="NAME|FOLDER"),
        Scope.RETRIEVE,
        AnswerKey.ENTERS,
    ] = DEFAULT_TASK
    # Of ir_datasets, whose topics and documents take the place of `topics` and `corpus`.
    dataset: Annotated[
        str | None,
        Option("--dataset", "Dataset of ir_datasets, instead of files", "Input", metavar="ID"),
        Scope.RETRIEVE,
        AnswerKey.STAYS_OUT,
    ] = None
    topics: Annotated[
        Path,
        Option("--topics", "topics.xml, or queries.jsonl or queries.xml of TIRA", "Input"),
        Scope.RETRIEVE,
        AnswerKey.STAYS_OUT,
    ]
    corpus: Annotated[
        Path | None,
        Option("--corpus", "Corpus as published: .jsonl, .csv (args.me), or .gz", "Input"),
        Scope.RETRIEVE,
        AnswerKey.STAYS_OUT,
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
    ] = None
    candidates: Annotated[
        Path | None,
        Option("--candidates", "TREC run of any tool to use as first stage", "Input"),
        Scope.RETRIEVE,
        AnswerKey.STAYS_OUT,
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
    ] = False
    depth: Annotated[
        int,
        Option("--depth", "Candidates per topic", "Retrieval"),
        Scope.JUDGE,
        AnswerKey.STAYS_OUT,
    ] = Field(100, ge=1)
    limit_topics: Annotated[
        int | None,
        Option("--limit-topics", "Only the first N topics of the file", "Input"),
        Scope.RETRIEVE,
        AnswerKey.STAYS_OUT,
    ] = Field(None, ge=1)
    topic: Annotated[
        tuple[str, ...],
        BeforeValidator(to_texts),
        Option("--topic", "Only this topic; repeatable", "Input", metavar="ID"),
        Scope.RETRIEVE,
        AnswerKey.STAYS_OUT,
    ] = ()
    retriever: Annotated[RetrieverConfig, Scope.RETRIEVE, AnswerKey.STAYS_OUT] = RetrieverConfig()
    engine: EngineConfig = EngineConfig()
    sampling: Annotated[SamplingConfig, Scope.JUDGE, AnswerKey.ENTERS] = SamplingConfig()
    prompts: Annotated[PromptsConfig, AnswerKey.ENTERS] = PromptsConfig()
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
    ]
    rank: Annotated[
        tuple[str, ...],
        # On the command line, steps are one word.
        BeforeValidator(lambda value: tuple(value.split(",")) if isinstance(value, str) else value),
        AfterValidator(lambda texts: tuple(map(str, parse_steps(texts)))),
        Option(
            "--rank",
            f"Steps, as judge,pairwise:10; each ranks the best N so far: {', '.join((JUDGE, *STEPS))}",
            "Ranking",
            metavar="STEPS",
            is_text=True,
        ),
        AnswerKey.STAYS_OUT,
    ] = (JUDGE,)
    ranking: Annotated[RankingSettings, Scope.RANK] = RankingSettings()
    # Only for tasks in which a document may take no side.
    # The other order of the objects is another request, beside that of the order in the topic.
    stance: Annotated[StanceSettings | None, AnswerKey.STAYS_OUT] = None
    expansion: Annotated[ExpansionSettings, Scope.RETRIEVE, AnswerKey.STAYS_OUT] = (
        ExpansionSettings()
    )
    # Only for tasks of the kind `pairs`.
    sentences: Annotated[SentenceSettings | None, Scope.RETRIEVE, AnswerKey.STAYS_OUT] = None
    pairs: Annotated[PairSettings | None, Scope.JUDGE, AnswerKey.STAYS_OUT] = None
    # Only with ChatNoir as first stage.
    chatnoir: Annotated[ChatNoirSettings | None, Scope.RETRIEVE, AnswerKey.STAYS_OUT] = None
    # Only with Elasticsearch as first stage.
    elasticsearch: Annotated[ElasticsearchSettings | None, AnswerKey.STAYS_OUT] = None
    # Only with vectors as first stage.
    dense: Annotated[DenseSettings | None, Scope.RETRIEVE] = None
    cache: Annotated[CacheConfig, Scope.DELIVERY, AnswerKey.STAYS_OUT] = CacheConfig()
    tag: Annotated[
        str,
        AfterValidator(_require_one_word),
        Option("--tag", "Last column of the run, one word", "Output"),
        AnswerKey.STAYS_OUT,
    ] = "touche-llm"
    actor: Annotated[ActorConfig, Scope.DELIVERY, AnswerKey.STAYS_OUT] = ActorConfig()

    @model_validator(mode="after")
    def _check_task(self) -> Self:
        """Raise ValueError unless the settings fit the task and each other."""
        task = get_task(self.task)
        kind = get_kind(task)
        self._check_length(task, kind)
        self._check_weights(task)
        check_sides(self.steps, task.sides, "rank")
        self._check_kind_sections(task, kind)
        if self.depth > self.first_stage_depth:
            raise ValueError(
                f"depth: more than the {self.first_stage_depth} {kind.candidate_noun} of {kind.pool_setting}"
            )
        self._check_first_stage(task)
        self._check_stance(task)
        if self.expansion.use and self.candidates is not None:
            raise ValueError(
                "expansion: the candidates come from a run, so there is no search; leave one of them out"
            )
        return self

    def _check_length(self, task: Task, kind: Kind) -> None:
        """Raise ValueError if rankings may be longer than the task allows."""
        length = self._get_number(kind.length_setting)
        longest = task.documents_per_topic.max
        if length is not None and length > longest:
            raise ValueError(
                f"{kind.length_setting}: {task.name} takes at most {longest} {kind.noun} per topic"
            )

    def _check_weights(self, task: Task) -> None:
        """Raise ValueError if the task lacks the name of a weight, or all are 0."""
        for name in self.weights:
            if name not in task.weight_names:
                raise ValueError(
                    f"weights.{name}: no such name; {task.name} has {', '.join(task.weight_names)}"
                )
        if sum(self.weights.values()) == 0:
            raise ValueError(
                f"weights: {', '.join(self.weights)} are all 0; give at least one above 0"
            )

    def _check_kind_sections(self, task: Task, kind: Kind) -> None:
        """Raise ValueError if a section of another kind of task has settings."""
        for other in KINDS.values():
            sections = [name for name in other.sections if name not in kind.sections]
            if any(getattr(self, name) is not None for name in sections):
                raise ValueError(
                    f"{', '.join(sections)}: {task.name} is of the kind {kind.name}, not {other.name}; "
                    "leave the section out"
                )

    def _get_number(self, setting: str) -> int | None:
        """Return the value of a setting by its dotted name; None if its section is missing."""
        section, _, name = setting.rpartition(".")
        settings = getattr(self, section) if section else self
        if settings is None:
            return None
        number: int = getattr(settings, name)
        return number

    def _check_first_stage(self, task: Task) -> None:
        """Raise ValueError if the retriever cannot search the documents, or has the settings of another one."""
        name = self.retriever.name
        chosen = self.retriever.kind
        problem = chosen.find_problem(task)
        if problem is not None:
            raise ValueError(f"retriever.name: {problem}")
        if chosen.has_documents and (self.corpus or self.index):
            problem = f"{name} has its own documents; leave out corpus and index"
            if chosen.load_corpus is not None:
                problem += f" (`touche-llm index --retriever {name}` loads a corpus there)"
            raise ValueError(f"retriever.name: {problem}")
        if chosen.bm25_method not in (None, self.retriever.method):
            raise ValueError(
                f"retriever.method: {name} scores like {chosen.bm25_method}; use {chosen.bm25_method}"
            )
        needed = None if chosen.section is None else chosen.section.name
        for section in SECTIONS:
            has_section = getattr(self, section) is not None
            if has_section != (section == needed):
                raise ValueError(
                    f"{section}: settings of a retriever that is not the chosen one; see `retriever.name`"
                )

    def _check_stance(self, task: Task) -> None:
        """Raise ValueError if the task has no stances to choose, no prompt for them, or no label of a threshold."""
        if self.stance is None:
            return
        if not task.stances:
            raise ValueError(f"stance: {task.name} has no stances; leave the section out")
        if not task.no_stances:
            raise ValueError(
                f"stance: every document of {task.name} takes a side; leave the section out"
            )
        if self.stance.depth and "stance" not in task.questions:
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
        return self._get_section(self.retriever.kind.section)

    @property
    def has_chosen_topics(self) -> bool:
        """Whether the run covers only some topics of the file."""
        return self.limit_topics is not None or bool(self.topic)

    @property
    def first_stage_depth(self) -> int:
        """Number of candidates per topic that the first stage finds."""
        pool = self._get_number(get_kind(get_task(self.task)).pool_setting)
        return self.depth if pool is None else pool

    @property
    def search_settings(self) -> Section | None:
        """The section that the kind of the task declares for its search; None if it declares none."""
        return self._get_section(get_kind(get_task(self.task)).search_section)

    @property
    def judging_settings(self) -> Section | None:
        """The section that the kind of the task declares for its judging; None if it declares none."""
        return self._get_section(get_kind(get_task(self.task)).judging_section)

    def _get_section(self, section: NamedSection | None) -> Section | None:
        """Return a section that a first stage or a kind of task declares; None if it declares none."""
        if section is None:
            return None
        settings: Section | None = getattr(self, section.name)
        return settings

    @property
    def fitted_on(self) -> tuple[str, ...]:
        """Topics that the stance thresholds were fitted on; none if there are no thresholds."""
        if self.stance is None or not self.stance.thresholds:
            return ()
        return self.stance.calibrated_on

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _DeclaredSection:
    """A section that a first stage or a kind of task declares.

    Attributes:
        name: Name of the section.
        settings: Type of the section.
        scope: What its settings decide.
        owner: What declares it, for messages.
    """

    name: str
    settings: type[Section]
    scope: Scope
    owner: str


def _list_declared_sections() -> list[_DeclaredSection]:
    """Return the sections that first stages and kinds of task declare; several may share one."""
    sections: list[_DeclaredSection] = []
    for name, settings in SECTIONS.items():
        sections.append(
            _DeclaredSection(
                name=name,
                settings=settings,
                scope=Scope.RETRIEVE,
                owner="a first stage",
            )
        )
    for kind in KINDS.values():
        of_search = (kind.search_section, Scope.RETRIEVE)
        of_judging = (kind.judging_section, Scope.JUDGE)
        for section, scope in (of_search, of_judging):
            if section is not None:
                sections.append(
                    _DeclaredSection(
                        name=section.name,
                        settings=section.settings,
                        scope=scope,
                        owner=f"the kind of task {kind.name}",
                    )
                )
    return sections


def _make_config_type() -> type[BaseConfig]:
    """Return the type of a configuration, with the sections of first stages and kinds of task.

    Raises:
        ExtensionError: A section has the name of another setting.
    """
    fields: dict[str, Any] = {}
    declared: dict[str, type[Section]] = {}
    for section in _list_declared_sections():
        own_field = BaseConfig.model_fields.get(section.name)
        if own_field is not None:
            is_same = section.settings in get_args(own_field.annotation)
        else:
            is_same = declared.setdefault(section.name, section.settings) is section.settings
            annotation = Annotated[section.settings | None, section.scope, AnswerKey.STAYS_OUT]  # type: ignore[name-defined]
            fields[section.name] = (annotation, None)
        if not is_same:
            raise ExtensionError(
                f"{section.name}: section of {section.owner} with the name of another setting; name it otherwise"
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
    declared: set[str] = set()
    for name, field in list_fields(Config):
        own_scope = _find_declaration(field, Scope)
        if own_scope is not None:
            declared.add(name)
        # A setting without a scope has that of its section.
        section_scope = scopes.get(_get_section_name(name), Scope.RANK)
        scopes[name] = own_scope or section_scope

    sections = {_get_section_name(name) for name in scopes}
    found: list[str] = []
    for name, scope_of_name in scopes.items():
        is_listed = name in declared or name not in sections
        if scope_of_name is scope and is_listed:
            found.append(name)
    return tuple(found)


def list_key_declarations() -> dict[str, AnswerKey | None]:
    """Return what each setting declares about answer keys, by dotted name; None for nothing.

    Sections have no entry: what they declare is that of their settings without an own declaration.
    """
    declarations: dict[str, AnswerKey | None] = {}
    for name, field in list_fields(Config):
        of_section = declarations.get(_get_section_name(name))
        declarations[name] = _find_declaration(field, AnswerKey) or of_section

    sections = {_get_section_name(name) for name in declarations}
    return {name: found for name, found in declarations.items() if name not in sections}


def _find_declaration(field: FieldInfo, kind: type[DeclarationT]) -> DeclarationT | None:
    """Return what a field declares with `Annotated` by an object of this type; None for nothing."""
    for item in field.metadata:
        if isinstance(item, kind):
            return item
    return None


def _get_section_name(name: str) -> str:
    """Return the dotted name of the section of a setting; empty for one of the top level."""
    return name.rpartition(".")[0]


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


def _list_prompt_purposes(scope: Scope) -> tuple[str, ...]:
    """Return the purposes of the prompts of a scope."""
    purposes: list[str] = []
    for name in find_settings(scope):
        section, _, purpose = name.rpartition(".")
        if section == "prompts" and purpose != "folder":
            purposes.append(purpose)
    return tuple(purposes)


# Purposes of the prompts that a stage may use. Those of the ranking depend on its steps.
PURPOSES: Mapping[str, tuple[str, ...]] = {
    scope: _list_prompt_purposes(scope) for scope in (Scope.RETRIEVE, Scope.JUDGE)
}
