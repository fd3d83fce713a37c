"""Programs and libraries that stand in for vLLM, Ray and transformers, in this process and in those it starts."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.batch.stages import Waiting, export_stage, simple_config
from tests.sample_runs import Silent, retrieve_stage
from touche_llm.llm import batch_files, managed

ROOT = Path(__file__).parents[2]

# `vllm run-batch`, and the answers of the others. `behaviour` says what goes wrong, `calls` what was called.
VLLM = """#!{python}
import json, pathlib, sys, time
here = pathlib.Path({folder!r})
how = json.loads((here / "behaviour").read_text())
flags = dict(zip(sys.argv[2:10:2], sys.argv[3:11:2]))
flags |= dict(each.split("=", 1) for each in sys.argv[10:] if "=" in each)
requests = [json.loads(line) for line in pathlib.Path(flags["-i"]).read_bytes().splitlines()]
with (here / "calls").open("a") as stream:
    keys = [each["custom_id"] for each in requests]
    print(json.dumps({{"argv": sys.argv[1:], "flags": flags, "keys": keys}}), file=stream)
calls = len((here / "calls").read_text().splitlines())
if calls == how.get("fails_in_call", calls if how.get("fails") else None):
    sys.exit("ValueError: not enough memory")
def value(schema, name):
    if "enum" in schema:
        return schema["enum"][how.get("label", 0) % len(schema["enum"])]
    if schema.get("type") == "integer":
        return schema.get("minimum", 0)
    if "anyOf" in schema:
        return value(schema["anyOf"][0], name)
    if schema.get("type") == "array":
        return [value(schema["items"], name)] * schema.get("minItems", 1)
    return schema.get("const", f"words of {{name}}")
def answer(body):
    if "structured_outputs" not in body:
        return "Hm." + body["stop"][0]
    schema = body["structured_outputs"]["json"]
    if "prefixItems" in schema:
        return json.dumps([value(each, each["title"]) for each in schema["prefixItems"]])
    return json.dumps({{name: value(each, name) for name, each in schema["properties"].items()}})
model = flags["--served-model-name"]
def reply(text, has_logprobs):
    tokens = [{{"token": c, "logprob": 0.0, "top_logprobs": [{{"token": c, "logprob": 0.0}}]}} for c in text]
    choice = {{"message": {{"content": text}}, "finish_reason": "stop"}}
    choice["logprobs"] = {{"content": tokens}} if has_logprobs else None
    return {{"status_code": 200, "body": {{"model": model, "choices": [choice]}}}}
texts = [how.get("says") or answer(each["body"]) for each in requests]
wanted = [each["body"].get("logprobs", False) for each in requests]
replies = [reply(*each) for each in zip(texts, wanted)]
lines = [{{"custom_id": key, "response": each, "error": None}} for key, each in zip(keys, replies)]
for line in lines[: how.get("broken", 0) if calls > how.get("good_calls", 0) else 0]:
    body = {{"error": {{"message": "out of memory"}}}}
    line["response"] = {{"status_code": how.get("status", 500), "body": body}}
written = pathlib.Path(flags["-o"])
written.write_text("".join(json.dumps(line) + "\\n" for line in lines))
if how.get("nothing"):
    written.unlink()
if how.get("hangs"):
    (here / "hangs").touch()
    time.sleep(60)
"""
RAY = """
import json, os, pathlib
__version__ = "2.60.0"
here = pathlib.Path(__file__).parent.parent
def see(**what):
    with (here / "seen").open("a") as stream:
        print(json.dumps(what), file=stream)
def init(address=None, **options):
    see(init=address, stats=os.environ["RAY_USAGE_STATS_ENABLED"])
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
import json, math
from types import SimpleNamespace
from ray import see
def vLLMEngineProcessorConfig(**given):
    see(config=given)
def build_processor(config):
    return lambda rows: SimpleNamespace(iter_rows=lambda: ({"key": row["key"]} | answer(row) for row in rows))
