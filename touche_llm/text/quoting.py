"""Quotations of untrusted texts, without the keys that a server may send back."""

from __future__ import annotations

import os
import re
from functools import lru_cache

MODEL_KEY_VARIABLE = "VLLM_API_KEY"
CHATNOIR_KEY_VARIABLE = "CHATNOIR_API_KEY"
_SECRET_VARIABLES = (
    MODEL_KEY_VARIABLE,
    CHATNOIR_KEY_VARIABLE,
    "ELASTICSEARCH_API_KEY",
    "ELASTICSEARCH_PASSWORD",
)
_MASK = "[key]"
# Max characters in which keys are searched. The longest quotation has 2,000 characters.
_MAX_SEARCHED = 2**20


def quote(text: str, limit: int) -> str:
    """Return the first `limit` characters of an untrusted text, with keys masked.

    A key is also found if its characters are escaped as in JSON or in URLs.
    """
    # Masked before it is cut, since a part of a key would not be found.
    masked = text[:_MAX_SEARCHED]
    for variable in _SECRET_VARIABLES:
        secret = os.environ.get(variable, "").strip()
        if secret:
            masked = _compile_secret(secret).sub(_MASK, masked)
    return masked[:limit]


@lru_cache(maxsize=16)
def _compile_secret(secret: str) -> re.Pattern[str]:
    """Return the pattern of a secret, with each character as it is or escaped."""
    first, *others = (_spell(character) for character in secret)
    # JSON in a text of JSON has several backslashes before a character; more than eight would be
    # the fourth level.
    spellings = [first, *(rf"\\{{0,8}}{spelling}" for spelling in others)]
    return re.compile("".join(spellings), re.IGNORECASE)


def _spell(character: str) -> str:
    """Return the pattern of a character, as it is or escaped."""
    code = ord(character)
    escapes = [re.escape(character), rf"\\?u{code:04x}"]
    escapes += ["".join(f"%{byte:02x}" for byte in character.encode())]
    return f"(?:{'|'.join(escapes)})"
