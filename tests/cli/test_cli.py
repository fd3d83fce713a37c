"""The command line as a user meets it: what it prints and how it ends."""

from __future__ import annotations

import gzip
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Touche
from tests.fake_server import FakeServer, says
from touche_llm.cli.demo import SAMPLES
from touche_llm.config.files import load_config

SAMPLE = SAMPLES / "comparative"
DATA = ["--topics", str(SAMPLE / "topics.xml"), "--corpus", str(SAMPLE / "passages.jsonl")]
REPLAY = ["--cache", str(SAMPLE / "cassette.jsonl"), "--cache-mode", "replay"]


def test_stage_by_stage_gives_the_run_of_the_whole_way(touche: Touche, tmp_path: Path) -> None:
    whole = touche("run", "--task", "comparative", *DATA, *REPLAY, "--out", "whole", "--depth", "9")
    assert whole.returncode == 0, whole.stderr
    assert touche("index", *DATA[2:]).returncode == 0
    assert touche("retrieve", *DATA, "--out", "stages", "--depth", "9").returncode == 0
    assert touche("judge", *REPLAY, "--out", "stages").returncode == 0
    assert touche("rank", "--out", "stages").returncode == 0
    for name in ("candidates.run.txt", "judgments.jsonl", "run.txt"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "stages" / name).read_bytes()


def test_the_written_configuration_makes_the_same_run_again_and_flags_override_it(
    touche: Touche, tmp_path: Path
) -> None:
    touche(
        "run",
        *DATA,
        *REPLAY,
        "--out",
        "one",
        "--tag",
        "mine",
        "--depth",
        "7",
        "--weight-quality",
        "2",
    )
    written = yaml.safe_load((tmp_path / "one" / "config.yaml").read_text())
    assert (written["depth"], written["tag"], written["weights"]["quality"]) == (7, "mine", 2.0)
    assert (written["retriever"]["k1"], written["engine"]["model"]) == (1.5, "written-for-the-demo")
    done = touche("run", "--config", "one/config.yaml", "--out", "two")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "one" / "run.txt").read_bytes() == (
        tmp_path / "two" / "run.txt"
    ).read_bytes()
    touche("run", "--config", "one/config.yaml", "--out", "three", "--depth", "3", "--topic", "7")
    assert len((tmp_path / "three" / "run.txt").read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ["run", "--topics", "t.xml", "--corpus", "c.jsonl", "--out", "o"],
            1,
            "t.xml: cannot read the file",
        ),
        (["run", "--out", "o"], 2, "give the topics (--topics FILE), and the corpus"),
        (
            ["run", *DATA, "--out", "o", "--task", "chess"],
            2,
            "no task 'chess'; known are arguments_2020",
        ),
        (["run", *DATA, "--out", "o", "--topic", "99", *REPLAY], 2, "no topic 99"),
        (
            ["run", *DATA, "--out", "o", "--base-url", "http://127.0.0.1:1"],
            1,
            "is the server running there?",
        ),
        (
            ["run", *DATA, "--out", "o", "--prompt", "jugde", *REPLAY],
            1,
            "known are best, judge, objects",
        ),
        (["cache", "import", "nope.jsonl", "--cache", "new.sqlite"], 2, "nope.jsonl"),
        (
            ["run", *DATA, "--out", "o", *REPLAY, "--model", "other"],
            2,
            "nothing to replay of model other",
        ),
        (["run", *DATA, "--out", "o", *REPLAY, "--max-tokens", "9"], 1, "--cache-mode reuse"),
        (["index", "--corpus", "no.jsonl"], 1, "no such corpus file"),
        (["rank", "--out", "o"], 1, "o/config.yaml: missing; run `touche-llm retrieve`"),
        (
            ["run", *DATA, "--out", "o", "--base-url", "http://me:secret@127.0.0.1:1"],
            2,
            "give the key in VLLM_API_KEY",
        ),
        (
            ["run", "--config", "wrong.yaml", "--out", "o"],
            2,
            "depht: no such name; expected one of ",
        ),
        (
            ["cache", "export", "c.sqlite", "--cache", str(SAMPLE / "cassette.jsonl")],
            2,
            "a cassette ends in .jsonl",
        ),
        (["validate", "no.txt", "--task", "comparative"], 1, "no.txt: cannot read the file"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    touche: Touche, tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    (tmp_path / "wrong.yaml").write_text("topics: t.xml\ncorpus: c.jsonl\ndepht: 5\nk1: 0.9\n")
    done = touche(*arguments)
    assert done.returncode == code, done.stdout + done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "o" / "run.txt").exists() and not (tmp_path / "new.sqlite").exists()