def answer(row):
    params = row["sampling_params"]
    schema = json.loads(params.get("structured_outputs", {"json": "{}"})["json"])
    if "allOf" in schema:
        return {"__inference_error__": "VLLMValidationError: the grammar does not know allOf"}
    if "broken" in "".join(map(chr, row["tokenized_prompt"])):
        return {"__inference_error__": "RuntimeError: the request is not finished"}
    if not schema:
        text = "Hm."
    elif "prefixItems" in schema:
        text = json.dumps([labels["enum"][0] for labels in schema["prefixItems"]])
    else:
        text = json.dumps({name: labels["enum"][0] for name, labels in schema["properties"].items()})
    tokens = [*map(ord, text), 0][:params["max_tokens"]]
    others = {n: {"logprob": -math.inf, "decoded_token": chr(n)} for n in range(200, 230)}
    return {
        "__inference_error__": "",
        "generated_text": "".join(chr(t) for t in tokens if t),
        "generated_tokens": tokens,
        "num_input_tokens": len(row["tokenized_prompt"]),
        "logprobs": params["logprobs"] and [
            {t: {"logprob": -0.5, "decoded_token": chr(t) if t else "<end>"}} | others for t in tokens
        ],
    }
"""
TRANSFORMERS = """
class GenerationConfig:
    @classmethod
    def from_pretrained(cls, folder, local_files_only):
        return cls()
    def to_diff_dict(self):
        return {"top_k": 2, "temperature": 0.9, "eos_token_id": [0, 7]}
class AutoTokenizer:
    eos_token_id = 0
    chat_template = "there is one"
    @classmethod
    def from_pretrained(cls, folder, local_files_only, trust_remote_code, use_fast=True):
        assert local_files_only and not trust_remote_code
        return cls()
    def apply_chat_template(self, messages, tokenize, add_generation_prompt, continue_final_message=False, **others):
        enable_thinking = others.get("enable_thinking", True)
        assert continue_final_message is not add_generation_prompt
        text = "".join(f"<{each['role']}>{each['content']}" for each in messages)
        if "no such role" in text:
            raise ValueError("the template takes no such role")
        return text if continue_final_message else text + "<think>" * enable_thinking + "<assistant>"
    def encode(self, text, add_special_tokens, verbose):
        assert not add_special_tokens
        return [ord(c) for c in text]
    def __call__(self, texts, add_special_tokens, verbose):
        return {"input_ids": [self.encode(text, add_special_tokens, verbose) for text in texts]}
    def decode(self, tokens):
        return "".join(map(chr, tokens))
"""


class Programs:
    """The programs and libraries in a folder, beside the folder of a model."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder / "programs"
        files = {
            "vllm": VLLM.format(python=sys.executable, folder=str(self.folder)),
            "ray/__init__.py": RAY,
            "ray/data/__init__.py": RAY_DATA,
            "ray/data/llm.py": RAY_DATA_LLM,
            "transformers.py": TRANSFORMERS,
            "vllm.py": "",
            "vllm-0.32.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n",
        }
        for name, text in files.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text)
        (self.folder / "vllm").chmod(0o755)
        self.model = folder / "models" / "tiny"
        self.model.mkdir(parents=True)
        for name in ("config.json", "tokenizer_config.json", "generation_config.json"):
            (self.model / name).write_text("{}")
        self.behave()
        monkeypatch.setenv("PATH", str(self.folder))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(self.folder), str(ROOT)]))
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        monkeypatch.delenv("TORCHDYNAMO_DISABLE", raising=False)
        monkeypatch.setattr(managed, "_STOP_SECONDS", 0.3)
        monkeypatch.setattr(batch_files, "_QUIET_SECONDS", 0.1)
        monkeypatch.syspath_prepend(str(self.folder))
        spec = importlib.util.spec_from_file_location("transformers", self.folder / "transformers.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        monkeypatch.setitem(sys.modules, "transformers", module)

    def behave(self, **how: Any) -> None:
        (self.folder / "behaviour").write_bytes(orjson.dumps(how))

    def calls(self) -> list[dict[str, Any]]:
        """The calls of `vllm run-batch`: `argv`, `flags` and the `keys` of the requests."""
        path = self.folder / "calls"
        return [orjson.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []

    def seen(self, what: str) -> list[Any]:
        """What the libraries of Ray were given."""
        path = self.folder / "seen"
        lines = [orjson.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []
        return [line[what] for line in lines if what in line]


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    return Programs(tmp_path, monkeypatch)


@pytest.fixture
async def waiting(tmp_path: Path) -> Waiting:
    """A folder with four requests exported."""
    config, out = simple_config(tmp_path), tmp_path / "out"
    await retrieve_stage(config, out, Silent())
    return config, out, (await export_stage(config, out)).requests
