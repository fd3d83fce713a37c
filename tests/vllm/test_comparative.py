"""The comparative task against a real vLLM, on all 50 real topics if available."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.prompt_variants import load_prompt
from tests.vllm.command import kill_half_way, touche
from tests.vllm.conftest import Tell
from tests.vllm.real_data import TaskInput
from tests.vllm.server import finished_requests, token_ids
from touche_llm.corpus.store import DocumentStore
from touche_llm.data.files import read_records
from touche_llm.data.records import Failure, Judgment
from touche_llm.data.runs.reading import read_candidates
from touche_llm.data.topics.reading import read_topics
from touche_llm.llm.cache import Cache
from touche_llm.tasks import get_task

pytestmark = pytest.mark.vllm
DEPTH = 8
ROOM = 2048 - 64  # tokens of the context beside the answer
# The start-up check of every run: the enforced schema, two system messages, and the labels of its
# prompt.
PROBES = 4


@pytest.fixture
def data(inputs: Callable[[str], TaskInput]) -> TaskInput:
    return inputs("comparative")


def arguments(data: TaskInput, url: str, out: Path) -> list[object]:
    command = [
        "run",
        *data.options,
        "--model",
        "tiny",
        "--base-url",
        url,
        "--out",
        out,
        "--depth",
        DEPTH,
    ]
    # One question a document.
    return [*command, "--cache", out.parent / "answers.sqlite", "--stance-depth", 0]


def run(data: TaskInput, url: str, out: Path, *more: object) -> str:
    return touche(*arguments(data, url, out), *more).stderr.splitlines()[-1]


def those_that_do_not_fit(data: TaskInput, url: str, folder: Path) -> set[tuple[str, str]]:
    """The candidates whose whole prompt has more tokens than the context holds beside the answer.

    Counted by vLLM.
    """
    prompt = load_prompt(
        get_task("comparative"),
        "judge",
        "judge",
        get_task("comparative").question.template_variables,
    )
    found = set()
    with DocumentStore(data.index) as store:
        candidates = read_candidates(folder / "asked" / "candidates.run.txt", DEPTH)
        for topic in read_topics(data.topics):
            first, second = topic.objects or ("", "")
            for each in candidates[topic.id]:
                text = store.get(each.document_id).text
                messages = prompt.render(topic=topic, first=first, second=second, document=text)
                if len(token_ids(url, messages)) > ROOM:
                    found.add((topic.id, each.document_id))
    return found


def test_all_topics_are_judged_and_replay_needs_no_server(
    data: TaskInput, vllm_url: str, tmp_path: Path, tell: Tell
) -> None:
    before = finished_requests(vllm_url)
    tell(run(data, vllm_url, tmp_path / "asked"))
    sent = finished_requests(vllm_url) - before
    too_long = those_that_do_not_fit(data, vllm_url, tmp_path)
    judgments = read_records(tmp_path / "asked" / "judgments.jsonl", Judgment, "judgments")
    stages = yaml.safe_load((tmp_path / "asked" / "ir-metadata.yml").read_text())["stages"]
    assert read_records(tmp_path / "asked" / "failures.jsonl", Failure, "failures") == []
    assert len(judgments) == stages["retrieve"]["candidates"] > 0
    assert {each.source for each in judgments} == {"probabilities"}
    assert {each.topic_id for each in judgments} == {topic.id for topic in read_topics(data.topics)}

    # What was too long was cut to fit beside the answer, and is marked; nothing else was.
    cut = [each.cut for each in judgments if each.cut]
    assert stages["judge"]["llm"]["counts"]["cut"] == len(cut)
    assert all(each.kept_chars < each.of_chars and each.prompt_tokens <= ROOM for each in cut)
    if data.is_real:
        assert len(cut) > 10
    assert {(each.topic_id, each.document_id) for each in judgments if each.cut} == too_long

    touche("validate", tmp_path / "asked" / "run.txt", *data.options)

    # Nothing listens there.
    tell(run(data, "http://127.0.0.1:1", tmp_path / "replayed", "--cache-mode", "replay"))
    for name in ("run.txt", "judgments.jsonl"):
        assert (tmp_path / "replayed" / name).read_bytes() == (
            tmp_path / "asked" / name
        ).read_bytes()
    assert sent == stages["judge"]["llm"]["counts"]["requests"] + PROBES


def test_a_run_killed_half_way_asks_only_for_what_was_missing(
    data: TaskInput, vllm_url: str, tmp_path: Path, tell: Tell
) -> None:
    out = tmp_path / "killed"
    # The sample has about forty requests, which a fast machine answers at once if it gets them at
    # once.
    kill_half_way(
        vllm_url,
        20,
        [*arguments(data, vllm_url, out), "--limit-topics", "20", "--concurrency", "2"],
    )
    with Cache(tmp_path / "answers.sqlite") as cache:
        stored = len(cache.find("answer"))
    assert stored > 0
    before = finished_requests(vllm_url)
    run(data, vllm_url, out, "--limit-topics", "20")
    sent = finished_requests(vllm_url) - before
    with Cache(tmp_path / "answers.sqlite") as cache:
        total = len(cache.find("answer"))
    tell(
        f"{stored} answers were stored when the run was killed; the second run sent {sent} for {total - stored} missing"
    )
    assert sent == total - stored + PROBES
    # With new requests, the engine may differ in the last digits, as its batches do: the cache
    # makes a run repeatable.
    run(
        data,
        "http://127.0.0.1:1",
        tmp_path / "replayed",
        "--limit-topics",
        "20",
        "--cache-mode",
        "replay",
    )
    assert (tmp_path / "replayed" / "run.txt").read_bytes() == (out / "run.txt").read_bytes()
