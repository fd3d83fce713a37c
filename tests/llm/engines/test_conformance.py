"""Examination of fake servers, each with a named fault: every fault is found, and a server without one has none."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal

import orjson
import pytest
from aiohttp import web

from tests.fake_server import FakeServer, fields_in, reply, says, spell
from touche_llm.doctor.examination import examine
from touche_llm.doctor.registry import Occasion
from touche_llm.doctor.survey import ServerUnderTest
from touche_llm.engines.chat import ChatServer
from touche_llm.engines.identification import ServerCheck
from touche_llm.engines.settings import EngineConfig
from touche_llm.llm.answer_schema import AnswerForm, AnswerModel, build_schema
from touche_llm.llm.settings import SamplingConfig


class Examined(AnswerModel):
    """An answer of the examination."""

    relevance: Literal[0, 1, 2, 3]
    stance: Literal["FIRST", "SECOND", "NEUTRAL", "NO"]


SCHEMAS = [build_schema(Examined, AnswerForm.ARRAY)]


@dataclass
class Model:
    """A server like vLLM with the recommended flags: log-probabilities after the mask."""

    faults: tuple[str, ...] = ()
    number: count[int] = field(default_factory=count)
    seen: set[str] = field(default_factory=set)

    async def answer(self, _: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        faults, number = self.faults, next(self.number)
        labels = {name: each["enum"][0] for name, each in fields_in(body).items()}
        if "noise" in faults and "relevance" in labels and number % 3 == 0:
            labels["relevance"] = 1
        text = spell(body, labels)
        if "white space" in faults:
            text = text.replace(",", " , ")
        elif "spaces" in faults:
            text = text.replace(",", ", ")
        message = {"reasoning_content": "Hm."} if "thinks" in faults else {}
        sent = orjson.loads(reply(text, "stop", self.usage(body), **message).body)  # type: ignore[arg-type]
        self.spread(sent["choices"][0]["logprobs"]["content"])
        return web.json_response(sent)

    def usage(self, body: dict[str, Any]) -> dict[str, Any]:
        words = sum(len(each["content"].split()) for each in body["messages"])
        system = body["messages"][0]["content"]
        known = 16 * (words // 16) if system in self.seen and "cold" not in self.faults else 0
        self.seen.add(system)
        details = (
            {} if "silent" in self.faults else {"prompt_tokens_details": {"cached_tokens": known}}
        )
        return {"prompt_tokens": words, **details}

    def spread(self, tokens: list[dict[str, Any]]) -> None:
        """Set the alternatives: labels differ in their first tokens, and the rest is certain."""
        for place, token in enumerate(tokens):
            own = token["token"]
            alternatives = {own: 1.0}
            if own == "0":
                alternatives = {"0": 0.4, "1": 0.3, "2": 0.2, "3": 0.1}
            elif own == "FIRST":
                shared = {"N": 0.3} if "shared" in self.faults else {"NE": 0.2, "NO": 0.1}
                alternatives = (
                    {own: 0.4, "S": 0.3, **shared}
                    if "rare" not in self.faults
                    else {own: 0.6, "NO": 0.4}
                )
            elif own == "F":
                alternatives = {"F": 0.6, "S": 0.4}
            elif place == 0 and "optional" in self.faults:
                alternatives = {own: 0.9, f"{own}\n": 0.1}
            if "raw" in self.faults:
                alternatives = {name: value / 2 for name, value in alternatives.items()} | {
                    "the": 0.5
                }
            token["logprob"] = math.log(alternatives[own])
            token["top_logprobs"] = [
                {"token": name, "logprob": math.log(p)} for name, p in alternatives.items()
            ]
            token["top_logprobs"].append({"token": "!", "logprob": -9999.0})


def serving(*faults: str) -> FakeServer:
    model = Model(faults)
    return FakeServer(rest=model.answer, probe=model.answer, labels=model.answer)


async def examined(
    server: FakeServer,
    *,
    schemas: Sequence[Mapping[str, Any]] = SCHEMAS,
    sampling: SamplingConfig | None = None,
) -> dict[str, ServerCheck]:
    """The checks of a complete examination."""
    async with server.running():
        async with ChatServer(
            server.url, concurrency=64, request_timeout=5, chat_template_kwargs={}
        ) as client:
            subject = ServerUnderTest(client, EngineConfig(), sampling or SamplingConfig(), schemas)
            examination = await examine(subject, Occasion.THOROUGH)
    found = {check.name: check for check in examination.checks}
    assert len(found) == len(examination.checks)
    return found


@pytest.mark.parametrize("form", ["compact", "spaces"])
async def test_a_server_without_a_fault_has_none(form: str) -> None:
    server = serving(form)
    found = await examined(server)
    assert [name for name, check in found.items() if not check.is_ok] == []
    assert list(found) == [
        *(
            "server",
            "model",
            "context",
            "schema",
            "logprobs",
            "tokens",
            "system message",
            "label tokens",
        ),
        *("open thought", "white space", "prefix cache", "determinism"),
    ]
    assert found["logprobs"].value == "for each token of an answer, renormalised"
    assert found["label tokens"].value.startswith("8 of 8")
    assert found["determinism"].value == "0 of 16 repeats differ"
    assert len(server.bodies) < 40


@pytest.mark.parametrize(
    ("fault", "name", "is_ok", "value", "remedy"),
    [
        ("white space", "white space", False, "written between tokens", "disable_any_whitespace"),
        ("optional", "white space", False, "allowed between tokens", "disable_any_whitespace"),
        ("raw", "white space", None, "none in one answer", "disable_any_whitespace"),
        ("raw", "logprobs", True, "for each token of an answer, raw", ""),
        ("shared", "label tokens", False, "have a probability of 0.300", "`form: letters`"),
        ("rare", "label tokens", True, "6 of 8 labels can be read, each from", ""),
        ("cold", "prefix cache", False, "0 of ", "--enable-prefix-caching"),
        ("silent", "prefix cache", None, "not reported", "--enable-prompt-tokens-details"),
        ("noise", "determinism", False, "of 16 repeats differ", "--dtype float32"),
        ("thinks", "reasoning", False, "thinks", "sampling.chat_template_kwargs"),
    ],
)
async def test_a_fault_that_a_run_survives_is_named_with_its_cost_and_remedy(
    fault: str, name: str, is_ok: bool | None, value: str, remedy: str
) -> None:
    found = await examined(serving(fault))
    assert (found[name].is_ok, value in found[name].value, remedy in found[name].remedy) == (
        is_ok,
        True,
        True,
    )
    # Nothing else is blamed, apart from what cannot be seen in an answer that ends early.
    assert {check.name for check in found.values() if check.is_ok is False} <= {name}
    assert not any(check.is_blocking for check in found.values())


async def test_a_server_that_ignores_schemas_is_examined_no_further() -> None:
    server = FakeServer(ignored=("structured_outputs", "response_format"))
    found = await examined(server)
    assert [check.name for check in found.values() if check.is_blocking] == ["schema"]
    assert server.bodies == []


async def test_a_model_that_writes_white_space_without_end_is_told_from_a_server_that_ignores_schemas() -> (
    None
):
    found = await examined(FakeServer(probe=says('{ "word"\n \t' + " " * 50, "length")))
    assert "schema" not in found and found["white space"].is_blocking
    assert "disable_any_whitespace" in found["white space"].remedy


async def test_without_log_probabilities_what_they_show_is_unknown() -> None:
    found = await examined(serving("noise"), sampling=SamplingConfig(logprobs=False))
    assert {name for name, check in found.items() if check.is_ok is None} == {
        "logprobs",
        "white space",
        "label tokens",
    }
    assert found["determinism"].is_ok is False
