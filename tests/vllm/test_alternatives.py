"""Grades from few alternatives per token equal those from 20, where the constraint masks all other tokens."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from tests.vllm.real_data import input_of
from touche_llm.data.records import Topic
from touche_llm.judging.pointwise import read_labels
from touche_llm.llm.answers import build_schema, count_alternatives
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.chat import ChatServer
from touche_llm.llm.checks import Survey
from touche_llm.llm.logprobs import compute_expected_grade
from touche_llm.llm.model import AnsweredRequest, ModelClient
from touche_llm.llm.request import Request, Sampling
from touche_llm.llm.settings import EngineConfig, SamplingConfig
from touche_llm.llm.startup import connect
from touche_llm.prompts.purposes import load, purposes_of
from touche_llm.tasks import get_task

pytestmark = pytest.mark.vllm
PASSAGES = 30


async def test_grades_need_no_more_alternatives_than_their_labels(vllm_url: str, tmp_path: Path) -> None:
    task = get_task("comparative")
    prompt = load(task, purposes_of(task)["judge"], "judge")
    topic = Topic("1", "Is tea better than coffee?", objects=("tea", "coffee"))
    model = prompt.answer_for(topic, 1)
    schema = build_schema(model, prompt.header.form)
    few, many = count_alternatives(schema), 20
    assert few < many
    different = 0
    connection = ChatServer(vllm_url, concurrency=8, request_timeout=60, chat_template_kwargs={})
    with Cache(tmp_path / "none.sqlite", CacheMode.OFF) as off:
        async with connection as server:
            info = await connect(Survey(server, EngineConfig(), SamplingConfig()))
            client = ModelClient(info, server, off)
            for _, document in islice(task.read_corpus(input_of("comparative", tmp_path).corpus, None), PASSAGES):
                grades = []
                for alternatives in (few, many):
                    request = Request(
                        messages=prompt.render(topic=topic, document=document.text[:600], first="tea", second="coffee"),
                        schema=schema,
                        sampling=Sampling(top_logprobs=alternatives),
                        model=info.model,
                        revision="",
                        chat_template_kwargs={},
                        origin=prompt.origin("1", document.id),
                    )
                    answered = await client.request(request, model)
                    assert isinstance(answered, AnsweredRequest)
                    readings = read_labels(answered)
                    grades.append([compute_expected_grade(readings[name]) for name in ("relevance", "quality")])
                assert grades[0] == pytest.approx(grades[1], abs=1e-9)
                different += any(grade % 1 for grade in grades[0])
    assert different == PASSAGES  # expectations, not plain grades
