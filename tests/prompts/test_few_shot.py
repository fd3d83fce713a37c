"""Solved examples beside a template: what is read, what is refused, and what is sent."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.expect import raises_at
from tests.prompts.test_prompts import CONTROL_TOKENS
from tests.sample_runs import (
    Silent,
    config_for,
    judge_stage,
    run_scripted,
    scripted_model,
    with_cache,
)
from tests.scripted_engine import Label
from touche_llm.config.configuration import Config
from touche_llm.data.records import LabelledDocument, Topic
from touche_llm.errors import PromptError, UsageError
from touche_llm.llm.cache import CacheMode
from touche_llm.llm.request import Request
from touche_llm.prompts.prompt import Prompt
from touche_llm.prompts.purposes import load, purposes_of
from touche_llm.runs.context import RunContext
from touche_llm.runs.dry_run import estimate_cost
from touche_llm.tasks import get_task, prompts_folder

TOPIC = Topic("2", "Which is better, a laptop or a desktop?", objects=("laptop", "desktop"))
JUDGE: dict[str, Any] = {
    "topic": {"id": 1, "title": "Is tea\n better than coffee?"},
    "document": "Tea has less of it.\n",
    "first": "tea",
    "second": "coffee",
    "answer": {"stance": "NEUTRAL", "position": "NO", "quality": 2, "relevance": 3},
}
# For each purpose of the task an example, and how its answer is spelled.
_TOPIC = {"topic": {"id": "1", "title": "Is tea better than coffee?"}}
_COMPARED = {**_TOPIC, "first": "tea", "second": "coffee", "documents": ["ONE", "TWO", "THREE"]}
_QUERIES = {"query3": "three words here", "query1": "one", "query2": "two"}
EXAMPLES: dict[str, tuple[dict[str, Any], str]] = {
    "judge": (JUDGE, '[3,2,"N","N"]'),
    "stance": (JUDGE | {"answer": {"position": "YES", "stance": "FIRST"}}, '["Y","F"]'),
    "objects": (
        _TOPIC | {"answer": {"first": "tea", "second": "coffee"}},
        '{"first":"tea","second":"coffee"}',
    ),
    "queries": (
        _TOPIC | {"answer": _QUERIES},
        '{"query1":"one","query2":"two","query3":"three words here"}',
    ),
    "best": (_COMPARED | {"answer": {"best": "C"}}, '["C"]'),
    "order": (_COMPARED | {"answer": {"order": "C > A > B"}}, '["C > A > B"]'),
}


def write(folder: Path, purpose: str, examples: object, task: str = "comparative") -> Path:
    """A folder of templates: the project's own for a purpose, with examples beside it (as text, or as values)."""
    path = folder / "mine" / task / f"{purpose}.jinja"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(get_task(task).find_template(path.name).read_text())
    text = examples if isinstance(examples, str) else yaml.safe_dump(examples, sort_keys=False)
    path.with_name(f"{purpose}.examples.yaml").write_text(text)
    return folder / "mine"


def examples_of(folder: Path, purpose: str) -> Path:
    """The file of examples that `write` makes."""
    return folder / "mine" / "comparative" / f"{purpose}.examples.yaml"


def loaded(folder: Path, purpose: str, examples: object, task: str = "comparative") -> Prompt:
    return load(
        get_task(task),
        purposes_of(get_task(task))[purpose],
        purpose,
        write(folder, purpose, examples, task),
    )


@pytest.mark.parametrize("purpose", EXAMPLES)
def test_an_example_is_a_question_and_an_answer_between_the_instructions_and_the_question(
    tmp_path: Path, purpose: str
) -> None:
    example, spelled = EXAMPLES[purpose]
    kind = purposes_of(get_task("comparative"))[purpose]
    prompt, own = (
        loaded(tmp_path, purpose, [example, example]),
        load(get_task("comparative"), kind, purpose),
    )
    shown = [LabelledDocument(label, label * 3) for label in "AB"]
    given = {
        "topic": TOPIC,
        "document": "D",
        "documents": shown,
        "first": "f",
        "second": "s",
        "aim": "quality",
    }
    variables = {name: given[name] for name in kind.variables}
    system, *turns, user = prompt.render(**variables)
    assert (system, user) == own.render(**variables)
    assert [each.role for each in turns] == ["user", "assistant"] * 2 and turns[:2] == turns[2:]
    assert turns[1].content == spelled
    # The example is rendered like a request about it.
    documents = [
        LabelledDocument(label, text)
        for label, text in zip("ABC", ["ONE", "TWO", "THREE"], strict=True)
    ]
    of_example = {
        "topic": Topic("1", "Is tea better than coffee?"),
        "document": "Tea has less of it.",
    }
    of_example |= {"documents": documents, "first": "tea", "second": "coffee", "aim": "quality"}
    assert turns[0] == own.render(**{name: of_example[name] for name in kind.variables})[1]


