"""The configuration of a run: one YAML file, overridden by flags, with every default written out again."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    ValidationError,
    field_serializer,
    model_validator,
)
from pydantic_core import ErrorDetails

from touche_llm.data.files import open_atomic
from touche_llm.data.setting_problems import describe_problem
from touche_llm.data.yaml_text import YamlError, read_yaml, to_yaml
from touche_llm.errors import UsageError
from touche_llm.judging.sentence_pairs import PairSettings
from touche_llm.judging.stance import StanceSettings
from touche_llm.llm.cache import CacheMode
from touche_llm.llm.settings import DEFAULT_CONCURRENCY, EngineConfig, SamplingConfig, Section
from touche_llm.ranking.expansion import ExpansionSettings
from touche_llm.ranking.steps import JUDGE, RankingSettings, Step, check_fusion, parse_steps
from touche_llm.retrieval.bm25 import Bm25Settings
from touche_llm.retrieval.chatnoir.cache import ChatNoirSettings
from touche_llm.retrieval.elasticsearch.settings import ElasticsearchSettings
from touche_llm.retrieval.sentences import SentenceSettings
from touche_llm.tasks import DEFAULT_TASK, get_task
from touche_llm.tasks.base import Objective, Task

_INDEX_ROOT = Path(".touche-llm/index")
# Old names of settings, and their current ones.
RENAMED_SETTINGS: Mapping[str, str] = {"aim": "objective"}
# Old values of settings by dotted name, and the current values of their section.
_RENAMED_VALUES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "engine.name": {
        "started": {"name": "managed"},
        "offline": {"name": "managed"},
        "ray": {"name": "batch", "runner": "ray"},
    },
    "engine.concurrency": {"auto": {"concurrency": DEFAULT_CONCURRENCY}},
}


QueryField = Literal["title", "description", "narrative", "objects"]


def _require_one_word(tag: str) -> str:
    if tag.split() != [tag] or not tag.isprintable():
        raise ValueError("must be one word: a run line has six columns")
    return tag


def _texts(value: Any) -> Any:
    """Return a tuple of texts for a list or a single value; YAML reads the topic id `2` as a number."""
    values = value if isinstance(value, list | tuple) else [value]
    return tuple(str(item) if isinstance(item, int) and not isinstance(item, bool) else item for item in values)


def _steps(value: Any) -> Any:
    """Split steps that are written as one word, as on the command line."""
    return tuple(value.split(",")) if isinstance(value, str) else value


def _known_steps(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(str, parse_steps(texts)))


def _not_empty(fields: tuple[QueryField, ...]) -> tuple[QueryField, ...]:
    if not fields:
        raise ValueError("must name at least one field of the topic")
    return fields


class RetrieverConfig(Bm25Settings):
    """Settings of the first stage; `method`, `k1` and `b` belong to the index."""

    name: Literal["bm25", "okapi", "chatnoir", "elasticsearch"] = "bm25"
    query: Annotated[tuple[QueryField, ...], BeforeValidator(_texts), AfterValidator(_not_empty)] = ("title",)

    @property
    def bm25(self) -> Bm25Settings:
        """Settings of the index alone."""
        return Bm25Settings(method=self.method, k1=self.k1, b=self.b)


class PromptsConfig(Section):
    """Names of the task's prompts, or paths of `.jinja` files.

    Attributes:
        folder: Folder of templates that replace the project's own, as `folder/task/name.jinja`.
    """

    folder: Path | None = None
    judge: str = "judge"
    objects: str = "objects"
    sentence: str = "sentence"
    stance: str = "stance"
    best: str = "best"
    order: str = "order"
    queries: str = "queries"

    @field_serializer("folder")
    def _as_text(self, path: Path | None) -> str | None:
        return None if path is None else str(path)


def _mode(value: Any) -> Any:
    """Restore the mode `off`, which YAML reads as false."""
    return CacheMode.OFF if value is False else value


class CacheConfig(Section):
    """The answer cache."""

    file: Path = Path(".touche-llm/answers.sqlite")
    mode: Annotated[CacheMode, BeforeValidator(_mode)] = CacheMode.REUSE
    # Not written to the run's folder, since it applies to this command alone and not to later stages.
    retry_failures: bool = Field(False, exclude=True)


class ActorConfig(Section):
    """The person who makes the run, for its metadata; omitted fields are not written."""

    team: str | None = None
    name: str | None = None
    orcid: str | None = None
    mail: str | None = None
    role: str | None = None
    github: str | None = None


class Config(Section):
    """The complete configuration of a run."""

    task: str
    topics: Path
    corpus: Path | None = None
    # None only if the first stage is a search engine, which stores the documents.
    index: Path | None = None
    candidates: Path | None = None
    skip_bad_lines: bool = False
    depth: int = Field(100, ge=1)
    limit_topics: int | None = Field(None, ge=1)
    topic: Annotated[tuple[str, ...], BeforeValidator(_texts)] = ()
    retriever: RetrieverConfig = RetrieverConfig()
    engine: EngineConfig = EngineConfig()
    sampling: SamplingConfig = SamplingConfig()
    prompts: PromptsConfig = PromptsConfig()
    # Criterion of the comparisons and of the default weights.
    objective: Objective = "both"
    # Weights of the grades and of the first-stage score; by default those of the task for the objective.
    weights: dict[str, Annotated[float, Field(ge=0.0, allow_inf_nan=False)]]
    rank: Annotated[tuple[str, ...], BeforeValidator(_steps), AfterValidator(_known_steps)] = (JUDGE,)
    ranking: RankingSettings = RankingSettings()
    # Only for tasks in which a document may take no side.
    stance: StanceSettings | None = None
    expansion: ExpansionSettings = ExpansionSettings()
    # Only for tasks that rank pairs of sentences.
    sentences: SentenceSettings | None = None
    pairs: PairSettings | None = None
    # Only with ChatNoir as first stage.
    chatnoir: ChatNoirSettings | None = None
    # Only with Elasticsearch as first stage.
    elasticsearch: ElasticsearchSettings | None = None
    cache: CacheConfig = CacheConfig()
    tag: Annotated[str, AfterValidator(_require_one_word)] = "touche-llm"
    actor: ActorConfig = ActorConfig()

    @model_validator(mode="before")
    @classmethod
    def _translate(cls, values: Any) -> Any:
        """Translate configurations of earlier versions, in files, run folders and batch exports."""
        if isinstance(values, dict):
            values = rename_settings(values)
        for place, renamed in _RENAMED_VALUES.items():
            section, name = place.split(".")
            given = values.get(section) if isinstance(values, dict) else None
            if isinstance(given, dict) and isinstance(old := given.get(name), str) and old in renamed:
                values = values | {section: {**given, **renamed[old]}}
        return values

    @model_validator(mode="after")
    def _check_task(self) -> Config:
        task = get_task(self.task)
        if self.sentences is None and self.depth > task.max_per_topic:
            raise ValueError(f"depth: {self.task} takes at most {task.max_per_topic} documents per topic")
        for name in self.weights:
            if name not in task.weight_names:
                raise ValueError(f"weights.{name}: no such name; {self.task} has {', '.join(task.weight_names)}")
        if not sum(self.weights.values()):
            raise ValueError(f"weights: {', '.join(self.weights)} are all 0; give at least one above 0")
        check_fusion(self.steps, self.ranking.fusion)
        if task.sentence_question is None and (self.sentences or self.pairs):
            raise ValueError(f"sentences, pairs: {self.task} does not rank pairs of sentences")
        if self.sentences and self.depth > self.sentences.pool:
            raise ValueError(f"depth: more than the {self.sentences.pool} sentences of sentences.pool")
        if self.pairs and self.pairs.most > task.max_per_topic:
            raise ValueError(f"pairs.most: {self.task} takes at most {task.max_per_topic} pairs per topic")
        if self.retriever.name == "chatnoir" and (self.corpus or self.index or task.sentence_question):
            raise ValueError(
                "retriever.name: chatnoir searches web documents; use it for a task over these, without a corpus"
            )
        if (self.chatnoir is not None) is not (self.retriever.name == "chatnoir"):
            raise ValueError("chatnoir: settings of a retriever that is not the chosen one; see --retriever")
        if self.retriever.name == "elasticsearch":
            if task.sentence_question is not None:
                raise ValueError(f"retriever.name: {self.task} ranks pairs of sentences; use bm25")
            if self.corpus or self.index:
                raise ValueError(
                    "retriever.name: elasticsearch stores the documents; load them with `touche-llm index --retriever "
                    "elasticsearch`, and leave out corpus and index here"
                )
            if self.retriever.method != "lucene":
                raise ValueError("retriever.method: Elasticsearch scores like Lucene; use lucene")
        if (self.elasticsearch is not None) is not (self.retriever.name == "elasticsearch"):
            raise ValueError("elasticsearch: settings of a retriever that is not the chosen one; see --retriever")
        if self.stance is not None and task.stance_question is None:
            raise ValueError(f"stance: every document of {self.task} takes a side")
        if self.stance is not None:
            for label in self.stance.thresholds:
                if label not in task.no_stances:
                    known = ", ".join(task.no_stances)
                    raise ValueError(f"stance.thresholds.{label}: no such label; {self.task} has {known}")
        if self.expansion.use and self.candidates is not None:
            raise ValueError("expansion: the candidates come from a run, so there is no search; leave one of them out")
        return self

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
        return self.stance.calibrated_on if self.stance is not None and self.stance.thresholds else ()

    @property
    def steps(self) -> tuple[Step, ...]:
        """Steps of the ranking."""
        return parse_steps(self.rank)

    @field_serializer("topics", "corpus", "index", "candidates")
    def _as_text(self, path: Path | None) -> str | None:
        return None if path is None else str(path)


def rename_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by their current names; an old name that stands beside the current one is left, as unknown."""
    return {
        name if RENAMED_SETTINGS.get(name, name) in values else RENAMED_SETTINGS[name]: value
        for name, value in values.items()
    }


