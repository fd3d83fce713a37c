"""Files of another task or kind, and folders that hold something else, are named before anything is sent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Touche
from touche_llm.cli.demo import SAMPLES

SAMPLE = SAMPLES / "comparative"
DATA = ("--topics", str(SAMPLE / "topics.xml"), "--corpus", str(SAMPLE / "passages.jsonl"))
REPLAY = (
    "--config",
    str(SAMPLE / "demo.yaml"),
    "--cache",
    str(SAMPLE / "cassette.jsonl"),
    "--cache-mode",
    "replay",
)
LAPTOP, TENURE = (2, "Which is better, a laptop or a desktop?"), (1, "Should teachers get tenure?")


def write_topics(folder: Path, *topics: tuple[int, str]) -> str:
    elements = (
        f"<topic><number>{number}</number><title>{title}</title></topic>"
        for number, title in topics
    )
    (folder / "topics.xml").write_text(f"<topics>{''.join(elements)}</topics>")
    return "topics.xml"


def write_corpus(folder: Path, *ids: str) -> str:
    texts = dict.fromkeys(ids, "A laptop with tenure and tea for Lehrer.") | dict.fromkeys(
        "abcdef", "Other words."
    )
    lines = (json.dumps({"id": name, "contents": text}) for name, text in texts.items())
    (folder / "corpus.jsonl").write_text("\n".join(lines))
    return "corpus.jsonl"


def list_warnings(touche: Touche, topics: str, corpus: str, *options: str) -> list[str]:
    done = touche(
        "run", "--dry-run", "--topics", topics, "--corpus", corpus, "--out", "out", *options
    )
    assert done.returncode == 0, done.stderr
    return [line for line in done.stderr.splitlines() if line.startswith("note: ")]


@pytest.mark.parametrize(
    ("task", "topic", "document", "fitting"),
    [
        ("comparative", TENURE, "own-1", ["controversial"]),
        ("controversial", LAPTOP, "clueweb12-0001wb-05-12311___3", ["comparative"]),
        ("comparative_2021", LAPTOP, "clueweb12-0001wb-05-12311", ["comparative"]),
    ],
)
def test_topics_and_documents_of_another_task_are_a_warning_that_names_it(
    task: str,
    topic: tuple[int, str],
    document: str,
    fitting: list[str],
    touche: Touche,
    tmp_path: Path,
) -> None:
    files = write_topics(tmp_path, topic), write_corpus(tmp_path, document)
    warnings = list_warnings(touche, *files, "--task", task)
    assert len(warnings) == len(fitting)
    for warning, name in zip(warnings, fitting, strict=True):
        assert name in warning.partition(", but the task is ")[0] and "--task" in warning


@pytest.mark.parametrize(
    ("task", "topics", "document"),
    [
        ("comparative", [LAPTOP], "clueweb12-0001wb-05-12311___3"),
        ("controversial", [TENURE], "clueweb22-en0000-00-00000"),
        # A subset that begins elsewhere, a translation, own questions with published numbers, own
        # ids.
        ("comparative", [(4, "Is tea hot?"), TENURE], "own-1"),
        ("controversial", [(2, "Which laptop?")], "S1-A2"),
        ("comparative", [(2, "Which tea is better?")], "clueweb-page-7"),
    ],
)
def test_subsets_translations_and_own_data_give_no_warning(
    task: str, topics: list[tuple[int, str]], document: str, touche: Touche, tmp_path: Path
) -> None:
    files = write_topics(tmp_path, *topics), write_corpus(tmp_path, document)
    assert list_warnings(touche, *files, "--task", task) == []


def test_a_task_of_ones_own_may_use_published_topics_and_documents(
    touche: Touche, tmp_path: Path
) -> None:
    assert touche("tasks", "new", "mine").returncode == 0
    task = tmp_path / "mine/task.yaml"
    task.write_text(task.read_text().replace("  id: name\n  text: body\n", ""))
    files = write_topics(tmp_path, TENURE), write_corpus(tmp_path, "clueweb12-0001wb-05-12311___3")
    assert list_warnings(touche, *files, "--task", "mine") == []


def test_a_dry_run_says_of_the_folder_what_the_run_would_say(
    touche: Touche, tmp_path: Path
) -> None:
    done = touche("run", *REPLAY, *DATA, "--out", "out")
    assert done.returncode == 0 and done.stderr.splitlines()[0].startswith("task: comparative ("), (
        done.stderr
    )
    assert touche("run", "--dry-run", *REPLAY, *DATA, "--out", "out").returncode == 0
    refused = [
        touche("run", *REPLAY, *DATA, "--depth", "5", "--out", "out", *dry)
        for dry in ((), ("--dry-run",))
    ]
    assert [done.returncode for done in refused] == [2, 2]
    assert (
        refused[0].stderr == refused[1].stderr
        and "holds a run with other settings" in refused[0].stderr
    )
    assert (
        touche(
            "run", "--dry-run", *REPLAY, *DATA, "--depth", "5", "--out", "out", "--overwrite"
        ).returncode
        == 0
    )
    Path("file").touch()
    done = touche("run", *REPLAY, *DATA, "--out", "file")
    assert (
        done.returncode == 1
        and "error: file: " in done.stderr
        and "a folder is needed" in done.stderr
    )
    retrieve = ("retrieve", *DATA, "--depth", "5", "--out", "out")
    assert touche(*retrieve, "--dry-run").stderr == touche(*retrieve).stderr


@pytest.mark.parametrize("arguments", [("validate", "{}"), ("evaluate", "{}", "--relevance", "{}")])
@pytest.mark.parametrize("file", ["qrels-relevance.txt", "topics.xml"])
def test_a_file_that_is_no_run_is_named_before_the_task_is_missed(
    arguments: tuple[str, ...], file: str, touche: Touche
) -> None:
    done = touche(*(each.replace("{}", str(SAMPLE / file)) for each in arguments))
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        len(done.stderr.splitlines()) == 1
        and "expected a run" in done.stderr
        and "--task" not in done.stderr
    )
