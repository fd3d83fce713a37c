"""What is recorded of a run, what is refused, and that nothing half-made stays."""

from __future__ import annotations

import asyncio
import csv
import json
import shutil
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.expect import raises_at
from tests.regression.conftest import checked, contents, edit, overlay
from tests.sample_runs import Silent, judge_stage, rank_stage, run_directly
from tests.scripted_engine import Script, ScriptedEngine
from tests.write_demo_cassette import FACTS, script_of
from tests.write_regressions import FOLDER, make_run
from touche_llm.cli.demo import SAMPLES
from touche_llm.config.files import load_config
from touche_llm.corpus.args_me import HEADER, read_arguments
from touche_llm.corpus.json_lines import CorpusFile
from touche_llm.corpus.store import ensure_store
from touche_llm.data.files import read_records
from touche_llm.data.records import Failure, Topic
from touche_llm.data.topics.reading import read_topics, write_topics
from touche_llm.engines.cached_info import store_engine_info
from touche_llm.errors import DataError, ToucheError
from touche_llm.llm.answer_schema import list_fields
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.model import ModelClient
from touche_llm.llm.request import MAX_SAMPLES as MOST_SAMPLES
from touche_llm.llm.request import Request
from touche_llm.regression.check import check_folder, load_finished_run
from touche_llm.regression.record import Recording, record, write_arguments
from touche_llm.retrieval.chatnoir import ChatNoirDocuments, ChatNoirSettings, Fetched
from touche_llm.runs.directory import ALL_FAILURES


def recorded(run: Path, target: Path) -> Recording:
    return asyncio.run(record(load_finished_run(run), run, target))


