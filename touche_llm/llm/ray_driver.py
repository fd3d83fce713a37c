"""The process that drives Ray Data for `ray_engine`: chat requests in, chat completions out, vLLM in Ray's hands.

`ray.data.llm` is given token ids and no chat: its own stage for tokens adds those that the chat template has written
already (2.60), and its stage for templates has no switches for a single request. Seen with Ray 2.60.0 and vLLM 0.32.0.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import IO, Any

import numpy as np
import orjson
from numpy.typing import NDArray

IntArray = NDArray[np.int32]

# Rows that a replica is given, and gives back, at a time; Ray's own default.
_BATCH_SIZE = 32
# What vLLM takes from a model's generation_config.json where a request does not say it.
_DRAWN_BY = ("repetition_penalty", "presence_penalty", "frequency_penalty", "top_k", "top_p", "min_p")
# What the server sends for a masked token, whose log-probability JSON cannot carry.
_MASKED = -9999.0
_LONGEST_REASON = 600
# Texts that the tokeniser is given at a time.
_TEXTS = 1024


def main() -> None:
    """Read settings and data sets from standard input, write replies to standard output and all else to standard error.

    Settings are a line. A data set is a line for each request, and an empty one; its replies come line by line in any
    order, and then an empty object. Of a failure the last line says what it was.
    """
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no reply

    def say(said: Mapping[str, Any]) -> None:
        replies.write(orjson.dumps(said, option=orjson.OPT_APPEND_NEWLINE))
        replies.flush()

    try:
        model = _Model(orjson.loads(requests.readline()))
        while asked := list(_data_set(requests)):
            for reply in model.answers(asked):
                say(reply)
            say({})
    except Exception as error:
        say({"failed": _said(error)})
        raise


def _data_set(lines: IO[bytes]) -> Iterator[dict[str, Any]]:
    while (line := lines.readline()).strip():
        yield orjson.loads(line)


class _Model:
    """A model that Ray's replicas load for each data set."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Start Ray, or join the cluster of `RAY_ADDRESS`.

        Args:
            settings: the `folder` of the model, options of `vllm`, options of `ray`.

        Raises:
            ValueError: this machine has too few GPUs for one replica; Ray would wait for them without end.
        """
        import ray.data.llm
        from transformers import AutoTokenizer
        from vllm.transformers_utils.config import try_get_generation_config

        folder, vllm, asked = settings["folder"], settings["vllm"], settings["ray"]
        if os.environ.get("RAY_ADDRESS"):
            ray.init()
        else:
            ray.init("local", include_dashboard=False)
            if "placement_group_config" not in asked:
                _check_gpus(ray.cluster_resources().get("GPU", 0), vllm)
        ray.data.DataContext.get_current().enable_progress_bars = False
        self._name = os.path.basename(folder)
        self._context = vllm["max_model_len"]
        self._tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        # As vLLM's server does, which Ray does not.
        source = vllm.get("generation_config", "auto")
        found = try_get_generation_config(folder if source in ("auto", "vllm") else source, False)
        of_model = {} if found is None else found.to_diff_dict()
        drawn_by = ({} if source == "vllm" else of_model) | vllm.get("override_generation_config", {})
        self._defaults = {name: drawn_by[name] for name in _DRAWN_BY if drawn_by.get(name) is not None}
        ends = of_model.get("eos_token_id")
        self._ends = {self._tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])}
        self._batch_size = asked.get("batch_size", _BATCH_SIZE)
        off = {"enabled": False}
        self._processor = ray.data.llm.build_processor(
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
        self._from_items = ray.data.from_items

    def answers(self, asked: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """Replies to requests, a batch at a time and in any order, each with the request's number."""
        bodies = {each["number"]: each["body"] for each in asked}
        texts: dict[int, str] = {}
        for number, body in bodies.items():
            try:
                texts[number] = self._rendered(body)
            except Exception as error:  # a template may raise anything
                yield {"number": number, "error": f"ValueError: the chat template does not take it: {_said(error)}"}
        rows = [self._row(number, prompt, bodies[number]) for number, prompt in self._prompts(texts)]
        if rows:
            # A block is what a replica is given: one for all would keep the other replicas idle.
            blocks = math.ceil(len(rows) / self._batch_size)
            for row in self._processor(self._from_items(rows, override_num_blocks=blocks)).iter_rows():
                yield self._reply(row, bodies[row["number"]])

    def _rendered(self, body: Mapping[str, Any]) -> str:
        text: str = self._tokenizer.apply_chat_template(
            body["messages"], tokenize=False, add_generation_prompt=True, **body["chat_template_kwargs"]
        )
        return text

    def _prompts(self, texts: Mapping[int, str]) -> Iterator[tuple[int, IntArray]]:
        """The token ids of texts, as arrays, since lists take much room. Many at a time keep all cores busy."""
        waiting = iter(texts.items())
        while some := dict(islice(waiting, _TEXTS)):
            # The chat template writes the special tokens.
            found = self._tokenizer(list(some.values()), add_special_tokens=False, verbose=False)["input_ids"]
            yield from zip(some, (np.asarray(each, np.int32) for each in found), strict=True)

    def _row(self, number: int, prompt: IntArray, body: Mapping[str, Any]) -> dict[str, Any]:
        sampling = {name: body[name] for name in ("temperature", "seed", "max_tokens")}
        # As text, or Arrow would give each schema the properties of all others.
        schema = orjson.dumps(body["structured_outputs"]["json"]).decode()
        return {
            "number": number,
            "tokenized_prompt": prompt,
            "sampling_params": self._defaults
            | sampling
            | {"logprobs": body.get("top_logprobs"), "structured_outputs": {"json": schema}},
        }

    def _reply(self, row: Mapping[str, Any], body: Mapping[str, Any]) -> dict[str, Any]:
        if row["__inference_error__"]:
            return {"number": row["number"], "error": row["__inference_error__"][:_LONGEST_REASON]}
        tokens, prompt_tokens = list(row["generated_tokens"]), row["num_input_tokens"]
        # Ray does not say why an answer ended.
        full = len(tokens) >= body["max_tokens"] or prompt_tokens + len(tokens) >= self._context
        choice: dict[str, Any] = {
            "message": {"content": row["generated_text"]},
            "finish_reason": "length" if full and tokens[-1] not in self._ends else "stop",
        }
        if "top_logprobs" in body and row["logprobs"] is not None:
            choice["logprobs"] = {"content": _logprobs(tokens, row["logprobs"], body["top_logprobs"])}
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": len(tokens)}
        return {"number": row["number"], "reply": {"model": self._name, "choices": [choice], "usage": usage}}


