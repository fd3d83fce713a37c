"""The command that shows a run in the terminal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

from touche_llm.api.retrieve import add_objects
from touche_llm.cli import options as s
from touche_llm.cli.options import CommandProgress
from touche_llm.cli.output import (
    Column,
    Format,
    FormatOption,
    print_rows,
    show_lines,
    show_table,
)
from touche_llm.config.changes import list_changed_settings
from touche_llm.config.configuration import Config
from touche_llm.data.files import read_records, shorten_path
from touche_llm.data.measure import MACRO_F1, Measure, make_headline_ndcg
from touche_llm.data.records import Failure, Judgment, Topic
from touche_llm.data.runs.reading import read_run
from touche_llm.data.topics.reading import read_topics
from touche_llm.errors import DataError, UsageError
from touche_llm.judging.grades import check_judgments
from touche_llm.runs.directory import CANDIDATES, JUDGMENTS, RESULTS, RunDirectory
from touche_llm.runs.facts import FactGroup, join_texts, list_facts
from touche_llm.runs.overview import (
    COMPLETE,
    RecordedEvaluation,
    RunOverview,
    read_overview,
    read_results,
    read_texts,
)
from touche_llm.runs.record import StageName, StageRecord
from touche_llm.runs.stages import count_by_kind
from touche_llm.tasks import get_task
from touche_llm.tasks.task import Task

# Measures of the last evaluation with short names that have a column in any case; a task may have
# other aspects.
_MEASURES = {make_headline_ndcg(aspect): aspect for aspect in ("relevance", "quality", "coherence")}
_MEASURES[MACRO_F1] = MACRO_F1.aspect
# Documents per topic that are shown of a whole run.
_TOP = 3
# Facts that say what came out of a stage.
_OUTPUTS = ("candidates", "judgments", "lines")
# Columns of the stages: a fact has the name of the column or the one given.
_STAGE_COLUMNS = (
    Column("stage", is_text=True),
    Column("time", value="seconds"),
    Column("requests"),
    Column("cached"),
    Column("failed", value="failures"),
    Column("tokens in", drop=1, value="prompt_tokens"),
    Column("tokens out", drop=2, value="completion_tokens"),
    Column("result", is_text=True),
)
_SETTING_COLUMNS = (
    Column("setting", is_text=True),
    Column("value", is_cut=True),
    Column("from", is_text=True, value="origin"),
)
_FACT_COLUMNS = (
    "seconds",
    "requests",
    "cached",
    "failures",
    "prompt_tokens",
    "completion_tokens",
)


def read_run_topics(folder: Path, config: Config) -> dict[str, Topic]:
    """Return the topics of a run by id, with the objects that the model found.

    Empty if their file is missing.
    """
    try:
        topics = read_topics(config.topics)
    except DataError:
        return {}
    return {topic.id: topic for topic in add_objects(topics, RunDirectory(folder).read_objects())}


def list_rows(
    folder: Path,
    config: Config,
    task: Task,
    topics: Mapping[str, Topic],
    top: int | None,
    only: str | None = None,
) -> list[dict[str, Any]]:
    """Return a row for each document of a run.

    Args:
        folder: Folder of the run.
        config: Configuration of the run.
        task: Task of the run.
        topics: Topics of the run by id; those that are missing have no title.
        top: Number of documents per topic, best first; None for all.
        only: Id of the topic to return; None for all.
    """
    results: list[dict[str, Any]] = []
    for result in read_results(RunDirectory(folder), task):
        is_chosen = only is None or result["topic"] == only
        is_at_top = top is None or result["rank"] <= top
        if is_chosen and is_at_top:
            results.append(result)

    texts = read_texts(config, task, (result["document"] for result in results))
    rows: list[dict[str, Any]] = []
    for result in results:
        topic = topics.get(result["topic"], Topic(result["topic"], ""))
        # The first two stances of a task are those for the first and the second object.
        objects = dict(zip(task.stances, topic.objects or (), strict=False))
        row = {
            "topic": topic.id,
            "title": topic.title or None,
            **result,
            "object": objects.get(result.get("stance", "")),
            "text": texts.get(result["document"]),
        }
        rows.append(row)
    return rows


def show_rankings(
    rows: Sequence[Mapping[str, Any]], task: Task, topics: Mapping[str, Topic]
) -> None:
    """Print a table of the rows of `list_rows` for each topic, below its title and objects."""
    columns = _list_ranking_columns(rows, task)
    for topic_id, rows_of_topic in groupby(rows, key=lambda row: row["topic"]):
        topic = topics.get(topic_id, Topic(topic_id, ""))
        below: list[str] = []
        if topic.objects:
            below.append(f"objects: {' and '.join(topic.objects)}")
        show_table(columns, rows_of_topic, f"{topic_id} {topic.title}".strip(), below)


def _list_ranking_columns(rows: Sequence[Mapping[str, Any]], task: Task) -> list[Column]:
    """Return the columns of a ranking; more of them if the rows have the details of one topic."""
    has_details = any("seen" in row for row in rows)
    columns = [Column("rank"), Column("document", is_text=True)]
    if task.stances:
        stance = _format_stance if has_details else "stance"
        columns.append(Column("stance", is_text=True, value=stance))
    for aspect in task.question.grades:
        columns.append(Column(aspect, value=partial(_format_share, name=aspect)))
    columns.append(Column("score", drop=4))
    if has_details:
        columns.append(Column("seen", drop=7, value=_format_seen))
        columns.append(Column("before", drop=6, value="first_stage_rank"))
    if any(row["text"] for row in rows):
        columns.append(Column("text", drop=8, is_cut=True))
    return columns


def _format_seen(row: Mapping[str, Any]) -> str:
    """Return the share of a document that the model saw in percent; empty for all of it."""
    share = row["seen"]
    return "" if share is None or share == 1.0 else f"{share:.0%}"


def _format_share(row: Mapping[str, Any], name: str) -> str:
    """Format a grade or a probability; a dash if it is unknown."""
    return "–" if row[name] is None else f"{row[name]:.2f}"


def _format_stance(row: Mapping[str, Any]) -> str:
    """Format the stance of a row with its probability, and with its source unless that is a prompt."""
    share = row[f"p_{row['stance']}"]
    source = "" if row["stance_source"] in ("judge", "stance") else f" {row['stance_source']}"
    return f"{row['stance']}{'' if share is None else f' {share:.2f}'}{source}"


RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
TopicOption = Annotated[
    str | None,
    typer.Option("--topic", metavar="ID", help="Show this topic with its whole ranking."),
]
TopOption = Annotated[
    int | None,
    typer.Option("--top", min=1, help="Documents per topic (default: 3; with --topic all)."),
]


@s.takes_settings("topics", "corpus", "index")
def show(
    given: s.GivenSettings,
    run: RunArgument,
    topic: TopicOption = None,
    top: TopOption = None,
    config_file: s.FolderConfigOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Show a run: settings, stages, failures, first documents.

    With --topic: the topic's text, and its ranking with grades, stance probabilities, the share of
    each document that the model saw, and the rank in the first stage (before). Texts of documents
    are shown if the index of the run is available.
    """
    if not run.is_dir():
        raise DataError(
            f"{run}: no such folder; give the folder of a run, which `touche-llm runs` lists"
        )
    overview = read_overview(run, s.make_user_options(given, config_file))
    config = overview.config
    if config is None:
        raise DataError(overview.problem)
    if topic is not None and overview.state != COMPLETE:
        raise DataError(
            f"{run}: {overview.problem or overview.state}; finish the run to see its rankings"
        )
    task = get_task(config.task)
    topics = read_run_topics(run, config)
    if top is None and topic is None:
        top = _TOP
    rows: list[dict[str, Any]] = []
    if (run / RESULTS).is_file():
        rows = list_rows(run, config, task, topics, top, topic)
    if topic is not None and not rows:
        raise UsageError(
            f"--topic {topic}: not in the run; it has {', '.join(read_run(run / 'run.txt').rankings)}"
        )
    if topic is not None:
        _add_details(rows, run, topic, task)

    if output is not Format.TABLE:
        print_rows(output, rows)
    elif topic is None:
        _show_overview(overview, config, task)
        _show_first_documents(run, rows, task, topics)
    else:
        _show_topic(topic, rows, task, topics)


