"""Write the configuration and the tokeniser of a Llama of any size, without a download.

    python -m benchmarks.random_model OUT SIZE

vLLM draws its weights with `--load-format dummy`. Shape and vocabulary decide what a model costs to
serve; what it answers means nothing. The tokeniser is a byte-level BPE trained on the English text
that ships with CPython; what that text does not fill of the vocabulary are words that occur
nowhere, so that masks and log-probabilities cost what they cost at that size. Needs what vLLM is
installed with: torch, transformers, tokenizers.
"""

from __future__ import annotations

import itertools
import json
import pydoc_data.topics
import string
import sys
from pathlib import Path
from typing import Any

from tests.vllm.make_tiny_model import CHAT_TEMPLATE, SPECIAL_TOKENS

_CONTEXT = 32_768
# Hidden and feed-forward width, layers, attention heads, heads of keys and values; from 1B on those
# of Llama 3.1 and 3.2 (config.json of each).
SHAPES = {
    "tiny": (64, 128, 2, 2, 2),
    "1B": (2048, 8192, 16, 32, 8),
    "3B": (3072, 8192, 28, 24, 8),
    "8B": (4096, 14336, 32, 32, 8),
    "70B": (8192, 28672, 80, 64, 8),
}


def write_model(out: Path, size: str) -> None:
    """Write configuration and tokeniser of a size of `SHAPES`, with the vocabulary of Llama 3 from 1B on."""
    from transformers import AutoConfig

    hidden, feed_forward, layers, heads, key_value_heads = SHAPES[size]
    tokenizer = make_tokenizer(4096 if size == "tiny" else 128_256)
    config = AutoConfig.for_model(
        "llama",
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=feed_forward,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        head_dim=hidden // heads,
        max_position_embeddings=_CONTEXT,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="bfloat16",
        architectures=["LlamaForCausalLM"],
    )
    out.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(out)
    tokenizer.save_pretrained(out)
    settings = out / "tokenizer_config.json"
    settings.write_text(
        json.dumps(json.loads(settings.read_text()) | {"chat_template": CHAT_TEMPLATE}, indent=1)
    )


def make_tokenizer(vocabulary: int) -> Any:
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
    tokenizer.train_from_iterator(
        (part for key in sorted(topics) for part in topics[key].split("\n\n")), trainer
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=_filled(tokenizer, vocabulary),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=_CONTEXT,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def _filled(tokenizer: Any, vocabulary: int) -> Any:
    """The tokeniser with words that no merge leads to, up to so many tokens."""
    state = json.loads(tokenizer.to_str())
    tokens = state["model"]["vocab"]
    words = (
        "".join(letters)
        for length in (3, 4, 5)
        for letters in itertools.product(string.ascii_lowercase, repeat=length)
    )
    while len(tokens) < vocabulary:
        tokens.setdefault(next(words), len(tokens))
    return type(tokenizer).from_str(json.dumps(state))


if __name__ == "__main__":
    write_model(Path(sys.argv[1]), sys.argv[2])
