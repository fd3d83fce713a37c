"""Export, the real `vllm run-batch`, import, replay: the answers of a server, without one."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml

from tests.sample_runs import run_lines
from tests.vllm.command import touche
from tests.vllm.real_data import TaskInput
from tests.vllm.server import CONTEXT, MODEL_NAME, OPTIONS, VENV, vllm_environment
from touche_llm.data.files import read_records
from touche_llm.data.records import Judgment
from touche_llm.engines.managed import to_flags
from touche_llm.llm.answer import Answer
from touche_llm.llm.cache import Cache

pytestmark = pytest.mark.vllm
MOST_ROUNDS = 4
# Batches and prefixes that are cached move the last digits of log-probabilities.
CLOSE = 1e-4


@dataclass(frozen=True)
class Export:
    """Number of the exported requests, and the printed command of vLLM that answers them."""

    requests: int
    answer_command: list[str]


def export(*arguments: object) -> Export | None:
    """Export requests with the Python of vLLM, where transformers is, which counts tokens.

    None if nothing is pending.
    """
    command = [
        VENV / "bin" / "python",
        "-m",
        "touche_llm",
        "batch",
        "export",
        *arguments,
        "--format",
        "json",
    ]
    with vllm_environment():
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(done.stdout)
    if not rows:
        return None
    (line,) = [line for line in done.stderr.splitlines() if "vllm run-batch " in line]
    return Export(rows[0]["requests"], shlex.split(line))


def run_batch(printed: list[str], model: Path, folder: Path) -> Path:
    """Answer a file of requests in a folder, by the command that the export prints.

    Returns the file of the responses.
    """
    command = [str(model) if word == "FOLDER" else word for word in printed]
    with vllm_environment():
        done = subprocess.run(
            [*command, *to_flags(OPTIONS)],
            capture_output=True,
            text=True,
            cwd=folder,
            env=dict(os.environ),
        )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return folder / "responses.jsonl"


@dataclass(frozen=True)
class Place:
    """A folder in which the same run is made by a server and by files."""

    given: TaskInput
    model: Path
    folder: Path

    def by_server(self, url: str, *more: object) -> None:
        """Make the whole run."""
        engine = [
            "--model",
            MODEL_NAME,
            "--base-url",
            url,
            "--cache",
            self.folder / "server.sqlite",
        ]
        touche("run", *self.given.options, *engine, *more, "--out", self.folder / "server")

    def retrieve(self, *more: object) -> None:
        """Make the first stage of the run by files."""
        touche("retrieve", *self.given.options, *more, "--out", self.folder / "files")

    def by_files(self, stage: str, *more: object) -> list[int]:
        """Export, answer and import until nothing is pending, and replay.

        The number of requests of each round.
        """
        rounds: list[int] = []
        out, cache = ("--out", self.folder / "files"), ("--cache", self.folder / "files.sqlite")
        engine = ("--model", MODEL_NAME, "--context", CONTEXT, "--tokenizer", self.model, *cache)
        while exported := export(stage, *out, *engine, *more):
            assert len(rounds) < MOST_ROUNDS
            responses = run_batch(exported.answer_command, self.model, self.folder)
            imported = json.loads(
                touche("batch", "import", responses, *out, "--format", "json").stdout
            )
            rounds.append(exported.requests)
            assert {each["outcome"]: each["count"] for each in imported} == {"stored": rounds[-1]}
        touche(stage, *out, "--cache-mode", "replay", *cache, *more)
        return rounds

    def compare(self) -> None:
        """Assert that both ways sent the same requests and had the same answers."""
        files, server = (
            answers(self.folder / "files.sqlite"),
            answers(self.folder / "server.sqlite"),
        )
        assert files.keys() == server.keys()
        for key, answer in files.items():
            assert said(answer) == said(server[key])
            logprobs = [token.logprob for token in answer.tokens]
            assert logprobs == pytest.approx(
                [token.logprob for token in server[key].tokens], abs=CLOSE
            )
        assert fits(self.folder / "files.sqlite") == fits(self.folder / "server.sqlite")
        ranked = [
            {
                (line.topic_id, line.document_id, line.stance)
                for line in run_lines(self.folder / name / "run.txt")
            }
            for name in ("files", "server")
        ]
        assert ranked[0] == ranked[1] != set()


def said(answer: Answer) -> tuple[object, ...]:
    """What is the same to the byte."""
    tokens = [(token.at, token.token) for token in answer.tokens]
    return answer.text, answer.finish_reason, answer.prompt_tokens, answer.completion_tokens, tokens


def answers(cache: Path) -> dict[str, Answer]:
    with Cache(cache) as opened:
        return {entry.key: opened.read(entry, Answer) for entry in opened.find("answer")}


def fits(cache: Path) -> dict[str, object]:
    """How documents were cut."""
    with Cache(cache) as opened:
        return {entry.key: entry for entry in opened.find("fit")}


@pytest.fixture
def passages(inputs: Callable[[str], TaskInput], tmp_path: Path) -> TaskInput:
    """Documents of which some have to be cut."""
    given = inputs("comparative")
    corpus = tmp_path / "passages.jsonl"
    opened = subprocess.run(
        ["gzip", "-dcf", given.corpus], check=True, capture_output=True
    ).stdout.splitlines()
    with corpus.open("w", encoding="utf-8") as stream:
        for number, line in enumerate(opened[:600]):
            document = json.loads(line)
            if number % 20 == 0:
                document["contents"] = (document["contents"] + " Naïve “words”, 漢字 and 🙂. ") * 40
            stream.write(json.dumps(document) + "\n")
    return replace(given, corpus=corpus, index=tmp_path / "index")


# Each round starts vLLM: one for the judgments, one for the stances of the best, one for the
# comparisons.
@pytest.mark.parametrize(
    ("steps", "stances", "count"),
    [("judge", 0, 1), pytest.param("judge,pairwise:3", 3, 3, marks=pytest.mark.nightly)],
)
def test_comparative_questions_judged_ranked_and_with_stances_by_files(
    steps: str,
    stances: int,
    count: int,
    passages: TaskInput,
    tiny_model: Path,
    vllm_url: str,
    tmp_path: Path,
) -> None:
    place = Place(passages, tiny_model, tmp_path)
    first, stance, rank = (
        ("--depth", 20, "--limit-topics", 4),
        ("--stance-depth", stances),
        ("--rank", steps),
    )
    place.by_server(vllm_url, *first, *stance, *rank)
    place.retrieve(*first)
    rounds = place.by_files("judge", *stance)
    if steps == "judge":
        touche("rank", "--out", tmp_path / "files")
    else:
        rounds += place.by_files("rank", *rank)
    assert len(rounds) >= count
    place.compare()
    assert any(
        each.cut
        for each in read_records(tmp_path / "files" / "judgments.jsonl", Judgment, "judgments")
    )
    stages = yaml.safe_load((tmp_path / "files" / "ir-metadata.yml").read_text())["stages"]
    assert stages["judge"]["llm"]["model"]["engine"].startswith("batch files")
