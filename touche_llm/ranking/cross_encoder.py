"""Reranking by a cross-encoder, which reads query and document together and gives their relevance as a number.

Nogueira and Cho, Passage Re-ranking with BERT, arXiv 1901.04085.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field

from touche_llm.data.concurrency import map_in_order
from touche_llm.data.records import ScoredDocument, Topic
from touche_llm.data.topics.reading import build_query
from touche_llm.engines.pooling import PoolingClient
from touche_llm.engines.settings import Address, TemplateConfig, TextTemplates
from touche_llm.judging.requests import sanitize_document
from touche_llm.llm.request import Request
from touche_llm.ranking.registry import RankingStep, ScoreDocuments, ScoringMethod, register
from touche_llm.ranking.scores import rank_by_value, scale_scores
from touche_llm.retrieval.corpus import Documents
from touche_llm.retrieval.settings import QueryField, to_texts
from touche_llm.settings.section import AnswerKey, Option, Scope
from touche_llm.tasks.questions import Question
from touche_llm.text.sanitize import sanitize

# As published with the models (https://huggingface.co/Qwen/Qwen3-Reranker-0.6B).
_QWEN3 = TextTemplates(
    query=(
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
        "<Instruct>: {instruction}\n<Query>: {query}\n"
    ),
    document="<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
)


class CrossEncoderSettings(TemplateConfig, ScoringMethod):
    """Settings of the cross-encoder.

    Attributes:
        query: Fields of a topic that make the query.
    """

    presets: ClassVar[Mapping[str, TextTemplates]] = {"plain": TextTemplates(), "qwen3": _QWEN3}

    url: Annotated[
        Address | None,
        Option(
            "--reranker-url",
            "Server of the cross-encoder (step cross_encoder)",
            "Model",
            metavar="URL",
        ),
        Scope.DELIVERY,
        AnswerKey.STAYS_OUT,
    ] = None
    model: Annotated[
        str | None,
        Option("--reranker-model", "Its served name, if several", "Model", metavar="NAME"),
        AnswerKey.ENTERS,
    ] = None
    preset: Annotated[
        str,
        Option(
            "--reranker-preset",
            f"Templates of its texts: {' or '.join(presets)}",
            "Model",
            metavar="NAME",
        ),
        AnswerKey.ENTERS,
    ] = "plain"
    query: Annotated[
        tuple[QueryField, ...],
        BeforeValidator(to_texts),
        Field(min_length=1),
        AnswerKey.ENTERS,
    ] = ("title",)

    async def rerank(self, documents: list[str], score: ScoreDocuments) -> list[ScoredDocument]:
        """Rank documents by their scores, scaled to 0..1; equal ones keep their order."""
        scores = await score(documents)
        score_by_document = dict(zip(documents, scores, strict=True))
        ranking = rank_by_value(score_by_document)

        scaled_scores = scale_scores(ranking)
        return [
            ScoredDocument(document.document_id, scaled)
            for document, scaled in zip(ranking, scaled_scores, strict=True)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentScorer:
    """Scores of the documents of one topic by the cross-encoder.

    Attributes:
        client: Client of the cross-encoder.
        settings: Settings of the cross-encoder.
        question: Question that determines how documents are rendered.
        documents: Texts of the documents.
        topic: Topic of the documents.
    """

    client: PoolingClient
    settings: CrossEncoderSettings
    question: Question
    documents: Documents
    topic: Topic

    async def score(self, document_ids: Sequence[str]) -> list[float]:
        """Return the relevance of documents, in the given order; 0 for those that a replay misses.

        Raises:
            EngineError: The server failed.
            PromptError: The query leaves no room for a document.
        """
        requests = await map_in_order(self._build_request, document_ids, self.client.concurrency)
        return await self.client.score(self._query, requests)

    @property
    def _query(self) -> str:
        """Text of the query in its template."""
        query = build_query(self.topic, self.settings.query)
        return self.settings.render_query(sanitize(query))

    async def _build_request(self, document_id: str) -> Request:
        """Build the request to score a document.

        The document is truncated so that the query and the document together fit the model.
        """
        rendered = self.question.render(self.topic, self.documents.get(document_id))
        # The templates of query and document count as well, so they are part of what is measured.
        text = await self.client.fit(
            self._join_with_query,
            sanitize_document(rendered),
            self.topic.id,
            document_id,
        )
        document = self.settings.render_document(text)
        return self.client.wrap(document, self.topic.id, document_id)

    def _join_with_query(self, text: str) -> str:
        """Return the query and a text of a document, each in its template, as the model reads them."""
        return self._query + self.settings.render_document(text)


register(
    RankingStep(
        name="cross_encoder",
        method=CrossEncoderSettings,
        summary="by the scores of a [cross-encoder](../how-to/rerankers.md)",
        requests="N/32, each of 32 pairs",
        reference="monoBERT, arXiv 1901.04085",
        order=70,
    )
)
