"""Small runs that need every kind of answer, and another value for each setting that enters answer keys."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tests.answer_keys.refusing_server import CONTEXT, MODEL, RefusingServer
from tests.prompt_variants import DOCUMENTS, collection
from tests.sample_runs import Silent
from touche_llm.cli.demo import SAMPLES
from touche_llm.config.configuration import Config
from touche_llm.config.files import load_config
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.runs.stages import run_all
from touche_llm.tasks import prompts_folder

Settings = Mapping[str, Any]
Base = Literal["comparative", "queries", "sentences", "cross_encoder", "dense"]
# Topic and document, or the documents that are compared, in this order.
Subject = tuple[str | None, str | None]
Keys = Mapping[Subject, set[str]]
# Kinds of cache entries that are looked up by what would be sent.
_LOOKED_UP = ("answer", "unusable", "score", "embedding")
# Name of a run.
RUN = "first"
# Documents of each topic that are judged.
DEPTH = 2
# So long that a document is cut where it may have few tokens.
_LONG = " Tea is mild, and coffee is strong." * 12


@dataclass(frozen=True)
class Change:
    """Another value of a setting, and a run in which it matters.

    Attributes:
        value: The value; of a setting of `prompts`, a path below the folder of the inputs.
        base: Kind of the run.
        needs: Other settings of the run, whatever the value.
    """

    value: Any
    base: Base = "comparative"
    needs: Settings = field(default_factory=dict)


_JUDGE_REASONS: Settings = {"sampling.thinking.judge": 32}
_SETWISE: Settings = {"depth": 5, "rank": ("judge", "setwise:5")}
_INSERTION: Settings = {"depth": 5, "rank": ("judge", "insertion:5"), "ranking.insertion.top": 2}
_LISTWISE: Settings = {"depth": 4, "rank": ("judge", "listwise:4"), "ranking.listwise.stride": 1}
_TOURNAMENT: Settings = {"depth": 4, "rank": ("judge", "tournament:4")}
# Another value of each setting that enters answer keys.
CHANGES: Mapping[str, Change] = {
    # Without the stances and objects of the task.
    "task": Change("comparative_2021", needs={"stance.depth": None}),
    "retriever.query": Change(("title", "description"), base="dense"),
    "engine.model": Change("another"),
    "engine.revision": Change("2"),
    "engine.context": Change(800),
    "sampling.temperature": Change(0.3),
    "sampling.resample_temperature": Change(0.9),
    "sampling.seed": Change(5),
    "sampling.max_tokens": Change(48),
    "sampling.logprobs": Change(False),
    "sampling.chat_template_kwargs": Change({"enable_thinking": False, "style": "plain"}),
    "sampling.system_message": Change("user"),
    "sampling.thinking.judge": Change(32),
    "sampling.thinking.stance": Change(32),
    "sampling.thinking.compare": Change(32),
    "sampling.thinking.delimiters": Change("mistral", needs=_JUDGE_REASONS),
    "sampling.thinking.temperature": Change(0.2, needs=_JUDGE_REASONS),
    "sampling.thinking.chat_template_kwargs": Change({"thinking": True}, needs=_JUDGE_REASONS),
    "prompts.folder": Change("templates"),
    "prompts.judge": Change("reworded/judge.jinja"),
    "prompts.objects": Change("reworded/objects.jinja"),
    "prompts.stance": Change("reworded/stance.jinja"),
    "prompts.best": Change("reworded/best.jinja"),
    "prompts.order": Change("reworded/order.jinja"),
    "prompts.queries": Change("reworded/queries.jinja", base="queries"),
    "prompts.sentence": Change("reworded/sentence.jinja", base="sentences"),
    "judge_per": Change("field"),
    "objective": Change("quality"),
    "ranking.document_tokens": Change(16),
    "ranking.cross_encoder.model": Change("another", base="cross_encoder"),
    "ranking.cross_encoder.revision": Change("2", base="cross_encoder"),
    "ranking.cross_encoder.context": Change(40, base="cross_encoder"),
    "ranking.cross_encoder.preset": Change("qwen3", base="cross_encoder"),
    "ranking.cross_encoder.instruction": Change(
        "Find reasons.",
        base="cross_encoder",
        needs={"ranking.cross_encoder.preset": "qwen3"},
    ),
    "ranking.cross_encoder.query_template": Change("query: {query}", base="cross_encoder"),
    "ranking.cross_encoder.document_template": Change("text: {document}", base="cross_encoder"),
    "ranking.cross_encoder.query": Change(("title", "description"), base="cross_encoder"),
    "dense.model": Change("another", base="dense"),
    "dense.revision": Change("2", base="dense"),
    "dense.context": Change(40, base="dense"),
    "dense.preset": Change("e5", base="dense"),
    "dense.instruction": Change("Find reasons.", base="dense", needs={"dense.preset": "qwen3"}),
    "dense.query_template": Change("query: {query}", base="dense"),
    "dense.document_template": Change("text: {document}", base="dense"),
    "dense.dimensions": Change(16, base="dense"),
}
# Another value of settings that stay out of answer keys, which give other requests or none.
OTHER_REQUESTS: Mapping[str, Change] = {
    "depth": Change(1),
    "topic": Change(("2",)),
    "limit_topics": Change(1),
    "weights": Change({"relevance": 0.1, "quality": 2.0}),
    "rank": Change(("judge", "sliding:2", "tournament:2")),
    "tag": Change("other"),
    "actor.team": Change("other"),
    "retriever.name": Change("bm25", base="queries"),
    "retriever.k1": Change(0.5, base="queries"),
    "retriever.b": Change(0.1, base="queries"),
    "expansion.use": Change(False, base="queries"),
    "expansion.weight": Change(2.0, base="queries"),
    "engine.name": Change("managed"),
    "engine.base_url": Change("http://127.0.0.1:9"),
    "engine.concurrency": Change(1),
    "engine.request_timeout": Change(7.0),
    "engine.retry_for": Change(7.0),
    "ranking.pairwise.both_orders": Change(False),
    "ranking.sliding.passes": Change(1, needs={"rank": ("judge", "sliding:2")}),
    "ranking.setwise.children": Change(2, needs=_SETWISE),
    "ranking.setwise.both_orders": Change(True, needs=_SETWISE),
    "ranking.insertion.children": Change(2, needs=_INSERTION),
    "ranking.insertion.top": Change(1, needs=_INSERTION),
    "ranking.listwise.window": Change(2, needs=_LISTWISE),
    "ranking.listwise.shuffles": Change(3, needs=_LISTWISE),
    "ranking.tournament.group": Change(2, needs=_TOURNAMENT),
    "ranking.tournament.seed": Change(7, needs=_TOURNAMENT),
    "stance.depth": Change(2),
    "stance.prompt": Change("own"),
    "sentences.pool": Change(12, base="sentences"),
    "sentences.argument_share": Change(0.9, base="sentences"),
    "pairs.judged": Change(4, base="sentences"),
    "pairs.both_orders": Change(2, base="sentences"),
    "pairs.same_argument": Change(0.9, base="sentences"),
    "pairs.no_side_above": Change(0.4, base="sentences"),
    "ranking.cross_encoder.url": Change("http://127.0.0.1:8", base="cross_encoder"),
    "ranking.cross_encoder.batch": Change(1, base="cross_encoder"),
    "dense.url": Change("http://127.0.0.1:8", base="dense"),
    "dense.batch": Change(1, base="dense"),
    "dense.pool": Change(3, base="dense", needs={"retriever.name": "hybrid"}),
    "dense.weight": Change(3.0, base="dense", needs={"retriever.name": "hybrid"}),
    "cache.mode": Change("refresh"),
}


def merge_changes(base: Base) -> dict[str, Any]:
    """Return the settings of a run in which all settings that enter its keys are changed.

    A prompt of the changed folder of templates is not named, and the task stays, whose changes
    leave out parts of the run.
    """
    left_out = ("task", "prompts.order")
    return {
        name: change.value
        for name, change in CHANGES.items()
        if change.base == base and name not in left_out
    }


def write_inputs(folder: Path) -> dict[str, Path]:
    """Write a collection of two topics, the second without objects, and templates in other words.

    Returns:
        Files of the collection, and its first stage, by name.
    """
    files = collection(folder, topics=2)
    topics = files["topics.xml"].read_text()
    first, second = topics.split("</topic>", 1)
    second = second.replace("<objects>tea, coffee</objects>", "")
    first += "<description>Reasons for tea.</description></topic>"
    files["topics.xml"].write_text(first + second)

    passages = [json.loads(line) for line in files["passages.jsonl"].read_text().splitlines()]
    lines = [json.dumps(each | {"contents": each["contents"] + _LONG}) for each in passages]
    files["passages.jsonl"].write_text("\n".join(lines))

    qrels: list[str] = []
    candidates: list[str] = []
    for topic in (1, 2):
        for number in range(DEPTH):
            qrels.append(f"{topic} 0 {topic}-{number} {number}\n")
        for number in range(DOCUMENTS):
            rank = number + 1
            candidates.append(f"{topic} Q0 {topic}-{number} {rank} {9 - rank} first\n")
    files["relevance"].write_text("".join(qrels))
    files["candidates"] = folder / "candidates.txt"
    files["candidates"].write_text("".join(candidates))
    _write_templates(folder)
    return files


def _write_templates(folder: Path) -> None:
    """Write all prompts in other words as `reworded/NAME.jinja`, and one to prefer in `templates`."""
    reworded = folder / "reworded"
    reworded.mkdir()
    for task in ("sentence_pairs", "comparative"):
        for template in (prompts_folder() / task).glob("*.jinja"):
            text = template.read_text()
            system = "{% block system %}\n"
            assert system in text
            (reworded / template.name).write_text(text.replace(system, f"{system}Take care. "))
    preferred = folder / "templates" / "comparative"
    preferred.mkdir(parents=True)
    (preferred / "order.jinja").write_text((reworded / "order.jinja").read_text())


def _list_settings(base: Base, folder: Path, files: Mapping[str, Path]) -> dict[str, Any]:
    """Return the settings of a run, by dotted name."""
    settings: dict[str, Any] = {
        "topics": files["topics.xml"],
        "corpus": files["passages.jsonl"],
        "index": folder / "index",
        "cache.file": folder / "answers.sqlite",
        "engine.model": MODEL,
        "engine.context": CONTEXT,
        "depth": DEPTH,
    }
    match base:
        case "comparative":
            steps = ("judge", "listwise:2", "pairwise:2")
            settings |= {"candidates": files["candidates"], "stance.depth": 1, "rank": steps}
        case "queries":
            settings |= {"expansion.use": True, "retriever.method": "lucene"}
        case "sentences":
            sample = SAMPLES / "sentence_pairs"
            settings |= {
                "task": "sentence_pairs",
                "topics": sample / "topics.xml",
                "corpus": sample / "args_processed_04_01.csv",
                "limit_topics": 1,
                "depth": 8,
                "sentences.pool": 8,
                "pairs.judged": 2,
                "pairs.both_orders": 1,
                "pairs.most": 4,
            }
        case "cross_encoder":
            settings |= {
                "candidates": files["candidates"],
                "rank": ("judge", "cross_encoder:2"),
                "ranking.cross_encoder.url": "http://127.0.0.1:9",
                "ranking.cross_encoder.model": MODEL,
            }
        case "dense":
            settings |= {
                "retriever.name": "dense",
                "dense.url": "http://127.0.0.1:9",
                "dense.model": MODEL,
            }
    return settings


def make_config(folder: Path, base: Base, settings: Settings) -> Config:
    """Write the inputs of a run in a new folder, and return its configuration."""
    folder.mkdir(exist_ok=True)
    files = write_inputs(folder)
    values = _list_settings(base, folder, files)
    for name, value in settings.items():
        values[name] = str(folder / value) if name.startswith("prompts.") else value
    return load_config(None, values)


@dataclass(frozen=True)
class Case:
    """A finished run of a server, with all samples of each answer.

    Attributes:
        config: Configuration of the run.
        root: Folder of runs, with that of this one.
        keys: Keys of the answers of this run alone.
    """

    config: Config
    root: Path
    server: RefusingServer
    keys: Keys

    @property
    def run(self) -> Path:
        """Folder of the run."""
        return self.root / RUN


def make_case(folder: Path, server: RefusingServer, base: Base, settings: Settings) -> Case:
    """Make a run in a new folder."""
    config = make_config(folder, base, settings)
    root = folder / "runs"
    asyncio.run(run_all(config, root / RUN, Silent()))
    return Case(config=config, root=root, server=server, keys=read_keys(config))


def make_changed_case(folder: Path, server: RefusingServer, setting: str, change: Change) -> Case:
    """Make a run in which one setting is changed, in a new folder."""
    settings = {**change.needs, setting: change.value}
    return make_case(folder, server, change.base, settings)


def read_keys(config: Config) -> Keys:
    """Return the keys of what is stored, by subject; those of the vectors of a corpus are folders."""
    keys: defaultdict[Subject, set[str]] = defaultdict(set)
    with Cache(config.cache.file, CacheMode.REPLAY) as cache:
        for entry in cache.iterate_entries():
            if entry.kind in _LOOKED_UP:
                keys[entry.topic, entry.document].add(entry.key)
    assert config.index is not None
    keys[None, "index"] = {folder.name for folder in config.index.glob("dense-*")}
    return keys


def find_changed(before: Keys, after: Keys) -> set[Subject]:
    """Return the subjects of both runs with other keys.

    Further keys of a subject, or fewer, are other requests about it, and no change.
    """
    changed: set[Subject] = set()
    for subject in before.keys() & after.keys():
        is_extended = before[subject] <= after[subject]
        is_reduced = before[subject] >= after[subject]
        if not is_extended and not is_reduced:
            changed.add(subject)
    return changed
