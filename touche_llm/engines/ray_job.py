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
from collections.abc import Collection, Iterator, Mapping, Sequence
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

    Args:
        requests: Path of the file of chat requests.
        responses: Path of the file to write.
        settings_json: JSON of the `folder` of the model, and of options of `vllm` and of `ray`.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from transformers import AutoTokenizer

    settings = orjson.loads(settings_json)
    folder = settings["folder"]
    vllm_options = settings["vllm"]
    ray_options = {"batch_size": _BATCH_SIZE, **settings["ray"]}
    _connect(vllm_options, ray_options)
    tokenizer = AutoTokenizer.from_pretrained(
        folder, local_files_only=True, trust_remote_code=False
    )
    facts = _model_facts(folder, vllm_options, tokenizer.eos_token_id)
    processor = _build_processor(folder, vllm_options, ray_options)

    bodies = _read_bodies(requests)
    rows: list[dict[str, Any]] = []
    with open(responses, "wb") as stream:
        for key, body in bodies.items():
            tokens = _tokenize(tokenizer, body)
            if isinstance(tokens, TemplateRefusal):
                stream.write(_line(key, refusal(tokens.problem)))
            else:
                rows.append(row_of(key, tokens, body, facts))
        for row in _process(processor, rows, ray_options["batch_size"]):
            key = row["key"]
            stream.write(_line(key, response_to(bodies[key], row, facts)))


def _build_processor(folder: str, vllm_options: Json, ray_options: Json) -> Any:
    """Return the engine stage of `ray.data.llm`, without the stages that this job replaces."""
    import ray.data.llm

    off = {"enabled": False}
    config = ray.data.llm.vLLMEngineProcessorConfig(
        model_source=folder,
        engine_kwargs=vllm_options,
        should_continue_on_error=True,
        log_engine_metrics=False,
        chat_template_stage=off,
        tokenize_stage=off,
        detokenize_stage=off,
        **ray_options,
    )
    return ray.data.llm.build_processor(config)


def _read_bodies(requests: str) -> dict[str, Json]:
    """Return the bodies of the requests in a file, by key of the request."""
    bodies: dict[str, Json] = {}
    with open(requests, "rb") as stream:
        for text in stream:
            line = orjson.loads(text)
            bodies[line["custom_id"]] = line["body"]
    return bodies


@dataclass(frozen=True, slots=True)
class TemplateRefusal:
    """Refusal of the messages of a request by the chat template; `problem` is an exception as text."""

    problem: str


def _tokenize(tokenizer: Any, body: Json) -> IntArray | TemplateRefusal:
    """Return the tokens of a prompt, or why the chat template refuses the messages."""
    try:
        prompt = tokenizer.apply_chat_template(
            body["messages"],
            tokenize=False,
            add_generation_prompt=body.get("add_generation_prompt", True),
            continue_final_message=body.get("continue_final_message", False),
            **body["chat_template_kwargs"],
        )
    except Exception as error:  # a template may raise anything
        return TemplateRefusal(f"ValueError: the chat template refuses the messages: {error}")

    # The chat template writes the special tokens.
    encoded = tokenizer([prompt], add_special_tokens=False, verbose=False)
    (tokens,) = encoded["input_ids"]
    # Lists need much more memory than arrays.
    return np.asarray(tokens, np.int32)


def _process(processor: Any, rows: Sequence[Json], batch_size: int) -> Iterator[Json]:
    """Yield the rows of requests with their answers, in any order."""
    import ray.data

    if not rows:
        return
    # A replica takes whole blocks: a single block would keep the other replicas idle.
    block_count = math.ceil(len(rows) / batch_size)
    data = ray.data.from_items(rows, override_num_blocks=block_count)
    yield from processor(data).iter_rows()


def _connect(vllm_options: Json, ray_options: Json) -> None:
    """Start Ray, or join the cluster of `RAY_ADDRESS`.

    Raises:
        ValueError: There is no cluster, and this machine has too few GPUs.
    """
    import ray.data

    if os.environ.get("RAY_ADDRESS"):
        ray.init()
    else:
        ray.init("local", include_dashboard=False)
        if "placement_group_config" not in ray_options:
            _check_gpus(ray.cluster_resources().get("GPU", 0), vllm_options)
    ray.data.DataContext.get_current().enable_progress_bars = False


def _check_gpus(gpu_count: float, vllm_options: Json) -> None:
    """Raise ValueError if a replica needs more GPUs: Ray would wait for them forever.

    Args:
        gpu_count: Number of GPUs of this machine.
        vllm_options: Options of vLLM.
    """
    tensor_parallel = vllm_options.get("tensor_parallel_size", 1)
    pipeline_parallel = vllm_options.get("pipeline_parallel_size", 1)
    needed = tensor_parallel * pipeline_parallel
    if gpu_count < needed:
        raise ValueError(
            f"RAY_ADDRESS: not set, and this machine has {gpu_count:g} GPUs for a replica that needs {needed}; "
            "set it to the address of a cluster, or for the CPU build of vLLM set "
            "engine.options.placement_group_config to {bundles: [{CPU: 1}]}"
        )


