"""One judge request for each field of the answer: the prompts, the judgments, and everything that reads their keys."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.expect import raises_at
from tests.pipeline.test_dry_run import SHORT, dry, real, requests
from tests.regression.conftest import checked
from tests.sample_runs import TASK_OF_EACH_KIND, Silent, config_for, judge_stage, run_directly
from tests.scripted_engine import FACTS, Label, ScriptedEngine
from tests.write_demo_cassette import script_of
from touche_llm.config.configuration import Config
from touche_llm.data.files import read_records
from touche_llm.data.records import Document, Failure, Judgment, Topic
from touche_llm.errors import PromptError, UsageError
from touche_llm.llm.answer_schema import list_fields
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.model import ModelClient
from touche_llm.llm.request import Request
from touche_llm.prompts.prompt import Prompt
from touche_llm.prompts.purposes import load, purposes_of
from touche_llm.regression.check import load_finished_run
from touche_llm.regression.record import record
from touche_llm.tasks import TASKS, get_task
from touche_llm.tasks.task import Task

TOPIC = Topic("1", "Is tea better than coffee?", objects=("tea", "coffee"))
DIVIDED = [
    (name, purpose)
    for name, task in TASKS.items()
    for purpose in ("judge", "sentence")
    if purpose in purposes_of(task) and len(task.judged_aspects) > 1
]


def divided(task: Task, purpose: str = "judge", name: str = "") -> Prompt:
    return load(task, purposes_of(task)[purpose], name or purpose, judge_per="field")


def instructions(task: Task, purpose: str, prompt: Prompt) -> str:
    question = purposes_of(task)[purpose].question
    assert question is not None
    shown = question.render(TOPIC, Document("d", "Text.", "Title", "PRO"))
    return prompt.render(topic=TOPIC, document="Text.", **shown.variables)[0].content


@pytest.mark.parametrize(("name", "purpose"), DIVIDED)
def test_each_part_has_the_rules_and_the_labels_of_its_field_alone(name: str, purpose: str) -> None:
    task = get_task(name)
    whole = load(task, purposes_of(task)[purpose], purpose)
    of_whole = instructions(task, purpose, whole)
    fields = list(whole.answer_for(TOPIC, document_count=1).model_fields)
    found = []
    for part in divided(task, purpose).field_prompts:
        own = list(part.answer_for(TOPIC, document_count=1).model_fields)
        found += own
        *rules, how = instructions(task, purpose, part).split("\n\n")
        assert rules[0] == of_whole.split("\n\n")[0]
        assert {field for field in fields if any(f"{field}:" in rule for rule in rules)} == set(own)
        assert {field for field in fields if f"{field} " in how} == set(own)
        for rule in rules:
            assert rule.partition(". ")[2] in of_whole
    assert found == fields


def judgments_of(out: Path) -> list[Judgment]:
    return read_records(out / "judgments.jsonl", Judgment, "judgments")


@pytest.mark.parametrize("form", ["letters", "array", "object"])
async def test_judgments_are_those_of_one_request_if_the_model_answers_the_same(
    form: str, tmp_path: Path
) -> None:
    source = get_task("comparative").find_template("judge.jinja").read_text()
    (tmp_path / "mine.jinja").write_text(source.replace("\nform: letters", f"\nform: {form}"))
    given: dict[str, Any] = {
        "topic": ("3",),
        "depth": 4,
        "prompts__judge": str(tmp_path / "mine.jinja"),
    }
    together = await judged(config_for(tmp_path, **given), tmp_path / "one")
    apart = await judged(config_for(tmp_path, **given, judge_per="field"), tmp_path / "many")
    assert len(apart) == len(together) == 4
    for one, many in zip(together, apart, strict=True):
        assert many.grades == pytest.approx(one.grades)
        assert (many.document_id, many.stance, list(many.readings)) == (
            one.document_id,
            one.stance,
            list(one.readings),
        )
        assert many.readings["stance"].probabilities == pytest.approx(
            one.readings["stance"].probabilities
        )
        assert (len(one.answer_keys), len(set(many.answer_keys))) == (1, 3)
        # Thresholds of the stance belong to one of them.
        assert one.prompt != many.prompt
    assert b'"keys"' not in (tmp_path / "one/judgments.jsonl").read_bytes()


async def judged(config: Config, out: Path, script: Any = None) -> list[Judgment]:
    await run_directly(config, out, ScriptedEngine(script or script_of(config.task)))
    return judgments_of(out)


@pytest.mark.parametrize("task", TASK_OF_EACH_KIND)
async def test_a_dry_run_counts_all_requests_and_thoughts(task: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {"task": task, **SHORT[task], "sampling": {"thinking": {"judge": 50}}}
    config = config_for(tmp_path, **given, judge_per="field")
    said = requests(await dry(config))
    plain = requests(await dry(config_for(tmp_path, **given)))
    fields = {"comparative": 3, "controversial": 3, "sentence_pairs": 4}[task]
    assert said[f"{task}/judge"] == fields * plain[f"{task}/judge"] > 0
    assert said == await real(config, tmp_path / "out", script_of(task))


def fail_on(field: str) -> Any:
    script = script_of("comparative")

    def fail(request: Request) -> Mapping[str, Label | Mapping[Label, float]]:
        return {field: 9} if list(list_fields(request.schema)) == [field] else script(request)

    return fail


async def test_a_document_without_one_of_its_answers_is_not_judged_and_the_others_are_kept(
    tmp_path: Path,
) -> None:
    config = config_for(tmp_path, topic=("3",), depth=4, judge_per="field")
    assert await judged(config, tmp_path / "out", fail_on("quality")) == []
    failures = read_records(tmp_path / "out/failures.jsonl", Failure, "failures")
    assert {failure.kind for failure in failures} == {"outside_schema"}
    assert len(failures) == 4 and all(failure.prompt.endswith(":quality") for failure in failures)
    engine = ScriptedEngine(script_of("comparative"))
    with Cache(config.cache.file, CacheMode.REUSE) as cache:
        model = ModelClient(
            engine_info=FACTS,
            engine=engine,
            cache=cache,
            retry_failures=True,
            sampling=config.sampling,
        )
        result = await judge_stage(config, tmp_path / "out", Silent(), model)
    assert len(result.judgments) == 4
    assert [list(list_fields(request.schema)) for request in engine.requests] == [["quality"]] * 4


def test_a_recorded_run_replays(tmp_path: Path) -> None:
    config = config_for(tmp_path, topic=("3",), depth=4, judge_per="field")
    asyncio.run(judged(config, tmp_path / "out"))
    asyncio.run(
        record(load_finished_run(tmp_path / "out"), tmp_path / "out", tmp_path / "regress/divided")
    )
    assert checked(tmp_path / "regress/divided").is_same


def own_prompt(folder: Path, change: tuple[str, str]) -> str:
    source = get_task("comparative").find_template("judge.jinja").read_text()
    assert change[0] in source
    path = folder / "mine.jinja"
    path.write_text(source.replace(*change))
    return str(path)


@pytest.mark.parametrize(
    "change",
    [
        ("2. quality: how", "Quality means how"),
        ("{% endblock %}\n{% block user", "\n\nBe brief.\n{% endblock %}\n{% block user"),
    ],
    ids=["no paragraph", "no answer"],
)
def test_a_template_that_cannot_be_divided_is_an_error(
    change: tuple[str, str], tmp_path: Path
) -> None:
    path = own_prompt(tmp_path, change)
    with raises_at(PromptError, path):
        divided(get_task("comparative"), name=path)


def test_paragraphs_stay_with_the_field_before_them_and_examples_have_its_answer(
    tmp_path: Path,
) -> None:
    path = own_prompt(tmp_path, ("\n\n2. quality:", "\n\nAds say nothing.\n\n2. quality:"))
    answer = {"relevance": 3, "quality": 2, "position": "YES", "stance": "FIRST"}
    example = {
        "topic": {"id": "9", "title": "Dogs or cats?"},
        "document": "D",
        "first": "dogs",
        "second": "cats",
    }
    (tmp_path / "mine.examples.yaml").write_text(json.dumps([{**example, "answer": answer}]))
    task = get_task("comparative")
    parts = divided(task, name=path).field_prompts
    assert ["Ads say nothing." in instructions(task, "judge", part) for part in parts] == [
        True,
        False,
        False,
    ]
    answers = [
        part.render(topic=TOPIC, document="x", first="a", second="b")[2].content for part in parts
    ]
    assert answers == ["[3]", "[2]", '["Y","F"]']


def test_an_answer_with_one_field_cannot_be_divided() -> None:
    task = get_task("arguments_2020")
    with raises_at(UsageError, task.find_template("judge.jinja"), "judge_per"):
        divided(task)
