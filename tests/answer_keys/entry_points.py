"""Everything that opens a client of a model.

Each entry point needs the answers of a finished run, checks that it gets them, and returns what it
announces or sends for that: keys, texts for vectors or scores, or names of prompts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import orjson

import touche_llm as tl
from tests.answer_keys.cases import RUN, Base, Case
from tests.batch.stages import export_stage
from tests.cli.conftest import Touche
from tests.lab.labs import open_lab
from tests.sample_runs import Silent
from touche_llm.config.configuration import Config
from touche_llm.config.files import CONFIG
from touche_llm.data.files import read_records
from touche_llm.data.records import Judgment
from touche_llm.evaluation.qrels import read_qrels
from touche_llm.prompt_lab.comparison import ComparisonInputs, compare_prompts, estimate_comparison
from touche_llm.prompt_lab.sample import Plan
from touche_llm.prompts.prompt import template_path
from touche_llm.prompts.purposes import purposes_of
from touche_llm.regression.check import check_folder, load_finished_run
from touche_llm.regression.record import record
from touche_llm.runs.directory import JUDGMENTS, SENTENCE_JUDGMENTS
from touche_llm.runs.dry_run import estimate_cost
from touche_llm.runs.record import StageName
from touche_llm.runs.stages import run_all
from touche_llm.tasks import get_task

STAGES: tuple[StageName, ...] = ("retrieve", "judge", "rank")
EntryPoint = Callable[[Case, Touche], list[str]]


def repeat_run(case: Case, _: Touche) -> list[str]:
    result = asyncio.run(run_all(case.config, case.root / "again", Silent()))
    judgments = read_records(case.run / JUDGMENTS, Judgment, "judgments")
    assert [each.answer_keys for each in result.judgments.judgments] == [
        each.answer_keys for each in judgments
    ]
    return case.server.list_sent()


def estimate_run(case: Case, _: Touche) -> list[str]:
    result = asyncio.run(estimate_cost(case.config, None, STAGES, Silent()))
    assert sum(result.known.values()) > 0
    return [*case.server.list_announced(), *case.server.list_sent()]


def export_run(case: Case, _: Touche) -> list[str]:
    keys: list[str] = []
    for stage in STAGES:
        requests = asyncio.run(export_stage(case.config, case.run, stage))
        keys += [request.key for request in requests]
    return [*keys, *case.server.list_sent()]


def record_and_check(case: Case, _: Touche) -> list[str]:
    target = case.root.parent / "regress" / RUN
    asyncio.run(record(load_finished_run(case.run), case.run, target))
    assert asyncio.run(check_folder(target)).is_same
    return case.server.list_sent()


def try_judging_and_comparing(case: Case, touche: Touche) -> list[str]:
    purposes = purposes_of(get_task(case.config.task))
    _try_prompt(case, touche, "judge", "1", "1-0", "1-1")
    _try_prompt(case, touche, "judge", "2", "2-0", "2-1")
    if "objects" in purposes:
        _try_prompt(case, touche, "objects", "2")
        _try_prompt(case, touche, "stance", "2", "2-0")
    _try_prompt(case, touche, "best", "1", "1-0", "1-1")
    _try_prompt(case, touche, "order", "1", "1-0", "1-1")
    return case.server.list_sent()


def try_queries(case: Case, touche: Touche) -> list[str]:
    _try_prompt(case, touche, "queries", "1")
    return case.server.list_sent()


def try_sentence(case: Case, touche: Touche) -> list[str]:
    judged = read_records(case.run / SENTENCE_JUDGMENTS, Judgment, "judgments")[0]
    _try_prompt(case, touche, "sentence", judged.topic_id, judged.document_id)
    return case.server.list_sent()


def _try_prompt(case: Case, touche: Touche, purpose: str, topic: str, *documents: str) -> None:
    """Call `prompts try` with the prompt of a run and its configuration."""
    options = ["--config", str(case.run / CONFIG), "--topic", topic, "--format", "json"]
    for document in documents:
        options += ["--doc", document]
    done = touche("prompts", "try", getattr(case.config.prompts, purpose), *options)
    assert done.returncode == 0, done.stderr
    rows = orjson.loads(done.stdout)
    assert {row["topic"] for row in rows} == {topic}


def estimate_comparison_with_copy(case: Case, _: Touche) -> list[str]:
    result = asyncio.run(estimate_comparison(_compare_copies(case), Silent()))
    assert sum(result.known.values()) > 0
    return [*case.server.list_announced(), *case.server.list_sent()]


def compare_with_copy(case: Case, _: Touche) -> list[str]:
    result = asyncio.run(compare_prompts(_compare_copies(case), Silent()))
    assert result.all_failures() == []
    return case.server.list_sent()


def _compare_copies(case: Case) -> ComparisonInputs:
    """Return a comparison of the prompt of a run with a copy, whose answers are those of the run."""
    name = case.config.prompts.judge
    task = get_task(case.config.task)
    template = template_path(task, name, case.config.prompts.folder)
    copy = case.root.parent / "copy.jinja"
    copy.write_text(template.read_text())
    qrels = read_qrels({"relevance": case.root.parent / "relevance"}, task)
    return ComparisonInputs(case.config, [name, str(copy)], qrels, Plan(split="all"))


def look_at_documents(case: Case, _: Touche) -> list[str]:
    """Read the requests of a run in the lab."""

    async def look() -> None:
        async with open_lab(case.root) as lab:
            for topic, document in (("1", "1-0"), ("2", "2-1")):
                place = {"run": RUN, "topic": topic, "document": document}
                found = await lab.get("/api/document", **place)
                assert found["notes"] == [], found["notes"]
                assert found["requests"], document

    asyncio.run(look())
    return case.server.list_sent()


def try_draft(case: Case, _: Touche) -> list[str]:
    """Send the judge prompt of a run from the bench of the lab."""

    async def send() -> None:
        async with open_lab(case.root) as lab:
            prompt = {"run": RUN, "name": case.config.prompts.judge}
            template = await lab.get("/api/template", **prompt)
            for topic in ("1", "2"):
                draft = {**prompt, "topic": topic, "text": template["text"]}
                documents = [f"{topic}-0", f"{topic}-1"]
                *lines, _ = await lab.stream("/api/answers", **draft, documents=documents)
                assert [line["failure"] for line in lines] == [None, None], lines

    asyncio.run(send())
    return case.server.list_sent()


def call_library(case: Case, _: Touche) -> list[str]:
    config = case.config
    topics = tl.read_topics(config.topics)[: config.limit_topics]
    dense = None
    if config.dense is not None:
        dense = tl.DenseOptions(settings=config.dense, cache=config.cache)
    corpus = tl.open_corpus(
        config.corpus,
        task=config.task,
        index=config.index,
        retriever=config.retriever,
        dense=dense,
    )
    model = tl.LanguageModel(
        engine=config.engine, sampling=config.sampling, cache=config.cache.file
    )
    with corpus, model:
        if config.candidates is not None:
            file = config.candidates
            candidates = tl.Candidates.from_run(file, topics, corpus, depth=config.depth)
        else:
            candidates = tl.retrieve(
                topics,
                corpus,
                depth=config.depth,
                fields=config.retriever.query,
                expand_with=model if config.expansion.use else None,
                prompt=config.prompts.queries if config.expansion.use else None,
            )
        judging = ("judge", "objects", "sentence", "stance")
        judgments = tl.judge(
            candidates,
            model,
            prompts=_name_prompts(config, judging),
            stance=config.stance,
            judging_settings=config.judging_settings,
            judge_per=config.judge_per,
        )
        options = tl.RankOptions(
            objective=config.objective, settings=config.ranking, cache=config.cache
        )
        ranking = tl.rank(
            candidates,
            judgments,
            steps=config.rank,
            model=model,
            prompts=_name_prompts(config, ("best", "order")),
            options=options,
        )
    assert judgments.judgments and ranking.lines
    return case.server.list_sent()


def _name_prompts(config: Config, purposes: tuple[str, ...]) -> dict[str, str]:
    """Return the templates of a configuration as paths, since the library takes no folder of them."""
    task = get_task(config.task)
    return {
        purpose: str(template_path(task, getattr(config.prompts, purpose), config.prompts.folder))
        for purpose in purposes
        if purpose in purposes_of(task)
    }


_OF_EVERY_RUN: Mapping[str, EntryPoint] = {
    "run": repeat_run,
    "run --dry-run": estimate_run,
    "batch export": export_run,
    "regress": record_and_check,
    "library": call_library,
}
_OF_PROMPTS: Mapping[str, EntryPoint] = {
    "prompts try": try_judging_and_comparing,
    "prompts compare --dry-run": estimate_comparison_with_copy,
    "prompts compare": compare_with_copy,
    "lab: document": look_at_documents,
    "lab: bench": try_draft,
}
# Entry points by name, for each kind of run.
ENTRY_POINTS: Mapping[Base, Mapping[str, EntryPoint]] = {
    "comparative": {**_OF_EVERY_RUN, **_OF_PROMPTS},
    "queries": {**_OF_EVERY_RUN, "prompts try": try_queries},
    "sentences": {**_OF_EVERY_RUN, "prompts try": try_sentence},
    "cross_encoder": _OF_EVERY_RUN,
    "dense": _OF_EVERY_RUN,
}
