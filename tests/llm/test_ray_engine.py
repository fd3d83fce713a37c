"""The engine under Ray Data, against libraries that answer as Ray and vLLM do; tests/vllm asks the real ones."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from touche_llm.config import Config
from touche_llm.engine_config import EngineConfig
from touche_llm.engines import open_model
from touche_llm.errors import EngineError, UsageError
from touche_llm.llm import ray_engine
from touche_llm.llm.answer import Unanswered, schema_of
from touche_llm.llm.cache import Cache
from touche_llm.llm.engine import Rejected, Transient
from touche_llm.llm.language_model import Answered
from touche_llm.llm.ray_engine import RayEngine
from touche_llm.llm.request import Message, Origin, Request, Sampling
from touche_llm.tasks.comparative import ComparativeJudgment

CONTEXT = 1000
ON_CPU = {"placement_group_config": {"bundles": [{"CPU": 1}]}}
SWITCHES = {"enable_thinking": False}

# What the driving process finds in place of the libraries. `behaviour` says how, `seen` what was asked.
RAY = """
import json, os, pathlib
here = pathlib.Path(__file__).parent.parent
def behaviour():
    return json.loads((here / "behaviour").read_text())
def see(**what):
    with (here / "seen").open("a") as stream:
        print(json.dumps(what), file=stream)
def init(address=None, **options):
    see(init=address, pid=os.getpid(), stats=os.environ["RAY_USAGE_STATS_ENABLED"])
    print("Started Ray.")
def cluster_resources():
    return {"CPU": 2.0}
"""
RAY_DATA = """
from types import SimpleNamespace
from ray import see
class DataContext:
    @staticmethod
    def get_current():
        return SimpleNamespace()
def from_items(rows, override_num_blocks):
    rows = [row | {"tokenized_prompt": row["tokenized_prompt"].tolist()} for row in rows]
    see(blocks=override_num_blocks, rows=rows)
    return rows
"""
RAY_DATA_LLM = """
import json, math, os, time
from itertools import count
from types import SimpleNamespace
from ray import behaviour, see
data_sets = count()
def vLLMEngineProcessorConfig(**given):
    see(config=given)
def build_processor(config):
    return lambda rows: SimpleNamespace(iter_rows=lambda: answers(rows))
def answers(rows):
    how, data_set = behaviour(), next(data_sets)
    if how.get("fails"):
        raise RuntimeError("a long way to it\\n" * 100 + "not enough memory")
    for done, row in enumerate(rows):
        if done == how.get("loses_after"):
            return
        if done == how.get("dies_after"):
            os._exit(3)
        if done == how.get("hangs_after"):
            time.sleep(60)
        asked = "".join(map(chr, row["tokenized_prompt"]))
        if any(text in asked and data_set < number for text, number in how.get("breaks_until", {}).items()):
            yield {"number": row["number"], "__inference_error__": "RuntimeError: the request is not finished"}
        else:
            yield {"number": row["number"]} | answer(row, how)
def answer(row, how):
    params = row["sampling_params"]
    schema = json.loads(params["structured_outputs"]["json"])
    if "allOf" in schema:
        return {"__inference_error__": "VLLMValidationError: the grammar does not know allOf"}
    if "broken" in "".join(map(chr, row["tokenized_prompt"])):
        return {"__inference_error__": "RuntimeError: the request is not finished"}
    text = json.dumps({name: labels["enum"][0] for name, labels in schema["properties"].items()})
    text = how.get("says", text)
    tokens = [*map(ord, text), 0][:params["max_tokens"]]
    others = {n: {"logprob": -math.inf, "decoded_token": chr(n)} for n in range(200, 230)}
    logprobs = [{t: {"logprob": -0.5, "decoded_token": chr(t) if t else "<end>"}} | others for t in tokens]
    return {
        "__inference_error__": "",
        "generated_text": "".join(chr(t) for t in tokens if t),
        "generated_tokens": tokens,
        "num_input_tokens": len(row["tokenized_prompt"]),
        "logprobs": logprobs if params["logprobs"] and not how.get("no_logprobs") else None,
    }
