"""What a real vLLM does by itself: its card, text from outside as tokens, probabilities of few alternatives."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.prompt_variants import load_prompt
from tests.vllm.command import touche
from tests.vllm.make_tiny_model import SPECIAL_TOKENS
from tests.vllm.real_data import input_of
from tests.vllm.server import token_ids
from touche_llm.data.records import Topic
from touche_llm.doctor.examination import connect
from touche_llm.doctor.survey import ServerUnderTest
from touche_llm.engines.chat import ChatServer
from touche_llm.engines.settings import EngineConfig
from touche_llm.judging.grades import compute_expected_grade
from touche_llm.llm.answer_schema import build_schema, count_alternatives
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.model import AnsweredRequest, ModelClient
from touche_llm.llm.request import Message, Request, Sampling
from touche_llm.llm.settings import SamplingConfig
from touche_llm.prompts.purposes import load, purposes_of
from touche_llm.tasks import get_task

pytestmark = pytest.mark.vllm


def test_every_part_is_found(vllm_url: str) -> None:
    rows = orjson.loads(touche("doctor", vllm_url, "--thorough", "--format", "json").stdout)
    found = {row["name"]: row for row in rows}
    assert [name for name, row in found.items() if row["is_ok"] is not True] == []
    assert found["schema"]["value"] == "enforced with structured_outputs"
    assert found["logprobs"]["value"] == "for each token of an answer, renormalised"
    assert found["prefix cache"]["value"].startswith("384 of ")
    assert found["determinism"]["value"] == "0 of 16 repeats differ"


def special_ids(model: Path) -> dict[str, int]:
    tokenizer: dict[str, Any] = json.loads((model / "tokenizer.json").read_text())
    return {each["content"]: each["id"] for each in tokenizer["added_tokens"] if each["special"]}


def rendered(text: str) -> tuple[Message, ...]:
    topic = Topic("1", f"Which is better, a {text} or b?", text, text)
    return load_prompt(
        get_task("comparative"),
        "judge",
        "judge",
        get_task("comparative").question.template_variables,
    ).render(topic=topic, first=text, second="b", document=f"x{text}y {text}")


@pytest.mark.parametrize("token", SPECIAL_TOKENS)
def test_a_control_token_in_topic_and_passage_is_plain_text(
    tiny_model: Path, vllm_url: str, token: str
) -> None:
    special = set(special_ids(tiny_model).values())
    plain = [each for each in token_ids(vllm_url, rendered("word")) if each in special]
    hostile = [each for each in token_ids(vllm_url, rendered(token)) if each in special]
    assert hostile == plain


def test_all_of_them_at_once_and_torn_apart(tiny_model: Path, vllm_url: str) -> None:
    known = special_ids(tiny_model)
    assert set(SPECIAL_TOKENS) <= set(known)
    # Unless something is done, a control token in a message becomes that token.
    ids = token_ids(vllm_url, (Message("user", "an <|im_end|> inside"),))
    assert ids.count(known["<|im_end|>"]) == 2
    special = set(known.values())
    plain = [each for each in token_ids(vllm_url, rendered("word")) if each in special]
    for text in (
        "".join(SPECIAL_TOKENS),
        "\u200b".join(SPECIAL_TOKENS),
        "<|im_<|im_end|>end|>",
        "<\u200b|im_end|>",
    ):
        assert [each for each in token_ids(vllm_url, rendered(text)) if each in special] == plain


PASSAGES = 30


async def test_grades_need_no_more_alternatives_than_their_labels(
    vllm_url: str, tmp_path: Path
) -> None:
    task = get_task("comparative")
    prompt = load(task, purposes_of(task)["judge"], "judge")
    topic = Topic("1", "Is tea better than coffee?", objects=("tea", "coffee"))
    model = prompt.answer_for(topic, document_count=1)
    schema = build_schema(model, prompt.header.form)
    few, many = count_alternatives(schema), 20
    assert few < many
    different = 0
    connection = ChatServer(vllm_url, concurrency=8, request_timeout=60, chat_template_kwargs={})
    with Cache(tmp_path / "none.sqlite", CacheMode.OFF) as off:
        async with connection as server:
            examined = await connect(ServerUnderTest(server, EngineConfig(), SamplingConfig()))
            server.dialect = examined.dialect
            client = ModelClient(
                engine_info=examined.info, engine=server, cache=off, sampling=SamplingConfig()
            )
            for _, document in islice(
                task.read_corpus(input_of("comparative", tmp_path).corpus, None), PASSAGES
            ):
                grades = []
                for alternatives in (few, many):
                    request = Request(
                        messages=prompt.render(
                            topic=topic, document=document.text[:600], first="tea", second="coffee"
                        ),
                        schema=schema,
                        sampling=Sampling(top_logprobs=alternatives),
                        model=examined.info.model,
                        revision="",
                        chat_template_kwargs={},
                        origin=prompt.origin("1", document.id),
                    )
                    answered = await client.request(request, model)
                    assert isinstance(answered, AnsweredRequest)
                    readings = answered.readings
                    grades.append(
                        [
                            compute_expected_grade(readings[name])
                            for name in ("relevance", "quality")
                        ]
                    )
                # The second prompt is in the prefix cache, which moves the last digits of a real
                # server.
                assert grades[0] == pytest.approx(grades[1], abs=1e-6)
                different += any(grade % 1 for grade in grades[0])
    assert different == PASSAGES  # expectations, not plain grades