def test_a_run_with_failures_ends_with_3(touche: Touche) -> None:
    with FakeServer(rest=says("no JSON")).in_thread() as server:
        done = touche(
            "run", *DATA, "--out", "o", "--base-url", server.url, "--topic", "3", "--depth", "4"
        )
    assert (done.returncode, "failures: 4 not_json; most often: Invalid JSON" in done.stdout) == (
        3,
        True,
    )
    assert touche("rank", "--out", "o").returncode == 3


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", *DATA, *REPLAY, "--out", "file"],
        ["run", *DATA, *REPLAY, "--out", "file/o"],
        ["judge", "--out", "file"],
        ["demo", "--out", "file"],
        ["index", *DATA[2:], "--index", "file/i"],
        ["cache", "export", "file/x.jsonl", "--cache", "c.sqlite"],
        ["run", "--config", ".", "--out", "o"],
    ],
)
def test_a_place_where_nothing_can_be_written_or_read_is_one_line(
    touche: Touche, tmp_path: Path, arguments: list[str]
) -> None:
    (tmp_path / "file").write_text("text")
    touche("cache", "import", str(SAMPLE / "cassette.jsonl"), "--cache", "c.sqlite")
    done = touche(*arguments)
    assert done.returncode in (1, 2), done.stderr
    lines = [line for line in done.stderr.splitlines() if not line.startswith(("note: ", "task: "))]
    assert len(lines) == 1 and lines[0].startswith(f"error: {'.' if '.' in arguments else 'file'}")
    assert (tmp_path / "file").read_text() == "text"


BM25_FILES = [
    f"bm25-documents/{name}"
    for name in ("params.index.json", "data.csc.index.npy", "manifest.json")
]


def test_a_damaged_index_is_named(touche: Touche, tmp_path: Path) -> None:
    for damaged in ("documents.sqlite", *BM25_FILES):
        shutil.rmtree(tmp_path / "idx", ignore_errors=True)
        touche("index", *DATA[2:], "--index", "idx")
        (tmp_path / "idx" / damaged).write_bytes(b"")
        done = touche("retrieve", *DATA, "--index", "idx", "--out", "o")
        assert (done.returncode, done.stderr.count("error: "), "Traceback" in done.stderr) == (
            1,
            1,
            False,
        )
        assert "idx" in done.stderr


def test_another_corpus_with_a_written_configuration_gets_an_index_of_its_own(
    touche: Touche, tmp_path: Path
) -> None:
    touche("retrieve", *DATA, "--out", "one")
    shutil.copy(SAMPLE / "passages.jsonl", tmp_path / "other.jsonl")
    done = touche(
        "retrieve", "--config", "one/config.yaml", "--corpus", "other.jsonl", "--out", "two"
    )
    assert done.returncode == 0, done.stderr


def test_a_context_of_one_server_is_not_asked_of_another(touche: Touche, tmp_path: Path) -> None:
    touche("run", *DATA, *REPLAY, "--out", "one")
    config = tmp_path / "one" / "config.yaml"
    assert load_config(config, {}).engine.context == 32768
    assert load_config(config, {"engine.base_url": "http://127.0.0.1:2"}).engine.context is None
    assert load_config(config, {"engine.model": "other", "engine.context": 99}).engine.context == 99


def test_debug_shows_where_an_error_comes_from(touche: Touche, tmp_path: Path) -> None:
    done = touche("--debug", "run", *DATA, "--out", "o", "--task", "chess")
    assert "Traceback" in done.stderr and "UsageError" in done.stderr
    command = [sys.executable, "-m", "touche_llm", "--debug", "tasks", "show", "chess"]
    shown = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False
    ).stderr
    assert shown.startswith("Traceback (most recent call last):\n  File ")


def test_validate_prints_every_problem_with_its_line(touche: Touche, tmp_path: Path) -> None:
    (tmp_path / "run.txt").write_text("2 Q0 a 0 1.0 my tag\n2\tFIRST a 1 1.0 my\n")
    done = touche("validate", "run.txt", "--task", "comparative")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[-1] == f"{len(lines) - 1} problems: not a valid comparative run"
    assert {line.split(":")[1] for line in lines[:-1]} == {"1", "2"}


def test_validate_tells_topics_without_a_line_and_unknown_documents(
    touche: Touche, tmp_path: Path
) -> None:
    validate = ("validate", "run.txt", "--task", "comparative")
    (tmp_path / "run.txt").write_text("3 FIRST sample-heating-01___3 1 1.0 t\n")
    done = touche(*validate, *DATA[:2])
    assert (done.returncode, "warning: 3 of 4 topics have no line" in done.stdout) == (0, True)
    (tmp_path / "corpus.jsonl").write_text((SAMPLE / "passages.jsonl").read_text() + "{\n")
    refused = touche(*validate, "--corpus", "corpus.jsonl")
    assert (refused.returncode, refused.stdout) == (1, "") and "--skip-bad-lines" in refused.stderr
    assert touche(*validate, "--corpus", "corpus.jsonl", "--skip-bad-lines").returncode == 0
    touche("index", *DATA[2:], "--index", "idx")
    (tmp_path / "run.txt").write_text("3 FIRST nowhere 1 1.0 t\n")
    done = touche(*validate, "--index", "idx")
    (line, *_) = done.stdout.splitlines()
    assert (done.returncode, line) == (1, "run.txt:1: error: document nowhere is not in the corpus")


