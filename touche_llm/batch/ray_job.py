"""A Ray Data job that answers a file of chat requests with `ray.data.llm`: `python -m touche_llm.batch.ray_job`.

The engine stage of `ray.data.llm` takes token ids and sampling parameters, structured outputs among them, and returns
tokens with all log-probabilities. Three things of a chat completion it lacks (Ray 2.60), so the job adds them: chat
templates with switches (Ray's stage for tokens repeats the special tokens that the template has written), the model's
own sampling defaults, and the reason why an answer ended.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

IntArray = NDArray[np.int32]
Json = Mapping[str, Any]

# Rows that a replica takes and returns at a time; Ray's own default.
_BATCH_SIZE = 32
# Texts that the tokeniser takes at a time, in parallel.
_TEXTS = 1024
# Sampling that vLLM's server takes from a model's generation_config.json if a request does not set it.
_DEFAULTS = ("repetition_penalty", "presence_penalty", "frequency_penalty", "top_k", "top_p", "min_p")
# What the server sends for a masked token, whose log-probability JSON cannot hold.
_MASKED = -9999.0
# What vLLM raises for a request that it refuses; its server answers these with status 400.
_REFUSALS = ("VLLMValidationError", "ValueError", "TypeError", "OverflowError", "NotImplementedError")
_LONGEST_REASON = 600


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the requests and responses of a model depend on.

    Attributes:
        context: Context in tokens.
        defaults: Sampling parameters of the model's own.
        ends: Token ids that end an answer.
        fingerprint: Versions of the software.
    """

    context: int
    defaults: Json
    ends: Collection[int | None]
    fingerprint: str


def main(requests: str, responses: str, given: str) -> None:
    """Answer a file of requests.

    Args:
        requests: Path of the requests.
        responses: Path of the responses, in any order.
        given: Settings as JSON: `folder` of the model, options of `vllm`, options of `ray`.
    """
    import ray.data.llm
    from transformers import AutoTokenizer

    settings = orjson.loads(given)
    folder, vllm, asked = settings["folder"], settings["vllm"], settings["ray"]
    _connect(vllm, asked)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    facts = _facts(folder, vllm, tokenizer.eos_token_id)
    off = {"enabled": False}
    processor = ray.data.llm.build_processor(
        ray.data.llm.vLLMEngineProcessorConfig(
            model_source=folder,
            engine_kwargs=vllm,
            should_continue_on_error=True,
            log_engine_metrics=False,
            chat_template_stage=off,
            tokenize_stage=off,
            detokenize_stage=off,
            **{"batch_size": _BATCH_SIZE, **asked},
        )
    )
    with open(requests, "rb") as lines:
        found = map(orjson.loads, lines)
        bodies: dict[str, Json] = {line["custom_id"]: line["body"] for line in found}
    with open(responses, "wb") as stream:
        texts: dict[str, str] = {}
        for key, body in bodies.items():
            try:
                texts[key] = tokenizer.apply_chat_template(
                    body["messages"], tokenize=False, add_generation_prompt=True, **body["chat_template_kwargs"]
                )
            except Exception as error:  # a template may raise anything
                stream.write(_line(key, refusal(f"ValueError: the chat template refuses the messages: {error}")))
        rows = [row_of(key, tokens, bodies[key], facts) for key, tokens in _tokens(tokenizer, texts)]
        if rows:
            # A block is what a replica takes: a single one would keep the other replicas idle.
            blocks = math.ceil(len(rows) / asked.get("batch_size", _BATCH_SIZE))
            for row in processor(ray.data.from_items(rows, override_num_blocks=blocks)).iter_rows():
                stream.write(_line(row["key"], response_to(bodies[row["key"]], row, facts)))


def _connect(vllm: Json, asked: Json) -> None:
    """Start Ray, or join the cluster of `RAY_ADDRESS`; raises ValueError if this machine has too few GPUs."""
    import ray.data

    if os.environ.get("RAY_ADDRESS"):
        ray.init()
    else:
        ray.init("local", include_dashboard=False)
        found = ray.cluster_resources().get("GPU", 0)
        needed = vllm.get("tensor_parallel_size", 1) * vllm.get("pipeline_parallel_size", 1)
        if found < needed and "placement_group_config" not in asked:
            # Ray would wait for them without end.
            raise ValueError(
                f"Ray finds {found:g} GPUs on this machine, and a replica needs {needed}; name a cluster in "
                "RAY_ADDRESS, or for the CPU build of vLLM set engine.options.placement_group_config to "
                "{bundles: [{CPU: 1}]}"
            )
    ray.data.DataContext.get_current().enable_progress_bars = False


