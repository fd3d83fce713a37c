"""GPU seconds of requests by a formula, from published facts of models and GPUs.

Nothing here is a measurement.
"""

from __future__ import annotations

from dataclasses import dataclass

# Assumptions.
UTILISATION = 0.4
BANDWIDTH_UTILISATION = 0.6
AT_A_TIME = 256
ANSWER_TOKENS = 17  # Of [2,1,"YES","NEUTRAL"], at most; [2,1,"Y","N"] has fewer.
# Of a number in bfloat16.
NUMBER_BYTES = 2


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """Published facts of a model; its card is on https://huggingface.co, its paper on arXiv.

    Attributes:
        active: Parameters that a token uses: fewer than all in a mixture of experts.
        heads: Heads of keys and values in a layer.
        context: Longest context in tokens, without an extension of positions.
        thinks: Whether it thinks before it answers unless that is switched off.
    """

    name: str
    parameters: float
    active: float
    layers: int
    heads: int
    context: int
    thinks: bool
    licence: str
    card: str
    paper: str
    head_numbers: int = 128

    @property
    def weight_bytes(self) -> float:
        """Size of the weights in bfloat16."""
        return self.parameters * NUMBER_BYTES

    @property
    def key_value_bytes(self) -> int:
        """Keys and values of a token, in bfloat16."""
        return 2 * self.layers * self.heads * self.head_numbers * NUMBER_BYTES


@dataclass(frozen=True, slots=True)
class PublishedGpu:
    """Facts of a GPU by NVIDIA's data sheet: memory in bytes, dense bfloat16 operations and bytes a second."""

    name: str
    memory: float
    flops: float
    bandwidth: float


_QWEN3 = "2505.09388"
LLAMA = PublishedModel(
    *("Llama 3.1 8B Instruct", 8.03e9, 8.03e9, 32, 8, 131_072, False, "Llama 3.1 Community"),
    *("meta-llama/Llama-3.1-8B-Instruct", "2407.21783"),
)
MODELS = (
    PublishedModel(
        *("Qwen3-4B-Instruct-2507", 4.0e9, 4.0e9, 36, 8, 262_144, False, "Apache 2.0"),
        *("Qwen/Qwen3-4B-Instruct-2507", _QWEN3),
    ),
    LLAMA,
    PublishedModel(
        "Qwen3-8B", 8.2e9, 8.2e9, 36, 8, 32_768, True, "Apache 2.0", "Qwen/Qwen3-8B", _QWEN3
    ),
    PublishedModel(
        "Qwen3-14B", 14.8e9, 14.8e9, 40, 8, 32_768, True, "Apache 2.0", "Qwen/Qwen3-14B", _QWEN3
    ),
    PublishedModel(
        *("Qwen3-30B-A3B-Instruct-2507", 30.5e9, 3.3e9, 48, 4, 262_144, False, "Apache 2.0"),
        *("Qwen/Qwen3-30B-A3B-Instruct-2507", _QWEN3),
    ),
    PublishedModel(
        "Qwen3-32B", 32.8e9, 32.8e9, 64, 8, 32_768, True, "Apache 2.0", "Qwen/Qwen3-32B", _QWEN3
    ),
)
# 1,979 teraFLOP/s with sparsity, half of it dense; 3.35 TB/s.
H100 = PublishedGpu("H100 SXM", 80e9, 989e12, 3.35e12)
GPUS = (
    PublishedGpu("L4", 24e9, 121e12, 0.3e12),
    PublishedGpu("L40S", 48e9, 362e12, 0.864e12),
    PublishedGpu("A100 SXM", 80e9, 312e12, 2.039e12),
    H100,
)


def prompt_seconds(tokens: float, model: PublishedModel = LLAMA, gpu: PublishedGpu = H100) -> float:
    """GPU seconds of prompt tokens: two operations for each active parameter and token."""
    return tokens * 2 * model.active / (gpu.flops * UTILISATION)


def output_seconds(
    requests: float, prompt_tokens: float, model: PublishedModel = LLAMA, gpu: PublishedGpu = H100
) -> float:
    """GPU seconds of the answers to requests that have so many prompt tokens together: the bytes that are read."""
    read = model.weight_bytes / AT_A_TIME + prompt_tokens / requests * model.key_value_bytes
    return requests * ANSWER_TOKENS * read / (gpu.bandwidth * BANDWIDTH_UTILISATION)


def tokens_at_a_time(model: PublishedModel, gpu: PublishedGpu) -> float:
    """Tokens whose keys and values fit beside the weights in 90 % of the memory.

    Negative if the weights do not.
    """
    return (0.9 * gpu.memory - model.weight_bytes) / model.key_value_bytes
