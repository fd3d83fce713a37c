"""Settings of engines: language models, embedding models, cross-encoders."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import AfterValidator, Field, model_validator

from touche_llm.errors import UsageError
from touche_llm.llm.settings import DEFAULT_CONCURRENCY
from touche_llm.settings.section import AnswerKey, Option, Scope, Section, check_address

# Max requests of a Ray Data job, which an interruption loses: its responses are stored at its end.
# More would lose more, fewer would load the model more often (about a minute each).
MAX_ROUND = 50_000


# Options of vLLM that name code to run: that of a model's folder, a plug-in, a class or a module.
CODE_OPTION = re.compile(
    r"^trust_remote_code$|_plugins?$|_cls$|^logits_processors$|^middleware$|_transfer_config$"
    r"|^distributed_executor_backend$"
)


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
            f"engine.model: {folder}: no model; give a folder with config.json, weights and tokenizer"
        )
    return folder


def get_model_name(folder: str | Path) -> str:
    """Return the name under which a folder's model is served: the last part of its path."""
    return Path(os.path.abspath(folder)).name


# Options of vLLM that are keys, or that the program sets.
_SET_ELSEWHERE = (
    "hf_token",
    "api_key",
    "model",
    "max_model_len",
    "served_model_name",
    "host",
    "port",
)


def _check_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return options of vLLM; raise ValueError for one that is none, or is set elsewhere."""
    for name in options:
        if not name.isidentifier():
            raise ValueError(f"{name!r} is not an option of vLLM, written like enforce_eager")
        if name in _SET_ELSEWHERE:
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