def _facts(folder: str, vllm: Json, end: int | None) -> ModelFacts:
    import ray
    from transformers import GenerationConfig

    source = vllm.get("generation_config", "auto")
    place = folder if source in ("auto", "vllm") else source
    of_model: Json = {}
    if (Path(place) / "generation_config.json").is_file():
        of_model = GenerationConfig.from_pretrained(place, local_files_only=True).to_diff_dict()
    ends = of_model.get("eos_token_id")
    sampling = ({} if source == "vllm" else dict(of_model)) | vllm.get("override_generation_config", {})
    return ModelFacts(
        context=vllm["max_model_len"],
        defaults={name: sampling[name] for name in _DEFAULTS if sampling.get(name) is not None},
        ends={end, *(ends if isinstance(ends, list) else [ends])},
        fingerprint=f"vllm-{version('vllm').partition('+')[0]}-ray-{ray.__version__}",
    )


def _tokens(tokenizer: Any, texts: Mapping[str, str]) -> Iterator[tuple[str, IntArray]]:
    """Yield the token ids of texts, as arrays, since lists take much room."""
    waiting = iter(texts.items())
    while some := dict(islice(waiting, _TEXTS)):
        # The chat template writes the special tokens.
        found = tokenizer(list(some.values()), add_special_tokens=False, verbose=False)["input_ids"]
        yield from zip(some, (np.asarray(ids, np.int32) for ids in found), strict=True)


def row_of(key: str, tokens: IntArray, body: Json, facts: ModelFacts) -> dict[str, Any]:
    """Return a request as a row of the data set."""
    sampling = {name: body[name] for name in ("temperature", "seed", "max_tokens")}
    # As text, or Arrow would give each schema the properties of all others.
    schema = orjson.dumps(body["structured_outputs"]["json"]).decode()
    wanted = {"logprobs": body.get("top_logprobs"), "structured_outputs": {"json": schema}}
    return {"key": key, "tokenized_prompt": tokens, "sampling_params": {**facts.defaults, **sampling, **wanted}}


def response_to(body: Json, row: Json, facts: ModelFacts) -> dict[str, Any]:
    """Return the response to a request from its row, as vLLM's server would give it."""
    if row["__inference_error__"]:
        return refusal(row["__inference_error__"])
    tokens, prompt_tokens = list(row["generated_tokens"]), row["num_input_tokens"]
    is_full = len(tokens) >= body["max_tokens"] or prompt_tokens + len(tokens) >= facts.context
    choice: dict[str, Any] = {
        "index": 0,
        "message": {"role": "assistant", "content": row["generated_text"]},
        "finish_reason": "length" if is_full and tokens[-1] not in facts.ends else "stop",
    }
    if "top_logprobs" in body and row["logprobs"] is not None:
        choice["logprobs"] = {"content": _logprobs(tokens, row["logprobs"], body["top_logprobs"])}
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": len(tokens)}
    reply = {"object": "chat.completion", "model": body["model"], "choices": [choice], "usage": usage}
    return {"status_code": 200, "body": reply | {"system_fingerprint": facts.fingerprint}}


def refusal(problem: str) -> dict[str, Any]:
    """Return the response to a request that vLLM refused, or failed to answer, from what its exception says."""
    kind = problem.partition(":")[0]
    status = 400 if kind in _REFUSALS else 500
    error = {"message": problem[:_LONGEST_REASON], "type": kind, "param": None, "code": status}
    return {"status_code": status, "body": {"error": error}}


def _logprobs(tokens: Sequence[int], steps: Sequence[Mapping[int, Any]], most: int) -> list[dict[str, Any]]:
    """Return tokens as the server sends them; of the alternatives, the sampled token comes first, then by rank."""
    return [
        _logprob(step[token]) | {"top_logprobs": [_logprob(each) for each in list(step.values())[:most]]}
        for token, step in zip(tokens, steps, strict=True)
    ]


def _logprob(given: Json) -> dict[str, Any]:
    return {"token": given["decoded_token"], "logprob": max(given["logprob"], _MASKED)}


def _line(key: str, response: Json) -> bytes:
    line = {"id": f"ray-{key}", "custom_id": key, "response": response, "error": None}
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


if __name__ == "__main__":
    main(*sys.argv[1:])
