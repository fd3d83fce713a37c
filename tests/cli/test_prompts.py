"""`touche-llm prompts list|show|check|render|try`, as a user gives them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Done, Touche
from tests.sample_runs import Silent, config_for, judge_stage, rank_stage, retrieve_stage
from tests.scripted_engine import FACTS, Script, ScriptedEngine
from tests.write_demo_cassette import script_of
from touche_llm.api.opening import open_client
from touche_llm.cli import prompts_trial
from touche_llm.cli.demo import SAMPLES
from touche_llm.engines.cached_info import store_engine_info
from touche_llm.engines.settings import EngineConfig
from touche_llm.llm.answer import Token
from touche_llm.llm.answer_schema import list_fields
from touche_llm.llm.cache import Cache
from touche_llm.llm.model import ModelClient
from touche_llm.llm.protocol import Completion
from touche_llm.llm.request import Request
from touche_llm.llm.settings import CacheConfig, SamplingConfig
from touche_llm.tasks import prompts_folder

SAMPLE = SAMPLES / "comparative"
DATA = ["--topics", str(SAMPLE / "topics.xml"), "--corpus", str(SAMPLE / "passages.jsonl")]
REPLAY = ["--cache", str(SAMPLE / "cassette.jsonl"), "--cache-mode", "replay"]
ONE, TWO = "sample-heating-01___3", "sample-heating-02___1"
ABOUT = ["--topic", "3", "--doc", ONE]
OWN = prompts_folder() / "comparative" / "judge.jinja"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of templates with a copy of the judge prompt that takes its document from another file."""
    place = tmp_path / "mine" / "comparative"
    place.mkdir(parents=True)
    (place / "judge.jinja").write_text(
        OWN.read_text().replace("{{ document }}", '{% include "shown.jinja" %}')
    )
    (place / "shown.jinja").write_text("{{ document }}")
    return tmp_path / "mine"


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Script], list[Request]]:
    """Lets a script answer instead of an engine; gives what it was asked."""

    def install(script: Script) -> list[Request]:
        engine = ScriptedEngine(script)

        def opened(
            settings: EngineConfig, sampling: SamplingConfig, cache: CacheConfig, **_: Any
        ) -> AbstractAsyncContextManager[ModelClient]:
            return open_client(settings, sampling, cache, answers=engine, info=FACTS)

        monkeypatch.setattr(prompts_trial, "open_client", opened)
        return engine.requests

    return install


def rows(done: Done) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_a_template_that_does_not_load_is_listed_with_its_error(
    touche: Touche, folder: Path
) -> None:
    (folder / "comparative" / "shown.jinja").write_text("{{ documnt }}")
    (folder / "comparative" / "\x1b[31m.jinja").write_text("no prompt")
    for output in ("json", "table"):
        done = touche(
            "prompts", "list", "--task", "comparative", "--prompts", str(folder), "--format", output
        )
        assert done.returncode == 1 and "\x1b" not in done.stdout + done.stderr
        assert "undefined variable 'documnt'" in done.stdout


def test_a_folder_without_templates_of_the_task_is_told(touche: Touche, folder: Path) -> None:
    # The folder itself stands where its parent should.
    misplaced = str(folder / "comparative")
    for command in (["list"], ["check"], ["show", "judge"], ["render", "judge", *ABOUT, *DATA]):
        for place in ("none", misplaced):
            done = touche("prompts", *command, "--prompts", place)
            assert done.returncode == 2 and done.stdout == "" and f"error: {place}: " in done.stderr


def test_a_prompt_is_shown_with_what_it_takes_in(touche: Touche, folder: Path) -> None:
    done = touche("prompts", "show", "judge", "--prompts", str(folder))
    assert done.returncode == 0 and "comparative/judge, version 4, hash " in done.stdout
    assert '{% include "shown.jinja" %}' in done.stdout
    assert f"── {folder / 'comparative' / 'shown.jinja'} ──\n{{{{ document }}}}" in done.stdout
    files = rows(
        touche("prompts", "show", str(folder / "comparative" / "judge.jinja"), "--format", "json")
    )
    assert [Path(row["file"]).name for row in files] == ["judge.jinja", "shown.jinja"]
    assert files[1]["text"] == "{{ document }}"


