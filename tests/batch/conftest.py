"""Ray and transformers as objects of this process, in place of the job that answers files of requests."""

from __future__ import annotations

import asyncio
import math
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import orjson
import pytest

from tests.batch.stages import Waiting, export_stage, simple_config
from tests.fake_server import fields_in, spell
from tests.sample_runs import Silent, retrieve_stage
from touche_llm.engines import ray_engine, ray_job


def read_labels(body: Mapping[str, Any]) -> str:
    """An answer with the first label of each field, or with some words.

    A thought without a schema.
    """
    fields = fields_in(dict(body))
    if not fields:
        return f"Hm.{body['stop'][0]}"
    return spell(
        dict(body),
        {name: field.get("enum", [f"words of {name}"])[0] for name, field in fields.items()},
    )


class Tokenizer:
    eos_token_id = 0
    chat_template = "there is one"

    @classmethod
    def from_pretrained(
        cls, _: str, *, local_files_only: bool, trust_remote_code: bool, **__: Any
    ) -> Tokenizer:
        assert local_files_only and not trust_remote_code
        return cls()

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool, **others: Any
    ) -> str:
        assert others.get("continue_final_message", False) is not add_generation_prompt
        text = "".join(f"<{message['role']}>{message['content']}" for message in messages)
        if "no such role" in text:
            raise ValueError("the template takes no such role")
        end = "<think>" * others.get("enable_thinking", True) + "<assistant>"
        return text + end if add_generation_prompt else text

    def encode(self, text: str, *, add_special_tokens: bool, **_: Any) -> list[int]:
        assert not add_special_tokens
        return [ord(c) for c in text]

    def __call__(self, texts: Sequence[str], **options: Any) -> dict[str, list[list[int]]]:
        return {"input_ids": [self.encode(text, **options) for text in texts]}

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(map(chr, tokens))


def infer(row: Mapping[str, Any]) -> dict[str, Any]:
    """Answer a row of a Ray data set as the engine stage of `ray.data.llm`."""
    params = row["sampling_params"]
    schema = orjson.loads(params.get("structured_outputs", {"json": "{}"})["json"])
    if "allOf" in schema:
        return {"__inference_error__": "VLLMValidationError: the grammar does not know allOf"}
    if "broken" in "".join(map(chr, row["tokenized_prompt"])):
        return {"__inference_error__": "RuntimeError: the request is not finished"}
    text = read_labels({"structured_outputs": {"json": schema}}) if schema else "Hm."
    tokens = [*map(ord, text), 0][: params["max_tokens"]]
    others = {n: {"logprob": -math.inf, "decoded_token": chr(n)} for n in range(200, 230)}
    sampled = [{t: {"logprob": -0.5, "decoded_token": chr(t) if t else "<end>"}} for t in tokens]
    return {
        "__inference_error__": "",
        "generated_text": "".join(chr(t) for t in tokens if t),
        "generated_tokens": tokens,
        "num_input_tokens": len(row["tokenized_prompt"]),
        "logprobs": params["logprobs"] and [token | others for token in sampled],
    }


class FakeRay:
    """Ray's libraries and the program that runs its job, beside the folder of a model.

    Attributes:
        is_hanging: Whether a job hangs until it is stopped.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.model = folder / "models" / "tiny"
        self.model.mkdir(parents=True)
        for name in ("config.json", "tokenizer_config.json", "generation_config.json"):
            (self.model / name).write_text("{}")
        self.is_hanging = threading.Event()
        self._behaviour: dict[str, Any] = {}
        self._jobs = 0
        self._seen: list[tuple[str, Any]] = []
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        monkeypatch.setattr(ray_engine, "_QUIET_SECONDS", 0.05)
        monkeypatch.setattr(ray_engine, "run_guarded", self._run)
        monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        monkeypatch.setattr(ray_job, "version", lambda _: "0.32.0+cpu")
        for name, content in self._list_libraries().items():
            module = ModuleType(name)
            vars(module).update(content)
            monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setattr(sys.modules["ray"], "data", sys.modules["ray.data"], raising=False)
        monkeypatch.setattr(
            sys.modules["ray.data"], "llm", sys.modules["ray.data.llm"], raising=False
        )

    def behave(self, **behaviour: Any) -> None:
        """Go wrong in this way from now on.

        Args:
            behaviour: `fails_in_job` for the number of a job that fails, `hangs`, `nothing` for
                jobs that write no responses, or `errors`, those of the first rows of each job.
        """
        self._behaviour = behaviour

    def seen(self, what: str) -> list[Any]:
        """What the libraries were given."""
        return [value for name, value in self._seen if name == what]

    @asynccontextmanager
    async def _run(self, command: Sequence[str], log: Path) -> AsyncIterator[SimpleNamespace]:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch()
        stopped = threading.Event()
        problems: list[str] = []

        def wait() -> int:
            try:
                self._run_job(command[3:])
            except Exception as error:
                problems.append(f"{type(error).__name__}: {error}")
            if self._behaviour.get("hangs"):
                self.is_hanging.set()
                stopped.wait(60)
            return len(problems)

        try:
            yield SimpleNamespace(
                wait=partial(asyncio.to_thread, wait),
                read_end_of_log=lambda: "\n".join(problems),
            )
        finally:
            stopped.set()

    def _run_job(self, arguments: Sequence[str]) -> None:
        self._jobs += 1
        if self._jobs == self._behaviour.get("fails_in_job"):
            raise ValueError("not enough memory")
        if not self._behaviour.get("nothing"):
            ray_job.main(*arguments)

    def _answer(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        answers = [{"key": row["key"], **infer(row)} for row in rows]
        errors = self._behaviour.get("errors", [])
        for answer, error in zip(answers, errors, strict=False):
            answer["__inference_error__"] = error
        return answers

    def _list_libraries(self) -> dict[str, dict[str, Any]]:
        see = self._seen.append

        def from_items(rows: list[Any], override_num_blocks: int) -> list[Any]:
            rows = [row | {"tokenized_prompt": row["tokenized_prompt"].tolist()} for row in rows]
            see(("blocks", override_num_blocks))
            see(("rows", rows))
            return rows

        def build_processor(_: Any) -> Callable[[list[Any]], Any]:
            return lambda rows: SimpleNamespace(iter_rows=lambda: self._answer(rows))

        generation = SimpleNamespace(
            to_diff_dict=lambda: {"top_k": 2, "temperature": 0.9, "eos_token_id": [0, 7]}
        )
        return {
            "ray": {
                "__version__": "2.60.0",
                "init": lambda address=None, **_: see(("init", address)),
                "cluster_resources": lambda: {"CPU": 2.0},
            },
            "ray.data": {
                "DataContext": SimpleNamespace(get_current=SimpleNamespace),
                "from_items": from_items,
            },
            "ray.data.llm": {
                "vLLMEngineProcessorConfig": lambda **given: see(("config", given)),
                "build_processor": build_processor,
            },
            "transformers": {
                "AutoTokenizer": Tokenizer,
                "GenerationConfig": SimpleNamespace(from_pretrained=lambda *_, **__: generation),
            },
        }


@pytest.fixture
def ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    return FakeRay(tmp_path, monkeypatch)


@pytest.fixture
async def waiting(tmp_path: Path) -> Waiting:
    """A folder with four requests exported."""
    config, out = simple_config(tmp_path), tmp_path / "out"
    await retrieve_stage(config, out, Silent())
    return config, out, await export_stage(config, out)
