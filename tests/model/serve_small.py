"""Serve the small model with vLLM on the CPU, to try runs without a GPU: python -m tests.model.serve_small [PORT]."""

from __future__ import annotations

import os
import sys

from tests.model.servers import CONTEXT, ENVIRONMENT, MODEL, OPTIONS
from tests.vllm.server import VENV, vllm_environment
from touche_llm.engines.managed import build_start_options, to_flags


def main() -> None:
    """Become the model's server."""
    if not (MODEL / "config.json").exists():
        sys.exit(
            f"{MODEL}: no model; `make serve-small` assembles it, or name a folder in TOUCHE_LLM_MODEL"
        )
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8000
    arguments = build_start_options(OPTIONS)
    arguments |= {
        "served_model_name": MODEL.name,
        "host": "127.0.0.1",
        "port": port,
        "max_model_len": CONTEXT,
    }
    print(
        "starting vLLM: the first start compiles, 3 to 4 minutes on two idle cores and longer beside other work; it is "
        f"ready at http://127.0.0.1:{port} when it prints `Application startup complete`",
        flush=True,
    )
    program = VENV / "bin" / "vllm"
    with vllm_environment(ENVIRONMENT):
        os.execv(
            program,
            [
                str(program),
                "serve",
                str(MODEL),
                "--enable-prompt-tokens-details",
                *to_flags(arguments),
            ],
        )


if __name__ == "__main__":
    main()