def test_a_check_ends_with_one_only_where_there_are_errors(
    touche: Touche, folder: Path, tmp_path: Path
) -> None:
    given = ["prompts", "check", "judge", "--prompts", str(folder)]
    done = touche(*given)
    assert done.returncode == 0 and "estimated at four characters" in done.stdout
    template = folder / "comparative" / "judge.jinja"
    text = template.read_text()
    template.write_text(text.replace("NEUTRAL", "neither"))
    done = touche(*given)
    assert done.returncode == 1 and "does not name NEUTRAL" in done.stdout
    template.write_text(text.replace("version: 4", "version: one"))
    (row,) = json.loads(touche(*given, "--format", "json").stdout)
    assert (row["errors"], row["version"], row["tokens"]) == (1, None, None)
    assert "version: must be a valid integer" in row["problems"]


def test_an_example_about_a_given_topic_is_an_error_as_in_a_run(
    touche: Touche, folder: Path
) -> None:
    (folder / "comparative" / "judge.examples.yaml").write_text(
        "- topic: {id: 99, title: 'Which is better for heating an old house, a heat pump or a gas boiler?'}\n"
        "  document: Some text.\n  first: heat pump\n  second: gas boiler\n"
        "  answer: {relevance: 3, quality: 2, position: YES, stance: FIRST}\n"
    )
    done = touche("prompts", "check", "judge", "--prompts", str(folder), *DATA[:2])
    assert (
        done.returncode == 1
        and "error: comparative judge: " in done.stdout
        and "is topic 3 of" in done.stdout
    )
    tried = touche("prompts", "try", "judge", "--prompts", str(folder), *ABOUT, *DATA, *REPLAY)
    assert tried.returncode == 2 and "is topic 3 of" in tried.stderr and not tried.stdout


def test_a_copy_is_the_same_prompt_with_all_that_it_takes_in(
    touche: Touche, folder: Path, tmp_path: Path
) -> None:
    place = folder / "comparative"
    (place / "deep").mkdir()
    (place / "deep" / "more.jinja").write_text("")
    (place / "shown.jinja").write_text('{{ document }}{% include "deep/more.jinja" %}')
    (place / "judge.examples.yaml").write_text(
        "- topic: {id: 99, title: 'Tea or coffee?'}\n  document: Tea – it is better.\n  first: tea\n  second: coffee\n"
        "  answer: {relevance: 3, quality: 2, position: YES, stance: FIRST}\n"
    )
    given = ["prompts", "copy", "judge", "new/mine.jinja", "--prompts", str(folder)]
    done = touche(*given)
    assert done.returncode == 0 and "raise its version, 4 to 5" in done.stdout, done.stderr
    assert "touche-llm prompts check new/mine.jinja --task comparative" in done.stdout
    written = {
        str(path.relative_to(tmp_path / "new"))
        for path in (tmp_path / "new").rglob("*")
        if path.is_file()
    }
    assert written == {"mine.jinja", "shown.jinja", "deep/more.jinja", "mine.examples.yaml"}
    assert {f"wrote new/{name}" for name in written} <= set(done.stdout.splitlines())
    for name in written:
        assert (tmp_path / "new" / name).read_text() == (
            place / name.replace("mine", "judge")
        ).read_text()
    (row,) = rows(touche("prompts", "check", "new/mine.jinja", "--format", "json"))
    assert row["errors"] == 0
    (tmp_path / "new" / "shown.jinja").write_text("mine")
    (tmp_path / "new" / "mine.jinja").unlink()
    done = touche(*given)
    assert (
        done.returncode == 2
        and "new/shown.jinja" in done.stderr
        and "exists" in done.stderr
        and done.stdout == ""
    )
    assert (tmp_path / "new" / "shown.jinja").read_text() == "mine" and not (
        tmp_path / "new" / "mine.jinja"
    ).exists()


async def asked_by_a_run(task: str, folder: Path, context: int, **flags: Any) -> list[Request]:
    """The requests of a run of the sample, in order, with a cache of what was asked and measured."""
    config, engine = config_for(folder, task=task, **flags), ScriptedEngine(script_of(task))
    facts = FACTS.model_copy(update={"context": context})
    out = folder / "out"
    await retrieve_stage(config, out, Silent())
    with Cache(config.cache.file) as cache:
        store_engine_info(facts, cache)
        model = ModelClient(
            engine_info=facts, engine=engine, cache=cache, sampling=SamplingConfig()
        )
        await judge_stage(config, out, Silent(), model)
        await rank_stage(config, out, Silent(), model)
    return engine.requests


