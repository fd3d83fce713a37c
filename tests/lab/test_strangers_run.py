"""The run of somebody else in the lab: its settings act only after a click that shows them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.test_strangers_folder import made
from tests.fake_server import FakeServer, says
from tests.lab.labs import LabClient, open_lab
from tests.strangers import SAMPLE, add_vllm, make_bait, make_hostile, open_sink, watch
from touche_llm.lab import server
from touche_llm.prompt_lab.holdout import access_log, read_accesses
from touche_llm.tasks import prompts_folder

__all__ = ["made"]

TOPIC = "3"
JUDGE = (prompts_folder() / "comparative" / "judge.jinja").read_text()
DRAFT = {"name": "judge", "text": JUDGE.replace("{% block system %}\n", "{% block system %}\nX. ")}
OF_DOCUMENT = {"topic": TOPIC, "document": "sample-heating-10___9"}
# Arguments for each view; the run is added to those of all but the first two.
REQUESTS: dict[tuple[str, str], dict[str, Any]] = {
    ("GET", "/api/state"): {},
    ("GET", "/api/runs"): {},
    ("GET", "/api/folder"): {},
    ("GET", "/api/topics"): {},
    ("GET", "/api/documents"): {"topic": TOPIC},
    ("GET", "/api/document"): OF_DOCUMENT,
    ("GET", "/api/qrels"): {"field": "relevance"},
    ("GET", "/api/bench"): {},
    ("GET", "/api/template"): {"name": "judge"},
    ("GET", "/api/candidates"): {"topic": TOPIC},
    ("GET", "/api/confirm"): {"name": "judge"},
    ("GET", "/api/command"): {"view": "bench"},
    ("GET", "/api/comparison"): {"id": "x"},
    ("PUT", "/api/labels"): OF_DOCUMENT | {"labels": {}, "note": "x"},
    ("PUT", "/api/draft"): DRAFT | {"base": "x"},
    ("POST", "/api/run"): {"all": True},
    ("POST", "/api/compare"): {"all": True},
    ("POST", "/api/reveal"): {"topics": [TOPIC]},
    ("POST", "/api/check"): DRAFT,
    ("POST", "/api/render"): DRAFT | OF_DOCUMENT,
    ("POST", "/api/answers"): DRAFT | {"topic": TOPIC, "documents": ["sample-heating-10___9"]},
    ("POST", "/api/estimate"): DRAFT,
    ("POST", "/api/sample"): DRAFT,
    ("POST", "/api/save"): DRAFT | {"hash": "x"},
}
# Sent as long as the page is open, and the choice itself.
OTHERS = {("GET", "/api/events"), ("POST", "/api/folder")}
WITHOUT_RUN = ("/api/state", "/api/runs", "/api/comparison")


@pytest.fixture
def theirs(folder: Path) -> Path:
    """The run of the lab, as somebody else wrote it."""
    file = folder / "runs" / "first" / "config.yaml"
    file.write_text(file.read_text() + "# Written elsewhere.\n")
    return folder


async def choose(lab: LabClient, *, are_all_used: bool) -> tuple[int, Any]:
    """Have the settings used that the page shows."""
    shown = await lab.get("/api/folder", run="first")
    choice = {"run": "first", "hash": shown["hash"], "are_all_used": are_all_used}
    return await lab.send("POST", "/api/folder", choice)


def test_every_view_is_tried() -> None:
    views = {*server._WORKPLACE_VIEWS, *server._RUN_VIEWS, *server._BENCH_VIEWS}
    assert views == REQUESTS.keys() | OTHERS


@pytest.mark.parametrize("are_inputs_given", [False, True])
async def test_no_view_of_a_strangers_run_starts_sends_or_reads_by_its_settings(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, are_inputs_given: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("VLLM_API_KEY", "CHATNOIR_API_KEY", "ELASTICSEARCH_API_KEY"):
        monkeypatch.setenv(name, "secret")
    started = add_vllm(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    bait = make_bait(tmp_path / "bait")
    for name in ("first", "second"):
        shutil.copytree(made, tmp_path / "runs" / name)
    qrels = {"relevance": SAMPLE / "qrels-relevance.txt"}
    with open_sink() as sink, FakeServer(rest=says("x")).in_thread() as engine:
        settings: dict[str, object] = {"engine.base_url": engine.url}
        if are_inputs_given:
            settings |= {"topics": SAMPLE / "topics.xml", "corpus": SAMPLE / "passages.jsonl"}
        for name in ("first", "second"):
            make_hostile(tmp_path / "runs" / name, bait, sink.url)
        with watch() as events:
            async with open_lab(tmp_path / "runs", qrels=qrels, settings=settings) as lab:
                replies = await request_all(lab)
                ports = (str(lab.address.port), engine.url.rpartition(":")[2])

    assert {status for status, _ in replies.values()} <= {200, 400}
    assert replies["GET /api/document"][0] == 200
    assert (replies["GET /api/bench"][0] == 200) == are_inputs_given
    assert bool(engine.bodies) == are_inputs_given
    assert sink.connections == []
    assert not started.exists()
    acted = [(event, what) for event, what in events if is_forbidden(event, what, bait, ports)]
    assert acted == []


def is_forbidden(event: str, what: str, bait: Path, ports: tuple[str, ...]) -> bool:
    """Whether an event reads the bait, or starts or sends anything but requests to these ports."""
    if event == "open":
        return os.fspath(bait) in what
    return not any(port in what for port in ports)


async def request_all(lab: LabClient) -> dict[str, tuple[int, Any]]:
    """Request every view of the first run; return the status and content of each."""
    replies: dict[str, tuple[int, Any]] = {}
    for (method, path), arguments in REQUESTS.items():
        given = dict(arguments)
        if path == "/api/compare":
            given["run"] = ["first", "second"]
        elif path not in WITHOUT_RUN:
            given["run"] = "first"
        if method == "GET":
            status, reply = await lab.send(method, path, **given)
        else:
            status, reply = await lab.send(method, path, given)
        replies[f"{method} {path}"] = (status, reply)
    return replies


async def test_what_is_not_read_has_its_reason_in_its_place(
    theirs: Path, qrels: dict[str, Path]
) -> None:
    async with open_lab(theirs / "runs", qrels=qrels) as lab:
        topics = (await lab.get("/api/topics", run="first"))["topics"]
        assert all("not read" in topic["title"] and not topic["half"] for topic in topics)
        details = await lab.get("/api/document", run="first", topic="1", document="1-2")
        assert details["text"] is None
        assert any("not written here" in note for note in details["notes"])
        row = await lab.post("/api/run", run="first")
        assert row["measures"] == {} and "not written here" in row["note"]
        for path, arguments in (
            ("/api/bench", {}),
            ("/api/candidates", {"topic": "1"}),
            ("/api/confirm", {"name": "judge"}),
        ):
            status, reply = await lab.send("GET", path, run="first", **arguments)
            assert (status, "not written here" in reply["error"]) == (400, True)
            assert "no such file" not in reply["error"]


async def test_what_is_held_out_is_unknown_without_titles_so_that_all_judgments_are_hidden(
    theirs: Path, qrels: dict[str, Path]
) -> None:
    async with open_lab(theirs / "runs", qrels=qrels) as lab:
        for topic in ("1", "2"):
            listed = await lab.get("/api/documents", run="first", topic=topic)
            assert listed["hidden"]
            assert all(row["assessors"] == {} for row in listed["rows"])
        reveal = {"run": "first", "topics": ["1"]}
        assert (await lab.send("POST", "/api/reveal", reveal))[0] == 400
        assert (await lab.send("POST", "/api/run", {"run": "first", "all": True}))[1][
            "measures"
        ] == {}


async def test_inputs_are_read_after_a_choice_that_holds_for_this_run(
    theirs: Path, qrels: dict[str, Path]
) -> None:
    shutil.copytree(theirs / "runs" / "first", theirs / "runs" / "second")
    async with open_lab(theirs / "runs", qrels=qrels) as lab:
        assert (await lab.post("/api/run", run="first"))["measures"] == {}
        shown = await lab.get("/api/folder", run="first")
        assert {entry["name"] for entry in shown["inputs"]} == {"topics", "corpus"}
        assert Path(shown["inputs"][0]["value"]).is_file()
        status, after = await choose(lab, are_all_used=False)
        assert (status, after["inputs"], after["used"]) == (200, [], ["topics", "corpus"])

        topics = (await lab.get("/api/topics", run="first"))["topics"]
        assert {topic["half"] for topic in topics} == {"choice", "hold-out"}
        details = await lab.get("/api/document", run="first", topic="1", document="1-2")
        assert details["text"].strip() == "passage 1-2"
        assert (await lab.post("/api/run", run="first"))["measures"]["relevance nDCG@5"]["n"] == 8
        # The engine of the folder is still not used.
        bench = await lab.get("/api/bench", run="first")
        recorded = yaml.safe_load((theirs / "runs" / "first" / "config.yaml").read_text())
        assert bench["server"]["url"] != recorded["engine"]["base_url"]
        assert (await lab.get("/api/candidates", run="first", topic="1"))["documents"]

        assert (await lab.send("GET", "/api/bench", run="second"))[0] == 400
    async with open_lab(theirs / "runs", qrels=qrels) as lab:
        assert (await lab.send("GET", "/api/bench", run="first"))[0] == 400


async def test_inputs_that_the_lab_was_started_with_are_read(theirs: Path) -> None:
    recorded = yaml.safe_load((theirs / "runs" / "first" / "config.yaml").read_text())
    folder = theirs / "runs" / "first"
    settings = {name: folder / recorded[name] for name in ("topics", "corpus")}
    async with open_lab(theirs / "runs", settings=settings) as lab:
        details = await lab.get("/api/document", run="first", topic="1", document="1-2")
        assert details["text"].strip() == "passage 1-2"
        assert (await lab.get("/api/candidates", run="first", topic="1"))["documents"]


async def test_all_settings_are_used_after_a_choice_that_lists_them(theirs: Path) -> None:
    recorded = yaml.safe_load((theirs / "runs" / "first" / "config.yaml").read_text())
    async with open_lab(theirs / "runs") as lab:
        shown = await lab.get("/api/folder", run="first")
        values = {entry["name"]: entry["value"] for entry in shown["others"]}
        assert values["engine.base_url"] == recorded["engine"]["base_url"]
        assert (await choose(lab, are_all_used=True))[0] == 200
        bench = await lab.get("/api/bench", run="first")
        assert bench["server"]["url"] == recorded["engine"]["base_url"]
        details = await lab.get("/api/document", run="first", topic="1", document="1-2")
        assert [request["answer"] for request in details["requests"]] == ['[2,2,"Y","N"]']


async def test_a_choice_is_about_the_values_that_were_shown(theirs: Path) -> None:
    file = theirs / "runs" / "first" / "config.yaml"
    async with open_lab(theirs / "runs") as lab:
        shown = await lab.get("/api/folder", run="first")
        original = file.read_text()
        changed = yaml.safe_load(original)
        changed["engine"]["base_url"] = "http://127.0.0.1:9"
        file.write_text(yaml.safe_dump(changed))
        choice = {"run": "first", "hash": shown["hash"], "are_all_used": True}
        assert (await lab.send("POST", "/api/folder", choice))[0] == 400
        assert (await lab.get("/api/folder", run="first"))["used"] == []

        file.write_text(original + "\n")
        assert (await choose(lab, are_all_used=True))[0] == 200
        # What is written into the folder later is not what the user saw.
        file.write_text(yaml.safe_dump(changed))
        bench = await lab.get("/api/bench", run="first")
        assert bench["server"]["url"] == yaml.safe_load(original)["engine"]["base_url"]


async def test_no_choice_lets_vllm_run_code(theirs: Path) -> None:
    file = theirs / "runs" / "first" / "config.yaml"
    config = yaml.safe_load(file.read_text())
    config["engine"] |= {"name": "managed", "options": {"trust_remote_code": True}}
    file.write_text(yaml.safe_dump(config))
    async with open_lab(theirs / "runs") as lab:
        status, reply = await choose(lab, are_all_used=True)
        assert (status, "trust_remote_code" in reply["error"]) == (400, True)
        assert (await lab.get("/api/folder", run="first"))["used"] == []


async def test_a_copied_command_uses_no_settings_that_the_lab_does_not_use(theirs: Path) -> None:
    async with open_lab(theirs / "runs") as lab:
        await choose(lab, are_all_used=False)
        trial = await lab.get("/api/command", view="bench", run="first", topic="1", documents="1-2")
        assert "--config" not in trial["command"]
        assert "--set topics=" in trial["command"]


async def test_a_choice_lets_accesses_be_logged(theirs: Path, qrels: dict[str, Path]) -> None:
    async with open_lab(theirs / "runs", qrels=qrels) as lab:
        await choose(lab, are_all_used=False)
        row = await lab.post("/api/run", run="first", all=True)
        assert row["measures"]["relevance nDCG@5"]["n"] == 16
        config = lab.workplace.load("first").config
    (access,) = read_accesses(access_log(config.cache.file))
    assert len(access.topics) == 16


async def test_ones_own_run_has_nothing_to_choose(folder: Path) -> None:
    async with open_lab(folder / "runs") as lab:
        shown = await lab.get("/api/folder", run="first")
        assert (shown["reason"], shown["inputs"], shown["others"]) == ("", [], [])


async def test_a_link_that_is_put_into_an_open_folder_is_refused(theirs: Path) -> None:
    request = {"run": "first", "topic": "1", "document": "1-2"}
    async with open_lab(theirs / "runs") as lab:
        assert (await lab.send("GET", "/api/document", **request))[0] == 200
        (theirs / "secret").write_text("private")
        (theirs / "runs" / "first" / "labels.jsonl").symlink_to(theirs / "secret")
        status, reply = await lab.send("GET", "/api/document", **request)
        assert (status, "labels.jsonl" in reply["error"]) == (400, True)
        assert "private" not in reply["error"]
