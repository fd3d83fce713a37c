from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.cli.conftest import Touche
from tests.fake_server import FakeServer
from tests.lab.labs import LabClient, open_lab, reading
from touche_llm.prompt_lab.holdout import (
    Access,
    access_log,
    describe_accesses,
    read_accesses,
    record_access,
)
from touche_llm.prompts.purposes import load_named
from touche_llm.tasks import get_task

RUN = {"run": "first", "name": "judge"}
ASK = {**RUN, "topic": "1", "documents": ["1-0", "1-1", "1-2"]}
BLUNT = "{% block system %}\nBLUNT "


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer(
        rest=reading({"BLUNT": lambda topic, number: number < 3})
    ).in_thread() as started:
        yield started


def settings(server: FakeServer, **others: Any) -> dict[str, Any]:
    return {"engine.base_url": server.url, **others}


async def saved_text(lab: LabClient) -> str:
    text = (await lab.get("/api/template", **RUN))["text"]
    assert isinstance(text, str)
    return text


def draft_of(text: str, words: str = BLUNT) -> str:
    return text.replace("{% block system %}\n", words)


async def test_the_answers_change_with_the_text_and_come_back_from_the_cache(
    folder: Path, qrels: dict[str, Path], server: FakeServer
) -> None:
    async with open_lab(folder / "runs", qrels=qrels, settings=settings(server)) as lab:
        text = await saved_text(lab)
        *lines, done = await lab.stream("/api/answers", **ASK, text=text)
        assert (done["requests"], server.bodies) == (0, [])
        assert {line["document"] for line in lines} == set(ASK["documents"]) and all(
            line["cached"] for line in lines
        )
        values = {line["document"]: line["fields"]["relevance"]["value"] for line in lines}
        *lines, done = await lab.stream("/api/answers", **ASK, text=draft_of(text))
        assert (done["requests"], len(server.bodies), done["state"]) == (3, 3, "ok")
        changed = {line["document"]: line["fields"]["relevance"]["value"] for line in lines}
        assert changed["1-0"] > values["1-0"] and changed["1-2"] < values["1-2"]
        by_document = {line["document"]: line for line in lines}
        assert by_document["1-0"]["differs"] == ["stance"]
        assert (
            by_document["1-0"]["assessors"]["stance"] == "FIRST"
            and by_document["1-1"]["differs"] == []
        )
        *_, done = await lab.stream("/api/answers", **ASK, text=text)
        assert (done["requests"], len(server.bodies)) == (0, 3)
        accesses = read_accesses(access_log(folder / "answers.sqlite"))
        assert [access.kind for access in accesses] == ["trial", "trial"]
        # Answers about a held-out topic come without judgments.
        line, _ = await lab.stream(
            "/api/answers", **{**ASK, "topic": "2", "documents": ["2-1"]}, text=text
        )
        assert line["hidden"] and line["assessors"] == {}
        assert read_accesses(access_log(folder / "answers.sqlite")) == accesses
        found = (await lab.get("/api/candidates", run="first", topic="1"))["documents"]
        assert [each["id"] for each in found] == [f"1-{number}" for number in range(6)]
        assert all(each["judged"] for each in found)
        (only,) = (await lab.get("/api/candidates", run="first", topic="1", query="PASSAGE 1-4"))[
            "documents"
        ]
        assert only["id"] == "1-4"
        hidden = (await lab.get("/api/candidates", run="first", topic="2"))["documents"]
        assert not any(each["judged"] for each in hidden)
    async with open_lab(folder / "runs", settings={"cache.mode": "replay"}) as lab:
        about = await lab.get("/api/bench", run="first")
        assert (about["server"]["state"], about["local"]) == ("replay", False)
        *_, done = await lab.stream("/api/answers", **ASK, text=text)
        assert (done["requests"], done["state"]) == (0, "ok")
        *lines, done = await lab.stream(
            "/api/answers", **ASK, text=draft_of(text, "{% block system %}\nOTHER ")
        )
        assert done["state"] == "replay" and {line["failure"]["kind"] for line in lines} == {
            "replay"
        }


