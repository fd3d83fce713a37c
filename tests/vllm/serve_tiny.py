"""Serve the tiny random model on the CPU, to try a run without a GPU: python -m tests.vllm.serve_tiny [PORT].

Its answers have the right form and no meaning.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.vllm.server import CONTEXT, MODEL_NAME, OPTIONS, ROOT, VENV, make_model, vllm_environment
from touche_llm.llm.engines.vllm_common import build_start_options
from touche_llm.llm.engines.vllm_process import to_flags

_FOLDER = ROOT / ".touche-llm"


def main() -> None:
    """Make the model once, and become its server."""
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8000
    model = _FOLDER / MODEL_NAME
    if not (model / "config.json").exists():
        make_model(_FOLDER)
    arguments = build_start_options(OPTIONS)
    arguments |= {"served_model_name": MODEL_NAME, "host": "127.0.0.1", "port": port, "max_model_len": CONTEXT}
    program = Path(VENV / "bin" / "vllm")
    with vllm_environment():
        os.execv(program, [str(program), "serve", str(model), "--enable-prompt-tokens-details", *to_flags(arguments)])


if __name__ == "__main__":
    main()
