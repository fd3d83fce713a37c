"""Texts for embedding models and cross-encoders: queries and documents in the templates of a model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

from pydantic import model_validator

from touche_llm.llm.settings import PoolingConfig

_PLACEHOLDER = re.compile(r"\{(instruction|query|document)\}")


class TextTemplates(NamedTuple):
    """Templates of queries and documents, with the placeholders {instruction}, {query} and {document}."""

    query: str = "{query}"
    document: str = "{document}"


class TemplateConfig(PoolingConfig):
    """Settings of a server whose model expects its texts in templates.

    Attributes:
        preset: Templates of a family of models.
        instruction: Text in place of {instruction} in the templates.
        query_template: Template with {query}, instead of that of the preset.
        document_template: Template with {document}, instead of that of the preset.
    """

    presets: ClassVar[Mapping[str, TextTemplates]] = {"plain": TextTemplates()}

    preset: str = "plain"
    # The instruction with which most of these models were trained.
    instruction: str = "Given a web search query, retrieve relevant passages that answer the query"
    query_template: str | None = None
    document_template: str | None = None

    @model_validator(mode="after")
    def _check_templates(self) -> TemplateConfig:
        if self.preset not in self.presets:
            raise ValueError(f"preset: {self.preset!r:.40}: no such preset; expected one of {', '.join(self.presets)}")
        for name, template in zip(("query", "document"), self.templates, strict=True):
            if f"{{{name}}}" not in template:
                raise ValueError(f"{name}_template: has no {{{name}}}; write it in place of the {name}")
        return self

    @property
    def templates(self) -> TextTemplates:
        """Templates of the model."""
        preset = self.presets[self.preset]
        return TextTemplates(self.query_template or preset.query, self.document_template or preset.document)

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