async def test_a_page_that_goes_away_cancels_its_requests(folder: Path) -> None:
    async def wait(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        while request.transport is not None and not request.transport.is_closing():
            await asyncio.sleep(0.05)
        return web.Response()

    with FakeServer(rest=wait).in_thread() as server:
        async with open_lab(folder / "runs", settings=settings(server)) as lab:
            text = draft_of(await saved_text(lab))
            asking = asyncio.create_task(lab.stream("/api/answers", **ASK, text=text))
            async with asyncio.timeout(20):
                while server.open_now < 3:
                    await asyncio.sleep(0.05)
                asking.cancel()
                while server.open_now:
                    await asyncio.sleep(0.05)


async def test_an_engine_that_answers_in_rounds_answers_no_single_requests(folder: Path) -> None:
    async with open_lab(folder / "runs", settings={"engine.name": "ray"}) as lab:
        text = await saved_text(lab)
        *_, line = await lab.stream("/api/answers", **ASK, text=draft_of(text))
    assert (line["state"], line["error"].partition(":")[0]) == ("invalid", "engine.name")


async def test_a_server_that_stops_is_gone_and_the_cache_needs_none(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("touche_llm.lab.bench._RETRY_FOR", 0.1)
    server = FakeServer(rest=reading({}))
    async with open_lab(folder / "runs", settings={}) as lab:
        async with server.running():
            lab.workplace.inputs.settings["engine.base_url"] = url = server.url  # type: ignore[index]
            text = await saved_text(lab)
            *_, done = await lab.stream(
                "/api/answers", **ASK, text=draft_of(text, "{% block system %}\nONE ")
            )
            assert done["requests"] == 3
        (*_, line) = await lab.stream(
            "/api/answers", **ASK, text=draft_of(text, "{% block system %}\nTWO ")
        )
        assert line["state"] == "gone" and line["error"]
        # What the cache has needs no server.
        *_, done = await lab.stream("/api/answers", **ASK, text=text)
        assert (done["requests"], done["state"]) == (0, "ok")
        assert url


async def test_an_invalid_text_has_a_finding_and_no_request(
    folder: Path, server: FakeServer
) -> None:
    async with open_lab(folder / "runs", settings=settings(server)) as lab:
        saved = await saved_text(lab)
        for old, new in (
            ("{% endblock %}", ""),
            ("{{ document }}", "{{ nothing }}"),
            ("---\n", ""),
        ):
            text = saved.replace(old, new)
            found = await lab.post("/api/check", **RUN, text=text)
            assert [finding["level"] for finding in found["findings"]] == ["error"]
            assert not new or found["findings"][0]["line"]
            (only,) = await lab.stream("/api/answers", **ASK, text=text)
            assert only["state"] == "invalid" and server.bodies == []
            assert (await lab.send("POST", "/api/save", {**RUN, "text": text, "hash": ""}))[
                0
            ] == 400


async def test_a_draft_is_checked_counted_and_rendered(folder: Path) -> None:
    async with open_lab(folder / "runs") as lab:
        text = draft_of(await saved_text(lab))
        found = await lab.post("/api/check", **RUN, text=text.replace("0 to 3", "0 to 5"))
        (finding,) = found["findings"]
        assert (
            finding["level"] == "warning"
            and "0 to 5" in text.replace("0 to 3", "0 to 5").split("\n")[finding["line"] - 1]
        )
        assert found["tokens"] > 500 and "+BLUNT" in found["diff"]
        rendered = await lab.post("/api/render", **RUN, text=text, topic="1", document="1-2")
        parts = [part for message in rendered["messages"] for part in message["parts"]]
        assert [part["shared"] for part in parts if part["shared"] != "all"] == ["topic", "nobody"]
        assert parts[0]["text"].startswith("BLUNT") and parts[-1]["text"].strip() == "passage 1-2"


async def test_a_packaged_prompt_is_saved_as_a_copy_with_the_next_version(folder: Path) -> None:
    async with open_lab(folder / "runs") as lab:
        template = await lab.get("/api/template", **RUN)
        assert not template["writable"]
        text = draft_of(template["text"])
        await lab.put("/api/draft", **RUN, text=text, base=template["hash"])
        assert (await lab.get("/api/template", **RUN))["draft"]["text"] == text
        saved = await lab.post("/api/save", **RUN, text=text, hash=template["hash"])
        path = Path(saved["name"])
        assert path == Path("lab-prompts/comparative/judge-mine.jinja") and saved["writable"]
        assert (saved["version"], saved["draft"]) == (template["version"] + 1, None)
        assert (await lab.get("/api/template", **RUN))["draft"] is None
        _, prompt = load_named(get_task("comparative"), str(path))
        assert prompt.header.version == template["version"] + 1 and "BLUNT" in prompt.files.text
        about = await lab.get("/api/bench", run="first")
        assert [each["name"] for each in about["prompts"]] == ["judge", str(path)]
        again = await lab.post(
            "/api/save", run="first", name=str(path), text=saved["text"], hash=saved["hash"]
        )
        assert again["version"] == saved["version"] + 1 and again["path"] == str(path)


async def test_drafts_are_written_by_one_lab_at_a_time(folder: Path) -> None:
    async with open_lab(folder / "runs") as second:
        template = await second.get("/api/template", **RUN)
        draft = {**RUN, "text": draft_of(template["text"]), "base": template["hash"]}
        async with open_lab(folder / "runs") as first:
            await first.put("/api/draft", **draft)
            for text in ("mine", None):
                status, refused = await second.send("PUT", "/api/draft", draft | {"text": text})
                assert status == 400
                assert f"process {os.getpid()}" in refused["error"]
            assert (await first.get("/api/template", **RUN))["draft"]["text"] == draft["text"]
        await second.put("/api/draft", **draft | {"text": None})
        assert (await second.get("/api/template", **RUN))["draft"] is None


async def test_a_template_that_changed_on_disk_is_not_overwritten(folder: Path) -> None:
    async with open_lab(folder / "runs") as lab:
        template = await lab.get("/api/template", **RUN)
        saved = await lab.post("/api/save", **RUN, text=template["text"], hash=template["hash"])
        path = Path(saved["path"])
        path.write_text(
            path.read_text().replace("{% block system %}\n", "{% block system %}\nTHEIRS ")
        )
        theirs = path.read_text()
        mine = {
            "run": "first",
            "name": saved["name"],
            "text": draft_of(saved["text"]),
            "hash": saved["hash"],
        }
        assert (await lab.post("/api/check", run="first", name=saved["name"], text=saved["text"]))[
            "disk"
        ] != saved["hash"]
        refused = await lab.post("/api/save", **mine)
        assert refused["conflict"] and (refused["disk"], path.read_text()) == (theirs, theirs)
        kept = await lab.post("/api/save", **mine, file="second.jinja")
        assert (
            Path(kept["path"]).parent == path.parent and "BLUNT" in Path(kept["path"]).read_text()
        )
        assert path.read_text() == theirs
        assert (await lab.send("POST", "/api/save", {**mine, "file": "second.jinja"}))[0] == 400


async def test_a_template_is_saved_in_the_folder_of_prompts_alone(folder: Path) -> None:
    async with open_lab(folder / "runs") as lab:
        template = await lab.get("/api/template", **RUN)
        for file in (
            "../out.jinja",
            "/tmp/out.jinja",
            "out.txt",
            "",
            ".jinja",
            "a/b.jinja",
            "..",
            "a\0.jinja",
        ):
            save = {**RUN, "text": template["text"], "hash": template["hash"], "file": file}
            assert (await lab.send("POST", "/api/save", save))[0] == 400, file
    assert not (folder / "lab-prompts").exists() or not list(
        (folder / "lab-prompts").rglob("*.jinja")
    )


async def test_no_template_but_the_listed_ones_is_read(folder: Path) -> None:
    (folder / "mine.jinja").write_text("secret")
    async with open_lab(folder / "runs") as lab:
        for name in (
            "/etc/passwd",
            "../judge",
            "stance",
            "mine.jinja",
            "judge.jinja",
            "runs/first/config.yaml",
        ):
            about = {"run": "first", "name": name}
            for reply in (
                await lab.send("POST", "/api/check", {**about, "text": ""}),
                await lab.send("POST", "/api/save", {**about, "text": "", "hash": ""}),
                await lab.send("GET", "/api/template", **about),
            ):
                assert reply[0] == 400 and "secret" not in str(reply[1])


async def test_a_sample_measures_the_draft_against_the_saved_version(
    folder: Path, qrels: dict[str, Path], server: FakeServer
) -> None:
    async with open_lab(folder / "runs", qrels=qrels, settings=settings(server)) as lab:
        text = await saved_text(lab)
        assert (await lab.post("/api/estimate", **RUN, text=text))["problem"]
        draft = draft_of(text)
        cost = await lab.post("/api/estimate", **RUN, text=draft)
        assert (cost["requests"], cost["known"], cost["compared"]) == (48, 48, ["saved", "draft"])
        assert server.bodies == []
        *lines, found = await lab.stream("/api/sample", **RUN, text=draft)
        assert len(server.bodies) == 48
        assert (lines[-1]["done"], lines[-1]["total"], lines[-1]["requests"]) == (48, 48, 48)
        rows = {row["measure"]: row for row in found["measures"]}
        assert set(rows) == {
            "relevance nDCG@5",
            "relevance Spearman",
            "quality Spearman",
            "stance macro-F1",
        }
        assert rows["relevance nDCG@5"]["baseline"] == pytest.approx(1.0)
        assert rows["relevance nDCG@5"]["difference"] < 0 and rows["relevance nDCG@5"]["n"] == 8
        assert found["topics"] == 8 and found["documents"] == 48
        page = await lab.get("/comparison", id=found["page"].partition("=")[2])
        assert "draft" in page and "The variants differ" in page
        # Only topics to choose on are judged.
        accesses = read_accesses(access_log(folder / "answers.sqlite"))
        assert [(access.kind, len(access.topics)) for access in accesses] == [("choice", 8)]


async def test_a_cancelled_sample_keeps_its_answers(folder: Path, qrels: dict[str, Path]) -> None:
    with FakeServer(rest=reading({}, delay=0.2)).in_thread() as server:
        inputs = settings(server, **{"engine.concurrency": 4})
        async with open_lab(folder / "runs", qrels=qrels, settings=inputs) as lab:
            draft = draft_of(await saved_text(lab))
            judging = asyncio.create_task(lab.stream("/api/sample", **RUN, text=draft))
            async with asyncio.timeout(30):
                while len(server.bodies) < 8:
                    await asyncio.sleep(0.05)
                judging.cancel()
                while server.open_now:
                    await asyncio.sleep(0.05)
            cost = await lab.post("/api/estimate", **RUN, text=draft)
            assert 0 < cost["requests"] <= 44 and len(server.bodies) < 40


async def test_the_confirmation_counts_earlier_accesses(
    folder: Path, qrels: dict[str, Path]
) -> None:
    async with open_lab(folder / "runs", qrels=qrels) as lab:
        template = await lab.get("/api/template", **RUN)
        text = draft_of(template["text"])
        mine = (await lab.post("/api/save", **RUN, text=text, hash=template["hash"]))["name"]
        found = await lab.get("/api/confirm", run="first", name=mine)
        assert (found["topics"], found["accesses"]) == (8, [])
        assert found["recorded"] == describe_accesses([], [])
        words = found["command"].split()
        assert (
            words[:5] == ["touche-llm", "prompts", "compare", "judge", mine]
            and words[-1] == "--confirm"
        )
        await lab.post("/api/reveal", run="first", topics=["2"])
        found = await lab.get("/api/confirm", run="first", name=mine)
        (access,) = found["accesses"]
        assert (access["kind"], access["topics"], access["counted"]) == ("evaluation", 1, False)
        assert found["recorded"].startswith("1 ")
        assert (await lab.get("/api/confirm", run="first", name="judge"))["command"] == ""
        # A confirmed prompt is marked.
        label = next(
            each["label"] for each in (await lab.get("/api/bench", run="first"))["prompts"]
        )
        access = Access(kind="confirmation", topics=["tea"], prompts=[f"comparative/{label}"])
        record_access(access_log(folder / "answers.sqlite"), access)
        assert [template["confirmed"], (await lab.get("/api/template", **RUN))["confirmed"]] == [
            False,
            True,
        ]


def test_each_view_has_a_command(folder: Path, qrels: dict[str, Path], touche: Touche) -> None:
    async def list_commands() -> list[str]:
        async with open_lab(folder / "runs", qrels=qrels, settings={"cache.mode": "replay"}) as lab:
            about = {"run": "first", "topic": "1", "documents": "1-0\n1-1"}
            views = ("runs", "documents", "bench")
            return [
                (await lab.get("/api/command", view=view, **about))["command"] for view in views
            ]

    commands = asyncio.run(list_commands())
    assert commands[:2] == [
        "touche-llm runs " + str(folder / "runs"),
        "touche-llm show runs/first --topic 1",
    ]
    assert commands[2].startswith(
        "touche-llm prompts try judge --topic 1 --doc 1-0 --doc 1-1 --config runs/first/"
    )
    for command in commands[1:]:
        done = touche(*shlex.split(command)[1:])
        assert done.returncode == 0 and "1-0" in done.stdout, done.stderr


async def test_a_configuration_alone_has_a_bench(
    folder: Path, qrels: dict[str, Path], server: FakeServer
) -> None:
    config = folder / "runs" / "first" / "config.yaml"
    async with open_lab(None, config=config, qrels=qrels, settings=settings(server)) as lab:
        assert (await lab.get("/api/state"))["default_run"] == ""
        ask = {**ASK, "run": ""}
        text = (await lab.get("/api/template", run="", name="judge"))["text"]
        assert (await lab.get("/api/candidates", run="", topic="1"))["documents"][0]["id"] == "1-0"
        *_, done = await lab.stream("/api/answers", **ask, text=text)
        assert done["requests"] == 0
        assert (await lab.send("GET", "/api/topics", run=""))[0] == 400