def index_folder(corpus: Path) -> Path:
    """Return the default index folder of a corpus: below the current folder, one for each corpus file."""
    place = hashlib.sha256(os.fsencode(corpus.absolute())).hexdigest()[:8]
    return _INDEX_ROOT / f"{corpus.name.split('.')[0]}-{place}"


def load_config(file: Path | None, flags: Mapping[str, Any], options: Mapping[str, str] | None = None) -> Config:
    """Load the configuration of a YAML file, overridden by flags.

    Args:
        file: Configuration file; None for defaults and flags alone.
        flags: Values by dotted name (`retriever.k1`); None means that the flag was not given.
        options: Names of command-line options by dotted name, for messages.

    Raises:
        UsageError: The file cannot be read, or a value is missing, unknown or out of range; names file and key.
    """
    values = rename_settings(_read(file)) if file else {}
    source = str(file or "options")
    given = {name: value for name, value in flags.items() if value is not None and value != ()}
    stored_objective = values.get("objective")
    _drop_outdated(values, flags)
    _apply_flags(values, given, source)
    _complete_first_stage(values, source)
    try:
        task = get_task(str(values.setdefault("task", DEFAULT_TASK)))
    except UsageError as error:
        raise UsageError(f"{'options' if flags.get('task') else source}: {error}") from error
    _complete_weights(values, given, task, stored_objective)
    _complete_sections(values, task)
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        problems = [_locate_problem(problem, source, given, options or {}) for problem in error.errors()]
        raise UsageError("; ".join(problems)) from error
    if problems := list(_find_booleans(values, config.model_dump())):
        raise UsageError("; ".join(f"{source}: {problem}" for problem in problems))
    return config