def _check_gpus(there: float, vllm: Mapping[str, Any]) -> None:
    needed = vllm.get("tensor_parallel_size", 1) * vllm.get("pipeline_parallel_size", 1)
    if there < needed:
        raise ValueError(
            f"Ray finds {there:g} GPUs on this machine, and a replica takes {needed}: name a cluster in RAY_ADDRESS, "
            "or for the CPU build of vLLM set engine.options.placement_group_config to {bundles: [{CPU: 1}]}"
        )


def _logprobs(tokens: Sequence[int], steps: Sequence[Mapping[int, Any]], most: int) -> list[dict[str, Any]]:
    """The tokens as the server sends them: of the alternatives, the drawn token comes first, then by rank."""
    return [
        _logprob(step[token]) | {"top_logprobs": [_logprob(each) for each in islice(step.values(), most)]}
        for token, step in zip(tokens, steps, strict=True)
    ]


def _logprob(told: Mapping[str, Any]) -> dict[str, Any]:
    return {"token": told["decoded_token"], "logprob": max(told["logprob"], _MASKED)}


def _said(error: Exception) -> str:
    """What an exception says; Ray repeats the way to it, and the reason comes last."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text if len(text) <= _LONGEST_REASON else f'… {text[-_LONGEST_REASON:]}'}"


if __name__ == "__main__":
    main()