def test_a_question_is_asked_with_the_aim_of_the_run(tmp_path: Path) -> None:
    write(tmp_path, "best", [EXAMPLES["best"][0]])
    prompt_with_aim = (prompts_folder() / "comparative" / "best.jinja").read_text()
    path = tmp_path / "mine" / "comparative" / "best.jinja"
    path.write_text(prompt_with_aim.replace("{% block user %}", "{% block user %}AIM {{ aim }}."))
    prompt = load(
        get_task("comparative"),
        purposes_of(get_task("comparative"))["best"],
        "best",
        tmp_path / "mine",
    )
    shown = [LabelledDocument(label, label * 3) for label in "AB"]
    for aim in ("quality", "relevance", "quality"):
        messages = prompt.render(topic=TOPIC, documents=shown, first="f", second="s", aim=aim)
        assert [f"AIM {aim}." in each.content for each in messages] == [False, True, False, True]
    values = ("example 1", "aim", "topic, documents, first, second, answer")
    with raises_at(PromptError, examples_of(tmp_path, "best"), *values):
        loaded(tmp_path, "best", [EXAMPLES["best"][0] | {"aim": "both"}])


def test_what_an_example_says_is_harmless(tmp_path: Path) -> None:
    hostile = " x ".join(CONTROL_TOKENS)
    prompt = loaded(
        tmp_path, "judge", [JUDGE | {"topic": {"id": "1", "title": hostile}, "document": hostile}]
    )
    for message in prompt.render(topic=TOPIC, first="f", second="s", document="d")[1:]:
        assert not [token for token in CONTROL_TOKENS if token in message.content]


@pytest.mark.parametrize(
    ("example", "values"),
    [
        ({"passage": "x"}, ["passage", "topic, document, first, second, answer"]),
        ({"topic": {"id": "1", "title": " "}}, ["topic.title", "at least 1"]),
        ({"topic": {"id": "1", "title": "T", "query": "x"}}, ["topic.query"]),
        ({"topic": {"id": "1", "title": "T", "objects": ["x"]}}, ["topic.objects"]),
        (
            {"answer": {"relevance": 3, "position": "NO", "stance": "NEUTRAL"}},
            ["answer: ", "quality"],
        ),
        ({"answer": JUDGE["answer"] | {"x": 1}}, ["answer: ", "'x'"]),
        (
            {"answer": JUDGE["answer"] | {"relevance": "3"}},
            ["answer: relevance: ", "'relevance': '3'", "0, 1, 2 or 3"],
        ),
        ({"answer": JUDGE["answer"] | {"stance": "F"}}, ["'F'", "'FIRST', 'SECOND' or 'NEUTRAL'"]),
    ],
)
def test_an_example_that_is_not_as_it_should_be_is_told(
    tmp_path: Path, example: dict[str, Any], values: list[str]
) -> None:
    with raises_at(PromptError, examples_of(tmp_path, "judge"), "example 2", *values):
        loaded(tmp_path, "judge", [JUDGE, JUDGE | example])


