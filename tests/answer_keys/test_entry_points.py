"""All entry points look up the answers of a run under its keys, and send the requests that they announce."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import batch_replies as b
from tests.answer_keys.cases import (
    CHANGES,
    OTHER_REQUESTS,
    Base,
    Case,
    Change,
    Keys,
    find_changed,
    make_case,
    make_changed_case,
    make_config,
    merge_changes,
)
from tests.answer_keys.entry_points import ENTRY_POINTS, STAGES
from tests.answer_keys.refusing_server import RefusingServer
from tests.batch.stages import export_stage, import_files, replay
from tests.cli.conftest import Touche
from tests.sample_runs import Silent, with_cache
from touche_llm.evaluation.qrels import read_qrels
from touche_llm.llm.request import MAX_SAMPLES, Request
from touche_llm.prompt_lab.comparison import ComparisonInputs, compare_prompts, estimate_comparison
from touche_llm.prompt_lab.sample import Plan
from touche_llm.runs.dry_run import estimate_cost
from touche_llm.runs.stages import run_all
from touche_llm.tasks import get_task

MakeCase = Callable[[Base], Case]
ReadKeys = Callable[[Change], Keys]


@pytest.fixture(scope="module")
def changed_case(tmp_path_factory: pytest.TempPathFactory, server: RefusingServer) -> MakeCase:
    """A run of each kind, made once, in which all settings that enter its keys are changed."""
    cases: dict[Base, Case] = {}

    def make(base: Base) -> Case:
        if base not in cases:
            folder = tmp_path_factory.mktemp(base)
            cases[base] = make_case(folder, server, base, merge_changes(base))
        return cases[base]

    return make


@pytest.mark.parametrize(
    ("base", "name"), [(base, name) for base, names in ENTRY_POINTS.items() for name in names]
)
def test_an_entry_point_finds_all_samples_of_a_run_with_other_settings(
    changed_case: MakeCase, server: RefusingServer, touche: Touche, base: Base, name: str
) -> None:
    case = changed_case(base)
    server.forget()
    assert ENTRY_POINTS[base][name](case, touche) == []


# The documents that a search by vectors would find are unknown before.
@pytest.mark.parametrize("base", [base for base in ENTRY_POINTS if base != "dense"])
def test_a_run_sends_the_requests_that_its_dry_run_announces(
    tmp_path: Path, server: RefusingServer, base: Base
) -> None:
    config = make_config(tmp_path, base, merge_changes(base))
    server.forget()
    asyncio.run(estimate_cost(config, None, STAGES, Silent()))
    assert server.list_sent() == []
    announced = server.announced
    asyncio.run(run_all(config, tmp_path / "run", Silent()))
    assert server.first_samples == announced != set()
    assert {request.sample for request in server.requests} == set(range(MAX_SAMPLES))


def test_a_comparison_sends_the_requests_that_its_dry_run_announces(
    tmp_path: Path, server: RefusingServer
) -> None:
    config = make_config(tmp_path, "comparative", merge_changes("comparative"))
    qrels = read_qrels({"relevance": tmp_path / "relevance"}, get_task(config.task))
    prompts = [config.prompts.judge, "judge"]
    inputs = ComparisonInputs(config, prompts, qrels, Plan(split="all"))
    server.forget()
    asyncio.run(estimate_comparison(inputs, Silent()))
    assert server.list_sent() == []
    announced = server.announced
    asyncio.run(compare_prompts(inputs, Silent()))
    assert server.first_samples == announced != set()


@pytest.mark.slow
def test_a_run_sends_the_requests_that_batch_files_export(
    changed_case: MakeCase, tmp_path: Path, server: RefusingServer
) -> None:
    case = changed_case("comparative")
    exported = asyncio.run(_answer_by_files(case, tmp_path))
    keys = {key for of_subject in case.keys.values() for key in of_subject}
    assert {request.key for request in exported} == keys


async def _answer_by_files(case: Case, folder: Path) -> list[Request]:
    """Make a run with batch files, which the server answers; return all requests of the files."""
    config = with_cache(case.config, file=folder / "answers.sqlite")
    out = folder / "run"
    exported: list[Request] = []
    for stage in STAGES:
        while requests := await export_stage(config, out, stage, tokenizer=folder):
            exported += requests
            lines = [await _reply(case.server, request) for request in requests]
            await import_files(out, b.write(folder / "replies.jsonl", lines))
        await replay(stage, config, out)
    return exported


async def _reply(server: RefusingServer, request: Request) -> b.Line:
    completion = await server.complete(request)
    message = {} if completion.refusal is None else {"refusal": completion.refusal}
    body = b.body(completion.text, completion.tokens, model=request.model, **message)
    return b.replied(request.key, body)


@pytest.fixture(scope="module")
def read_base_keys(tmp_path_factory: pytest.TempPathFactory, server: RefusingServer) -> ReadKeys:
    """Keys of the runs that changes are made to, each made once."""
    known: dict[str, Keys] = {}

    def read(change: Change) -> Keys:
        name = f"{change.base} {change.needs}"
        if name not in known:
            folder = tmp_path_factory.mktemp(change.base)
            known[name] = make_case(folder, server, change.base, change.needs).keys
        return known[name]

    return read


@pytest.mark.slow
@pytest.mark.parametrize("setting", CHANGES)
def test_a_setting_that_enters_changes_keys_and_all_entry_points_know_it(
    tmp_path: Path,
    server: RefusingServer,
    touche: Touche,
    read_base_keys: ReadKeys,
    setting: str,
) -> None:
    change = CHANGES[setting]
    before = read_base_keys(change)
    case = make_changed_case(tmp_path / "inputs", server, setting, change)
    assert find_changed(before, case.keys) != set()
    sent: dict[str, list[str]] = {}
    for name, enter in ENTRY_POINTS[change.base].items():
        server.forget()
        sent[name] = enter(case, touche)
    assert sent == dict.fromkeys(sent, [])


@pytest.mark.slow
@pytest.mark.parametrize("setting", OTHER_REQUESTS)
def test_a_setting_that_stays_out_changes_no_key(
    tmp_path: Path,
    server: RefusingServer,
    read_base_keys: ReadKeys,
    setting: str,
) -> None:
    change = OTHER_REQUESTS[setting]
    before = read_base_keys(change)
    case = make_changed_case(tmp_path / "inputs", server, setting, change)
    assert find_changed(before, case.keys) == set()
