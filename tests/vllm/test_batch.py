"""Export, the real `vllm run-batch`, import, replay: the run of a server, without one."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.vllm.conftest import Input, Tell
from tests.vllm.real_data import input_of
from tests.vllm.server import CONTEXT, MODEL_NAME, OPTIONS, VENV, vllm_environment, vllm_server
from touche_llm.files import read_records
from touche_llm.llm.cache import Cache
from touche_llm.llm.vllm_common import start_options
from touche_llm.records import Judgment

pytestmark = pytest.mark.vllm
# Where a prompt is parted depends on what else arrives, and moves the last digit of some log-probabilities.
WHOLE_PROMPTS = {"enable_chunked_prefill": False, "enable_prefix_caching": False, "max_num_batched_tokens": CONTEXT}
MOST_ROUNDS = 4
# Where transformers is, which counts tokens.
PYTHON = VENV / "bin" / "python"


@pytest.fixture(scope="module")
def url(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("batch") / "server.log"
    with vllm_server(tiny_model, log, fingerprint_mode="none", **WHOLE_PROMPTS) as base_url:
        yield base_url


def touche(folder: Path, *arguments: object, code: int = 0) -> str:
    with vllm_environment():
        done = subprocess.run(
            [str(PYTHON), "-m", "touche_llm", *map(str, arguments)], capture_output=True, text=True, cwd=folder
        )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def run_batch(model: Path, requests: Path, replies: Path) -> None:
    """Answer a file of requests as a job of a queue would, with the settings that the export names."""
    options = {"dtype": OPTIONS["dtype"], "served_model_name": MODEL_NAME, "max_model_len": CONTEXT}
    options |= {"max_num_batched_tokens": CONTEXT, "fingerprint_mode": "none"}
    command = [str(VENV / "bin" / "vllm"), "run-batch", "-i", str(requests), "-o", str(replies), "--model", str(model)]
    command += [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    command += ["--enforce-eager", "--no-enable-chunked-prefill", "--no-enable-prefix-caching"]
    command += ["--structured-outputs-config", json.dumps(start_options({})["structured_outputs_config"])]
    with vllm_environment():
        done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


@dataclass(frozen=True)
class Place:
    """A folder in which a run is made by files."""

    model: Path
    folder: Path
    asking: tuple[object, ...]

    def by_files(self, stage: str, *more: object) -> list[int]:
        """Export, answer and import until nothing is pending; the number of requests of each round."""
        rounds: list[int] = []
        requests, replies = self.folder / "requests.jsonl", self.folder / "replies.jsonl"
        while True:
            more_now = [*self.asking, *more, "--tokenizer", self.model, "--format", "json"]
            found = json.loads(
                touche(self.folder, "batch", "export", stage, "--out", "files", "-o", requests, *more_now)
            )
            if not found:
                return rounds
            assert len(rounds) < MOST_ROUNDS
            run_batch(self.model, requests, replies)
            outcome = {
                each["outcome"]: each["count"]
                for each in json.loads(
                    touche(self.folder, "batch", "import", replies, "--out", "files", "--format", "json")
                )
            }
            rounds.append(found[0]["requests"])
            assert outcome == {"stored": rounds[-1]}


def compare(folder: Path, task_files: tuple[str, ...]) -> None:
    for name in task_files:
        assert (folder / "files" / name).read_bytes() == (folder / "server" / name).read_bytes()


def answers(cache: Path) -> dict[str, object]:
    with Cache(cache) as opened:
        return {entry.key: entry for kind in ("answer", "fit") for entry in opened.find(kind)}


@pytest.fixture
def passages(data: Input, tmp_path: Path) -> Path:
    """Documents of which some have to be cut."""
    corpus = tmp_path / "passages.jsonl"
    opened = subprocess.run(["gzip", "-dcf", data.corpus], check=True, capture_output=True).stdout.splitlines()
    with corpus.open("w", encoding="utf-8") as stream:
        for number, line in enumerate(opened[:600]):
            document = json.loads(line)
            if number % 20 == 0:
                document["contents"] = (document["contents"] + " Naïve “words”, 漢字 and 🙂. ") * 40
            stream.write(json.dumps(document) + "\n")
    return corpus


def test_comparative_questions_judged_ranked_and_with_stances_by_files(
    data: Input, passages: Path, tiny_model: Path, url: str, tmp_path: Path, tell: Tell
) -> None:
    given = ["--task", "comparative", "--topics", data.topics, "--corpus", passages, "--index", tmp_path / "index"]
    given += ["--depth", 20, "--limit-topics", 4]
    steps, stance = ("--rank", "judge,pairwise:3"), ("--stance-depth", 3)
    direct = ["--model", MODEL_NAME, "--base-url", url, "--cache", tmp_path / "server.sqlite"]
    touche(tmp_path, "run", *given, *direct, *steps, *stance, "--out", "server")

    touche(tmp_path, "retrieve", *given, "--out", "files")
    cache = ("--cache", tmp_path / "files.sqlite")
    place = Place(tiny_model, tmp_path, ("--model", MODEL_NAME, "--context", CONTEXT, *cache))
    rounds = place.by_files("judge", *stance)
    replay = ("--cache-mode", "replay", *cache)
    touche(tmp_path, "judge", "--out", "files", *replay, *stance)
    rounds += place.by_files("rank", *steps)
    touche(tmp_path, "rank", "--out", "files", *replay, *steps)
    tell(f"requests of each round: {', '.join(map(str, rounds))}")
    compare(tmp_path, ("candidates.run.txt", "judgments.jsonl", "stances.jsonl", "comparisons.jsonl", "run.txt"))
    # What is kept is the same: texts, log-probabilities, numbers of tokens, and how documents were cut.
    assert answers(tmp_path / "files.sqlite") == answers(tmp_path / "server.sqlite")
    assert any(each.cut for each in read_records(tmp_path / "files" / "judgments.jsonl", Judgment, "judgments"))
    stages = yaml.safe_load((tmp_path / "files" / "ir-metadata.yml").read_text())["stages"]
    assert re.fullmatch(r"vllm run-batch.*", stages["judge"]["engine"])


def test_pairs_of_sentences_by_files_in_three_rounds(tiny_model: Path, url: str, tmp_path: Path, tell: Tell) -> None:
    given, _ = input_of("sentence_pairs", tmp_path)
    arguments = ["--task", "sentence_pairs", "--topics", given.topics, "--corpus", given.corpus]
    arguments += ["--index", tmp_path / "index", "--limit-topics", 2]
    judging = ["--depth", 30, "--judge-pairs", 6, "--both-orders", 1]
    direct = ["--model", MODEL_NAME, "--base-url", url, "--cache", tmp_path / "server.sqlite"]
    touche(tmp_path, "run", *arguments, *direct, *judging, "--out", "server")

    touche(tmp_path, "retrieve", *arguments, "--out", "files")
    cache = ("--cache", tmp_path / "files.sqlite")
    place = Place(tiny_model, tmp_path, ("--model", MODEL_NAME, "--context", CONTEXT, *cache))
    rounds = place.by_files("judge", *judging)
    tell(f"requests of each round: {', '.join(map(str, rounds))}")
    assert len(rounds) == 3
    touche(tmp_path, "judge", "--out", "files", "--cache-mode", "replay", *cache, *judging)
    touche(tmp_path, "rank", "--out", "files")
    compare(tmp_path, ("sentence_judgments.jsonl", "judgments.jsonl", "run.txt"))
    assert answers(tmp_path / "files.sqlite") == answers(tmp_path / "server.sqlite")