def _model_facts(folder: str, vllm_options: Json, end_token: int | None) -> ModelFacts:
    """Return the facts about a model, with the sampling defaults that vLLM's server would take.

    Its option `generation_config` is `auto` for the file in the model's folder, `vllm` for the same
    file without its sampling defaults, or another folder.
    """
    import ray

    source = vllm_options.get("generation_config", "auto")
    is_own_file = source in ("auto", "vllm")
    config = _read_generation_config(folder if is_own_file else source)

    sampling: dict[str, Any] = {}
    if source != "vllm":
        sampling |= config
    sampling |= vllm_options.get("override_generation_config", {})
    defaults = {name: sampling[name] for name in _DEFAULTS if sampling.get(name) is not None}

    config_ends = config.get("eos_token_id")
    end_tokens = config_ends if isinstance(config_ends, list) else [config_ends]
    vllm_version, _, _ = version("vllm").partition("+")
    return ModelFacts(
        context=vllm_options["max_model_len"],
        defaults=defaults,
        end_tokens={end_token, *end_tokens},
        fingerprint=f"vllm-{vllm_version}-ray-{ray.__version__}",
    )


def _read_generation_config(folder: str) -> Json:
    """Return the settings in a folder's generation_config.json that are not defaults, if it exists."""
    from transformers import GenerationConfig

    if not (Path(folder) / "generation_config.json").is_file():
        return {}
    config: Json = GenerationConfig.from_pretrained(folder, local_files_only=True).to_diff_dict()
    return config


def row_of(key: str, tokens: IntArray, body: Json, facts: ModelFacts) -> dict[str, Any]:
    """Return a request as a row of the Ray data set."""
    sampling = dict(facts.defaults)
    for name in ("temperature", "seed", "max_tokens", "stop"):
        if name in body:
            sampling[name] = body[name]
    sampling["logprobs"] = body.get("top_logprobs")
    if "structured_outputs" in body:
        sampling["structured_outputs"] = _encode_values(body["structured_outputs"])
    return {"key": key, "tokenized_prompt": tokens, "sampling_params": sampling}


def _encode_values(values: Json) -> dict[str, str]:
    """Return values as texts of JSON: Arrow would merge the properties of all schemas."""
    texts: dict[str, str] = {}
    for name, value in values.items():
        texts[name] = value if isinstance(value, str) else orjson.dumps(value).decode()
    return texts


def response_to(body: Json, row: Json, facts: ModelFacts) -> dict[str, Any]:
    """Return the response to a request, as vLLM's server would write it.

    Args:
        body: Body of the request.
        row: Row of the request, with the answer.
        facts: Facts about the model.
    """
    if row["__inference_error__"]:
        return refusal(row["__inference_error__"])

    tokens = list(row["generated_tokens"])
    choice: dict[str, Any] = {
        "index": 0,
        "message": {"role": "assistant", "content": row["generated_text"]},
        "finish_reason": "length" if _is_cut_off(tokens, body, row, facts) else "stop",
    }
    if "top_logprobs" in body and row["logprobs"] is not None:
        choice["logprobs"] = {"content": _logprobs(tokens, row["logprobs"], body["top_logprobs"])}

    reply = {
        "object": "chat.completion",
        "model": body["model"],
        "choices": [choice],
        "usage": {
            "prompt_tokens": row["num_input_tokens"],
            "completion_tokens": len(tokens),
        },
        "system_fingerprint": facts.fingerprint,
    }
    return {"status_code": 200, "body": reply}


def _is_cut_off(tokens: Sequence[int], body: Json, row: Json, facts: ModelFacts) -> bool:
    """Return whether an answer ends because it has as many tokens as it may have.

    Args:
        tokens: Tokens of the answer.
        body: Body of the request.
        row: Row of the request, with the answer.
        facts: Facts about the model.
    """
    has_max_tokens = len(tokens) >= body["max_tokens"]
    fills_context = row["num_input_tokens"] + len(tokens) >= facts.context
    if not has_max_tokens and not fills_context:
        return False
    return tokens[-1] not in facts.end_tokens


def refusal(problem: str) -> dict[str, Any]:
    """Return the response to a request that vLLM refused or failed to answer.

    Args:
        problem: Exception of vLLM as text, such as `ValueError: too long`.
    """
    kind, _, _ = problem.partition(":")
    status = 400 if kind in _REFUSALS else 500
    error = {
        "message": problem[:_MAX_REASON],
        "type": kind,
        "param": None,
        "code": status,
    }
    return {"status_code": status, "body": {"error": error}}


def _logprobs(
    tokens: Sequence[int], steps: Sequence[Mapping[int, Any]], limit: int
) -> list[dict[str, Any]]:
    """Return the tokens of an answer with their alternatives, as the server sends them.

    Args:
        tokens: Tokens of the answer.
        steps: Alternatives at each token by token: the one of the answer, then others by rank.
        limit: Max number of alternatives per token.
    """
    content: list[dict[str, Any]] = []
    for token, alternatives in zip(tokens, steps, strict=True):
        first_alternatives = list(alternatives.values())[:limit]
        entry = _logprob(alternatives[token])
        entry["top_logprobs"] = [_logprob(alternative) for alternative in first_alternatives]
        content.append(entry)
    return content


def _logprob(token: Json) -> dict[str, Any]:
    return {"token": token["decoded_token"], "logprob": max(token["logprob"], _MASKED)}


def _line(key: str, response: Json) -> bytes:
    line = {"id": f"ray-{key}", "custom_id": key, "response": response, "error": None}
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


if __name__ == "__main__":
    main(*sys.argv[1:])