"""
TRANSFORMERS = """
class AutoTokenizer:
    eos_token_id = 0
    chat_template = "there is one"
    @classmethod
    def from_pretrained(cls, folder, local_files_only, trust_remote_code, use_fast=True):
        assert local_files_only and not trust_remote_code
        return cls()
    def apply_chat_template(self, messages, tokenize, add_generation_prompt, enable_thinking=True, **others):
        text = "".join(f"<{each['role']}>{each['content']}" for each in messages)
        if "no such role" in text:
            raise ValueError("the template takes no such role")
        return text + "<think>" * enable_thinking + "<assistant>"
    def encode(self, text, add_special_tokens, verbose):
        assert not add_special_tokens
        return [ord(c) for c in text]
    def __call__(self, texts, add_special_tokens, verbose):
        return {"input_ids": [self.encode(text, add_special_tokens, verbose) for text in texts]}
    def decode(self, tokens):
        return "".join(map(chr, tokens))
"""
VLLM_CONFIG = """
from types import SimpleNamespace
def try_get_generation_config(folder, trust_remote_code):
    return SimpleNamespace(to_diff_dict=lambda: {"top_k": 2, "temperature": 0.9, "eos_token_id": [0, 7]})
"""


class Libraries:
    """The libraries in a folder, for this process and for those that it starts."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder / "libraries"
        files = {
            "ray/__init__.py": RAY,
            "ray/data/__init__.py": RAY_DATA,
            "ray/data/llm.py": RAY_DATA_LLM,
            "transformers.py": TRANSFORMERS,
            "vllm/__init__.py": "",
            "vllm/transformers_utils/__init__.py": "",
            "vllm/transformers_utils/config.py": VLLM_CONFIG,
            "vllm-0.32.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n",
        }
        for name, text in files.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text)
        self.model = folder / "models" / "tiny"
        self.model.mkdir(parents=True)
        for name in ("config.json", "tokenizer_config.json"):
            (self.model / name).write_text("{}")
        self.behave()
        self.log = folder / "vllm.log"
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(self.folder), os.getcwd()]))
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        monkeypatch.syspath_prepend(str(self.folder))
        spec = importlib.util.spec_from_file_location("transformers", self.folder / "transformers.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        monkeypatch.setitem(sys.modules, "transformers", module)
        monkeypatch.setattr(ray_engine, "_MOMENT", 0.02)

    def behave(self, **how: Any) -> None:
        (self.folder / "behaviour").write_bytes(orjson.dumps(how))

    def seen(self, what: str) -> list[Any]:
        path = self.folder / "seen"
        lines = [orjson.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []
        return [line[what] for line in lines if what in line]

    def engine(self, **options: Any) -> RayEngine:
        return RayEngine(self.model, self.log, context=CONTEXT, options=ON_CPU | options, chat_template_kwargs=SWITCHES)

    def config(self, **engine: Any) -> Config:
        asked = {"name": "ray", "model": str(self.model), "context": CONTEXT, "options": ON_CPU} | engine
        file = str(self.folder / "answers.sqlite")
        given = {"task": "comparative", "topics": "topics.xml", "index": "index", "weights": {"relevance": 1.0}}
        return Config.model_validate(given | {"engine": asked, "cache": {"file": file}})


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Libraries:
    return Libraries(tmp_path, monkeypatch)


def question(text: str = "A question.", schema: Mapping[str, Any] | None = None, **sampling: Any) -> Request:
    return Request(
        messages=(Message("system", "Judge."), Message("user", text)),
        schema=schema or schema_of(ComparativeJudgment),
        sampling=Sampling(**sampling),
        model="tiny",
        revision="",
        chat_template_kwargs=SWITCHES,
        origin=Origin("comparative/judge", 1, "0" * 12, "1", "d"),
    )


def labels(*allowed: str) -> dict[str, Any]:
    return {"type": "object", "properties": {"word": {"enum": list(allowed)}}, "required": ["word"]}


async def test_what_waits_is_one_data_set_with_the_check_in_it_and_what_comes_later_the_next(
    libraries: Libraries,
) -> None:
    async with libraries.engine(batch_size=8, tensor_parallel_size=2) as engine:
        facts = await engine.connect("r1", 20)
        assert (facts.model, facts.revision, facts.context, facts.engine) == ("tiny", "r1", CONTEXT, "vllm 0.32.0")
        assert facts.overhead == len("<system><user><assistant>")
        assert libraries.seen("init") == []  # nothing is started before something is asked
        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(engine.complete(question(f"Question {number}.")))
        await engine.complete(question("And another one."))
    assert [len(rows) for rows in libraries.seen("rows")] == [21, 1]
    assert libraries.seen("blocks") == [3, 1]
    assert libraries.seen("init") == ["local"]
    assert libraries.seen("stats") == ["0"]
    (config,) = libraries.seen("config")
    assert config["model_source"] == str(libraries.model)
    assert (config["batch_size"], config["placement_group_config"]) == (8, ON_CPU["placement_group_config"])
    vllm = config["engine_kwargs"]
    assert (vllm["tensor_parallel_size"], vllm["max_model_len"]) == (2, CONTEXT)
    assert vllm["structured_outputs_config"]["disable_any_whitespace"]
    assert "batch_size" not in vllm
    assert not Path(f"/proc/{libraries.seen('pid')[0]}").exists()
    assert "Started Ray." in libraries.log.read_text()


async def test_schema_sampling_and_template_switches_arrive(libraries: Libraries) -> None:
    async with libraries.engine() as engine:
        await engine.connect("", 5)
        schema = {"type": "object", "properties": {"b": {"enum": ["x"]}, "a": {"enum": [1]}}}
        asked = question("Why?", schema, seed=3, max_tokens=32, top_logprobs=5, temperature=0.7)
        await engine.complete(replace(asked, chat_template_kwargs={"enable_thinking": True}))
    check, row = libraries.seen("rows")[0]
    assert "Say hello." in "".join(map(chr, check["tokenized_prompt"]))  # first, since all others wait for it
    assert "".join(map(chr, row["tokenized_prompt"])) == "<system>Judge.<user>Why?<think><assistant>"
    assert row["sampling_params"] == {
        **{"temperature": 0.7, "seed": 3, "max_tokens": 32, "logprobs": 5},
        "top_k": 2,  # the model's own, which the request does not say
        "structured_outputs": {"json": orjson.dumps(schema).decode()},
    }


async def test_a_row_is_the_completion_that_a_server_would_send(libraries: Libraries) -> None:
    async with libraries.engine() as engine:
        await engine.connect("", 20)
        text = '{"word": "yes"}'
        asked = [question(schema=labels("yes"), max_tokens=most) for most in (64, len(text) + 1, len(text), 4)]
        whole, just, short, cut = await asyncio.gather(*map(engine.complete, asked))
    assert whole.text == text
    assert whole.prompt_tokens == len("<system>Judge.<user>A question.<assistant>")
    # Those that carry the label.
    assert [each.token for each in whole.tokens] == list('"yes"')
    assert whole.tokens[0].top == [(chr(34), -0.5)]  # without those that the grammar forbids
    # The end token tells an answer that ended with its last token from one that was cut off there.
    assert [each.finish_reason for each in (whole, just, short, cut)] == ["stop", "stop", "length", "length"]
    assert [each.completion_tokens for each in (whole, just, short, cut)] == [16, 16, 15, 4]


async def test_a_row_without_an_answer_is_refused_or_may_come_again_and_the_others_are_answered(
    libraries: Libraries,
) -> None:
    async with libraries.engine() as engine:
        await engine.connect("", 20)
        asked = [question(), question(schema={"allOf": []}), question("broken"), question("no such role")]
        answers = await asyncio.gather(*map(engine.complete, asked), return_exceptions=True)
    answered, refused, broken, untold = answers
    assert not isinstance(answered, BaseException)
    assert isinstance(refused, Rejected) and refused.status == 400 and "allOf" in str(refused)
    assert isinstance(broken, Transient) and "not finished" in str(broken)
    assert isinstance(untold, Rejected) and "takes no such role" in str(untold)
    assert [len(rows) for rows in libraries.seen("rows")] == [4, 1, 1]  # the untold one has no tokens, and is not sent


@pytest.mark.parametrize("broken", ["Say hello.", "Question 1."])
async def test_a_row_that_breaks_is_asked_for_again_though_its_time_is_over(broken: str, libraries: Libraries) -> None:
    libraries.behave(breaks_until={broken: 2})
    async with open_model(libraries.config(retry_for=0.0)) as model:
        asked = (question(f"Question {number}.") for number in range(3))
        answers = await asyncio.gather(*(model.ask(each, ComparativeJudgment) for each in asked))
    assert all(isinstance(each, Answered) for each in answers)
    assert [len(rows) for rows in libraries.seen("rows")] == [4, 1, 1]


async def test_a_row_that_breaks_in_every_data_set_is_given_up_after_three(libraries: Libraries) -> None:
    libraries.behave(breaks_until={"Question 1.": 9})
    async with open_model(libraries.config()) as model:
        asked = (question(f"Question {number}.") for number in range(2))
        answered, lost = await asyncio.gather(*(model.ask(each, ComparativeJudgment) for each in asked))
    assert isinstance(answered, Answered) and isinstance(lost, Unanswered)
    (attempt,) = lost.attempts
    assert attempt.kind == "server_error" and "not finished (3 data sets)" in attempt.reason
    assert [len(rows) for rows in libraries.seen("rows")] == [3, 1, 1]


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ({"breaks_until": {"Say hello.": 9}}, "did not answer the start-up check: .*not finished.*vllm.log"),
        ({"says": "Hello."}, "does not enforce JSON schemas"),
        ({"no_logprobs": True}, "sends no log-probabilities"),
        ({"fails": True}, "RuntimeError: … .*not enough memory.*vllm.log"),
        ({"dies_after": 1}, "ended with code 3"),
        ({"loses_after": 1}, "3 of 4 requests"),
    ],
)
async def test_an_engine_that_cannot_do_it_or_fails_ends_the_run(
    behaviour: dict[str, Any], message: str, libraries: Libraries
) -> None:
    libraries.behave(**behaviour)
    async with libraries.engine() as engine:
        await engine.connect("", 20)
        answers = await asyncio.gather(*(engine.complete(question(str(n))) for n in range(3)), return_exceptions=True)
        for answer in answers:
            with pytest.raises(EngineError, match=message):
                raise answer if isinstance(answer, BaseException) else AssertionError(answer)


