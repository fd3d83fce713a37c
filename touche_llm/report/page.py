"""What HTML pages share: how they are rendered and written, and the facts, costs, stances and measures of runs."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from pandas import DataFrame

from touche_llm.config.configuration import Config
from touche_llm.data.files import open_atomic
from touche_llm.data.measure import Measure
from touche_llm.data.runs.reading import ParsedRun
from touche_llm.evaluation.measures import Evaluation, describe_coverage, list_headline
from touche_llm.evaluation.qrels import Qrels
from touche_llm.evaluation.significance import describe_intervals
from touche_llm.runs.facts import FactGroup, join_texts, select_facts
from touche_llm.runs.record import StageRecord, StageRecords
from touche_llm.tasks.task import Task

# The characters with Unicode's property Bidi_Control.
_BIDIRECTIONAL = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_HERE = Path(__file__).parent
# Letters of the runs on one page, and thereby their maximum number.
LETTERS = "ABCDEFGH"
# Fewer topics have no plot: their values are in their headings.
_MIN_PLOTTED = 3


def replace_directions(text: str) -> str:
    """Replace characters that control the direction of text.

    A document could use them to reorder what a reader sees around it.
    """
    return _BIDIRECTIONAL.sub("\N{REPLACEMENT CHARACTER}", text)


def render(page: SimpleNamespace) -> str:
    """Render a page, without characters that control directions: its `template`, with the other values for it."""
    template = create_environment().get_template(f"{page.template}.html.jinja")
    return replace_directions(template.render(vars(page)))


def write_page(text: str, path: Path) -> int:
    """Write a page atomically, and return its size in bytes."""
    with open_atomic(path) as stream:
        return stream.write(text.encode())


@cache
def create_environment() -> Environment:
    """Create the Jinja environment of the page templates, which escapes every value.

    The layout sets a content security policy that allows only its own style and script, by their
    hashes. Nothing in a document can run, and nothing is fetched.
    """
    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style, script = (
        (_HERE / name).read_text(encoding="utf-8") for name in ("style.css", "script.js")
    )
    environment.globals |= {
        "policy": f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; "
        "form-action 'none'",
        # Characters of each document text: 1,000 documents stay below 10 MB.
        "limit": 10_000,
        # Trusted: files of this package.
        "style": Markup(style),
        "script": Markup(script),
    }
    return environment


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def describe_run(
    config: Config, task: Task, stages: StageRecords, run: ParsedRun
) -> dict[str, str]:
    """Return the facts about a run, by name; empty ones are omitted."""
    corpus = config.dataset or config.corpus or config.index
    if corpus is None:
        corpus = config.retriever.kind.describe(config.retriever_settings)
    facts = {
        "task": task.title,
        **join_texts(stages.finished.values(), FactGroup.SETUP),
        "ranked by": ", ".join(config.rank),
        "objective": config.criterion,
        "corpus": "" if corpus is None else str(corpus),
        "topics": f"{len(run.rankings):,}",
        "lines": f"{sum(map(len, run.rankings.values())):,}",
        "tag": config.tag,
    }
    return {name: value for name, value in facts.items() if value}


@dataclass(frozen=True, slots=True)
class CostRow:
    """A row of a table of costs: its label, and the text of each column."""

    label: str
    texts: list[str]


def tabulate_costs(records: Sequence[StageRecord | None]) -> list[CostRow]:
    """Return a row for each cost, with a column for each record; a missing cost is a dash."""
    columns: list[dict[str, str]] = []
    labels: dict[str, None] = {}
    for record in records:
        costs = [] if record is None else select_facts(record, FactGroup.COST)
        columns.append({cost.label: cost.text for cost in costs})
        labels.update(dict.fromkeys(cost.label for cost in costs))
    return [CostRow(label, [column.get(label, "–") for column in columns]) for label in labels]


def compute_label_shares(
    runs: Mapping[str, ParsedRun], qrels: Qrels | None, labels: Iterable[str]
) -> dict[str, dict[str, float]]:
    """Return the share of each label in each run and by assessors.

    Names get the number of labels, empty sets none.
    """
    sets = {name: list(run.stances.values()) for name, run in runs.items()}
    if qrels is not None:
        sets["assessors"] = [label for truth in qrels.stances.values() for label in truth.values()]
    counts = {f"{name} ({len(given):,})": Counter(given) for name, given in sets.items() if given}
    return {
        name: {label: count[label] / count.total() for label in labels}
        for name, count in counts.items()
    }


def plot_topics(values: Sequence[Mapping[str, float]]) -> dict[str, dict[int, float]]:
    """Return the values of a measure by topic and place of the run, best topic of the first run first.

    It is empty for too few topics. Topics that the first run lacks come last.
    """
    topics = dict.fromkeys(topic for of_run in values for topic in of_run)
    if len(topics) < _MIN_PLOTTED:
        return {}
    return {
        topic: {place: of_run[topic] for place, of_run in enumerate(values) if topic in of_run}
        for topic in sorted(topics, key=lambda topic: -values[0].get(topic, -1.0))
    }


def tabulate_measures(evaluations: Sequence[Evaluation], differences: DataFrame) -> SimpleNamespace:
    """Return what pages show about the measures of runs, all by the same qrels.

    The first run has all measures.

    These are the `measures`, and the `headline` ones, at the top of a page; the
    `rows` of `Evaluation.summary` and the `changes`, rows of `significance.compare`, both by run
    and measure; for headline measures of all runs their values `by_topic`, run by run, and their
    `plots`; `coverage` and `notes`.
    """
    rows: list[dict[str, Any]] = []
    for evaluation in evaluations:
        rows += evaluation.summary().to_dict("records")
    changes = differences.to_dict("records")

    headline = list_headline(evaluations[0].qrels)
    by_topic: dict[Measure, list[dict[str, float]]] = {}
    plots: dict[Measure, dict[str, dict[int, float]]] = {}
    for measure in headline:
        if not all(measure in evaluation.estimates for evaluation in evaluations):
            continue
        estimates = [evaluation.estimates[measure] for evaluation in evaluations]
        by_topic[measure] = [estimate.values_by_topic() for estimate in estimates]
        plot = plot_topics(by_topic[measure])
        if plot:
            plots[measure] = plot

    coverage: list[str] = []
    for measure in headline:
        lines = describe_coverage(evaluations, measure.aspect)
        coverage += [f"{measure.aspect}: {line}" for line in lines]

    return SimpleNamespace(
        measures=list(dict.fromkeys(row["measure"] for row in rows)),
        headline=headline,
        rows={(row["run"], row["measure"]): SimpleNamespace(**row) for row in rows},
        changes={(row["run"], row["measure"]): SimpleNamespace(**row) for row in changes},
        by_topic=by_topic,
        plots=plots,
        coverage=coverage,
        notes=describe_intervals([*rows, *changes]),
    )
