"""A Ray Data job that answers a file of chat requests with `ray.data.llm`: `python -m touche_llm.engines.ray_job`.

The engine stage of `ray.data.llm` takes token ids and sampling parameters, structured outputs among
them, and returns tokens with all log-probabilities. It lacks three features of chat completions
(Ray 2.60), which this job adds: chat templates with switches (Ray's tokenise stage repeats the
special tokens that the template has written), the model's own sampling defaults, and finish
reasons.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

IntArray = NDArray[np.int32]
Json = Mapping[str, Any]

# Rows per batch of a replica; Ray's own default.
_BATCH_SIZE = 32
# Sampling parameters that vLLM's server reads from a model's generation_config.json if a request
# does not set it.
_DEFAULTS = (
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "top_k",
    "top_p",
    "min_p",
)
# Sent by the server for a masked token: JSON has no negative infinity.
_MASKED = -9999.0
# Raised by vLLM for a request that it refuses; its server answers these with status 400.
_REFUSALS = (
    "VLLMValidationError",
    "ValueError",
    "TypeError",
    "OverflowError",
    "NotImplementedError",
)
_MAX_REASON = 600


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts about a model that requests and responses depend on.

    `end_tokens` are ids, one of which may be None.
    """

    context: int
    defaults: Json
    end_tokens: Collection[int | None]
    fingerprint: str