@pytest.mark.parametrize(
    ("task", "context", "purposes"),
    [
        ("comparative", 32768, {"judge", "stance", "objects", "best"}),
        # So short that documents are cut, as the engine measured it.
        ("comparative", 1000, {"judge"}),
        ("controversial", 1300, {"judge", "stance", "best"}),
        ("sentence_pairs", 32768, {"judge", "sentence"}),
    ],
)
def test_what_is_rendered_is_what_a_run_sends(
    task: str, context: int, purposes: set[str], touche: Touche, tmp_path: Path
) -> None:
    flags: dict[str, Any] = (
        {"rank": ("judge", "pairwise:3")} if task != "sentence_pairs" else {"pairs__judged": 5}
    )
    if "stance" in purposes:
        flags |= {"stance__depth": 3, "stance__prompt": "own"}
    requests = asyncio.run(asked_by_a_run(task, tmp_path, context, **flags))
    last = {request.origin.prompt.split("/")[1]: request for request in requests}
    assert set(last) >= purposes
    for purpose in purposes:
        request = last[purpose]
        given = [
            "--config",
            str(tmp_path / "out" / "config.yaml"),
            "--topic",
            request.origin.topic_id,
        ]
        for each in (request.origin.document_id or "").split():
            given += ["--doc", each]
        done = touche("prompts", "render", purpose, *given, "--format", "json")
        parts = rows(done)
        assert [row["text"] for row in parts] == [message.content for message in request.messages]
        assert ("is truncated" in done.stderr) is (context < 2000)


def test_a_topic_alone_needs_no_corpus_and_documents_do(touche: Touche) -> None:
    done = touche("prompts", "render", "queries", "--topic", "3", *DATA[:2])
    assert done.returncode == 0 and "Which is better for heating" in done.stdout
    done = touche("prompts", "render", "judge", *ABOUT, *DATA[:2])
    assert done.returncode == 2 and "give the corpus (--corpus FILE)" in done.stderr


@pytest.mark.parametrize(
    ("name", "given", "problem"),
    [
        ("judge", [], "--doc: missing"),
        (
            "queries",
            ["--doc", ONE],
            "the prompt for queries asks about a topic alone; name no document",
        ),
        ("best", ["--doc", ONE], "compares 2 to 20 documents, not 1"),
        ("judge", ["--doc", ONE, "--doc", ONE], "a document is given twice"),
        ("judge", ["--doc", "none"], ": 'none' is not one of the documents of this corpus"),
    ],
)
def test_what_cannot_be_asked_is_told(
    name: str, given: list[str], problem: str, touche: Touche
) -> None:
    done = touche("prompts", "try", name, "--topic", "3", *given, *DATA, *REPLAY)
    assert done.returncode in (1, 2) and problem in done.stderr and done.stdout == ""


def test_objects_that_no_topic_names_and_no_cache_holds_are_told(
    touche: Touche, tmp_path: Path
) -> None:
    topics = tmp_path / "topics.xml"
    topics.write_text(
        "<topics><topic><number>9</number><title>Is tea better than water?</title></topic></topics>"
    )
    given = ["--topic", "9", "--doc", ONE, "--topics", str(topics), *DATA[2:]]
    done = touche("prompts", "render", "judge", *given)
    assert done.returncode == 2 and "`touche-llm prompts try objects` requests" in done.stderr


def test_answers_are_shown_with_their_probabilities_and_what_people_said(
    touche: Touche, tmp_path: Path
) -> None:
    (tmp_path / "grades.txt").write_text(f"3 0 {ONE} 2\n")
    (tmp_path / "stances.txt").write_text(f"3 0 {ONE} SECOND\n")
    people = ["--relevance", "grades.txt", "--stance", "stances.txt"]
    given = ["prompts", "try", "judge", *ABOUT, "--doc", TWO, *DATA, *REPLAY, *people]
    done = touche(*given)
    assert done.returncode == 0, done.stderr
    assert "SECOND" in done.stdout and 'answer: [3,3,"Y","F"]' in done.stdout
    found = {
        (row["documents"], row["field"]): row for row in rows(touche(*given, "--format", "json"))
    }
    assert (
        len(found) == 6
        and found[ONE, "stance"]["people"] == "SECOND"
        and found[ONE, "relevance"]["people"] == 2.0
    )
    shares = json.loads(found[ONE, "relevance"]["probabilities"])
    mean = sum(int(grade) * share for grade, share in shares.items())
    assert found[ONE, "relevance"]["value"] == pytest.approx(mean)
    assert found[ONE, "stance"]["cached"] is True and found[TWO, "quality"]["people"] is None


