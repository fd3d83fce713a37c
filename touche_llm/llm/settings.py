"""Settings of the engine and of sampling, sections of a configuration."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from touche_llm.errors import UsageError
from touche_llm.llm.cache import CacheMode
from touche_llm.llm.request import DELIMITERS, SystemPlace, Thinking
from touche_llm.settings.section import AnswerKey, Option, Scope, Section, check_address

# vLLM queues requests beyond its batch, by default 256 (1,024 from 70 GiB of GPU memory on).
DEFAULT_CONCURRENCY = 256
# Max requests of a Ray Data job, which an interruption loses: its responses are stored at its end.
# More would lose more, fewer would load the model more often (about a minute each).
MAX_ROUND = 50_000
# Purposes of budgets by the purpose of a prompt; others need no reasoning.
_BUDGETS = {
    "judge": "judge",
    "sentence": "judge",
    "stance": "stance",
    "best": "compare",
    "order": "compare",
}


def check_model_folder(model: str | None) -> Path:
    """Return the folder of a model that the program serves itself.

    Raise UsageError if it holds no model.
    """
    if model is None:
        raise UsageError(
            "engine.model: give the folder of the model (for tira also TOUCHE_LLM_MODEL)"
        )
    folder = Path(model)
    if not (folder / "config.json").is_file():
        raise UsageError(
            f"{folder}: no model; give a folder with config.json, weights and tokenizer (`engine.model`)"
        )
    return folder


def get_model_name(folder: str | Path) -> str:
    """Return the name under which a folder's model is served: the last part of its path."""
    return Path(os.path.abspath(folder)).name


def _check_options(options: dict[str, Any]) -> dict[str, Any]:
    for name in options:
        if not name.isidentifier():
            raise ValueError(f"{name!r} is not an option of vLLM, written like enforce_eager")
        if name in (
            "hf_token",
            "api_key",
            "model",
            "max_model_len",
            "served_model_name",
            "host",
            "port",
        ):
            raise ValueError(
                f"must not hold {name}: keys belong in the environment, the others in `engine`"
            )
    return options


Address = Annotated[str, AfterValidator(partial(check_address, secret="VLLM_API_KEY"))]


class EngineConfig(Section):
    """Settings of the engine: a `server`, a `managed` one of this run, or `ray`.

    Attributes:
        name: A running server at `base_url`, one that the program starts and stops, or Ray Data
            jobs, which also need the `context`.
        base_url: Address of the server.
        model: Name of the served model. For `managed` and `ray`, its local folder, whose last name
            is the model's.
        options: Additional options of vLLM, as in `{tensor_parallel_size: 2}`, for `managed` and
            `ray`. For `ray` also those of `ray.data.llm.vLLMEngineProcessorConfig`, as in
            `{concurrency: [4, 4]}` for four replicas.
        revision: The user's name for the version of the weights.
        context: Context in tokens; the model's own if None.
        tokenizer: Folder of the model's tokenizer, for a server that does not count the tokens of
            messages.
        concurrency: Max number of requests to a server at a time.
        request_timeout: Seconds after which a request fails, from its start or from the last reply
            to another one.
        retry_for: Seconds after which a request that fails at a server is no longer retried.
    """

    name: Annotated[
        Literal["server", "managed", "ray"],
        Option(
            "--engine",
            "server (running), managed (started for the run) or ray (Ray Data jobs)",
            "Model",
            metavar="NAME",
        ),
        Scope.DELIVERY,
        # The same model has the same name with each, though `model` may have to name its folder.
        AnswerKey.STAYS_OUT,
    ] = "server"
    base_url: Annotated[
        Address,
        Option("--base-url", "Address of the server", "Model", metavar="URL"),
        Scope.DELIVERY,
        AnswerKey.STAYS_OUT,
    ] = "http://127.0.0.1:8000"
    model: Annotated[
        str | None,
        Option("--model", "Served name, if several, or a folder", "Model", metavar="NAME"),
        Scope.MODEL,
        AnswerKey.ENTERS,
    ] = None
    options: Annotated[
        dict[str, Any],
        AfterValidator(_check_options),
        Scope.DELIVERY,
        # Like the version of the server: `revision` is to change if they matter.
        AnswerKey.STAYS_OUT,
    ] = {}
    revision: Annotated[
        str,
        Option("--revision", "Your name for the version of the weights", "Model", metavar="NAME"),
        Scope.MODEL,
        AnswerKey.ENTERS,
    ] = ""
    context: Annotated[
        int | None,
        Option("--context", "Context in tokens (default: the server's)", "Model"),
        Scope.MODEL,
        # Documents are truncated to it.
        AnswerKey.ENTERS,
    ] = Field(None, ge=1)
    tokenizer: Annotated[
        Path | None,
        Option(
            "--tokenizer",
            "Folder of the tokenizer, if the server does not count",
            "Model",
            metavar="FOLDER",
        ),
        Scope.DELIVERY,
        # It is the model's own, so truncation is the same wherever its files are.
        AnswerKey.STAYS_OUT,
    ] = None
    concurrency: Annotated[
        int,
        Option("--concurrency", "Concurrent requests to the server", "Model"),
        Scope.DELIVERY,
        AnswerKey.STAYS_OUT,
    ] = Field(DEFAULT_CONCURRENCY, ge=1, le=65536)
    request_timeout: Annotated[
        float,
        Option("--request-timeout", "Seconds without a reply after which a request fails", "Model"),
        Scope.DELIVERY,
        AnswerKey.STAYS_OUT,
    ] = Field(300.0, gt=0.0)
    retry_for: Annotated[
        float,
        Option("--retry-for", "Seconds after which a failing request is abandoned", "Model"),
        Scope.DELIVERY,
        AnswerKey.STAYS_OUT,
    ] = Field(600.0, ge=0.0)

    @property
    def model_name(self) -> str | None:
        """Name of the model in keys and files."""
        return get_model_name(self.model) if self.model and self.name != "server" else self.model


