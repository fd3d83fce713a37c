"""A kind of task in a file of its own, through the command line and the library."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import orjson
import pytest
import yaml

import touche_llm
from tests.extending.conftest import Extended
from tests.fake_server import FakeServer

MODULES = ("tests.extending.lead",)
EXAMPLE = Path(touche_llm.__file__).parent / "samples" / "example"
DOCUMENT = "Uniforms hide differences.\n\nThey cost us 180 euros.\n \nI would buy books."
RUN = [
    *("--topics", "task/topics.xml", "--corpus", "corpus.jsonl", "--topic", "1", "--out", "out"),
    # Another method finds no word that is in each document.
    *("--bm25-method", "lucene"),
]
TASK = ["--task", "task"]


@pytest.fixture(autouse=True)
def task_folder(tmp_path: Path) -> Path:
    """A task of the kind, and its corpus of one document with three paragraphs."""
    folder = tmp_path / "task"
    shutil.copytree(EXAMPLE, folder)
    definition = (folder / "task.yaml").read_text()
    (folder / "task.yaml").write_text(definition + "kind: lead\n")
    line = {"name": "one", "body": DOCUMENT}
    (tmp_path / "corpus.jsonl").write_text(json.dumps(line) + "\n")
    return folder


@pytest.mark.parametrize(
    ("options", "paragraphs"),
    [([], 1), pytest.param(["--lead-paragraphs", "2"], 2, marks=pytest.mark.slow)],
)
def test_a_run_judges_the_first_paragraphs_and_records_how_many(
    options: list[str], paragraphs: int, extended: Extended, tmp_path: Path
) -> None:
    with FakeServer().in_thread() as server:
        run = extended("run", *TASK, *RUN, *options, "--base-url", server.url, modules=MODULES)
        sent = [body["messages"][-1]["content"] for body in server.bodies]
    assert run.returncode == 0, run.stderr
    (judging,) = [text for text in sent if "Uniforms hide differences." in text]
    assert ("180 euros" in judging) is (paragraphs >= 2)
    assert "I would buy books." not in judging

    config = yaml.safe_load((tmp_path / "out" / "config.yaml").read_text())
    assert config["lead"] == {"paragraphs": paragraphs}


@pytest.mark.slow
def test_show_and_report_know_a_run_of_it(extended: Extended) -> None:
    with FakeServer().in_thread() as server:
        run = extended("run", *TASK, *RUN, "--base-url", server.url, modules=MODULES)
    assert run.returncode == 0, run.stderr
    show = extended("show", "out", modules=MODULES)
    assert show.returncode == 0, show.stderr
    report = extended("report", "out", modules=MODULES)
    assert report.returncode == 0, report.stderr


@pytest.mark.slow
def test_a_dry_run_counts_the_tokens_of_the_first_paragraphs(extended: Extended) -> None:
    tokens: list[int] = []
    for paragraphs in ("1", "2"):
        done = extended(
            *("run", *TASK, *RUN, "--lead-paragraphs", paragraphs),
            *("--dry-run", "--format", "json"),
            modules=MODULES,
        )
        assert done.returncode == 0, done.stderr
        (row,) = [row for row in orjson.loads(done.stdout) if row["prompt"]]
        assert row["requests"] == 1
        tokens.append(row["prompt_tokens"])
    assert tokens[0] < tokens[1]


@pytest.mark.slow
def test_help_lists_its_options_where_documents_are_judged(extended: Extended) -> None:
    judge_help = extended("judge", "--help", modules=MODULES)
    rank_help = extended("rank", "--help", modules=MODULES)
    assert "--lead-paragraphs" in judge_help.stdout
    assert rank_help.returncode == 0 and "--lead-paragraphs" not in rank_help.stdout


@pytest.mark.slow
def test_tasks_show_and_prompts_check_know_it(extended: Extended) -> None:
    shown = extended("tasks", "show", "task", "--format", "json", modules=MODULES)
    assert shown.returncode == 0, shown.stderr
    (row,) = orjson.loads(shown.stdout)
    assert (row["kind"], row["ranks"]) == (
        "lead",
        "documents, each judged by its first paragraphs",
    )
    checked = extended("prompts", "check", *TASK, modules=MODULES)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["tasks", "show", "task"],
        pytest.param(["run", *TASK, *RUN, "--dry-run"], marks=pytest.mark.slow),
        pytest.param(["prompts", "check", *TASK], marks=pytest.mark.slow),
    ],
)
def test_without_the_file_the_kind_is_unknown(command: list[str], extended: Extended) -> None:
    done = extended(*command)
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: task/task.yaml: kind: 'lead' ")
    assert "documents, pairs" in line


@pytest.mark.parametrize(
    ("task", "options", "setting"),
    [
        ("task", ["--lead-paragraphs", "0"], "--lead-paragraphs"),
        pytest.param(
            *("task", ["--set", "lead.sentences=1"], "lead.sentences"), marks=pytest.mark.slow
        ),
        pytest.param("task", ["--judge-pairs", "3"], "pairs", marks=pytest.mark.slow),
        pytest.param(
            *("controversial", ["--lead-paragraphs", "2"], "lead"), marks=pytest.mark.slow
        ),
    ],
)
def test_its_settings_are_checked_as_those_of_the_package(
    task: str, options: list[str], setting: str, extended: Extended
) -> None:
    done = extended("run", "--task", task, *RUN, *options, "--dry-run", modules=MODULES)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: ") and setting in done.stderr


def test_the_library_judges_with_its_settings(extended: Extended) -> None:
    program = """
import tests.extending.lead as lead
import touche_llm as tl
texts = []
def answer(request):
    texts.append(request.messages[-1].content)
    return "[3,1,\\"PRO\\"]"
topics = tl.read_topics("task/topics.xml")[:1]
retriever = tl.RetrieverConfig(method="lucene")
with tl.open_corpus("corpus.jsonl", task="task", retriever=retriever) as corpus:
    candidates = tl.retrieve(topics, corpus)
    with tl.LanguageModel(answers=answer) as model:
        tl.judge(candidates, model, judging_settings=lead.LeadSettings(paragraphs=2))
        try:
            tl.judge(candidates, model, judging_settings=tl.PairSettings())
        except tl.UsageError as error:
            assert "lead" in str(error), error
        else:
            raise AssertionError("settings of another kind were accepted")
(text,) = texts
assert "180 euros" in text and "books" not in text
"""
    done = extended(program=program)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("section", "is_shared"),
    [
        pytest.param("lead", True, marks=pytest.mark.slow),
        ("ranking", False),
        pytest.param("depth", False, marks=pytest.mark.slow),
    ],
)
def test_kinds_share_a_section_only_with_the_same_settings(
    section: str, is_shared: bool, extended: Extended
) -> None:
    program = f"""
import tests.extending.lead as lead
from touche_llm.kinds.registry import register
from touche_llm.settings.section import NamedSection
class OtherKind(lead.LeadKind):
    name = "other"
    judging_section = NamedSection(name="{section}", settings=lead.LeadSettings)
register(OtherKind())
import touche_llm.config.configuration
"""
    done = extended(program=program)
    assert (done.returncode == 0) is is_shared, done.stderr
    assert (f"ExtensionError: {section}: " in done.stderr) is not is_shared


@pytest.mark.slow
def test_a_kind_that_comes_too_late_is_an_error(extended: Extended) -> None:
    done = extended(program="import touche_llm.config.configuration, tests.extending.lead")
    assert "ExtensionError: lead: " in done.stderr and done.returncode == 1