@pytest.mark.parametrize(
    ("name", "documents", "fields"),
    [
        ("best", ["--doc", ONE, "--doc", TWO], {"best": "A"}),
        ("order", ["--doc", TWO, "--doc", ONE], {"order": "B > A"}),
        ("stance", ["--doc", ONE], {"position": "YES"}),
        ("objects", [], {"first": "heat pump"}),
        ("queries", [], {"query1": "a word"}),
    ],
)
def test_every_kind_of_prompt_can_be_tried(
    name: str,
    documents: list[str],
    fields: dict[str, str],
    touche: Touche,
    scripted: Callable[[Script], list[Request]],
) -> None:
    answers = script_of("comparative")

    def script(request: Request) -> Any:
        if request.origin.document_id is not None:
            return answers(request)
        fields = list(list_fields(request.schema))
        return (
            {"first": "heat pump", "second": "gas boiler"}
            if "first" in fields
            else dict.fromkeys(fields, "a word")
        )

    requests = scripted(script)
    given = ["prompts", "try", name, "--topic", "3", *documents, *(DATA if documents else DATA[:2])]
    for is_cached in (False, True):
        found = rows(touche(*given, "--format", "json"))
        assert {row["cached"] for row in found} == {is_cached}
        assert {row["field"]: row["value"] for row in found}.items() >= fields.items()
    assert len(requests) == 1


def test_the_objects_of_a_topic_are_asked_for_first(
    touche: Touche, tmp_path: Path, scripted: Callable[[Script], list[Request]]
) -> None:
    topics = tmp_path / "topics.xml"
    topics.write_text(
        "<topics><topic><number>3</number><title>Is tea better than water?</title></topic></topics>"
    )
    answers = script_of("comparative")

    def script(request: Request) -> Any:
        return (
            {"first": "tea", "second": "water"}
            if request.origin.document_id is None
            else answers(request)
        )

    requests = scripted(script)
    given = [*ABOUT, "--topics", str(topics), *DATA[2:]]
    done = touche("prompts", "try", "judge", *given)
    assert done.returncode == 0 and "Is tea better than water? (tea or water)" in done.stdout
    assert [each.origin.prompt for each in requests] == ["comparative/objects", "comparative/judge"]
    # Now the cache holds them, under the name of the model that answered.
    with Cache(tmp_path / ".touche-llm" / "answers.sqlite") as cache:
        store_engine_info(FACTS, cache)
    assert "First object (FIRST): tea" in touche("prompts", "render", "judge", *given).stdout


def test_an_answer_that_cannot_be_used_is_shown_as_it_came(
    touche: Touche, monkeypatch: pytest.MonkeyPatch, scripted: Callable[[Script], list[Request]]
) -> None:
    async def complete(self: Any, request: Request) -> Completion:
        tokens = [Token(at=0, token="no", logprob=0.0, top=[("no", 0.0)])]
        return Completion(
            text="no\x1b[2J",
            finish_reason="stop",
            prompt_tokens=9,
            completion_tokens=1,
            tokens=tokens,
        )

    scripted(script_of("comparative"))
    monkeypatch.setattr(ScriptedEngine, "complete", complete)
    done = touche("prompts", "try", "judge", *ABOUT, *DATA)
    assert done.returncode == 3 and "not_json" in done.stdout
    assert "came back: no\N{REPLACEMENT CHARACTER}[2J" in done.stdout and "\x1b" not in done.stdout
    done = touche("prompts", "try", "judge", *ABOUT, *DATA, "--format", "json")
    assert done.returncode == 3
    (row,) = json.loads(done.stdout)
    assert (row["failure"], row["field"], row["cached"]) == ("not_json", None, False)
