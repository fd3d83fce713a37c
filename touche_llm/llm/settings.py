"""The parts of a configuration that say what is asked, and how."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from touche_llm.llm.engines.vllm_common import model_name

# vLLM queues what exceeds its batch, by default of 256 requests (1,024 from 70 GiB of GPU memory on).
DEFAULT_CONCURRENCY = 256


class Section(BaseModel):
    """A part of a configuration."""

    # What was given is not repeated in errors: it may be a key in the wrong place.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


def _without_password(url: str) -> str:
    if any(mark in url for mark in "@?#"):
        raise ValueError(
            "must not hold a password or a key (no @, ? or #), since it is written to files: "
            "give the key in VLLM_API_KEY"
        )
    if not url.startswith(("http://", "https://")):
        raise ValueError("must begin with http:// or https://")
    return url


def _engine_options(options: dict[str, Any]) -> dict[str, Any]:
    for name in options:
        if not name.isidentifier():
            raise ValueError(f"{name!r} is no option of vLLM in the form of enforce_eager")
        if name in ("hf_token", "api_key"):
            raise ValueError(f"must not hold {name}, since it is written to files: set it in the environment")
        if name in ("model", "max_model_len", "served_model_name", "host", "port"):
            raise ValueError(f"must not hold {name}, which the program sets: see engine.model and engine.context")
    return options


class Runner(StrEnum):
    """What answers batch files: `vllm run-batch`, or a Ray Data job."""

    VLLM = "vllm"
    RAY = "ray"


class EngineConfig(Section):
    """The engine: a vLLM `server` at `base_url`, one `managed` by the program for the run, or `batch` files.

    For the latter two, `model` is a local folder, known by its last name, and `options` are additional options of
    vLLM, as in `{tensor_parallel_size: 2}`; a server that runs already ignores them. Batch files are answered by the
    `runner`, `vllm run-batch` or a Ray Data job, and need the `context`; for `ray`, `options` may also be those of
    `ray.data.llm.vLLMEngineProcessorConfig`, as in `{concurrency: [4, 4]}` for four replicas.
    Times are in seconds and are the server's alone; `context` is in tokens, the model's own where left out.
    `concurrency` is the number of requests to a server at a time.
    """

    name: Literal["server", "managed", "batch"] = "server"
    runner: Runner = Runner.VLLM
    base_url: Annotated[str, AfterValidator(_without_password)] = "http://127.0.0.1:8000"
    model: str | None = None
    options: Annotated[dict[str, Any], AfterValidator(_engine_options)] = {}
    revision: str = ""
    context: int | None = Field(None, ge=1)
    concurrency: int = Field(DEFAULT_CONCURRENCY, ge=1, le=65536)
    request_timeout: float = Field(300.0, gt=0.0)
    retry_for: float = Field(600.0, ge=0.0)

    @property
    def model_name(self) -> str | None:
        """The name that the model has in keys and files."""
        return model_name(self.model) if self.model and self.name != "server" else self.model


class SamplingConfig(Section):
    """How answers are drawn: greedily, and an answer that cannot be used again with `resample_temperature`."""

    temperature: float = Field(0.0, ge=0.0, le=2.0)
    resample_temperature: float = Field(0.7, ge=0.0, le=2.0)
    seed: int = Field(0, ge=0, lt=2**31)
    max_tokens: int = Field(64, ge=1, le=65536)
    logprobs: bool = True
    # Qwen3, DeepSeek V3 and others look at one of these two; templates that know neither ignore them.
    chat_template_kwargs: dict[str, Any] = {"enable_thinking": False, "thinking": False}

    @property
    def top_logprobs(self) -> int:
        """Alternatives a token to ask for; 20 is the most that vLLM sends by default."""
        return 20 if self.logprobs else 0
