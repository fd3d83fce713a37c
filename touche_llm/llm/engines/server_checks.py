"""Results of the checks of a server, and remedies for missing parts."""

from __future__ import annotations

from dataclasses import dataclass

# Options that add a missing part, by check and server.
REMEDIES = {
    (
        "white space",
        "vllm",
    ): 'vLLM: --structured-outputs-config \'{"backend": "xgrammar", "disable_any_whitespace": true}\'',
    ("white space", "sglang"): "SGLang: --constrained-json-disable-any-whitespace",
    ("prefix cache", "vllm"): "vLLM: --enable-prefix-caching --enable-prompt-tokens-details",
    ("prefix cache", "sglang"): "SGLang: --enable-cache-report, without --disable-radix-cache",
    ("prefix cache", "llama.cpp"): "llama.cpp: --cache-prompt, which is the default",
    ("determinism", "vllm"): "vLLM: --dtype float32, or VLLM_BATCH_INVARIANT=1 in its environment",
    ("determinism", "sglang"): "SGLang: --enable-deterministic-inference",
    ("system message", "vllm"): "vLLM: --chat-template FILE",
    ("system message", "sglang"): "SGLang: --chat-template FILE",
    ("system message", "llama.cpp"): "llama.cpp: --chat-template-file FILE",
}


@dataclass(frozen=True, slots=True)
class ServerCheck:
    """Result of one check of a server.

    Attributes:
        name: Name of the check.
        is_ok: Whether nothing is missing; None if unknown.
        value: Finding.
        cost: Consequence of the missing part.
        remedy: How to add it.
        is_blocking: Whether no run is possible without it.
    """

    name: str
    is_ok: bool | None
    value: str
    cost: str = ""
    remedy: str = ""
    is_blocking: bool = False

    def __str__(self) -> str:
        return "; ".join(part for part in (self.value, self.cost, self.remedy) if part)


def block(name: str, value: str, remedy: str, cost: str = "") -> ServerCheck:
    """Return the result of a failed check that makes a run impossible."""
    return ServerCheck(name, False, value, cost, remedy, is_blocking=True)
