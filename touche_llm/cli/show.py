"""The command that shows a run in the terminal, and the summary at the end of a run."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import IO, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from touche_llm.cli.emit import (
    TEXT_WIDTH,
    Column,
    Format,
    FormatOption,
    get_width,
    print_rows,
    say,
    show_lines,
    show_table,
)
from touche_llm.config import Config
from touche_llm.data.io import read_records, shorten_path
from touche_llm.data.records import Judgment, StanceReading, Topic
from touche_llm.data.topics import read_topics
from touche_llm.data.trec_runs import read_run
from touche_llm.errors import DataError, UsageError, to_printable
from touche_llm.judging.labels import check_judgments
from touche_llm.llm.answers import Answer
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.pipeline.candidates import add_objects
from touche_llm.pipeline.run import read_results, read_texts
from touche_llm.pipeline.run_directory import CANDIDATES, JUDGMENTS, RESULTS, RunDirectory, read_counts
from touche_llm.pipeline.run_overview import (
    COMPLETE,
    RecordedEvaluation,
    RunOverview,
    format_seconds,
    read_overview,
    sum_usage,
)
from touche_llm.pipeline.stages import count_by_kind
from touche_llm.tasks import get_task
from touche_llm.tasks.task import Task


def read_run_topics(folder: Path, config: Config) -> dict[str, Topic]:
    """Return the topics of a run by id, with the objects that the model found; empty if their file is missing."""
    try:
        topics = read_topics(config.topics)
    except DataError:
        return {}
    return {topic.id: topic for topic in add_objects(topics, RunDirectory(folder).read_objects())}


def list_rows(
    folder: Path, config: Config, task: Task, topics: Mapping[str, Topic], top: int | None, only: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Return a row for each of the `top` documents of a topic, of the topics `only` if it is not empty.

    Raises:
        DataError: The results cannot be read.
    """
    rows = [row for row in read_results(RunDirectory(folder), task) if not only or row["topic"] in only]
    kept = [row for row in rows if top is None or row["rank"] <= top]
    known = {row["topic"]: topics.get(row["topic"], Topic(row["topic"], "")) for row in kept}
    texts = read_texts(config, task, ((known[row["topic"]], row["document"]) for row in kept))
    made = []
    for row in kept:
        topic = known[row["topic"]]
        objects = dict(zip(task.stances, topic.objects or (), strict=False))
        found = {"object": objects.get(row.get("stance", "")), "text": texts.get((topic.id, row["document"]))}
        made.append({"topic": topic.id, "title": topic.title or None} | row | found)
    return made


def show_rankings(
    rows: Sequence[Mapping[str, Any]],
    task: Task,
    topics: Mapping[str, Topic],
    *,
    has_grades: bool = True,
    file: IO[str] | None = None,
    width: int | None = None,
) -> None:
    """Print the first documents of topics, below the title and the objects of each topic, see `show_table`."""
    columns = [Column("rank"), _place_ids(rows, 5)]
    columns += [Column("stance", is_text=True)] * bool(task.stances)
    columns += [Column("answer", is_text=True)] * any("answer" in row for row in rows)
    columns += [*place_grades(task.question.grades if has_grades else (), 2, 7), Column("score", drop=6)]
    columns += [Column("text", drop=1, cut=TEXT_WIDTH)] * any(row["text"] for row in rows)
    listed: list[Any] = []
    for name, group in groupby(rows, key=lambda row: row["topic"]):
        of_topic = list(group)
        topic = topics.get(name)
        objects = zip(task.stances, topic.objects or (), strict=False) if topic is not None else ()
        named = ", ".join(f"{label} ({each})" for label, each in objects)
        listed.append((" ".join(filter(None, (of_topic[0]["topic"], of_topic[0]["title"]))),))
        listed += [(f"  {named}",)] * bool(named)
        listed += of_topic
    show_table(columns, listed, file=file, width=width)