def _drop_outdated(values: dict[str, Any], flags: Mapping[str, Any]) -> None:
    """Drop values of the file that belong to another value which a flag replaces."""
    default_index = str(index_folder(Path(str(values.get("corpus")))))
    if flags.get("corpus") is not None and values.get("index") == default_index:
        del values["index"]
    if "stance.thresholds" in flags and isinstance(values.get("stance"), dict):
        for name in ("calibrated_on", "calibrated_for"):
            values["stance"].pop(name, None)
    engine = values.get("engine")
    for name in ("model", "base_url"):
        given = flags.get(f"engine.{name}")
        if isinstance(engine, dict) and given and engine.get(name) not in (None, given):
            # The context length belongs to the other model or server.
            engine.pop("context", None)


def _apply_flags(values: dict[str, Any], given: Mapping[str, Any], source: str) -> None:
    """Set the values of the given flags, by dotted name."""
    for name, value in given.items():
        *sections, key = name.split(".")
        target = values
        for section in sections:
            # A section that the task does not have is written as null.
            target[section] = {} if target.get(section) is None else target[section]
            target = target[section]
            if not isinstance(target, dict):
                raise UsageError(f"{source}: {section}: must hold names and values, since {name} is one of them")
        target[key] = value


def _complete_first_stage(values: dict[str, Any], source: str) -> None:
    """Add the settings of the chosen search engine, or the default index of the corpus."""
    retriever = values.get("retriever")
    if isinstance(retriever, dict) and retriever.get("name") == "chatnoir":
        values["chatnoir"] = values.get("chatnoir") or {}
    elif isinstance(retriever, dict) and retriever.get("name") == "elasticsearch":
        values["elasticsearch"] = values.get("elasticsearch") or {}
        retriever.setdefault("method", "lucene")
    elif not values.get("index"):
        if not values.get("corpus"):
            topics = "" if values.get("topics") else "the topics (--topics FILE), and "
            raise UsageError(
                f"{source}: give {topics}the corpus (--corpus FILE), an index of it (--index FOLDER) or, "
                "for web documents, --retriever chatnoir"
            )
        values["index"] = index_folder(Path(str(values["corpus"])))