# What a pooling model is for.
PoolingPurpose = Literal["embedding", "score"]
# Sections of the settings of a pooling model, for messages.
SECTIONS: Mapping[PoolingPurpose, str] = {"embedding": "dense", "score": "ranking.cross_encoder"}


class PoolingConfig(Section):
    """Settings of a server with an embedding model or a cross-encoder.

    Attributes:
        revision: The user's name for the version of the weights.
        concurrency: Max number of requests at a time.
        url: Address of the server; not needed where its results are in the cache.
        model: Name of the served model; not needed if there is only one.
        context: Context in tokens; the server's own if None.
        batch: Max number of texts in a request.
        request_timeout: Seconds after which a request fails, from its start or from the last reply
            to another one.
        retry_for: Seconds after which a failing request is no longer retried.
    """

    url: Annotated[Address | None, Scope.DELIVERY, AnswerKey.STAYS_OUT] = None
    model: Annotated[str | None, AnswerKey.ENTERS] = None
    revision: Annotated[str, AnswerKey.ENTERS] = ""
    context: Annotated[int | None, AnswerKey.ENTERS] = Field(None, ge=16)
    batch: Annotated[int, Scope.DELIVERY, AnswerKey.STAYS_OUT] = Field(32, ge=1, le=1024)
    concurrency: Annotated[int, Scope.DELIVERY, AnswerKey.STAYS_OUT] = Field(16, ge=1, le=1024)
    request_timeout: Annotated[float, Scope.DELIVERY, AnswerKey.STAYS_OUT] = Field(300.0, gt=0.0)
    retry_for: Annotated[float, Scope.DELIVERY, AnswerKey.STAYS_OUT] = Field(600.0, ge=0.0)


_PLACEHOLDER = re.compile(r"\{(instruction|query|document)\}")


class TextTemplates(NamedTuple):
    """Templates of queries and documents, with the placeholders {instruction}, {query} and {document}."""

    query: str = "{query}"
    document: str = "{document}"


class TemplateConfig(PoolingConfig):
    """Settings of a server whose model expects its texts in templates, instead of those of a preset.

    Attributes:
        preset: Templates of a family of models.
        instruction: Text in place of {instruction} in the templates.
        query_template: Template with {query}, instead of that of the preset.
        document_template: Template with {document}, instead of that of the preset.
    """

    presets: ClassVar[Mapping[str, TextTemplates]] = {"plain": TextTemplates()}

    preset: Annotated[str, AnswerKey.ENTERS] = "plain"
    # The instruction with which most of these models were trained.
    instruction: Annotated[str, AnswerKey.ENTERS] = (
        "Given a web search query, retrieve relevant passages that answer the query"
    )
    query_template: Annotated[str | None, AnswerKey.ENTERS] = None
    document_template: Annotated[str | None, AnswerKey.ENTERS] = None

    @model_validator(mode="after")
    def _check_templates(self) -> TemplateConfig:
        if self.preset not in self.presets:
            raise ValueError(
                f"preset: {self.preset!r:.40}: no such preset; expected one of {', '.join(self.presets)}"
            )
        for name, template in zip(("query", "document"), self.templates, strict=True):
            if f"{{{name}}}" not in template:
                raise ValueError(
                    f"{name}_template: has no {{{name}}}; write it in place of the {name}"
                )
        return self

    @property
    def templates(self) -> TextTemplates:
        """Templates of the model."""
        preset = self.presets[self.preset]
        return TextTemplates(
            self.query_template or preset.query, self.document_template or preset.document
        )

    def render_query(self, query: str) -> str:
        """Return the text to send for a query."""
        return self._render(self.templates.query, {"query": query})

    def render_document(self, document: str) -> str:
        """Return the text to send for a document."""
        return self._render(self.templates.document, {"document": document})

    def _render(self, template: str, values: Mapping[str, str]) -> str:
        # In one pass, so that a placeholder in a text from outside stays as it is.
        known = {"instruction": self.instruction, **values}
        return _PLACEHOLDER.sub(lambda match: known.get(match[1], match[0]), template)


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
        return {
            purpose: budget
            for purpose in ("judge", "stance", "compare")
            if (budget := getattr(self, purpose))
        }

    def think_for(self, purpose: str) -> Thinking | None:
        """Return how the model reasons before the answer to a prompt of this purpose.

        None if it does not.
        """
        budget = self.budgets.get(_BUDGETS.get(purpose, ""), 0)
        return Thinking(budget, *self.delimiters, self.temperature) if budget else None


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
            is_pairs=True,
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
        is_reused = self.mode in (CacheMode.REUSE, CacheMode.REPLAY)
        # A full disk, or a kill while a cache is created, leaves an empty file.
        has_entries = self.file.exists() and self.file.stat().st_size > 0
        mode = CacheMode.REPLAY if is_reused and has_entries else CacheMode.OFF
        return self.model_copy(update={"mode": mode})
