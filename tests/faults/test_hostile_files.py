"""Files that would exhaust their reader end with an answer or an error of ours, in little memory."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import pytest

from tests.faults.hostile_files import CASES, CHATNOIR, CONFIRM, MIB, topic
from tests.faults.tally import Tally
from touche_llm.data.topics import read_topics
from touche_llm.retrieval.chatnoir import ChatNoirDocuments, ChatNoirSettings, Hit, Page

REPOSITORY = Path(__file__).parents[2]
SAMPLE = REPOSITORY / "touche_llm" / "samples" / "comparative"
# Beyond what the smallest honest command takes.
MOST_MEMORY = 1024 * MIB
# For processes that hang; a case on an idle core takes under ten seconds, and the tally counts those that do not.
TIMEOUT, SECONDS = 300, 10.0
# The peak of the process alone: what getrusage says of a child includes its parent at the time of the fork.
PROGRAM = """
import atexit, re, sys
from pathlib import Path
from touche_llm.cli import main
peak = Path(sys.argv.pop(1))
atexit.register(lambda: peak.write_text(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]))
main()
"""


class Outcome(NamedTuple):
    code: int
    said: str
    peak: int
    seconds: float


def command(folder: Path, arguments: list[str]) -> Outcome:
    """Run a command in a folder, and measure its own peak of memory, in bytes, and its processor time."""
    peak = folder.with_name(f"{folder.name}.peak")
    before = os.times()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(peak), *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    after = os.times()
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    return Outcome(process.returncode, said.decode(), int(peak.read_text()) * 1024, seconds)


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the inputs, the run and the caches of the comparative sample."""
    folder = tmp_path_factory.mktemp("files") / "honest"
    folder.mkdir()
    for name in ("topics.xml", "passages.jsonl", "cassette.jsonl"):
        shutil.copy(SAMPLE / name, folder)
    recorded = REPOSITORY / "tests" / "regress" / "comparative"
    shutil.copytree(recorded, folder / "regress" / "comparative")
    for path in recorded.glob("qrels-*.txt"):
        shutil.copy(path, folder)
    (folder / "prompts" / "comparative").mkdir(parents=True)
    for path in (REPOSITORY / "prompts" / "comparative").glob("judge*"):
        shutil.copy(path, folder / "prompts" / "comparative")
    (folder / "six.xml").write_bytes(topic("<objects>heating, cooling</objects>", 6))
    (folder / "three.txt").write_text("0\n2\n4\n")
    ids = [json.loads(line)["id"] for line in (folder / "passages.jsonl").read_text().splitlines()]
    graded = [f"{n} 0 {ident} {place % 3}\n" for n in range(6) for place, ident in enumerate(ids)]
    (folder / "six-relevance.txt").write_text("".join(graded))
    shutil.copy(SAMPLE.with_name("controversial") / "topics.xml", folder / "web.xml")
    settings = ChatNoirSettings(base_url="http://127.0.0.1:9/", cache=folder / "chatnoir.sqlite")
    with closing(ChatNoirDocuments(settings)) as documents:
        documents.put_text("d1", "The text of a page.")
        for each in read_topics(folder / "web.xml"):
            hit = Hit(document_id="d1", uuid=UUID(int=1), score=1.0)
            documents.put_page(each.title, 0, settings.page_size, Page(hits=[hit], unnamed=0, total=1))
    inputs = ["--topics", "topics.xml", "--corpus", "passages.jsonl", "--index", "index"]
    answers = ["--cache", "cassette.jsonl", "--cache-mode", "replay"]
    for arguments in (
        ["run", "--config", str(SAMPLE / "demo.yaml"), *inputs, *answers, "--out", "run"],
        ["cache", "import", "cassette.jsonl", "--cache", "answers.sqlite"],
        ["retrieve", *inputs, "--out", "exported", "--topic", "3"],
        ["batch", "export", "judge", "--out", "exported", "--model", "served", "--context", "32768", "-o", "o.jsonl"],
        CHATNOIR,
    ):
        outcome = command(folder, arguments)
        assert outcome.code == 0, outcome.said
    shutil.rmtree(folder / "o")
    # Nothing is wrong before the cache, which lacks the answers.
    confirmed = command(folder, CONFIRM)
    assert confirmed.code == 1 and "the cache" in confirmed.said, confirmed.said
    return folder


@pytest.fixture(scope="module")
def honest_peak(honest: Path) -> int:
    """Memory of a command that reads honest files."""
    outcome = command(honest, ["validate", "run/run.txt", "--task", "comparative"])
    assert outcome.code == 0, outcome.said
    return outcome.peak


@pytest.mark.nightly  # The peak of memory is that of a process of its own.
@pytest.mark.parametrize("name", CASES)
def test_every_hostile_file_ends_with_an_answer_or_an_error(
    name: str, honest: Path, honest_peak: int, tmp_path: Path, tally: Tally
) -> None:
    place = tmp_path / name
    shutil.copytree(honest, place)
    arguments = CASES[name](place)
    outcome = command(place, arguments)
    kind = f"file: {name.split('_')[0]}"
    tally.add(kind, tried=1, over_10s=int(outcome.seconds > SECONDS))
    assert outcome.code in (0, 1, 2, 3), outcome.said[-2_000:]
    assert "Traceback" not in outcome.said, outcome.said[-2_000:]
    assert outcome.code == 0 or re.search(r"\S", outcome.said)
    assert len(outcome.said) < MIB
    assert outcome.peak < honest_peak + MOST_MEMORY
    tally.add(kind, held=1)
    shutil.rmtree(place)
