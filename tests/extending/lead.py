"""A kind of task: documents are judged by their first paragraphs, as a list of results shows them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from touche_llm.data.records import Document
from touche_llm.judging.result import Judgments
from touche_llm.kinds.documents import DocumentKind
from touche_llm.kinds.registry import JudgingInputs, register
from touche_llm.retrieval.corpus import Documents
from touche_llm.settings.section import AnswerKey, NamedSection, Option, Section

_BLANK_LINES = re.compile(r"\n\s*\n")


class LeadSettings(Section):
    """Settings of the kind."""

    paragraphs: Annotated[
        int,
        Field(ge=1),
        Option("--lead-paragraphs", "Paragraphs of a document that are judged", "Judging"),
        AnswerKey.ENTERS,
    ] = 1


class LeadDocuments:
    """Documents with only their first paragraphs."""

    def __init__(self, documents: Documents, paragraphs: int) -> None:
        self.documents = documents
        self.paragraphs = paragraphs

    def get(self, document_id: str) -> Document:
        """Return the beginning of a document."""
        document = self.documents.get(document_id)
        ends = [blank.start() for blank in _BLANK_LINES.finditer(document.text)]
        if len(ends) < self.paragraphs:
            return document
        return replace(document, text=document.text[: ends[self.paragraphs - 1]])

    def find_unknown(self, document_ids: Iterable[str]) -> list[str]:
        """Return the ids of documents that the corpus lacks."""
        return self.documents.find_unknown(document_ids)


class LeadKind(DocumentKind):
    """Each document is judged by its first paragraphs."""

    name = "lead"
    help = "documents, each judged by its first paragraphs"
    reference = "https://doi.org/10.1145/290941.290947"
    judging_section = NamedSection(name="lead", settings=LeadSettings)
    order = 100

    async def judge(self, inputs: JudgingInputs) -> Judgments:
        """Judge the beginnings of the candidates."""
        settings: LeadSettings = inputs.settings
        documents = LeadDocuments(inputs.documents, settings.paragraphs)
        return await super().judge(replace(inputs, documents=documents))


register(LeadKind())
