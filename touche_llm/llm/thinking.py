"""Reasoning before an answer: its budget, delimiters and chains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from touche_llm.text.sanitize import sanitize

# Opening and closing delimiters, with the line feeds that the models' own chat templates write.
DELIMITERS: Mapping[str, tuple[str, str]] = {
    "qwen3": ("<think>\n", "\n</think>\n\n"),
    "deepseek": ("<think>\n", "\n</think>\n\n"),
    "mistral": ("[THINK]", "[/THINK]"),
}


@dataclass(frozen=True, slots=True)
class Thinking:
    """How a model reasons before it answers.

    Attributes:
        budget: Max tokens of a thought; a longer one is closed there.
        opening: Delimiter before the thought.
        closing: Delimiter after the thought.
        temperature: Sampling temperature of the thought.
        chains: Number of thoughts, whose answers are averaged.
    """

    budget: int
    opening: str
    closing: str
    temperature: float
    chains: int = 1

    @property
    def max_tokens(self) -> int:
        """Upper bound of the tokens that a thought adds to a prompt: no token of a delimiter is shorter than a byte."""
        return self.budget + len((self.opening + self.closing).encode())

    def clean(self, completion: str) -> str:
        """Return the thought in a completion, without delimiters or anything that acts as chat control.

        Whether a completion begins with the opening delimiter depends on the chat template, and some servers leave the
        closing one.
        """
        thought, _, _ = completion.partition(self.closing.strip())
        return sanitize(thought.strip().removeprefix(self.opening.strip()).strip())

    def delimit(self, thought: str) -> str:
        """Return the message of a thought that has ended."""
        return f"{self.opening}{thought}{self.closing}"
