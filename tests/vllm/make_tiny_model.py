"""Write a chat model of 0.6 million random weights, so that a real vLLM runs without a GPU and without a download.

    python make_tiny_model.py OUT_DIR [classifier]

With `classifier` it is a cross-encoder: the same layers with a head that gives one number. Served
with `--runner pooling`, the chat model is an embedding model.

The tokeniser is a byte-level BPE trained on the English text that ships with CPython. Its special
tokens are the control tokens of several model families, so that a test can see whether text from
outside reaches the model as one. The attention heads have size 32, the smallest that vLLM's CPU
attention takes. Answers of this model mean nothing.
"""

import json
import pydoc_data.topics
import sys
from pathlib import Path
from typing import Any

CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL_TOKENS = [
    *(
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
    ),  # ChatML: Qwen and others; the three that this model itself uses
    *("<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"),  # Llama 3
    *("<s>", "</s>", "[INST]", "[/INST]", "<<SYS>>", "<</SYS>>"),  # Llama 2, Mistral
    *("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),  # Gemma
    *(
        "<|user|>",
        "<|assistant|>",
        "<|system|>",
        "<|end|>",
        "<|start|>",
        "<|message|>",
        "<|channel|>",
    ),  # Phi, gpt-oss
    # DeepSeek, GLM
    *(
        "<｜User｜>",
        "<｜Assistant｜>",
        "<｜end▁of▁sentence｜>",
        "<think>",
        "</think>",
        "[gMASK]",
        "<sop>",
    ),
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[SYSTEM_PROMPT]", "<|START_OF_TURN_TOKEN|>"),
    *(
        "[|user|]",
        "[|endofturn|]",
        "[UNUSED_TOKEN_145]",
        "[control_8]",
        "[e~[",
        "]~b]",
    ),  # EXAONE, InternLM2, MiniMax
]
VOCABULARY = 4096
CONTEXT = 2048
HIDDEN = 64


def make_tokenizer() -> Any:
    """Return the trained tokeniser with the chat template set."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    topics = pydoc_data.topics.topics
    tokenizer.train_from_iterator(
        (part for key in sorted(topics) for part in topics[key].split("\n\n")), trainer
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def main(out: Path, kind: str = "chat") -> None:
    """Write the model and its tokeniser to `out`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, LlamaConfig

    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        initializer_range=0.1,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **({"num_labels": 1} if kind == "classifier" else {}),
    )
    made_as = AutoModelForSequenceClassification if kind == "classifier" else AutoModelForCausalLM
    model = made_as.from_config(config).to(torch.float32)
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out, safe_serialization=True)
    tokenizer.save_pretrained(out)
    settings = out / "tokenizer_config.json"
    settings.write_text(
        json.dumps(json.loads(settings.read_text()) | {"chat_template": CHAT_TEMPLATE}, indent=1)
    )
    print(
        f"{out}: {sum(p.numel() for p in model.parameters()):,} parameters, vocabulary {len(tokenizer)}"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
