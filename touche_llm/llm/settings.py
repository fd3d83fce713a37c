"""Settings of requests and of the answer cache."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from touche_llm.llm.cache import CacheMode
from touche_llm.llm.request import DELIMITERS, SystemPlace, Thinking
from touche_llm.settings.section import Option, Section

# vLLM queues requests beyond its batch, by default 256 (1,024 from 70 GiB of GPU memory on).
DEFAULT_CONCURRENCY = 256
# Purposes of budgets by the purpose of a prompt; others need no reasoning.
_BUDGETS = {
    "judge": "judge",
    "sentence": "judge",
    "stance": "stance",
    "best": "compare",
    "order": "compare",
}


def _name_delimiters(value: Any) -> Any:
    """Return the delimiters of a preset; other values as they are."""
    if isinstance(value, str) and value not in DELIMITERS:
        raise ValueError(
            f"must be {', '.join(DELIMITERS)}, or the opening and the closing delimiter"
        )
    return DELIMITERS[value] if isinstance(value, str) else value


_Budget = Annotated[int, Field(ge=0, le=65536)]
_Delimiter = Annotated[str, Field(pattern=r"\S")]


class ThinkingConfig(Section):
    """Settings of reasoning before answers.

    Attributes:
        judge: Max tokens of reasoning before the answer to a judge prompt, also for sentences; 0
            for none.
        stance: The same for the stance prompt.
        compare: The same for prompts that compare documents.
        delimiters: Texts before and after a thought; a preset by the model, or the two texts.
        temperature: Temperature of thoughts; models that reason repeat themselves at 0.
        chat_template_kwargs: Switches of the chat template, in place of those of `sampling`.
    """

    judge: _Budget = 0
    stance: _Budget = 0
    compare: _Budget = 0
    delimiters: Annotated[tuple[_Delimiter, _Delimiter], BeforeValidator(_name_delimiters)] = (
        DELIMITERS["qwen3"]
    )
    temperature: float = Field(0.6, ge=0.0, le=2.0)
    chat_template_kwargs: dict[str, Any] = {"enable_thinking": True, "thinking": True}

    @property
    def budgets(self) -> dict[str, int]:
        """Budgets by purpose, without those that are 0."""
        budgets = {"judge": self.judge, "stance": self.stance, "compare": self.compare}
        return {purpose: budget for purpose, budget in budgets.items() if budget}

    def think_for(self, purpose: str) -> Thinking | None:
        """Return how the model reasons before the answer to a prompt of this purpose.

        None if it does not.
        """
        budget = self.budgets.get(_BUDGETS.get(purpose, ""))
        if budget is None:
            return None
        opening, closing = self.delimiters
        return Thinking(
            budget=budget,
            opening=opening,
            closing=closing,
            temperature=self.temperature,
        )


class SamplingConfig(Section):
    """Settings of sampling.

    Attributes:
        temperature: Temperature of the first sample.
        max_tokens: Max completion tokens.
        logprobs: Whether log-probabilities are requested.
        chat_template_kwargs: Switches of the chat template.
        thinking: Reasoning before answers.
        resample_temperature: Temperature of additional samples after an unusable answer.
        seed: Number in the keys of the answers: another one requests other samples. It is not sent.
        system_message: Where the instructions are: in a system message, or before the first user
            message, for a chat template that refuses system messages.
    """

    temperature: Annotated[float, Option("--temperature", "Sampling temperature", "Judging")] = (
        Field(0.0, ge=0, le=2)
    )
    resample_temperature: float = Field(0.7, ge=0.0, le=2.0)
    seed: Annotated[int, Option("--seed", "Another number, other samples", "Judging")] = Field(
        0, ge=0, lt=2**31
    )
    max_tokens: Annotated[int, Option("--max-tokens", "Max tokens of an answer", "Judging")] = (
        Field(64, ge=1, le=65536)
    )
    logprobs: Annotated[
        bool,
        Option(
            "--logprobs/--no-logprobs", "Read grades from probabilities, or as answered", "Judging"
        ),
    ] = True
    # Qwen3, DeepSeek V3 and others look at one of these two; templates that know neither ignore
    # them.
    chat_template_kwargs: dict[str, Any] = {"enable_thinking": False, "thinking": False}
    system_message: Annotated[
        SystemPlace,
        Option(
            "--system-message",
            "Instructions in a message of their own (role) or of the user",
            "Judging",
        ),
    ] = "role"
    thinking: Annotated[
        ThinkingConfig,
        Option(
            "--thinking",
            "Tokens of reasoning, as judge=512,stance=512",
            "Judging",
            "PURPOSE=N",
            is_split=True,
        ),
    ] = ThinkingConfig()

    @property
    def top_logprobs(self) -> int:
        """Number of alternatives per token; vLLM sends at most 20 by default."""
        return 20 if self.logprobs else 0


class CacheConfig(Section):
    """Settings of the answer cache."""

    file: Annotated[
        Path, Option("--cache", "Answer cache, or a .jsonl cassette to replay", "Model")
    ] = Path(".touche-llm/answers.sqlite")
    mode: Annotated[
        CacheMode,
        Option(
            "--cache-mode",
            "reuse, replay (a missing answer is an error), refresh or off",
            "Model",
            metavar="NAME",
        ),
    ] = CacheMode.REUSE
    # Not written to the run's folder, since it applies to this command alone and not to later
    # stages.
    retry_failures: Annotated[
        bool,
        Option(
            "--retry-failures", "Send requests again whose stored answers are all unusable", "Model"
        ),
    ] = Field(False, exclude=True)

    @property
    def read_only(self) -> CacheConfig:
        """Settings to read what a run would find, without changing or creating the file."""
        is_read = self.mode in (CacheMode.REUSE, CacheMode.REPLAY)
        # A full disk, or a kill while a cache is created, leaves an empty file.
        has_entries = self.file.exists() and self.file.stat().st_size > 0
        mode = CacheMode.REPLAY if is_read and has_entries else CacheMode.OFF
        return self.model_copy(update={"mode": mode})
