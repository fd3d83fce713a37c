"""Answering a file of requests with a Ray Data job, with libraries that stand in for Ray's."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests import batch_replies as b
from tests.batch.conftest import FakeRay
from touche_llm.engines.ray_engine import RayJob
from touche_llm.engines.settings import EngineConfig
from touche_llm.errors import DataError, EngineError, UsageError

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"word": {"enum": ["yes"]}},
    "required": ["word"],
}


ON_CPU: dict[str, Any] = {"placement_group_config": {"bundles": [{"CPU": 1}]}}


def request(key: str, text: str = "A question.", **body: Any) -> dict[str, Any]:
    given = {
        "model": "tiny",
        "messages": [{"role": "system", "content": "Judge."}, {"role": "user", "content": text}],
        "temperature": 0.0,
        "seed": 3,
        "max_tokens": 64,
        "structured_outputs": {"json": SCHEMA},
        "chat_template_kwargs": {"enable_thinking": False},
        "logprobs": True,
        "top_logprobs": 20,
    }
    return {"custom_id": key, "method": "POST", "url": "/v1/chat/completions", "body": given | body}


class Place:
    """A file of requests, and where its responses go."""

    def __init__(self, folder: Path, ray: FakeRay) -> None:
        self.ray = ray
        self.requests = b.write(folder / "requests.jsonl", [request("a"), request("b")])
        self.responses = folder / "out" / "nested" / "responses.jsonl"
        self.log = self.responses.with_suffix(".log")

    async def answer(self, **engine: Any) -> int:
        given = {"name": "ray", "model": str(self.ray.model), "context": 1000, "options": ON_CPU}
        config = EngineConfig.model_validate(given | engine)
        job = RayJob.from_settings(config, self.log)
        return await job.answer_file(self.requests, self.responses)

    def files(self) -> set[str]:
        return (
            {path.name for path in self.responses.parent.iterdir()}
            if self.responses.parent.exists()
            else set()
        )


@pytest.fixture
def place(tmp_path: Path, ray: FakeRay) -> Place:
    return Place(tmp_path, ray)


async def test_a_file_is_answered_whole(place: Place) -> None:
    assert await place.answer() == 2
    assert [line["custom_id"] for line in b.read(place.responses)] == ["a", "b"]
    assert place.files() == {"responses.jsonl", "responses.log"}


@pytest.mark.parametrize(
    ("behaviour", "problem"),
    # The end of the log is in the message.
    [({"fails_in_job": 1}, "not enough memory"), ({"nothing": True}, "code 0")],
)
async def test_a_job_that_fails_leaves_the_target_as_it_was(
    behaviour: dict[str, Any], problem: str, place: Place
) -> None:
    place.ray.behave(**behaviour)
    with pytest.raises(EngineError) as caught:
        await place.answer()
    assert caught.value.location == str(place.requests)
    assert problem in str(caught.value)
    assert place.files() == {"responses.log"}
    place.responses.write_text("of before")
    place.ray.behave(nothing=True)
    with pytest.raises(EngineError):
        await place.answer()
    assert place.responses.read_text() == "of before"


async def test_an_interruption_ends_the_job_and_leaves_no_half_file(place: Place) -> None:
    place.ray.behave(hangs=True)
    task = asyncio.create_task(place.answer())
    while not place.ray.is_hanging.is_set():
        assert not task.done(), task.exception()
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert place.files() == {"responses.log"}


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        ([], ""),
        ([request("a") | {"url": "/v1/embeddings"}], ":1"),
        ([request("a"), request("b", model="another")], ""),
    ],
)
async def test_what_is_no_file_of_chat_requests_to_one_model_starts_nothing(
    lines: list[Any], line: str, place: Place
) -> None:
    b.write(place.requests, lines)
    with pytest.raises(DataError) as caught:
        await place.answer()
    assert caught.value.location == f"{place.requests}{line}"
    assert (place.ray.seen("init"), place.files()) == ([], set())


async def test_a_folder_answers_requests_to_any_name(place: Place) -> None:
    b.write(place.requests, [request("a", model="organisation/large")])
    assert await place.answer() == 1
    (response,) = [line["response"] for line in b.read(place.responses)]
    assert response["body"]["model"] == "organisation/large"


@pytest.mark.parametrize("name", ["model", "context"])
async def test_a_job_needs_the_folder_of_the_model_and_the_context(name: str, place: Place) -> None:
    with pytest.raises(UsageError) as caught:
        await place.answer(**{name: None})
    assert caught.value.location == f"engine.{name}"


async def test_rays_options_go_to_ray_and_the_others_to_vllm(place: Place) -> None:
    b.write(place.requests, [request(str(number)) for number in range(20)])
    options = ON_CPU | {"batch_size": 8, "tensor_parallel_size": 2}
    assert await place.answer(options=options) == 20
    assert place.ray.seen("blocks") == [3]
    assert place.ray.seen("init") == ["local"]
    (config,) = place.ray.seen("config")
    assert config["model_source"] == str(place.ray.model)
    assert (config["batch_size"], config["placement_group_config"]) == (
        8,
        options["placement_group_config"],
    )
    vllm = config["engine_kwargs"]
    assert (vllm["tensor_parallel_size"], vllm["max_model_len"]) == (2, 1000)
    assert vllm["structured_outputs_config"]["disable_any_whitespace"] and "batch_size" not in vllm


async def test_too_few_gpus_are_an_error_instead_of_a_wait(place: Place) -> None:
    with pytest.raises(
        EngineError, match=r"(?s)RAY_ADDRESS.*\b0 GPUs.*\b2\b.*placement_group_config"
    ):
        await place.answer(options={"tensor_parallel_size": 2})
    assert place.files() == {"responses.log"}


async def test_the_job_sends_what_a_chat_template_and_a_server_would_make_of_a_request(
    place: Place,
) -> None:
    schema = {"type": "object", "properties": {"b": {"enum": ["x"]}, "a": {"enum": [1]}}}
    thinking = {"enable_thinking": True}
    sampling = {"seed": 3, "max_tokens": 32, "top_logprobs": 5, "temperature": 0.7}
    changes = {"structured_outputs": {"json": schema}, "chat_template_kwargs": thinking} | sampling
    b.write(place.requests, [request("a", "Why?", **changes)])
    await place.answer()
    ((row,),) = place.ray.seen("rows")
    assert (
        "".join(map(chr, row["tokenized_prompt"])) == "<system>Judge.<user>Why?<think><assistant>"
    )
    assert row["sampling_params"] == {
        **{"temperature": 0.7, "seed": 3, "max_tokens": 32, "logprobs": 5},
        "top_k": 2,  # the model's own, which the request does not set
        "structured_outputs": {"json": orjson.dumps(schema).decode()},
    }


async def test_the_job_writes_a_response_to_each_request_also_where_vllm_or_the_template_refuses(
    place: Place,
) -> None:
    text = '{"word":"yes"}'
    lines = [request(str(most), max_tokens=most) for most in (64, len(text) + 1, len(text), 4)]
    lines += [request("refused", structured_outputs={"json": {"allOf": []}})]
    lines += [request("broken", "broken"), request("template", "no such role")]
    b.write(place.requests, lines)
    assert await place.answer() == len(lines)
    found = {line["custom_id"]: line["response"] for line in b.read(place.responses)}
    assert {key: found[key]["status_code"] for key in ("refused", "broken", "template")} == {
        "refused": 400,
        "broken": 500,
        "template": 400,
    }
    assert "takes no such role" in json.dumps(found["template"]["body"])
    answered = [found[str(most)]["body"] for most in (64, len(text) + 1, len(text), 4)]
    # The end token separates an answer that ended with its last token from one that was cut off
    # there.
    assert [each["choices"][0]["finish_reason"] for each in answered] == [
        "stop",
        "stop",
        "length",
        "length",
    ]
    assert [each["usage"]["completion_tokens"] for each in answered] == [15, 15, 14, 4]
    whole = answered[0]
    assert whole["choices"][0]["message"]["content"] == text
    assert whole["usage"]["prompt_tokens"] == len("<system>Judge.<user>A question.<assistant>")
    assert (whole["model"], whole["system_fingerprint"]) == ("tiny", "vllm-0.32.0-ray-2.60.0")
    first = whole["choices"][0]["logprobs"]["content"][0]
    assert (first["token"], first["logprob"], len(first["top_logprobs"])) == ("{", -0.5, 20)
    assert first["top_logprobs"][1]["logprob"] == -9999.0
