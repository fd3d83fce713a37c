"""The options that several commands share, and the way from flags to a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from pydantic import BaseModel, ValidationError

from touche_llm.config import RENAMED_SETTINGS, Config, load_config
from touche_llm.data.setting_problems import describe_problem
from touche_llm.data.yaml_text import YamlError, parse_yaml
from touche_llm.errors import DataError, UsageError
from touche_llm.judging.stance import read_settings
from touche_llm.llm.cache import CacheMode
from touche_llm.pipeline.run_files import CONFIG
from touche_llm.pipeline.settings import OF_JUDGE, OF_RETRIEVE, is_one_of
from touche_llm.ranking.steps import METHODS
from touche_llm.tasks import DEFAULT_TASK, TASKS

ModelT = TypeVar("ModelT", bound=BaseModel)

# Where each flag's value goes in the configuration, by parameter name; the others go under their own name.
_PLACES = {
    "retriever": "retriever.name",
    "bm25_method": "retriever.method",
    "k1": "retriever.k1",
    "b": "retriever.b",
    "query": "retriever.query",
    "elasticsearch": "elasticsearch.url",
    "elasticsearch_index": "elasticsearch.index",
    "engine": "engine.name",
    "base_url": "engine.base_url",
    "model": "engine.model",
    "revision": "engine.revision",
    "context_tokens": "engine.context",
    "concurrency": "engine.concurrency",
    "request_timeout": "engine.request_timeout",
    "retry_for": "engine.retry_for",
    "temperature": "sampling.temperature",
    "seed": "sampling.seed",
    "max_tokens": "sampling.max_tokens",
    "logprobs": "sampling.logprobs",
    "prompts_folder": "prompts.folder",
    "prompt": "prompts.judge",
    "objects_prompt": "prompts.objects",
    "sentence_prompt": "prompts.sentence",
    "judge_pairs": "pairs.judged",
    "both_orders": "pairs.both_orders",
    "steps": "rank",
    "stance_depth": "stance.depth",
    "expand": "expansion.use",
    "weight_relevance": "weights.relevance",
    "weight_quality": "weights.quality",
    "weight_coherence": "weights.coherence",
    "weight_first_stage": "weights.first_stage",
    "cache": "cache.file",
    "cache_mode": "cache.mode",
    "retry_failures": "cache.retry_failures",
}
_NOT_CONFIGURATION = ("out", "config", "thresholds", "values", "dry_run", "output", "overwrite")
_BY_FILES = ("retrieve", "judge", "rank", "run")
# Of a batch export: the stage's options are those of its own command.
_OF_BATCH = ("stage", "requests", "shards", "tokenizer")

TaskOption = Annotated[
    str | None, typer.Option("--task", help=f"The shared task: {', '.join(TASKS)} (default: {DEFAULT_TASK}).")
]
TopicsOption = Annotated[
    Path | None, typer.Option("--topics", help="The topics.xml of the task, or TIRA's queries.jsonl or queries.xml.")
]
CorpusOption = Annotated[
    Path | None,
    typer.Option("--corpus", help="The corpus as published: .jsonl, or .csv for args.me; .gz as it is."),
]
IndexOption = Annotated[
    Path | None,
    typer.Option("--index", help="Folder of the index (default: one for each corpus, in .touche-llm/index)."),
]
SkipOption = Annotated[
    bool | None, typer.Option("--skip-bad-lines", help="Leave bad lines of the corpus out, count and list them.")
]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace what exists already.")]
OutOption = Annotated[Path, typer.Option("--out", help="The run's folder.")]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="YAML file with any of the values; flags override it.")
]
TagOption = Annotated[str | None, typer.Option("--tag", help="Last column of the run, one word (default: touche-llm).")]
DepthOption = Annotated[int | None, typer.Option("--depth", help="Candidates for each topic (default: 100).")]
LimitOption = Annotated[int | None, typer.Option("--limit-topics", help="Take only the first N topics of the file.")]
TopicOption = Annotated[list[str] | None, typer.Option("--topic", help="Take only this topic; can be repeated.")]
CandidatesOption = Annotated[
    Path | None, typer.Option("--candidates", help="A TREC run of any tool to take as first stage.")
]
RetrieverOption = Annotated[
    str | None,
    typer.Option(
        "--retriever", help="bm25 (index on disk, the default), okapi (rank-bm25), elasticsearch or chatnoir."
    ),
]
ElasticsearchOption = Annotated[
    str | None,
    typer.Option("--elasticsearch", metavar="URL", help="Where Elasticsearch is (default: http://127.0.0.1:9200)."),
]
ElasticsearchIndexOption = Annotated[
    str | None, typer.Option("--elasticsearch-index", help="Name of the index there (default: touche-llm).")
]
MethodOption = Annotated[str | None, typer.Option("--bm25-method", help="robertson (default), lucene or atire.")]
K1Option = Annotated[float | None, typer.Option("--k1", help="Term frequency saturation of BM25 (default: 1.5).")]
BOption = Annotated[float | None, typer.Option("--b", help="Length normalisation of BM25 (default: 0.75).")]
QueryOption = Annotated[
    list[str] | None,
    typer.Option(
        "--query", help="Topic field of the query: title (default), description, narrative, objects; repeatable."
    ),
]
EngineOption = Annotated[
    str | None,
    typer.Option(
        "--engine",
        help="server (default): one that runs; managed: one started and stopped for the run; batch: files, in rounds.",
    ),
]
BaseUrlOption = Annotated[
    str | None, typer.Option("--base-url", help="The vLLM server (default: http://127.0.0.1:8000).")
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="Served name, not needed if the server has one model; the folder for --engine managed and batch.",
    ),
]
RevisionOption = Annotated[str | None, typer.Option("--revision", help="Your name for the version of the weights.")]
ContextOption = Annotated[
    int | None, typer.Option("--context", help="Context in tokens that documents are cut to (default: the server's).")
]
ConcurrencyOption = Annotated[
    int | None, typer.Option("--concurrency", help="Requests to the server at a time (default: 256).")
]
TimeoutOption = Annotated[
    float | None,
    typer.Option(
        "--request-timeout", help="Seconds for a request, from its turn in the server's queue (default: 300)."
    ),
]
RetryOption = Annotated[
    float | None, typer.Option("--retry-for", help="Seconds after which a failing request is given up (default: 600).")
]
TemperatureOption = Annotated[float | None, typer.Option("--temperature", help="Sampling temperature (default: 0).")]
SeedOption = Annotated[int | None, typer.Option("--seed", help="Sampling seed (default: 0).")]
MaxTokensOption = Annotated[int | None, typer.Option("--max-tokens", help="Longest answer in tokens (default: 64).")]
LogprobsOption = Annotated[
    bool | None,
    typer.Option("--logprobs/--no-logprobs", help="Read grades from probabilities (default) or as answered."),
]
PromptsOption = Annotated[
    Path | None,
    typer.Option("--prompts", help="Folder with templates, TASK/NAME.jinja, to take in place of the project's own."),
]
PromptOption = Annotated[
    str | None, typer.Option("--prompt", help="Judge prompt: a name, or the path of a .jinja file (default: judge).")
]
ObjectsPromptOption = Annotated[
    str | None, typer.Option("--objects-prompt", help="Prompt that finds a topic's objects (default: objects).")
]
SentencePromptOption = Annotated[
    str | None, typer.Option("--sentence-prompt", help="Prompt that judges a sentence (default: sentence).")
]
JudgePairsOption = Annotated[
    int | None,
    typer.Option("--judge-pairs", help="Pairs for each topic that the model judges (default: 100); others inherit."),
]
BothOrdersOption = Annotated[
    int | None,
    typer.Option("--both-orders", help="Of those the best, asked in the other order of sentences too (default: 20)."),
]
StepsOption = Annotated[
    str | None,
    typer.Option(
        "--rank",
        help=f"Steps of the ranking, each of the best N so far, as judge,pairwise:10 (default: judge): "
        f"{', '.join(METHODS)}, fusion, balance.",
    ),
]
ObjectiveOption = Annotated[
    str | None,
    typer.Option(
        "--objective", help="Rank for relevance, quality or both (default): weights, and what comparisons ask."
    ),
]
StanceDepthOption = Annotated[
    int | None,
    typer.Option("--stance-depth", help="Best documents asked for their stance by a prompt of its own (default: 20)."),
]
ThresholdsOption = Annotated[
    Path | None, typer.Option("--thresholds", help="Thresholds of the stance, as `touche-llm calibrate` writes them.")
]
ExpandOption = Annotated[
    bool | None,
    typer.Option(
        "--query-expansion/--no-query-expansion", help="Search with three other queries of the model too (default: no)."
    ),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Only say how many requests and about how many tokens would be sent.")
]
ValuesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="Any value of the configuration, as ranking.listwise.window=10; repeatable."
    ),
]
RelevanceOption = Annotated[float | None, typer.Option("--weight-relevance", help="Weight of relevance (default: 1).")]
QualityOption = Annotated[float | None, typer.Option("--weight-quality", help="Weight of quality (default: 0.5).")]
CoherenceOption = Annotated[
    float | None, typer.Option("--weight-coherence", help="Weight of a pair's coherence (default: 0.5).")
]
FirstStageOption = Annotated[
    float | None, typer.Option("--weight-first-stage", help="Weight of the first stage's score (default: 0.05).")
]
CacheOption = Annotated[
    Path | None,
    typer.Option("--cache", help="Answer cache, or a .jsonl cassette to replay (default: .touche-llm/answers.sqlite)."),
]
CacheModeOption = Annotated[
    CacheMode | None,
    typer.Option("--cache-mode", help="reuse (default); replay: a miss is an error; refresh: ask again; off."),
]
RetryFailuresOption = Annotated[
    bool | None,
    typer.Option("--retry-failures", help="Send questions again of which the cache holds only unusable answers."),
]


def configure(context: typer.Context, *others: str) -> Config:
    """The configuration that a command's parameters ask for; `others` are parameters that say nothing of it.

    Without `--config`, a folder that an earlier stage wrote gives its own configuration.
    """
    parameters = context.params
    file: Path | None = parameters.get("config")
    command = str(parameters.get("stage") or context.info_name)
    if file is None and command in ("judge", "rank"):
        written = parameters["out"] / CONFIG
        if not written.exists():
            raise DataError(f"{written}: not there; run `touche-llm retrieve` for this folder first, or give --config")
        file = written
    flags = {
        _PLACES.get(name, name): tuple(value) if isinstance(value, list) else value
        for name, value in parameters.items()
        if name not in (*_NOT_CONFIGURATION, *_OF_BATCH, *others)
    }
    thresholds: Path | None = parameters.get("thresholds")
    if thresholds is not None:
        settings = read_settings(thresholds)
        given = {"calibrated_on": list(settings.calibrated_on), "calibrated_for": settings.calibrated_for}
        flags |= {f"stance.{name}": value for name, value in {"thresholds": settings.thresholds, **given}.items()}
    given = set_values(parameters.get("values") or [], command)
    names = {
        _PLACES.get(each.name, each.name): max(each.opts, key=len)
        for each in context.command.params
        if each.name is not None and _PLACES.get(each.name, each.name) not in given
    }
    config = load_config(file, flags | given, names)
    is_sent = config.engine.name == "batch" and config.cache.mode is not CacheMode.REPLAY
    if is_sent and "engine" in parameters and command not in _BY_FILES:
        raise UsageError(
            f"--engine batch: `{command}` sends no batch files; give --engine server or managed, or replay answers "
            "with --cache-mode replay"
        )
    return config


# To set then what a stage before a command went by would make the configuration tell what was not done.
_DONE_BEFORE = {"judge": OF_RETRIEVE, "rank": (*OF_RETRIEVE, *OF_JUDGE)}


def set_values(given: list[str], command: str) -> dict[str, Any]:
    """The values that `--set` names, read as in a configuration.

    Raises:
        UsageError: it is not `NAME=VALUE`, or what it names is done with before this command.
    """
    values = {}
    for each in given:
        name, separator, text = each.partition("=")
        if not separator or not all(part.isidentifier() for part in name.split(".")):
            raise UsageError(f"--set {each:.80}: must be NAME=VALUE, as --set ranking.listwise.window=10")
        if name in RENAMED_SETTINGS:
            raise UsageError(f"--set {each:.80}: renamed to {RENAMED_SETTINGS[name]}")
        if is_one_of(name, _DONE_BEFORE.get(command, ())):
            raise UsageError(f"--set {each:.80}: a stage before `{command}` went by it; give it to `touche-llm run`")
        try:
            values[name] = parse_yaml(text)
        except YamlError as error:
            raise UsageError(f"--set {each:.80}: the value is not YAML: {error}") from error
        if values[name] is None:
            raise UsageError(f"--set {each:.80}: has no value; what is to have none is left out of a configuration")
    return values


def checked(model: type[ModelT], values: Mapping[str, object], options: Mapping[str, str] | None = None) -> ModelT:
    """A settings record of flag values; raises UsageError where one is out of range.

    Args:
        model: the record.
        values: by the record's names.
        options: Names of command-line options that are not those of the record.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        raise UsageError(f"{(options or {}).get(name, f'--{name}')}: {describe_problem(first)}") from error


def existing(cache: Path) -> None:
    """Raise UsageError when there is no such cache, instead of making an empty one."""
    if not cache.is_file():
        raise UsageError(f"{cache}: no such cache; name one with --cache")
