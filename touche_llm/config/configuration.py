"""The configuration of a run, composed of the settings of the packages below.

See `config.files` for files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
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
from touche_llm.settings.section import AnswerKey, NamedSection, Option, Scope, Section, Trust
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
            f"Steps, as judge,pairwise:10; each ranks the best N so far: {', '.join((JUDGE, *STEPS))}",
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
    # Only for tasks of the kind `pairs`.
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
        """Raise ValueError unless the settings fit the task and each other."""
        task = get_task(self.task)
        kind = get_kind(task)
        self._check_length(task, kind)
        self._check_weights(task)
        check_sides(self.steps, task.sides, "rank")
        self._check_kind_sections(task, kind)
        self._check_depth(kind)
        self._check_retriever(task)
        self._check_retriever_sections()
        self._check_stance(task)
        self._check_expansion()
        return self

    def _check_depth(self, kind: Kind) -> None:
        """Raise ValueError if more candidates are to be judged than the first stage retrieves."""
        if self.depth > self.first_stage_depth:
            raise ValueError(
                f"depth: more than the {self.first_stage_depth} {kind.candidate_noun} of {kind.pool_setting}"
            )

    def _check_expansion(self) -> None:
        """Raise ValueError if queries are to be expanded, and there is no search."""
        if self.expansion.use and self.candidates is not None:
            raise ValueError(
                "expansion: the candidates come from a run, so there is no search; leave one of them out"
            )

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
        """Raise ValueError if there are settings for another kind of task.

        A kind declares sections of its own, as `pairs` for tasks that rank pairs of sentences.
        """
        for other in KINDS.values():
            foreign = [name for name in other.sections if name not in kind.sections]
            # The message lists all sections of the other kind, since none of them can be used.
            is_any_given = any(getattr(self, name) is not None for name in foreign)
            if is_any_given:
                raise ValueError(
                    f"{', '.join(foreign)}: {task.name} is of the kind {kind.name}, not {other.name}; "
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

    def _check_retriever(self, task: Task) -> None:
        """Raise ValueError if the retriever cannot search the documents of the run."""
        name = self.retriever.name
        retriever = self.retriever.kind
        problem = retriever.find_problem(task)
        if problem is not None:
            raise ValueError(f"retriever.name: {problem}")

        has_local_documents = self.corpus is not None or self.index is not None
        if retriever.has_documents and has_local_documents:
            problem = f"{name} has its own documents; leave out corpus and index"
            if retriever.load_corpus is not None:
                problem += f" (`touche-llm index --retriever {name}` loads a corpus there)"
            raise ValueError(f"retriever.name: {problem}")

        only_method = retriever.bm25_method
        if only_method is not None and only_method != self.retriever.method:
            raise ValueError(
                f"retriever.method: {name} scores like {only_method}; use {only_method}"
            )

    def _check_retriever_sections(self) -> None:
        """Raise ValueError unless the chosen retriever has its section, and no other one has."""
        own_section = self.retriever.kind.section
        own_name = None if own_section is None else own_section.name
        for name in SECTIONS:
            is_set = getattr(self, name) is not None
            if is_set and name != own_name:
                raise ValueError(
                    f"{name}: settings of a retriever that is not the chosen one; see `retriever.name`"
                )
            if not is_set and name == own_name:
                raise ValueError(
                    f"{name}: missing; the retriever {self.retriever.name} needs this section; "
                    "an empty one has the defaults"
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


@dataclass(frozen=True, slots=True)
class _DeclaredSection:
    """A section that a first stage or a kind of task declares.

    Attributes:
        section: Name and type of the section.
        scope: What its settings decide.
        owner: What declares it, for messages.
    """

    section: NamedSection
    scope: Scope
    owner: str

    def require_type(self, types: Collection[Any]) -> None:
        """Raise ExtensionError unless its type is that of the setting that has its name already.

        Args:
            types: Types that the value of the setting may have.
        """
        if self.section.settings not in types:
            raise ExtensionError(
                f"{self.section.name}: section of {self.owner} with the name of another setting; name it otherwise"
            )


def _list_declared_sections() -> list[_DeclaredSection]:
    """Return the sections that first stages and kinds of task declare; several may share one."""
    sections: list[_DeclaredSection] = []
    for name, settings in SECTIONS.items():
        section = NamedSection(name=name, settings=settings)
        sections.append(_DeclaredSection(section, Scope.RETRIEVE, owner="a first stage"))

    for kind in KINDS.values():
        owner = f"the kind of task {kind.name}"
        if kind.search_section is not None:
            sections.append(_DeclaredSection(kind.search_section, Scope.RETRIEVE, owner))
        if kind.judging_section is not None:
            sections.append(_DeclaredSection(kind.judging_section, Scope.JUDGE, owner))
    return sections


def _make_config_type() -> type[BaseConfig]:
    """Return the type of a configuration, with the sections of first stages and kinds of task.

    Sections of the project's own are fields of `BaseConfig` already. Sections of other packages
    become new fields, of the type `Section or None`, with the default None.

    Raises:
        ExtensionError: A section has the name of another setting.
    """
    added: dict[str, type[Section]] = {}
    fields: dict[str, Any] = {}
    for declared in _list_declared_sections():
        name = declared.section.name
        settings = declared.section.settings
        own_field = BaseConfig.model_fields.get(name)
        if own_field is not None:
            # The type of the field is `Section | None`, whose arguments are these two.
            declared.require_type(get_args(own_field.annotation))
        elif name in added:
            # First stages and kinds of task may share a section.
            declared.require_type([added[name]])
        else:
            added[name] = settings
            fields[name] = (_annotate(settings, declared.scope), None)

    return create_model(
        "Config",
        __base__=BaseConfig,
        __doc__="The complete configuration of a run.",
        __module__=__name__,
        **fields,
    )


def _annotate(settings: type[Section], scope: Scope) -> Any:
    """Return the type of a field for a section that another package declares."""
    return Annotated[
        settings | None,
        scope,
        AnswerKey.STAYS_OUT,
        # A setting may hold an address or a path, unless it declares that it does not.
        Trust.ACTS,
    ]


if TYPE_CHECKING:
    Config = BaseConfig
else:
    Config = _make_config_type()


def find_settings(scope: Scope) -> tuple[str, ...]:
    """Return the dotted names of the settings with a scope, and of the sections that declare it.

    A setting that declares no scope has that of its section, or else `rank`. A section counts only
    if it declares the scope itself, since its settings may have others.
    """
    scopes = _inherit_declarations(Scope)
    sections = _list_section_names(scopes)

    names: list[str] = []
    for name, field in list_fields(Config):
        if name in sections:
            found_scope = _find_declaration(field, Scope)
        else:
            found_scope = scopes[name] or Scope.RANK
        if found_scope is scope:
            names.append(name)
    return tuple(names)


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
    declarations = _inherit_declarations(kind)
    for section in _list_section_names(declarations):
        # The top level is a section without a name.
        declarations.pop(section, None)
    return declarations


def _inherit_declarations(kind: type[DeclarationT]) -> dict[str, DeclarationT | None]:
    """Return the declaration of each setting and section: its own, or else that of its section.

    Args:
        kind: Type of the declarations.

    Returns:
        Declarations by dotted name, sections before their settings; None for nothing.
    """
    declarations: dict[str, DeclarationT | None] = {}
    for name, field in list_fields(Config):
        own = _find_declaration(field, kind)
        # A section is listed before its settings, so its declaration is known here.
        inherited = declarations.get(_get_section_name(name))
        declarations[name] = own or inherited
    return declarations


def _list_section_names(names: Iterable[str]) -> set[str]:
    """Return the names of all sections that settings are in, given their dotted names."""
    return {_get_section_name(name) for name in names}


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
    """Flatten nested values to dotted names: `{"engine": {"model": "m"}}` to `{"engine.model": "m"}`.

    Lists and empty sections are values; tuples become lists.
    """
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{name}."))
        elif isinstance(value, tuple):
            flat[name] = list(value)
        else:
            flat[name] = value
    return flat


def _list_prompt_purposes(scope: Scope) -> tuple[str, ...]:
    """Return the purposes of the prompts of a scope: `judge` for the setting `prompts.judge`."""
    purposes: list[str] = []
    for name in find_settings(scope):
        section, _, purpose = name.rpartition(".")
        # The folder of templates is a setting beside the prompts.
        if section == "prompts" and purpose != "folder":
            purposes.append(purpose)
    return tuple(purposes)


# Purposes of the prompts that a stage may use. Those of the ranking depend on its steps.
PURPOSES: Mapping[str, tuple[str, ...]] = {
    scope: _list_prompt_purposes(scope) for scope in (Scope.RETRIEVE, Scope.JUDGE)
}
