"""A file that exists is replaced only with `--overwrite`, whichever command is to write it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Touche
from tests.cli.test_calibrate import FIT, TOPICS
from tests.evaluation.test_calibration import gated, judgment, shares
from tests.report.reports import sample_run, write_qrels
from touche_llm.cli.demo import SAMPLES
from touche_llm.data.files import write_records

CASSETTE = SAMPLES / "comparative" / "cassette.jsonl"
MINE = b"not written by this program\n"


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run `comparative`, and qrels for it."""
    folder = tmp_path_factory.mktemp("sample")
    write_qrels(sample_run("comparative", folder), folder)
    return folder


def export_cache(_: Path, file: str) -> list[str]:
    return ["cache", "export", file, "--cache", str(CASSETTE)]


def fuse(sample: Path, file: str) -> list[str]:
    run = sample / "comparative"
    files = [str(run / "run.txt"), str(run / "candidates.run.txt")]
    return ["fuse", *files, "--task", "comparative", "--out", file]


def report(sample: Path, file: str) -> list[str]:
    return ["report", str(sample / "comparative"), "-o", file]


def calibrate(_: Path, file: str) -> list[str]:
    examples = gated(TOPICS)
    judged = [judgment(topic, name, shares(*said)) for topic, name, _, said in examples]
    write_records(Path("run/judgments.jsonl"), judged)
    Path("run/config.yaml").write_text(
        "task: comparative\ntopics: topics.xml\ncorpus: passages.jsonl\n"
    )
    Path("qrels.txt").write_text(
        "".join(f"{topic} 0 {name} {stance}\n" for topic, name, stance, _ in examples)
    )
    return [*FIT, "--out", file]


def compare(sample: Path, file: str) -> list[str]:
    run = sample / "comparative"
    Path("other.txt").write_bytes((run / "run.txt").read_bytes())
    qrels = ["--relevance", str(sample / "qrels-relevance.txt")]
    return ["compare", "other.txt", str(run), "--task", "comparative", *qrels, "--html", file]


COMMANDS = [export_cache, fuse, report, calibrate, pytest.param(compare, marks=pytest.mark.slow)]


@pytest.mark.parametrize("command", COMMANDS)
def test_an_existing_file_is_replaced_only_when_that_is_asked_for(
    touche: Touche, tmp_path: Path, sample: Path, command: object
) -> None:
    assert callable(command)
    file = tmp_path / "mine.jsonl"
    arguments = command(sample, "mine.jsonl")
    file.write_bytes(MINE)
    refused = touche(*arguments)
    assert (refused.returncode, refused.stdout, file.read_bytes()) == (2, "", MINE)
    assert "mine.jsonl" in refused.stderr and "--overwrite" in refused.stderr
    assert touche(*arguments, "--overwrite").returncode == 0
    written = file.read_bytes()
    assert MINE not in written
    file.unlink()
    assert touche(*arguments).returncode == 0
    assert file.read_bytes() == written


def test_what_a_command_reads_it_never_replaces(
    touche: Touche, tmp_path: Path, sample: Path
) -> None:
    own = tmp_path / "c.jsonl"
    own.write_bytes(CASSETTE.read_bytes())
    done = touche("cache", "export", "c.jsonl", "--cache", "./c.jsonl", "--overwrite")
    assert (done.returncode, own.read_bytes()) == (2, CASSETTE.read_bytes())
    qrels = tmp_path / "qrels-relevance.txt"
    qrels.write_bytes((sample / "qrels-relevance.txt").read_bytes())
    done = touche(
        "report",
        str(sample / "comparative"),
        "--relevance",
        qrels.name,
        "-o",
        qrels.name,
        "--overwrite",
    )
    assert (done.returncode, qrels.read_bytes()) == (
        2,
        (sample / "qrels-relevance.txt").read_bytes(),
    )
