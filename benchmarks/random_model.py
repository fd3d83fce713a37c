"""Write the folder of a chat model with random weights, of any size, without a download.

    python -m benchmarks.random_model OUT [--architecture llama] [--size 1B] [--vocabulary 128256] [--context 32768]

Architecture, shape and vocabulary decide what a model costs to serve; what it answers means nothing. The weights are
in bfloat16 and are made and written shard by shard, so that a large model needs the memory of a shard. The tokeniser
is a byte-level BPE trained on the English text that ships with CPython; what that text does not fill of the
vocabulary are words that occur nowhere, so that masks and log-probabilities cost what they cost at that size. Needs
what vLLM is installed with: torch, transformers, safetensors.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import pydoc_data.topics
import string
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.vllm.make_tiny_model import CHAT_TEMPLATE, SPECIAL_TOKENS

ARCHITECTURES = ("llama", "qwen2", "qwen3")
_SPREAD = 0.02  # of the weights, as models are initialised; more for the tiny one, whose answers would all be alike
_TINY_SPREAD = 0.1
_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder: hidden and feed-forward width, layers, attention heads, heads of keys and values."""

    hidden: int
    feed_forward: int
    layers: int
    heads: int
    key_value_heads: int


# From 1B on those of Llama 3.1 and 3.2 (config.json of each).
SHAPES = {
    "tiny": Shape(64, 128, 2, 2, 2),
    "0.1B": Shape(512, 1536, 8, 8, 4),
    "1B": Shape(2048, 8192, 16, 32, 8),
    "3B": Shape(3072, 8192, 28, 24, 8),
    "8B": Shape(4096, 14336, 32, 32, 8),
    "70B": Shape(8192, 28672, 80, 64, 8),
}


def write_model(out: Path, architecture: str, size: str, vocabulary: int, context: int, shard_bytes: int) -> int:
    """Write configuration, weights and tokeniser; returns the number of parameters.

    Args:
        out: the folder; the index of the weights is written last, so that a folder that has it is complete.
        architecture: one of `ARCHITECTURES`, as transformers names them.
        size: of `SHAPES`.
        vocabulary: in tokens; rounded up to a multiple of 64, as vLLM's tensor parallelism divides it.
        context: the longest prompt and answer, in tokens.
        shard_bytes: the most that a file of weights holds, unless one tensor alone is larger.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = SHAPES[size]
    tokenizer = make_tokenizer(math.ceil(vocabulary / 64) * 64, context)
    config = AutoConfig.for_model(
        architecture,
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden,
        intermediate_size=shape.feed_forward,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_value_heads,
        head_dim=shape.hidden // shape.heads,
        max_position_embeddings=context,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype=torch.bfloat16,
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    config.architectures = [type(model).__name__]
    out.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(out)
    tokenizer.save_pretrained(out)
    settings = out / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"chat_template": CHAT_TEMPLATE}, indent=1))
    _write_weights(out, model, _TINY_SPREAD if size == "tiny" else _SPREAD, shard_bytes)
    return sum(parameter.numel() for parameter in model.parameters())


def make_tokenizer(vocabulary: int, context: int) -> Any:
    """The tokeniser with exactly so many tokens, chat template set."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=2,
        show_progress=False,
    )
    topics = pydoc_data.topics.topics
    tokenizer.train_from_iterator((part for key in sorted(topics) for part in topics[key].split("\n\n")), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=_filled(tokenizer, vocabulary),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def _filled(tokenizer: Any, vocabulary: int) -> Any:
    """The tokeniser with words that no merge leads to, up to so many tokens."""
    state = json.loads(tokenizer.to_str())
    tokens = state["model"]["vocab"]
    words = (
        "".join(letters) for length in (3, 4, 5) for letters in itertools.product(string.ascii_lowercase, repeat=length)
    )
    while len(tokens) < vocabulary:
        tokens.setdefault(next(words), len(tokens))
    return type(tokenizer).from_str(json.dumps(state))


def _write_weights(out: Path, model: Any, spread: float, shard_bytes: int) -> None:
    """Draw the weights with a fixed seed and write them, a shard at a time."""
    import torch
    from safetensors.torch import save_file  # type: ignore[import-not-found, unused-ignore]

    kind, generator = torch.bfloat16, torch.Generator().manual_seed(0)
    shards = list(_shards(model.state_dict(), kind.itemsize, shard_bytes))
    places: dict[str, str] = {}
    total = 0
    for number, shapes in enumerate(shards, start=1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        tensors = {}
        for name, shape in shapes.items():
            # Scales of norms are the only weights of one dimension beside biases.
            if len(shape) == 1:
                tensors[name] = (
                    torch.zeros(shape, dtype=kind) if name.endswith("bias") else torch.ones(shape, dtype=kind)
                )
            else:
                tensors[name] = torch.empty(shape, dtype=kind).normal_(0.0, spread, generator=generator)
            total += tensors[name].nbytes
        save_file(tensors, out / file, metadata={"format": "pt"})
        places |= dict.fromkeys(shapes, file)
    (out / _INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": places}, indent=1))


def _shards(state: Any, item_bytes: int, shard_bytes: int) -> Iterator[dict[str, tuple[int, ...]]]:
    """Names and shapes of the weights, shard by shard."""
    shard: dict[str, tuple[int, ...]] = {}
    size = 0
    for name, tensor in state.items():
        bytes_ = tensor.numel() * item_bytes
        if shard and size + bytes_ > shard_bytes:
            yield shard
            shard, size = {}, 0
        shard[name] = tuple(tensor.shape)
        size += bytes_
    yield shard


def is_complete(folder: Path) -> bool:
    """Whether `write_model` has written all of the folder."""
    return (folder / _INDEX).is_file()


def main() -> None:
    """Write a model and say how large it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--architecture", choices=ARCHITECTURES, default="llama")
    parser.add_argument("--size", choices=list(SHAPES), default="1B")
    parser.add_argument("--vocabulary", type=int, default=128_256)
    parser.add_argument("--context", type=int, default=32_768)
    parser.add_argument("--shard-gib", type=float, default=2.0)
    options = parser.parse_args()
    parameters = write_model(
        options.out,
        options.architecture,
        options.size,
        options.vocabulary,
        options.context,
        int(options.shard_gib * 2**30),
    )
    print(f"{options.out}: {options.architecture}, {parameters:,} parameters")


if __name__ == "__main__":
    main()