def _show_first_documents(
    run: Path, rows: Sequence[Mapping[str, Any]], task: Task, topics: Mapping[str, Topic]
) -> None:
    """Print the first documents of each topic of a run, and how to see all of a topic."""
    if rows:
        show_rankings(rows, task, topics)
        show_lines([f"next: touche-llm show {run} --topic {rows[0]['topic']}"])


def _show_topic(
    topic_id: str, rows: Sequence[Mapping[str, Any]], task: Task, topics: Mapping[str, Topic]
) -> None:
    """Print what a topic asks for, and its ranking."""
    topic = topics.get(topic_id)
    if topic is not None:
        texts = (topic.description, topic.narrative)
        show_lines(text for text in texts if text)
    show_rankings(rows, task, topics)


def _add_details(rows: Sequence[dict[str, Any]], run: Path, topic: str, task: Task) -> None:
    """Add to the rows of a topic the ranks in the first stage and the shares that the model saw."""
    candidates = read_run(run / CANDIDATES).rankings.get(topic, [])
    first_ranks = {candidate.document_id: candidate.rank for candidate in candidates}
    judgments = read_records(run / JUDGMENTS, Judgment, "judgments")
    check_judgments(judgments, task.question, run / JUDGMENTS)
    judged = {item.document_id: item for item in judgments if item.topic_id == topic}
    for row in rows:
        row["first_stage_rank"] = first_ranks.get(row["document"])
        row["seen"] = _get_seen_share(judged.get(row["document"]))


