"""vLLM, Ray and transformers as objects of this process, in place of the programs that answer files of requests."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import orjson
import pytest

from tests import batch_replies as b
from tests.batch.stages import Waiting, export_stage, simple_config
from tests.fake_server import fields_in, spell
from tests.sample_runs import Silent, retrieve_stage
from touche_llm.llm import batch_files, ray_job


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


class Programs:
    """The runners, beside the folder of a model.

    Attributes:
        is_hanging: Whether a runner hangs until it is stopped.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.model = folder / "models" / "tiny"
        self.model.mkdir(parents=True)
        for name in ("config.json", "tokenizer_config.json", "generation_config.json"):
            (self.model / name).write_text("{}")
        (folder / "programs").mkdir()
        (folder / "programs" / "vllm").touch(0o755)
        self.is_hanging = threading.Event()
        self._how: dict[str, Any] = {}
        self._calls: list[dict[str, Any]] = []
        self._seen: list[tuple[str, Any]] = []
        monkeypatch.setenv("PATH", str(folder / "programs"))
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        monkeypatch.setattr(batch_files, "_QUIET_SECONDS", 0.05)
        monkeypatch.setattr(batch_files, "run_guarded", self._run)
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

    def behave(self, **how: Any) -> None:
        """Go wrong in this way from now on."""
        self._how = how

    def calls(self) -> list[dict[str, Any]]:
        """The calls of `vllm run-batch`: `argv`, `flags` and the `keys` of the requests."""
        return self._calls

    def run_batch(self, words: Sequence[str]) -> None:
        """Do as the user's command `vllm run-batch`, which the words are."""
        assert words[:2] == ["vllm", "run-batch"]
        self._answer(words[1:])

    def seen(self, what: str) -> list[Any]:
        """What the libraries of Ray were given."""
        return [value for name, value in self._seen if name == what]

    @asynccontextmanager
    async def _run(
        self, command: Sequence[str], log: Path
    ) -> AsyncIterator[tuple[Any, Callable[[], str]]]:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch()
        stopped, problems = threading.Event(), list[str]()

        def wait() -> int:
            try:
                if command[1] == "run-batch":
                    self._answer(command[1:])
                else:
                    ray_job.main(*command[3:])
            except Exception as error:
                problems.append(f"{type(error).__name__}: {error}")
            if self._how.get("hangs"):
                self.is_hanging.set()
                stopped.wait(60)
            return len(problems)

        try:
            yield SimpleNamespace(wait=wait), lambda: "\n".join(problems)
        finally:
            stopped.set()

    def _answer(self, argv: Sequence[str]) -> None:
        how, flags = self._how, dict(zip(argv[1:7:2], argv[2:8:2], strict=True))
        flags |= dict(flag.split("=", 1) for flag in argv[7:] if "=" in flag)
        requests = b.read(Path(flags["-i"]))
        self._calls.append(
            {"argv": argv, "flags": flags, "keys": [line["custom_id"] for line in requests]}
        )
        calls = len(self._calls)
        if calls == how.get("fails_in_call", calls if how.get("fails") else None):
            raise ValueError("not enough memory")
        lines = []
        for line in requests:
            reply = b.body(
                how.get("says") or read_labels(line["body"]), model=flags["--served-model-name"]
            )
            if not line["body"].get("logprobs"):
                reply["choices"][0]["logprobs"] = None
            lines.append(b.replied(line["custom_id"], reply))
        for line in lines[: how.get("broken", 0) if calls > how.get("good_calls", 0) else 0]:
            body = {"error": {"message": "out of memory"}}
            line["response"] = {"status_code": how.get("status", 500), "body": body}
        if not how.get("nothing"):
            b.write(Path(flags["-o"]), lines)

    def _list_libraries(self) -> dict[str, dict[str, Any]]:
        see = self._seen.append

        def from_items(rows: list[Any], override_num_blocks: int) -> list[Any]:
            rows = [row | {"tokenized_prompt": row["tokenized_prompt"].tolist()} for row in rows]
            see(("blocks", override_num_blocks))
            see(("rows", rows))
            return rows

        def build_processor(_: Any) -> Callable[[list[Any]], Any]:
            return lambda rows: SimpleNamespace(
                iter_rows=lambda: [{"key": row["key"], **infer(row)} for row in rows]
            )

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
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    return Programs(tmp_path, monkeypatch)


@pytest.fixture
async def waiting(tmp_path: Path) -> Waiting:
    """A folder with four requests exported."""
    config, out = simple_config(tmp_path), tmp_path / "out"
    await retrieve_stage(config, out, Silent())
    return config, out, await export_stage(config, out)