# Longer ids, those of pairs of sentences, leave no room for anything else in a terminal.
_MAX_ID = 40


def _place_ids(rows: Sequence[Mapping[str, Any]], drop: int) -> Column:
    """Return the column of document ids, which users copy; only long ids are dropped."""
    return Column("document", drop * any(len(row["document"]) > _MAX_ID for row in rows), is_text=True)


def place_grades(grades: Sequence[str], drop: int, later: int) -> list[Column]:
    """Return the columns of grades, dropped one by one: the first three from `drop` on, others from `later` on."""
    return [
        Column(name, drop + n if n < 3 else later + n - 3, value=partial(_format_share, name=name))
        for n, name in enumerate(grades)
    ]


def _format_share(row: Mapping[str, Any], name: str) -> str:
    """Format a grade or a probability; a dash if it is unknown."""
    return "–" if row[name] is None else f"{row[name]:.2f}"


# Characters of a thought that are printed, as many as on the page of `report`.
_MAX_CHARS = 2000
_INDENT = "  "


def read_thoughts(
    config: Config, topic: str, judged: Sequence[Judgment | StanceReading]
) -> Mapping[str, Sequence[tuple[str, str]]]:
    """Return the thoughts behind the judgments and stances of a topic, by document id: their prompt and their text.

    Raises:
        UsageError: The model did not reason.
        DataError: The cache is missing, or lacks a thought.
    """
    if not any(each.thought_keys for each in judged):
        raise UsageError(
            f"--thoughts: the model did not reason about topic {topic} before it answered; leave the option out, or "
            "run with a budget (`--thinking`)"
        )
    file = config.cache.file
    if not file.is_file():
        raise DataError(
            f"{file}: no such file; --thoughts needs the cache of the run; if it moved, name it in the run's "
            "config.yaml (`cache.file`)"
        )
    thoughts: dict[str, list[tuple[str, str]]] = {}
    with Cache(file, CacheMode.REPLAY) as cache:
        for each in judged:
            for key in each.thought_keys:
                answer = cache.get(key, Answer)
                if answer is None:
                    raise DataError(
                        f"{file}: no thought about document {each.document_id}; --thoughts needs the cache of the run; "
                        "name it in the run's config.yaml (`cache.file`)"
                    )
                thoughts.setdefault(each.document_id, []).append((each.prompt, answer.text))
    return thoughts


def show_thoughts(thoughts: Mapping[str, Sequence[tuple[str, str]]], documents: Iterable[str]) -> None:
    """Print the thoughts about ranked documents; long ones are cut, and broken at the width of the terminal."""
    width = get_width()
    for rank, document in enumerate(documents, start=1):
        for prompt, text in thoughts.get(document, ()):
            print(f"\n{rank} {to_printable(document)}, {prompt}")
            line = to_printable(" ".join(text.split()))
            line = line[:_MAX_CHARS] + ("…" if len(line) > _MAX_CHARS else "")
            # Thoughts have words without end, and characters that are two columns wide.
            wrapped = [line] if width is None else Text(line).wrap(Console(), width - len(_INDENT), overflow="fold")
            for part in wrapped:
                print(f"{_INDENT}{part}".rstrip())


_NDCG = " nDCG@5"
# Measures of the last evaluation with short names that have a column in any case; a task may have other aspects.
_MEASURES = {
    "relevance nDCG@5": "relevance",
    "quality nDCG@5": "quality",
    "coherence nDCG@5": "coherence",
    "stance macro-F1": "stance",
}
# Counts in the facts of a stage that say what came out of it.
_OUTPUTS = ("candidates", "judgments", "lines")
_SUMMARY_TOPICS, _SUMMARY_RANKS = 2, 3