def _complete_weights(values: dict[str, Any], given: Mapping[str, Any], task: Task, stored_objective: Any) -> None:
    """Add the default weights of the objective, in place of written defaults of another objective."""
    weights = values.get("weights") or {}
    if not isinstance(weights, dict):
        return
    outdated = _find_weights(task, stored_objective) if values.get("objective") != stored_objective else {}
    kept = {
        name: weight for name, weight in weights.items() if f"weights.{name}" in given or outdated.get(name) != weight
    }
    values["weights"] = {**_find_weights(task, values.get("objective")), **kept}


def _complete_sections(values: dict[str, Any], task: Task) -> None:
    """Add the sections that the task has."""
    if task.stance_question is not None:
        values["stance"] = values.get("stance") or {}
    if task.sentence_question is not None:
        for section in ("sentences", "pairs"):
            values[section] = values.get(section) or {}


def _locate_problem(error: ErrorDetails, source: str, given: Mapping[str, Any], options: Mapping[str, str]) -> str:
    """Describe a problem with its place: the option, if a flag set the value, or else the file."""
    place, problem = ".".join(map(str, error["loc"])), _describe_error(error)
    if place in options and place in given:
        return f"{options[place]}: {describe_problem(error)}"
    # The message about a whole section names the settings that it is about.
    places = [place] if place else problem.partition(":")[0].split(", ")
    is_flagged = any(
        f"{setting}.".startswith(f"{name}.") or name.startswith(f"{setting}.") for setting in places for name in given
    )
    return f"{'options' if is_flagged else source}: {problem}"


def _find_booleans(given: Any, read: Any, place: str = "") -> Iterator[str]:
    """Yield a problem for each true or false that pydantic read as 1 or 0."""
    if isinstance(given, bool) and isinstance(read, int | float) and not isinstance(read, bool):
        yield f"{place}: must be a number, not {str(given).lower()}"
    elif isinstance(given, dict) and isinstance(read, dict):
        for name in given.keys() & read.keys():
            yield from _find_booleans(given[name], read[name], f"{place}.{name}" if place else str(name))


def _find_weights(task: Task, objective: Any) -> Mapping[str, float]:
    """Return the default weights of an objective; those of `both` if it is missing or unknown."""
    return next((weights for name, weights in task.objectives.items() if name == objective), task.weights)


def _describe_error(error: ErrorDetails) -> str:
    """Describe a problem of a configuration in its user's terms."""
    kind, place = error["type"], error["loc"]
    where = ".".join(str(part) for part in place)
    if kind == "missing":
        return f"{where}: missing; give --{where} or name it in the configuration"
    if kind == "extra_forbidden":
        known = _list_names(Config)
        near = get_close_matches(where, known, n=1) or [name for name in known if name.endswith(f".{place[-1]}")]
        return f"{where}: no such name" + (f", did you mean {near[0]}?" if near else "")
    message = describe_problem(error)
    return f"{where}: {message}" if where else message


def _list_names(section: type[BaseModel], prefix: str = "") -> list[str]:
    """List all dotted names of a configuration."""
    names = []
    for name, field in section.model_fields.items():
        names.append(prefix + name)
        # Includes optional sections, which only some tasks have.
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                names += _list_names(kind, f"{prefix}{name}.")
    return names


def write_config(config: Config, path: Path) -> None:
    """Write all values, including defaults, in the form that `load_config` reads."""
    with open_atomic(path) as stream:
        stream.write(to_yaml(config.model_dump(mode="json")))


def _read(file: Path) -> dict[str, Any]:
    try:
        values = read_yaml(file)
    except OSError as error:
        raise UsageError(f"{file}: cannot read the configuration: {error.strerror}") from error
    except YamlError as error:
        raise UsageError(f"{file}: not YAML: {error}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UsageError(f"{file}: must hold names and values")
    return values