def main(requests: str, responses: str, settings_json: str) -> None:
    """Answer a file of requests.

    The settings are the `folder` of the model and options of `vllm` and of `ray`.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray.data.llm
    from transformers import AutoTokenizer

    settings = orjson.loads(settings_json)
    folder, vllm_options, ray_options = settings["folder"], settings["vllm"], settings["ray"]
    _connect(vllm_options, ray_options)
    tokenizer = AutoTokenizer.from_pretrained(
        folder, local_files_only=True, trust_remote_code=False
    )
    facts = _model_facts(folder, vllm_options, tokenizer.eos_token_id)
    off = {"enabled": False}
    processor = ray.data.llm.build_processor(
        ray.data.llm.vLLMEngineProcessorConfig(
            model_source=folder,
            engine_kwargs=vllm_options,
            should_continue_on_error=True,
            log_engine_metrics=False,
            chat_template_stage=off,
            tokenize_stage=off,
            detokenize_stage=off,
            **{"batch_size": _BATCH_SIZE, **ray_options},
        )
    )
    with open(requests, "rb") as lines:
        bodies: dict[str, Json] = {
            line["custom_id"]: line["body"] for line in map(orjson.loads, lines)
        }
    with open(responses, "wb") as stream:
        rows = []
        for key, body in bodies.items():
            try:
                text = tokenizer.apply_chat_template(
                    body["messages"],
                    tokenize=False,
                    add_generation_prompt=body.get("add_generation_prompt", True),
                    continue_final_message=body.get("continue_final_message", False),
                    **body["chat_template_kwargs"],
                )
            except Exception as error:  # a template may raise anything
                stream.write(
                    _line(
                        key, refusal(f"ValueError: the chat template refuses the messages: {error}")
                    )
                )
                continue
            # The chat template writes the special tokens. Lists need much more memory than arrays.
            (tokens,) = tokenizer([text], add_special_tokens=False, verbose=False)["input_ids"]
            rows.append(row_of(key, np.asarray(tokens, np.int32), body, facts))
        if rows:
            # A replica takes whole blocks: a single block would keep the other replicas idle.
            blocks = math.ceil(len(rows) / ray_options.get("batch_size", _BATCH_SIZE))
            for row in processor(ray.data.from_items(rows, override_num_blocks=blocks)).iter_rows():
                stream.write(_line(row["key"], response_to(bodies[row["key"]], row, facts)))


def _connect(vllm_options: Json, ray_options: Json) -> None:
    """Start Ray, or join the cluster of `RAY_ADDRESS`.

    Raise ValueError if this machine has too few GPUs.
    """
    import ray.data

    if os.environ.get("RAY_ADDRESS"):
        ray.init()
    else:
        ray.init("local", include_dashboard=False)
        found = ray.cluster_resources().get("GPU", 0)
        needed = vllm_options.get("tensor_parallel_size", 1) * vllm_options.get(
            "pipeline_parallel_size", 1
        )
        if found < needed and "placement_group_config" not in ray_options:
            # Ray would wait for GPUs forever.
            raise ValueError(
                f"RAY_ADDRESS: not set, and this machine has {found:g} GPUs for a replica that needs {needed}; "
                "set it to the address of a cluster, or for the CPU build of vLLM set "
                "engine.options.placement_group_config to {bundles: [{CPU: 1}]}"
            )
    ray.data.DataContext.get_current().enable_progress_bars = False


def _model_facts(folder: str, vllm_options: Json, end_token: int | None) -> ModelFacts:
    import ray
    from transformers import GenerationConfig

    source = vllm_options.get("generation_config", "auto")
    place = folder if source in ("auto", "vllm") else source
    own: Json = {}
    if (Path(place) / "generation_config.json").is_file():
        own = GenerationConfig.from_pretrained(place, local_files_only=True).to_diff_dict()
    ends = own.get("eos_token_id")
    sampling = ({} if source == "vllm" else dict(own)) | vllm_options.get(
        "override_generation_config", {}
    )
    return ModelFacts(
        context=vllm_options["max_model_len"],
        defaults={name: sampling[name] for name in _DEFAULTS if sampling.get(name) is not None},
        end_tokens={end_token, *(ends if isinstance(ends, list) else [ends])},
        fingerprint=f"vllm-{version('vllm').partition('+')[0]}-ray-{ray.__version__}",
    )


def row_of(key: str, tokens: IntArray, body: Json, facts: ModelFacts) -> dict[str, Any]:
    """Return a request as a row of the Ray data set."""
    sampling = {
        name: body[name] for name in ("temperature", "seed", "max_tokens", "stop") if name in body
    }
    output: dict[str, Any] = {"logprobs": body.get("top_logprobs")}
    if "structured_outputs" in body:
        # As text: Arrow would merge the properties of all schemas.
        output["structured_outputs"] = {
            name: value if isinstance(value, str) else orjson.dumps(value).decode()
            for name, value in body["structured_outputs"].items()
        }
    return {
        "key": key,
        "tokenized_prompt": tokens,
        "sampling_params": {**facts.defaults, **sampling, **output},
    }


def response_to(body: Json, row: Json, facts: ModelFacts) -> dict[str, Any]:
    """Return the response to a request from its row, as vLLM's server would write it."""
    if row["__inference_error__"]:
        return refusal(row["__inference_error__"])
    tokens, prompt_tokens = list(row["generated_tokens"]), row["num_input_tokens"]
    is_full = len(tokens) >= body["max_tokens"] or prompt_tokens + len(tokens) >= facts.context
    choice: dict[str, Any] = {
        "index": 0,
        "message": {"role": "assistant", "content": row["generated_text"]},
        "finish_reason": "length" if is_full and tokens[-1] not in facts.end_tokens else "stop",
    }
    if "top_logprobs" in body and row["logprobs"] is not None:
        choice["logprobs"] = {"content": _logprobs(tokens, row["logprobs"], body["top_logprobs"])}
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": len(tokens)}
    reply = {
        "object": "chat.completion",
        "model": body["model"],
        "choices": [choice],
        "usage": usage,
    }
    return {"status_code": 200, "body": reply | {"system_fingerprint": facts.fingerprint}}


def refusal(problem: str) -> dict[str, Any]:
    """Return the response to a request that vLLM refused or failed to answer.

    `problem` is its exception as text.
    """
    kind = problem.partition(":")[0]
    status = 400 if kind in _REFUSALS else 500
    error = {"message": problem[:_MAX_REASON], "type": kind, "param": None, "code": status}
    return {"status_code": status, "body": {"error": error}}


def _logprobs(
    tokens: Sequence[int], steps: Sequence[Mapping[int, Any]], limit: int
) -> list[dict[str, Any]]:
    """Return tokens as the server sends them: the sampled token is the first alternative, others follow by rank."""
    return [
        _logprob(step[token])
        | {"top_logprobs": [_logprob(alternative) for alternative in list(step.values())[:limit]]}
        for token, step in zip(tokens, steps, strict=True)
    ]


def _logprob(token: Json) -> dict[str, Any]:
    return {"token": token["decoded_token"], "logprob": max(token["logprob"], _MASKED)}


def _line(key: str, response: Json) -> bytes:
    line = {"id": f"ray-{key}", "custom_id": key, "response": response, "error": None}
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


if __name__ == "__main__":
    main(*sys.argv[1:])