def show(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    topic: Annotated[
        str | None, typer.Option("--topic", metavar="ID", help="Show this topic with its whole ranking.")
    ] = None,
    top: Annotated[
        int | None, typer.Option("--top", min=1, help="Documents per topic (default: 3; with --topic all).")
    ] = None,
    thoughts: Annotated[
        bool, typer.Option("--thoughts", help="With --topic: what the model reasoned before it answered.")
    ] = False,
    answers: Annotated[
        bool,
        typer.Option(
            "--answers", help="Only documents whose stance differs from the judge prompt's answer as written."
        ),
    ] = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Show a run: settings, stages, failures, first documents.

    With --topic: the topic's text, and its ranking with grades, stance probabilities and truncation. Texts of documents
    are shown if the index of the run is available.
    """
    if thoughts and topic is None:
        raise UsageError("--thoughts: shows the thoughts about one topic; name it with --topic")
    if not run.is_dir():
        raise DataError(f"{run}: no such folder; give the folder of a run, which `touche-llm runs` lists")
    overview = read_overview(run)
    config = overview.config
    if config is None:
        raise DataError(overview.problem)
    task, topics = get_task(config.task), read_run_topics(run, config)
    if topic is not None and overview.state != COMPLETE:
        raise DataError(f"{run}: {overview.problem or overview.state}; finish the run to see its rankings")
    rows: list[dict[str, Any]] = []
    if (run / RESULTS).is_file():
        shown_ranks = top or (None if topic is not None or answers else _SUMMARY_RANKS)
        rows = list_rows(run, config, task, topics, shown_ranks, [] if topic is None else [topic])
    if topic is not None and not rows:
        raise UsageError(f"--topic {topic}: not in the run; it has {', '.join(read_run(run / 'run.txt').rankings)}")
    if answers:
        _show_answers(output, list(rows), run, task, topics)
        return
    if topic is not None:
        judged = _add_details(rows, run, topic, task)
        reasoned = read_thoughts(config, topic, judged) if thoughts else {}
        for row in rows if thoughts else ():
            row["thought"] = "\n\n".join(text for _, text in reasoned.get(row["document"], ())) or None
    if output is not Format.TABLE:
        print_rows(output, rows)
    elif topic is None:
        _show_run(overview, config, task)
        if rows:
            show_rankings(rows, task, topics)
            say(output, f"next: touche-llm show {run} --topic {rows[0]['topic']}")
    else:
        _show_topic(topics.get(topic), rows, task)
        show_thoughts(reasoned, (row["document"] for row in rows))
        if not thoughts and any(each.thought_keys for each in judged):
            show_lines(("--thoughts: shows what the model reasoned before it answered",))


def _show_answers(
    output: Format, rows: Sequence[dict[str, Any]], run: Path, task: Task, topics: Mapping[str, Topic]
) -> None:
    """Print the rows whose stance differs from the answer to the judge prompt, which is added as `answer`."""
    if not task.stances:
        raise UsageError(f"--answers: {task.name} has no stances; leave the option out")
    judged = read_records(run / JUDGMENTS, Judgment, "judgments")
    written = {
        (each.topic_id, each.document_id): str(each.readings["stance"].answered)
        for each in judged
        if "stance" in each.readings
    }
    # Not all documents have an answer: some pairs of sentences inherit their stance.
    keys = [(row["topic"], row["document"]) for row in rows]
    answered = [row | {"answer": written[key]} for row, key in zip(rows, keys, strict=True) if key in written]
    differing = [row for row in answered if row["answer"] != row["stance"]]
    if output is not Format.TABLE:
        print_rows(output, differing, list(answered[0]) if answered else ())
        return
    if differing:
        show_rankings(differing, task, topics, has_grades=False)
    count = f"{len(differing):,} of {len(answered):,}"
    show_lines([f"{count} stances differ from the answers to the judge prompt as written"])


def _show_run(overview: RunOverview, config: Config, task: Task) -> None:
    problem = f" ({overview.problem})" if overview.problem else ""
    print(f"{overview.directory}: {overview.state}{problem}, {overview.changed:%Y-%m-%d %H:%M}")
    facts = dict(_list_facts(overview, config, task))
    width = max(map(len, facts))
    show_lines((f"{name:{width}}  {value}" for name, value in facts.items()), indent=width + 2)
    print()
    columns = [Column("stage", is_text=True), Column("time"), Column("requests"), Column("cached")]
    columns += [Column("failed", value="failures"), Column("tokens in", drop=1, value="prompt_tokens")]
    columns += [Column("tokens out", drop=2, value="completion_tokens"), Column("result", is_text=True)]
    rows = []
    for name, stage in overview.stages.items():
        result = next((f"{stage[count]:,} {count}" for count in _OUTPUTS if count in stage), None)
        row = {"stage": name, "time": format_seconds(read_counts(stage).seconds), "result": result}
        rows.append(row | sum_usage(stage)._asdict())
    show_table(columns, rows)
    print()


def _list_facts(overview: RunOverview, config: Config, task: Task) -> Iterator[tuple[str, str]]:
    """Yield the settings that matter, by name."""
    prompts = [facts.get("prompts") for facts in overview.stages.values()]
    labels = [str(label).partition("/")[2] for used in prompts if isinstance(used, Mapping) for label in used.values()]
    chosen = f", the first {config.limit_topics}" if config.limit_topics is not None else ""
    chosen += f", only {', '.join(config.topic)}" if config.topic else ""
    first_stage = str(config.candidates or config.retriever.name)
    if config.chatnoir is not None or config.elasticsearch is not None:
        first_stage = "ChatNoir" if config.chatnoir is not None else "Elasticsearch"
    yield "task", f"{task.name} ({task.title})"
    yield "model", overview.model or config.engine.model or "not known yet"
    if labels:
        yield "prompts", ", ".join(labels)
    yield (
        "topics",
        f"{'' if overview.topics is None else f'{overview.topics:,} of '}"
        f"{config.dataset or shorten_path(config.topics)}{chosen}",
    )
    yield "first stage", f"{first_stage}, depth {config.depth}"
    yield "ranking", f"{', '.join(config.rank)}; objective {config.objective}"
    yield "tag", config.tag
    failures = [failure for of_file in overview.directory.read_failures().values() for failure in of_file]
    if failures:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in count_by_kind(failures).items())
        yield "failures", kinds
    for facts in overview.stages.values():
        for name, counts in read_counts(facts).labels.items():
            bits = ", ".join(f"{aspect} {bits:.3f}" for aspect, bits in counts.bits.items() if bits is not None)
            known = f"information {bits} bits" if bits else "too few for their information"
            hint = ["--answers lists the documents"] * bool(name == "judge" and counts.overruled)
            yield f"labels of {name}", "; ".join([known, *counts.list_problems(), *counts.describe_overruled(), *hint])
    if overview.evaluation is not None:
        found = {name: overview.evaluation.measures.get(name) for name in list_measures([overview.evaluation])}
        yield (
            "measures",
            ", ".join(
                f"{name} {each.value:.4f}{'' if each.judged is None else f' (judged {each.judged:.3f})'}"
                for name, each in found.items()
                if each is not None and each.value is not None
            ),
        )
        for aspect, covered in overview.evaluation.coverage.items():
            used = overview.evaluation.qrels[aspect]
            topics = "; ".join(filter(None, (covered.describe(), covered.describe_missing())))
            yield f"{aspect} over", f"{topics}; qrels {shorten_path(used.file)} sha256 {used.sha256:.12}"


def list_measures(evaluations: Iterable[RecordedEvaluation | None]) -> dict[str, str]:
    """Return the measures that are shown, with their short names."""
    measured = (name for evaluation in evaluations if evaluation is not None for name in evaluation.measures)
    return _MEASURES | {name: name.removesuffix(_NDCG) for name in measured if name.endswith(_NDCG)}


def _add_details(rows: Sequence[dict[str, Any]], run: Path, topic: str, task: Task) -> list[Judgment | StanceReading]:
    """Add the rank in the first stage and the share of the document that the model saw to the rows of a topic.

    Returns:
        Judgments and stances of the topic.
    """
    first = {each.document_id: each.rank for each in read_run(run / CANDIDATES).rankings.get(topic, [])}
    judgments = read_records(run / JUDGMENTS, Judgment, "judgments")
    check_judgments(judgments, task.question, run / JUDGMENTS)
    judged = {each.document_id: each for each in judgments if each.topic_id == topic}
    for row in rows:
        judgment = judged.get(row["document"])
        cut = None if judgment is None else judgment.cut
        row["first_stage_rank"] = first.get(row["document"])
        row["seen"] = None if judgment is None else 1.0
        if cut is not None:
            row["seen"] = round(cut.kept_chars / max(cut.of_chars, 1), 4)
    stances = (each for each in RunDirectory(run).read_stances(task) if each.topic_id == topic)
    return [*judged.values(), *stances]


def _show_topic(topic: Topic | None, rows: Sequence[Mapping[str, Any]], task: Task) -> None:
    if topic is not None:
        objects = f"objects: {' and '.join(topic.objects)}" if topic.objects else ""
        show_lines(filter(None, (f"{topic.id} {topic.title}", objects, topic.description, topic.narrative)))
        print()
    columns = [Column("rank"), _place_ids(rows, 6)]
    columns += [Column("stance", drop=1, is_text=True, value=_format_stance)] * bool(task.stances)
    columns += [*place_grades(task.question.grades, 3, 20), Column("seen", drop=7, value=_format_seen)]
    columns += [Column("score", drop=8), Column("before", drop=9, value=_format_rank_before)]
    columns += [
        Column(f"p {label}", drop=10, value=partial(_format_share, name=f"p_{label}")) for label in task.stances
    ]
    show_table([*columns, Column("text", drop=2, cut=TEXT_WIDTH)], rows)
    show_lines(("seen: share of a truncated document that the model saw; before: rank in the first stage",))


def _format_seen(row: Mapping[str, Any]) -> str:
    return "" if row["seen"] in (None, 1.0) else f"{row['seen']:.0%}"


def _format_rank_before(row: Mapping[str, Any]) -> str:
    return "–" if row["first_stage_rank"] is None else str(row["first_stage_rank"])


def _format_stance(row: Mapping[str, Any]) -> str:
    """Format the stance of a row with its probability, and with its source unless that is a prompt."""
    share = row[f"p_{row['stance']}"]
    source = "" if row["stance_source"] in ("judge", "stance") else f" {row['stance_source']}"
    return f"{row['stance']}{'' if share is None else f' {share:.2f}'}{source}"


def show_summary(output: Format, folder: Path, seconds: float) -> None:
    """Print the summary of a run that ended: time, costs and the first documents of two topics, see `say`."""
    overview = read_overview(folder)
    if overview.config is None or overview.state != COMPLETE:
        return
    task, usage = get_task(overview.config.task), overview.usage
    costs = f"{usage.requests:,} requests, {usage.cached:,} answers from the cache"
    unread = f", {usage.unread:,} answers without probabilities" if usage.unread else ""
    overruled = f", {usage.overruled:,} stances unlike the answers as written" if usage.overruled else ""
    tokens = f"{usage.prompt_tokens:,} prompt and {usage.completion_tokens:,} answer tokens"
    say(output, f"{format_seconds(seconds)}, {costs}, {tokens}, {usage.failures:,} failures{unread}{overruled}")
    topics = read_run_topics(folder, overview.config)
    rows = list_rows(folder, overview.config, task, topics, _SUMMARY_RANKS)
    chosen = list(dict.fromkeys(row["topic"] for row in rows))[:_SUMMARY_TOPICS]
    file = sys.stdout if output is Format.TABLE else sys.stderr
    print(file=file)
    show_rankings([row for row in rows if row["topic"] in chosen], task, topics, has_grades=False, file=file)