@pytest.mark.slow
def test_the_same_run_gives_the_same_bytes(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = recorded(made, tmp_path / "one" / "name")
    monkeypatch.chdir(tmp_path)
    assert recorded(made, Path("two/name")) == snapshot
    files = contents(tmp_path / "one" / "name")
    assert contents(tmp_path / "two" / "name") == files
    assert snapshot.size == sum(map(len, files.values()))
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["name"]


def test_only_what_the_run_needs_is_kept(made: Path, tmp_path: Path) -> None:
    # Answers of other runs lie in the same cache.
    shutil.copytree(made.parent, tmp_path / "made")
    run = tmp_path / "made" / "run"
    edit(run / "config.yaml", str(made.parent), str(tmp_path / "made"))
    asyncio.run(make_run("comparative", tmp_path / "made", depth=9, topic=("3", "7")))
    shutil.rmtree(run)
    shutil.copytree(made, run)
    edit(run / "config.yaml", str(made.parent), str(tmp_path / "made"))
    recorded(run, tmp_path / "regress" / "name")
    recorded(made, tmp_path / "regress" / "alone")
    folder = tmp_path / "regress" / "name"
    assert contents(folder) == contents(tmp_path / "regress" / "alone")
    with Cache(tmp_path / "made" / "answers.sqlite", CacheMode.REPLAY) as cache:
        assert len(list(cache.iterate_entries())) > len(
            (folder / "cassette.jsonl").read_text().splitlines()
        )
    lines = [line.split() for line in (folder / "candidates.run.txt").read_text().splitlines()]
    documents = [
        json.loads(line)["id"] for line in (folder / "documents.jsonl").read_text().splitlines()
    ]
    assert sorted(documents) == sorted({line[2] for line in lines})
    assert (
        {topic.id for topic in read_topics(folder / "topics.jsonl")}
        == {line[0] for line in lines}
        == {"3", "20"}
    )
    assert not any(str(tmp_path).encode() in content for content in contents(folder).values())
    assert "written-for-the-demo" in (folder / "config.yaml").read_text()


def test_of_sentences_the_arguments_are_kept_that_they_are_from(tmp_path: Path) -> None:
    recorded(asyncio.run(make_run("sentence_pairs", tmp_path)), tmp_path / "regress" / "name")
    kept = FOLDER / "sentence_pairs" / "arguments.csv"
    assert (tmp_path / "regress" / "name" / kept.name).read_bytes() == kept.read_bytes()


def test_templates_are_kept_with_what_they_pull_in_and_their_examples(tmp_path: Path) -> None:
    mine = overlay(
        tmp_path / "mine",
        "controversial",
        judge=("{% block user %}", "{% block user %}{% include 'a/b.jinja' %}"),
    )
    (mine / "controversial" / "a").mkdir()
    (mine / "controversial" / "a" / "b.jinja").write_text("Take care.\n")
    (mine / "controversial" / "judge.examples.yaml").write_text(
        "- topic: {id: '900', title: 'Should cats vote?'}\n  document: They never asked to.\n"
        "  answer: {relevance: 3, quality: 1, position: YES, stance: CON}\n"
    )
    run = asyncio.run(make_run("controversial", tmp_path, prompts__folder=str(mine)))
    folder = tmp_path / "regress" / "name"
    recorded(run, folder)
    kept = {name for name in contents(folder) if name.startswith("prompts/judge/")}
    assert kept == {
        f"prompts/judge/{name}" for name in ("judge.jinja", "a/b.jinja", "judge.examples.yaml")
    }
    assert yaml.safe_load((folder / "config.yaml").read_text())["prompts"] == {
        "folder": "../../mine"
    }
    assert checked(folder).is_same
    (mine / "controversial" / "a" / "b.jinja").write_text("Take great care.\n")
    (prompt,) = checked(folder).prompts
    assert prompt.purpose == "judge" and prompt.has_changed_template


def test_a_run_with_another_objective_is_recorded_with_it(tmp_path: Path) -> None:
    run = asyncio.run(make_run("comparative", tmp_path, objective="quality"))
    folder = tmp_path / "regress" / "name"
    recorded(run, folder)
    (tmp_path / "answers.sqlite").unlink()
    assert checked(folder).is_same
    assert yaml.safe_load((folder / "config.yaml").read_text())["objective"] == "quality"


async def test_pages_of_a_search_engine_are_kept_as_documents(tmp_path: Path) -> None:
    sample = SAMPLES / "controversial"
    pages = {
        each["docno"]: each["text"]
        for each in map(json.loads, (sample / "documents.jsonl").read_text().splitlines())
    }
    cache = tmp_path / "chatnoir.sqlite"
    with closing(ChatNoirDocuments(ChatNoirSettings(cache=cache))) as documents:
        for document, text in pages.items():
            documents.store(Fetched(text), document)
    (tmp_path / "run").mkdir()
    shutil.copy(FOLDER / "controversial" / "candidates.run.txt", tmp_path / "run")
    answers = {"file": tmp_path / "answers.sqlite", "mode": "reuse"}
    given = {
        "task": "controversial",
        "topics": sample / "topics.xml",
        "retriever": {"name": "chatnoir"},
    }
    config = load_config(
        None, {**given, "chatnoir.cache": cache, "cache": answers, "engine.model": FACTS.model}
    )
    with Cache(config.cache.file) as opened:
        store_engine_info(FACTS, opened)
        model = ModelClient(
            engine_info=FACTS,
            engine=ScriptedEngine(script_of("controversial")),
            cache=opened,
            sampling=config.sampling,
        )
        await judge_stage(config, tmp_path / "run", Silent(), model)
        await rank_stage(config, tmp_path / "run", Silent(), model)
    target = tmp_path / "regress" / "name"
    await record(load_finished_run(tmp_path / "run"), tmp_path / "run", target)
    cache.unlink()
    assert (await check_folder(target)).is_same
    kept = [json.loads(line) for line in (target / "documents.jsonl").read_text().splitlines()]
    assert kept and all(each["contents"] == pages[each["id"]] for each in kept)


def failing_for(document: str) -> Script:
    """The answers of the sample, but a stance that no schema has for one document, and no order."""
    answers = script_of("comparative")

    def script(request: Request) -> Mapping[str, Any]:
        if request.origin.document_id == document and "relevance" in list_fields(request.schema):
            return {"relevance": 2, "quality": 2, "stance": "MAYBE"}
        return {"order": "A > A"} if "order" in list_fields(request.schema) else answers(request)

    return script


def test_a_run_with_unusable_answers_is_recorded_and_checked_with_them(
    made: Path, tmp_path: Path
) -> None:
    document = next(line.split()[2] for line in (made / "run.txt").read_text().splitlines())
    run = asyncio.run(make_run("comparative", tmp_path, failing_for(document)))
    kinds = {
        each.kind
        for name in ALL_FAILURES[1:]
        for each in read_records(run / name, Failure, "failures")
    }
    assert kinds == {"outside_schema"}
    target = tmp_path / "regress" / "failing"
    snapshot = recorded(run, target)
    entries = [json.loads(line) for line in (target / "cassette.jsonl").read_text().splitlines()]
    unusable = [each for each in entries if each["kind"] == "unusable"]
    failures = sum(len(read_records(run / name, Failure, "failures")) for name in ALL_FAILURES[1:])
    assert len(unusable) == MOST_SAMPLES * failures > MOST_SAMPLES
    assert snapshot.answers == len(entries)
    (tmp_path / "answers.sqlite").unlink()
    assert checked(target).is_same
    # One of them less is a question that nobody has asked.
    (target / "cassette.jsonl").write_text(
        "".join(json.dumps(each) + "\n" for each in entries if each["key"] != unusable[0]["key"])
    )
    (prompt,) = checked(target).prompts
    assert len(prompt.missing) == 1


@pytest.mark.parametrize("name", ["run.txt", "config.yaml"])
def test_a_run_that_is_not_finished_is_refused(made: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(made, tmp_path / "run")
    (tmp_path / "run" / name).unlink()
    with raises_at(DataError, tmp_path / "run" / name):
        load_finished_run(tmp_path / "run")


def test_a_run_without_its_answers_is_refused(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "run")
    edit(tmp_path / "run" / "config.yaml", "answers.sqlite", "nowhere.sqlite")
    with pytest.raises(DataError, match=r"nowhere\.sqlite: "):
        load_finished_run(tmp_path / "run")


@pytest.mark.parametrize("what", ["another template", "another tag", "a damaged first stage"])
def test_a_run_that_its_replay_does_not_give_is_refused_and_nothing_stays(
    made: Path, tmp_path: Path, what: str
) -> None:
    run = shutil.copytree(made, tmp_path / "run")
    if what == "another template":
        mine = overlay(
            tmp_path / "mine", "comparative", judge=("You are an assessor", "You assess")
        )
        edit(run / "config.yaml", "folder: null", f"folder: {mine}")
        problem = r"prompt judge, answers missing: 12\n"
    elif what == "another tag":
        edit(run / "run.txt", " regress\n", " other\n")
        problem = r"answers\.sqlite.*\nname: differs\n"
    else:
        edit(run / "candidates.run.txt", " sample-", " nothing-")
        problem = r"candidates\.run\.txt: 12 "
    target = tmp_path / "regress" / "name"
    with pytest.raises(ToucheError, match=problem) as error:
        recorded(run, target)
    assert "building" not in str(error.value)
    assert not list((tmp_path / "regress").iterdir())


ODD = "\u2028 it's \"quoted\", \\n \\\\ back\tslash\nnew line, ,, [{'x': 1}] 日本 \x1b[0m {{ x }} \r end"


def test_texts_of_any_kind_come_back_as_they_were(tmp_path: Path) -> None:
    topics = [
        Topic(
            "x-1",
            '"odd", title\\',
            "description, with 'quotes'",
            "",
            ("one, of two", 'the "other"'),
        )
    ]
    write_topics(topics, tmp_path / "topics.jsonl")
    assert read_topics(tmp_path / "topics.jsonl") == topics

    def row(number: int) -> list[str]:
        sentences = [{"sent_id": f"{number}__{n}", "sent_text": f"{ODD} {n}"} for n in range(3)]
        premises = [{"text": ODD, "stance": "CON" if number else "PRO", "annotations": list[str]()}]
        return [f"arg-{number}", f'a "title", {number}', repr(premises), "{}", repr(sentences)]

    with (tmp_path / "args.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([HEADER, *map(row, range(3))])
    whole = {
        part.id: (part, each)
        for _, each in read_arguments(tmp_path / "args.csv")
        for part in each.parts
    }
    wanted = {"2__0", "0__2", "0__1"}
    with ensure_store(
        CorpusFile(tmp_path / "args.csv", read_arguments), tmp_path / "index", warn=lambda _: None
    ) as store:
        with (tmp_path / "kept.csv").open("wb") as kept:
            write_arguments(wanted, store, kept)
    found = [each for _, each in read_arguments(tmp_path / "kept.csv")]
    assert [each.id for each in found] == ["arg-0", "arg-2"]
    assert [part.id for each in found for part in each.parts] == ["0__1", "0__2", "2__0"]
    for each in found:
        for part in each.parts:
            old, argument = whole[part.id]
            assert (part, each.title, each.side) == (old, argument.title, argument.side)


async def test_a_recording_says_that_its_texts_may_not_be_redistributed(tmp_path: Path) -> None:
    (tmp_path / "topics.xml").write_text(
        "<topics><topic><number>1</number><title>tea or coffee</title></topic></topics>"
    )
    texts = {
        f"clueweb12-0-{number}": text
        for number, text in enumerate(("Tea is mild.", "Rain.", "Oil.", "Air."))
    }
    lines = (json.dumps({"id": name, "contents": text}) for name, text in texts.items())
    (tmp_path / "pages.jsonl").write_text("\n".join(lines))
    flags = {
        "topics": tmp_path / "topics.xml",
        "corpus": tmp_path / "pages.jsonl",
        "index": tmp_path / "index",
    }
    config = load_config(
        None, flags | {"task": "comparative_2020", "cache.file": tmp_path / "answers.sqlite"}
    )
    await run_directly(config, tmp_path / "run", ScriptedEngine(lambda request: {"relevance": 2}))
    made = await record(config, tmp_path / "run", tmp_path / "recorded")
    assert made.documents == 1
    assert made.note is not None and "ClueWeb12" in made.note
    assert (
        (tmp_path / "recorded/config.yaml")
        .read_text()
        .startswith(f"# documents.jsonl {made.note}.\n")
    )
    assert (await check_folder(tmp_path / "recorded")).is_same