def _get_seen_share(judgment: Judgment | None) -> float | None:
    """Return the share of a document that the model saw; None if it did not judge it."""
    if judgment is None:
        return None
    if judgment.cut is None:
        return 1.0
    return round(judgment.cut.kept_chars / max(judgment.cut.of_chars, 1), 4)


def _show_overview(overview: RunOverview, config: Config, task: Task) -> None:
    """Print the state, settings, stages and evaluation of a run."""
    problem = f" ({overview.problem})" if overview.problem else ""
    print(f"{overview.directory}: {overview.state}{problem}, {overview.changed:%Y-%m-%d %H:%M}")
    unused = "" if overview.unused is None else overview.unused.describe()
    if unused:
        CommandProgress().warn(unused)

    show_facts(dict(_list_facts(overview, config, task)))
    print()
    stages = overview.stages.finished.items()
    show_table(_STAGE_COLUMNS, [_make_stage_row(name, record) for name, record in stages])
    print()
    _show_settings(overview, config)
    print()


def _show_settings(overview: RunOverview, config: Config) -> None:
    """Print the settings that are not the default, each with its origin."""
    rows: list[dict[str, str]] = []
    for name, value in list_changed_settings(config).items():
        row = {
            "setting": name,
            "value": _format_setting(value),
            "origin": overview.origins.find(name).kind.value,
        }
        rows.append(row)
    file = shorten_path(overview.directory.config_file)
    show_table(_SETTING_COLUMNS, rows, f"settings that are not the default ({file})")


def _format_setting(value: Any) -> str:
    """Return a value as `--set` takes it, but a list without its brackets."""
    match value:
        case list():
            return ",".join(map(str, value))
        case None | bool() | dict():
            return json.dumps(value)
        case _:
            return str(value)


def _make_stage_row(name: StageName, record: StageRecord) -> dict[str, str | None]:
    """Return the facts of a stage that have a column, with its main result; None if it lacks one."""
    facts = {fact.name: fact for fact in list_facts(record)}
    results = [f"{facts[name].text} {facts[name].label}" for name in _OUTPUTS if name in facts]
    row: dict[str, str | None] = {"stage": name, "result": ", ".join(results)}
    for column in _FACT_COLUMNS:
        row[column] = facts[column].text if column in facts else None
    return row


def show_facts(facts: Mapping[str, Any]) -> None:
    """Print names and values, one below the other."""
    width = max(map(len, facts))
    show_lines(
        f"{name:{width}}  {'–' if value is None else value}" for name, value in facts.items()
    )


def _list_facts(overview: RunOverview, config: Config, task: Task) -> Iterator[tuple[str, str]]:
    yield "task", f"{task.name} ({task.title})"
    records = overview.stages.finished.values()
    setup = join_texts(records, FactGroup.SETUP)
    if "model" not in setup:
        yield "model", config.engine.model or "not known yet"
    yield from setup.items()
    yield "topics", _describe_topics(overview, config)
    yield "first stage", f"{config.candidates or config.retriever.name}, depth {config.depth}"
    yield "ranking", f"{', '.join(config.rank)}; objective {config.criterion}"
    yield "tag", config.tag

    failures: list[Failure] = []
    for of_file in overview.directory.read_failures().values():
        failures.extend(of_file)
    if failures:
        kinds = count_by_kind(failures).items()
        yield "failures", ", ".join(f"{count:,} {kind}" for kind, count in kinds)

    yield from join_texts(records, FactGroup.LABELS).items()
    if overview.evaluation is not None:
        yield from _list_evaluation(overview.evaluation)


def _describe_topics(overview: RunOverview, config: Config) -> str:
    """Return the number of topics, their file or dataset, and which of them were chosen."""
    topics = str(config.dataset or shorten_path(config.topics))
    if overview.topics is not None:
        topics = f"{overview.topics:,} of {topics}"
    if config.limit_topics is not None:
        topics += f", the first {config.limit_topics}"
    if config.topic:
        topics += f", only {', '.join(config.topic)}"
    return topics


def _list_evaluation(evaluation: RecordedEvaluation) -> Iterator[tuple[str, str]]:
    """Yield the measured values, and for each aspect the topics and qrels that they rest on."""
    values: list[str] = []
    for name in list_measures([evaluation]):
        measure = evaluation.measures.get(name)
        if measure is not None and measure.value is not None:
            values.append(f"{name} {measure.value:.4f}")
    yield "measures", ", ".join(values)

    for aspect, coverage in evaluation.coverage.items():
        qrels = evaluation.qrels[aspect]
        file = shorten_path(qrels.file)
        yield f"{aspect} over", f"{coverage}; qrels {file} sha256 {qrels.sha256:.12}"


def list_measures(evaluations: Iterable[RecordedEvaluation | None]) -> dict[Measure, str]:
    """Return the measures that are shown, with their short names."""
    measures = dict(_MEASURES)
    for evaluation in evaluations:
        if evaluation is None:
            continue
        for measure in evaluation.measures:
            if measure == make_headline_ndcg(measure.aspect):
                measures[measure] = measure.aspect
    return measures
