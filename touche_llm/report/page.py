"""What HTML pages share: rendering, and the facts, costs and stances of runs."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import ClassVar

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from touche_llm.config.configuration import Config
from touche_llm.data.files import open_atomic
from touche_llm.data.records import Topic
from touche_llm.data.runs.reading import ParsedRun
from touche_llm.evaluation.agreement import count_confusion
from touche_llm.evaluation.qrels import Qrels
from touche_llm.runs.facts import FactGroup, join_texts, select_facts
from touche_llm.runs.record import StageRecord, StageRecords
from touche_llm.tasks.task import Task

# The characters with Unicode's property Bidi_Control.
_BIDIRECTIONAL = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_HERE = Path(__file__).parent
# Characters of each document text: 1,000 documents stay below 10 MB.
_MAX_TEXT_CHARS = 10_000
# Letters of the runs on one page, and thereby their maximum number.
LETTERS = "ABCDEFGH"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What every page shows.

    The subclass of a page has the rest of its template's input.

    Attributes:
        template: Name of the template, which gets the record as `page`.
        task: Task of the runs or prompts.
        notes: Limitations of what the page shows.
    """

    template: ClassVar[str]

    task: Task
    notes: list[str]

    @property
    def labels(self) -> list[str]:
        """Stance labels of the task; empty if documents have no stance."""
        return list(self.task.stances)


@dataclass(frozen=True, slots=True)
class Anchor:
    """Place of a topic on its page, as links name it, with the topic's title."""

    id: str
    title: str


@dataclass(frozen=True, slots=True)
class PlotMark:
    """Mark of a run in plots.

    `sign` is drawn, and `style` is the ending of its class.
    """

    name: str
    sign: str
    style: str


@dataclass(frozen=True, slots=True)
class CostRow:
    """Row of a table of costs: its label, and the text of each column."""

    label: str
    texts: list[str]


@dataclass(frozen=True, slots=True)
class LabelShares:
    """Stances of a run or by assessors.

    Attributes:
        name: Name of the run, or `assessors`.
        count: Number of labelled documents.
        shares: Share of each label of the task.
    """

    name: str
    count: int
    shares: dict[str, float]


def replace_directions(text: str) -> str:
    """Replace characters that control the direction of text.

    A document could use them to reorder what a reader sees around it.
    """
    return _BIDIRECTIONAL.sub("\N{REPLACEMENT CHARACTER}", text)


def render(page: Page) -> str:
    """Render a page with its template.

    Characters that control the direction of text are replaced.
    """
    template = create_environment().get_template(f"{page.template}.html.jinja")
    return replace_directions(template.render(page=page))


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
    environment.globals["policy"] = _make_policy()
    environment.globals["limit"] = _MAX_TEXT_CHARS
    # Trusted: files of this package.
    environment.globals["style"] = Markup(_read_source("style.css"))
    environment.globals["script"] = Markup(_read_source("script.js"))
    return environment


def _make_policy() -> str:
    """Return the content security policy that allows the style and the script of pages alone."""
    sources = hash_sources()
    rules = (
        "default-src 'none'",
        f"style-src {sources['style']}",
        f"script-src {sources['script']}",
        "base-uri 'none'",
        "form-action 'none'",
    )
    return "; ".join(rules)


@cache
def hash_sources() -> Mapping[str, str]:
    """Return the hashes of the style and of the script of pages, as a policy writes them."""
    return {"style": _hash(_read_source("style.css")), "script": _hash(_read_source("script.js"))}


def _read_source(name: str) -> str:
    """Return the style or the script of pages."""
    return (_HERE / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Return the SHA-256 of a text as a content security policy writes it."""
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def make_anchors(topics: Sequence[Topic]) -> dict[str, Anchor]:
    """Return the anchors of a page's topics, in their order, by id."""
    return {
        topic.id: Anchor(id=f"t{number}", title=topic.title)
        for number, topic in enumerate(topics, start=1)
    }


def describe_run(
    config: Config, task: Task, stages: StageRecords, run: ParsedRun
) -> dict[str, str]:
    """Return the facts about a run, by name; empty ones are omitted."""
    facts = {
        "task": task.title,
        **join_texts(stages.finished.values(), FactGroup.SETUP),
        "ranked by": ", ".join(config.rank),
        "objective": config.criterion,
        "corpus": _describe_corpus(config),
        "topics": f"{len(run.rankings):,}",
        "lines": f"{count_lines(run):,}",
        "tag": config.tag,
    }
    return {name: text for name, text in facts.items() if text}


def _describe_corpus(config: Config) -> str:
    """Return where the documents of a run come from: a dataset, a file, an index, or the retriever."""
    corpus = config.dataset or config.corpus or config.index
    if corpus is None:
        corpus = config.retriever.kind.describe(config.retriever_settings)
    return "" if corpus is None else str(corpus)


def count_lines(run: ParsedRun) -> int:
    """Count the lines of a run."""
    return sum(len(ranking) for ranking in run.rankings.values())


def list_confusion(run: ParsedRun, qrels: Qrels) -> list[list[int]]:
    """Return the documents by true label (rows) and the run's label.

    Empty without stance qrels.
    """
    if not qrels.stances:
        return []
    counts: list[list[int]] = count_confusion(run, qrels).tolist()
    return counts


def tabulate_costs(records: Sequence[StageRecord | None]) -> list[CostRow]:
    """Return a row for each cost, with a column for each record; a missing cost is a dash."""
    columns = [_list_costs(record) for record in records]
    labels = dict.fromkeys(label for column in columns for label in column)

    rows: list[CostRow] = []
    for label in labels:
        texts = [column.get(label, "–") for column in columns]
        rows.append(CostRow(label, texts))
    return rows


def _list_costs(record: StageRecord | None) -> dict[str, str]:
    """Return the costs of a stage by label; empty for a stage that a run lacks."""
    if record is None:
        return {}
    return {cost.label: cost.text for cost in select_facts(record, FactGroup.COST)}


def compute_label_shares(
    runs: Mapping[str, ParsedRun], qrels: Qrels | None, labels: Iterable[str]
) -> list[LabelShares]:
    """Return the share of each label in each run and by assessors, as far as they have labels.

    Args:
        runs: Runs by name.
        qrels: Judgments by assessors, if there are any.
        labels: Labels of the task.
    """
    given_labels = {name: list(run.stances.values()) for name, run in runs.items()}
    if qrels is not None:
        labels_by_topic = [judged.values() for judged in qrels.stances.values()]
        given_labels["assessors"] = list(chain.from_iterable(labels_by_topic))

    task_labels = list(labels)
    shares: list[LabelShares] = []
    for name, given in given_labels.items():
        if given:
            shares.append(_count_shares(name, given, task_labels))
    return shares


def _count_shares(name: str, given_labels: Sequence[str], labels: Sequence[str]) -> LabelShares:
    """Return the share of each label among the labels of documents."""
    counts = Counter(given_labels)
    shares = {label: counts[label] / len(given_labels) for label in labels}
    return LabelShares(name=name, count=len(given_labels), shares=shares)