async def test_after_a_failure_nothing_more_is_asked(libraries: Libraries) -> None:
    libraries.behave(fails=True)
    async with libraries.engine() as engine:
        await engine.connect("", 20)
        for _ in range(2):
            with pytest.raises(EngineError, match="not enough memory"):
                await engine.complete(question())
    assert len(libraries.seen("rows")) == 1


async def test_what_is_cancelled_before_it_was_sent_is_not_asked(libraries: Libraries) -> None:
    async with libraries.engine() as engine:
        await engine.connect("", 20)
        await engine.complete(question("First."))
        cancelled = asyncio.create_task(engine.complete(question("Second.")))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        await engine.complete(question("Third."))
    assert [len(rows) for rows in libraries.seen("rows")] == [2, 1]


async def test_too_few_gpus_are_told_instead_of_waited_for(libraries: Libraries) -> None:
    engine = RayEngine(
        libraries.model,
        libraries.log,
        context=CONTEXT,
        options={"tensor_parallel_size": 2},
        chat_template_kwargs=SWITCHES,
    )
    async with engine:
        await engine.connect("", 20)
        with pytest.raises(EngineError, match="0 GPUs.*takes 2.*RAY_ADDRESS.*placement_group_config"):
            await engine.complete(question())


async def test_an_interrupted_run_leaves_no_process_and_asks_only_for_the_rest(libraries: Libraries) -> None:
    config = libraries.config()

    async def run() -> tuple[list[object], int]:
        async with open_model(config) as model:
            asked = (question(f"Question {number}.") for number in range(8))
            answers = await asyncio.gather(*(model.ask(each, ComparativeJudgment) for each in asked))
            return list(answers), model.counts.cache_hits

    def stored() -> int:
        if not config.cache.file.exists():
            return 0
        with Cache(config.cache.file) as cache:
            return len(cache.find("answer"))

    libraries.behave(hangs_after=6)  # of nine, one of which is the check
    running = asyncio.create_task(run())
    while stored() < 5:
        assert not running.done(), running.exception()
        await asyncio.sleep(0.05)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not Path(f"/proc/{libraries.seen('pid')[0]}").exists()

    libraries.behave()
    answers, hits = await run()
    assert all(isinstance(each, Answered) for each in answers)
    assert hits == 5
    assert [len(rows) for rows in libraries.seen("rows")] == [9, 4]


async def test_what_the_cache_holds_starts_nothing(libraries: Libraries) -> None:
    for hits in (0, 1):
        async with open_model(libraries.config()) as model:
            await model.ask(question(), ComparativeJudgment)
            assert model.counts.cache_hits == hits
    assert len(libraries.seen("init")) == 1


async def test_what_is_missing_is_named(libraries: Libraries, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="--context"):
        async with open_model(libraries.config(context=None)):
            pass
    (libraries.folder / "vllm-0.32.0.dist-info" / "METADATA").unlink()
    monkeypatch.setattr(ray_engine, "find_spec", lambda _: None)
    with pytest.raises(EngineError, match=r"pip install 'touche-llm\[ray\]'"):
        await libraries.engine().__aenter__()
    monkeypatch.undo()


def test_ray_is_asked_for_all_that_waits() -> None:
    assert EngineConfig.model_validate({"name": "ray"}).at_once == 65536
    assert EngineConfig.model_validate({"name": "ray", "concurrency": 500}).at_once == 500
