"""Hashes that are the keys of stored results.

`llm.request.Request.key` says what is in the key of an answer, `engines.pooling` what is in those of
vectors and scores; docs/reference/answer-key.md is the contract.
"""

from __future__ import annotations

import hashlib
from typing import Any

import orjson

# Increased whenever the meaning of a key changes, so that no answer is found under a key with
# another meaning.
KEY_VERSION = 1


def hash_content(kind: str, **parts: Any) -> str:
    """Return the SHA-256, in hexadecimal, of the JSON, with sorted keys, of `parts`, `kind` and the key version."""
    content = orjson.dumps(
        {"version": KEY_VERSION, "kind": kind, **parts}, option=orjson.OPT_SORT_KEYS
    )
    return hashlib.sha256(content).hexdigest()
