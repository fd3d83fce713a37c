"""Reasoning on a real vLLM: a random model, whose thoughts never end by themselves, on the real topics if available."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.chat_templates import DEEPSEEK_R1, HARMONY, KEPT, OWN, PUBLISHED, read_template, render
from tests.vllm.command import touche
from tests.vllm.conftest import Tell
from tests.vllm.real_data import TaskInput
from tests.vllm.server import CONTEXT, MODEL_NAME, OPTIONS, VENV, finished_requests, vllm_environment, vllm_server
from touche_llm.data.io import read_records
from touche_llm.data.records import Failure, Judgment
from touche_llm.llm.answers import Answer
from touche_llm.llm.cache import Cache
from touche_llm.llm.request import DELIMITERS

pytestmark = pytest.mark.vllm
BUDGET, CHAINS, DEPTH = 48, 3, 2
# The start-up check sends a schema alone, the labels of the prompts, and a schema after a thought.
PROBES = 3


def thinking_model(tiny_model: Path, folder: Path, template: str) -> Path:
    model = folder / MODEL_NAME
    shutil.copytree(tiny_model, model)
    settings = model / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"chat_template": template}))
    (model / "chat_template.jinja").write_text(template)
    return model


@pytest.fixture(scope="module")
def thinking_url(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("thinking")
    with vllm_server(thinking_model(tiny_model, folder, OWN), folder / "server.log") as url:
        yield url


@pytest.fixture
def data(inputs: Callable[[str], TaskInput]) -> TaskInput:
    return inputs("comparative")


def arguments(data: TaskInput, url: str, out: Path) -> list[object]:
    command = ["run", *data.options, "--model", MODEL_NAME, "--base-url", url, "--out", out, "--depth", DEPTH]
    command += ["--thinking", f"judge={BUDGET}", "--chains", CHAINS, "--stance-depth", 0]
    return [*command, "--cache", out.parent / "answers.sqlite"]


def read_answers(folder: Path) -> dict[str, Answer]:
    with Cache(folder / "answers.sqlite") as cache:
        assert cache.find("unusable") == []
        return {entry.key: entry.read(Answer) for entry in cache.find("answer")}


def stored(folder: Path) -> list[Answer]:
    return list(read_answers(folder).values())


@pytest.mark.nightly
def test_all_topics_are_judged_within_the_budget_and_replayed(
    data: TaskInput, thinking_url: str, tmp_path: Path, tell: Tell
) -> None:
    command = arguments(data, thinking_url, tmp_path / "asked")
    said = json.loads(touche(*command, "--dry-run", "--format", "json").stdout)
    before = finished_requests(thinking_url)
    tell(touche(*command).stderr.splitlines()[-1])
    sent = finished_requests(thinking_url) - before - PROBES
    assert sent == sum(row["requests_least"] for row in said) == sum(row["requests_most"] for row in said)

    judgments = read_records(tmp_path / "asked" / "judgments.jsonl", Judgment, "judgments")
    assert read_records(tmp_path / "asked" / "failures.jsonl", Failure, "failures") == []
    assert sent == len(judgments) * 2 * CHAINS > 0
    assert {judgment.source for judgment in judgments} == {"probabilities"}
    # Thoughts reach their budget; answers have tokens of labels and never reach their limit.
    answers = stored(tmp_path)
    thoughts = [answer for answer in answers if not answer.tokens]
    assert len(thoughts) == sent // 2
    assert {(answer.finish_reason, answer.completion_tokens) for answer in thoughts} <= {
        ("length", BUDGET),
        *(("stop", tokens) for tokens in range(BUDGET + 1)),
    }
    assert {answer.finish_reason for answer in answers if answer.tokens} == {"stop"}
    assert max(answer.prompt_tokens + answer.completion_tokens for answer in answers) <= CONTEXT

    touche(*arguments(data, "http://127.0.0.1:1", tmp_path / "replayed"), "--cache-mode", "replay")
    for name in ("run.txt", "judgments.jsonl"):
        assert (tmp_path / "replayed" / name).read_bytes() == (tmp_path / "asked" / name).read_bytes()


@pytest.mark.nightly
def test_a_template_that_drops_thoughts_ends_the_run_in_one_line(
    data: TaskInput, tiny_model: Path, tmp_path: Path
) -> None:
    model = thinking_model(tiny_model, tmp_path / "model", read_template(DEEPSEEK_R1))
    with vllm_server(model, tmp_path / "server.log") as url:
        done = touche(*arguments(data, url, tmp_path / "out"), "--limit-topics", 1, code=1)
        assert "--chat-template" in done.stderr.splitlines()[-1]
        before = finished_requests(url)
        row = row_of(touche("doctor", url, "--format", "json").stdout)
        assert finished_requests(url) > before
    assert (row["is_ok"], row["is_blocking"]) == (False, False)


def row_of(card: str) -> dict[str, object]:
    (row,) = (row for row in json.loads(card) if row["name"] == "thinking")
    assert isinstance(row, dict)
    return row


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("template", "delimiters", "is_kept"),
    [(KEPT, "deepseek", True), (HARMONY, "qwen3", False)],
    ids=["r1 of the guide", "harmony"],
)
def test_templates_are_found_out_by_token_ids(
    tiny_model: Path, tmp_path: Path, template: str, delimiters: str, is_kept: bool
) -> None:
    model = thinking_model(tiny_model, tmp_path / "model", read_template(template))
    with vllm_server(model, tmp_path / "server.log") as url:
        row = row_of(touche("doctor", url, "--format", "json").stdout)
    assert row["is_ok"] is is_kept
    # A template that is refused is shown with the delimiters of the preset that was tried.
    assert DELIMITERS[delimiters][1].strip() in str(row["value"])


def test_templates_are_rendered_as_transformers_does() -> None:
    """Those of the tests without a server."""
    templates = [KEPT, OWN, *map(read_template, PUBLISHED)]
    user = {"role": "user", "content": "Tea?\n"}
    chats = [[user, {"role": "assistant", "content": f"{a}Hm.{b}"}] for a, b in DELIMITERS.values()]
    script = """