@pytest.mark.parametrize(
    ("purpose", "example", "pattern"),
    [
        ("queries", {"answer": {"query1": "one", "query2": "two", "query3": "a"}}, "query3"),
        (
            "objects",
            {"answer": {"first": "tea", "second": "milk"}},
            "second: .*'Is', 'Is tea'.* 'milk'",
        ),
        (
            "objects",
            {"answer": {"first": "better", "second": "better than"}},
            "'better' .*'better than'",
        ),
        ("best", {"answer": {"best": "D"}}, "best: .*'A', 'B' or 'C'.*'D'"),
        ("best", {"documents": ["ONE"]}, "documents: .*2 items"),
        ("order", {"answer": {"order": "A > B > A"}}, "order: A .*; C "),
    ],
)
def test_an_answer_must_fit_what_its_topic_or_its_documents_allow(
    tmp_path: Path, purpose: str, example: dict[str, Any], pattern: str
) -> None:
    with pytest.raises(PromptError, match=rf"{purpose}\.examples\.yaml: .*({pattern})"):
        loaded(tmp_path, purpose, [EXAMPLES[purpose][0] | example])


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("[", ["YAML"]),
        ("", ["topic, document, first, second and answer"]),
        ("- 5", ["example 1", "not 5"]),
        ("- !!python/object/apply:os.system [ls]", ["line 1", "os.system"]),
    ],
)
def test_a_file_that_is_no_list_of_examples_is_told(
    tmp_path: Path, text: str, values: list[str]
) -> None:
    with raises_at(PromptError, examples_of(tmp_path, "judge"), *values):
        loaded(tmp_path, "judge", text)


def test_a_template_that_cannot_render_an_example_names_it(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        "judge",
        [JUDGE, JUDGE | {"topic": {"id": "1", "title": "T", "objects": ["a", "b"]}}],
    )
    path = folder / "comparative" / "judge.jinja"
    path.write_text(
        path.read_text().replace("{% block user %}", "{% block user %}{{ topic.objects[0] }}")
    )
    task = get_task("comparative")
    with pytest.raises(
        PromptError,
        match=r"judge\.examples\.yaml: example 1: .*judge\.jinja: block user: line \d+: ",
    ):
        load(task, purposes_of(task)["judge"], "judge", folder)


# Runs with examples.


def config_with(tmp_path: Path, **flags: object) -> Config:
    return config_for(tmp_path, prompts__folder=tmp_path / "mine", **flags)


def script(request: Request) -> Mapping[str, Label]:
    return {"relevance": 1, "quality": 1, "stance": "NO"}


async def test_no_example_is_of_a_topic_of_the_run(tmp_path: Path) -> None:
    (topic,) = RunContext(config_for(tmp_path, topic=("3",)), Silent()).topics
    folder = write(
        tmp_path,
        "judge",
        [JUDGE, JUDGE | {"topic": {"id": "99", "title": topic.title.upper()[:-1]}}],
    )
    config = config_with(tmp_path, topic=("3",))
    place = (
        UsageError,
        examples_of(tmp_path, "judge"),
        "example 2",
        folder,
        "topic 99",
        "topic 3",
        "`topic: ",
    )
    with raises_at(*place):
        RunContext(config, Silent()).load_prompts()
    with raises_at(*place):
        await estimate_cost(config, None, ("retrieve", "judge"), Silent())
    with raises_at(*place):
        await run_scripted(config, tmp_path / "out", script)
    with scripted_model(config, script) as (model, engine), raises_at(*place):
        await judge_stage(config, tmp_path / "out", Silent(), model)
    assert not engine.requests
    # Topics that the run leaves out may be shown.
    assert RunContext(config_with(tmp_path, topic=("7",)), Silent()).load_prompts()


async def test_a_run_shows_the_examples_and_says_how_many(tmp_path: Path) -> None:
    write(tmp_path, "judge", [JUDGE, JUDGE])
    seen: list[Request] = []

    def noted(request: Request) -> Mapping[str, Label]:
        seen.append(request)
        return script(request)

    config = config_with(tmp_path, topic=("3", "7"), depth=3)
    lines, _ = await run_scripted(config, tmp_path / "out", noted)
    assert len(lines) == len(seen) == 6
    # System message and examples are the same for all topics, for the prefix cache.
    assert len({request.messages[:5] for request in seen}) == 1
    assert all(
        [each.role for each in request.messages[4:]] == ["assistant", "user"] for request in seen
    )
    # All of it can be replayed, also what the chat template adds.
    with scripted_model(with_cache(config, mode=CacheMode.REPLAY), script) as (model, _):
        await judge_stage(config, tmp_path / "out", Silent(), model)
    assert model.counts.cache_hits == 6 and not model.misses