def test_a_configuration_may_be_written_as_one_would(touche: Touche, tmp_path: Path) -> None:
    text = (
        f"topics: {DATA[1]}\ncorpus: {DATA[3]}\ntopic: [3, 7]\nretriever:\n  query: description\n"
    )
    (tmp_path / "c.yaml").write_text(text)
    assert touche("retrieve", "--config", "c.yaml", "--out", "o").returncode == 0
    written = yaml.safe_load((tmp_path / "o" / "config.yaml").read_text())
    assert (written["topic"], written["retriever"]["query"]) == (["3", "7"], ["description"])


def test_a_cache_goes_into_a_cassette_and_back(touche: Touche, tmp_path: Path) -> None:
    assert (
        touche("cache", "import", str(SAMPLE / "cassette.jsonl"), "--cache", "c.sqlite").returncode
        == 0
    )
    assert touche("cache", "export", "out.jsonl", "--cache", "c.sqlite").returncode == 0
    assert (tmp_path / "out.jsonl").read_bytes() == (SAMPLE / "cassette.jsonl").read_bytes()


def test_indexing_twice_does_the_work_once(touche: Touche, tmp_path: Path) -> None:
    touche("index", *DATA[2:], "--index", "idx")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "idx").rglob("*")}
    touche("index", *DATA[2:], "--index", "idx")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "idx").rglob("*")} == before
    changed = touche("index", *DATA[2:], "--index", "idx", "--k1", "0.9")
    assert "the index has k1 1.5, not 0.9; indexing " in changed.stderr
    refused = touche("retrieve", *DATA[:2], "--index", "idx", "--out", "o")
    assert (refused.returncode, "the index has k1 0.9, not 1.5" in refused.stderr) == (1, True)


def test_bad_lines_are_left_out_and_listed_if_that_is_requested(
    touche: Touche, tmp_path: Path
) -> None:
    (tmp_path / "c.jsonl").write_text(
        '{"id": "a", "contents": "tea"}\nnot json\n{"id": "a", "contents": "again"}\n'
    )
    stopped = touche("index", "--corpus", "c.jsonl", "--index", "idx")
    assert (stopped.returncode, "c.jsonl:2: not JSON" in stopped.stderr) == (1, True)
    listed = touche("index", "--corpus", "c.jsonl", "--index", "idx", "--skip-bad-lines")
    assert (listed.returncode, "left out 2 bad lines" in listed.stderr) == (0, True)


def test_pairs_are_checked_sentence_by_sentence(touche: Touche, tmp_path: Path) -> None:
    corpus = str(SAMPLES / "sentence_pairs" / "args_processed_04_01.csv")
    touche("demo", "--task", "sentence_pairs", "--out", "demo")
    run = tmp_path / "demo" / "sentence_pairs" / "run.txt"
    validate = ("validate", str(run), "--task", "sentence_pairs", "--corpus", corpus)
    assert touche(*validate).returncode == 0
    _, _, pair, *_ = run.read_text().split()
    first, _, _ = pair.partition(",")
    run.write_text(run.read_text().replace(pair, f"{first},nowhere__PREMISE__1"))
    bad = touche(*validate)
    assert (
        bad.returncode == 1
        and f"document {first},nowhere__PREMISE__1 is not in the corpus" in bad.stdout
    )


def test_a_packed_run_is_read(touche: Touche, tmp_path: Path) -> None:
    touche("run", *DATA, *REPLAY, "--out", "one")
    packed = gzip.compress((tmp_path / "one" / "candidates.run.txt").read_bytes())
    (tmp_path / "c.run.gz").write_bytes(packed)
    assert touche("run", *DATA, *REPLAY, "--out", "two", "--candidates", "c.run.gz").returncode == 0
    assert (tmp_path / "two" / "run.txt").read_bytes() == (
        tmp_path / "one" / "run.txt"
    ).read_bytes()
    (tmp_path / "c.run.gz").write_bytes(packed[:-20])
    broken = touche("run", *DATA, *REPLAY, "--out", "three", "--candidates", "c.run.gz")
    assert (broken.returncode, "c.run.gz: truncated or damaged gzip file" in broken.stderr) == (
        1,
        True,
    )


def in_shell(folder: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a line of bash in which `$@` is the command.

    PIPESTATUS and the like are the line's own.
    """
    command = ["bash", "-c", script, "bash", sys.executable, "-m", "touche_llm", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


def test_a_reader_that_leaves_is_no_error_to_read_about(tmp_path: Path) -> None:
    # The reader is gone before anything is printed, and nothing is flushed but at the end.
    done = in_shell(tmp_path, '{ sleep 0.3; "$@"; } | true', "--version")
    assert done.stderr == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is full")
def test_a_full_standard_output_is_an_error_that_names_it(tmp_path: Path) -> None:
    done = in_shell(tmp_path, '"$@" >/dev/full', "--version")
    assert done.returncode == 1
    assert (
        done.stderr.startswith("error: standard output: No space left on device")
        and done.stderr.count("\n") == 1
    )