import json, sys
from transformers.utils.chat_template_utils import render_jinja_template
templates, chats = json.load(sys.stdin)
found = []
for template in templates:
    for chat in [chats[0][:1], *chats]:
        switch = {"continue_final_message": len(chat) > 1, "add_generation_prompt": len(chat) == 1}
        tokens = {"bos_token": "<s>", "eos_token": "</s>", "thinking": True}
        try:
            found.append(render_jinja_template([chat], chat_template=template, **switch, **tokens)[0][0])
        except ValueError:
            found.append(None)
print(json.dumps(found))
"""
    done = subprocess.run(
        [VENV / "bin" / "python", "-c", script],
        input=json.dumps([templates, chats]),
        capture_output=True,
        text=True,
        check=True,
    )
    rendered: list[str | None] = []
    for template in templates:
        for chat in (chats[0][:1], *chats):
            try:
                rendered.append(render(template, chat, len(chat) > 1, thinking=True))
            except ValueError:
                rendered.append(None)
    assert json.loads(done.stdout) == rendered
    assert None in rendered and len(set(rendered)) > len(templates) * 2


def test_a_thought_before_each_answer(data: TaskInput, vllm_url: str, tmp_path: Path) -> None:
    command = ["run", *data.options, "--model", MODEL_NAME, "--limit-topics", 1, "--depth", 3, "--stance-depth", 0]
    command += ["--thinking", "judge=24", "--chains", 2]
    command += ["--cache", tmp_path / "answers.sqlite"]
    (said,) = json.loads(touche(*command, "--out", tmp_path / "out", "--dry-run", "--format", "json").stdout)
    touche(*command, "--base-url", vllm_url, "--out", tmp_path / "out")
    judgments = read_records(tmp_path / "out" / "judgments.jsonl", Judgment, "judgments")
    assert [len(judgment.thought_keys) for judgment in judgments] == [2, 2, 2]
    answers = stored(tmp_path)
    assert len(answers) == said["requests_least"] == said["requests_most"] == 12
    assert max(answer.completion_tokens for answer in answers if not answer.tokens) <= 24
    touche(*command, "--cache-mode", "replay", "--base-url", "http://127.0.0.1:1", "--out", tmp_path / "again")
    assert (tmp_path / "again" / "run.txt").read_bytes() == (tmp_path / "out" / "run.txt").read_bytes()


def judge_by_files(command: list[object], tiny_model: Path, folder: Path) -> None:
    """Make a run by `vllm run-batch` with the model of the server."""
    model = thinking_model(tiny_model, folder / "models", OWN)
    engine = {"name": "batch", "runner": "vllm", "model": str(model), "context": CONTEXT, "options": OPTIONS}
    (folder / "run.yaml").write_text(yaml.safe_dump({"engine": engine}))
    # Without the name and the address of a server's model.
    at = command.index("--model")
    words = [*command[:at], *command[at + 4 :], "--config", folder / "run.yaml"]
    with vllm_environment():
        done = subprocess.run(
            [VENV / "bin" / "python", "-m", "touche_llm", *map(str, words)], capture_output=True, text=True, cwd=folder
        )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]


@pytest.mark.nightly
def test_a_run_by_batch_files_equals_that_of_a_server(
    data: TaskInput, thinking_url: str, tiny_model: Path, tmp_path: Path
) -> None:
    # Thoughts are drawn anew at a temperature.
    greedy = ["--limit-topics", 5, "--set", "sampling.thinking.temperature=0", "--chains", 1]
    server, files = tmp_path / "server", tmp_path / "files"
    files.mkdir()
    touche(*arguments(data, thinking_url, server / "out"), *greedy)
    judge_by_files([*arguments(data, thinking_url, files / "out"), *greedy], tiny_model, files)
    found, expected = read_answers(files), read_answers(server)
    assert found.keys() == expected.keys() and len(found) == 5 * DEPTH * 2
    for key, answer in found.items():
        assert answer.text == expected[key].text
        logprobs = [token.logprob for token in answer.tokens]
        # Other batches move the last digits of log-probabilities.
        assert logprobs == pytest.approx([token.logprob for token in expected[key].tokens], abs=1e-4)
