"""Engine of a dry run: answers without a model, and estimates of what a model would process."""

from __future__ import annotations

import hashlib
import string
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from touche_llm.data.records import Label
from touche_llm.engines.label_tokens import make_label_token
from touche_llm.engines.token_estimates import (
    EstimatingTokenizer,
    count_shared,
    estimate_tokens,
    join_contents,
)
from touche_llm.llm.answer import Token
from touche_llm.llm.answer_schema import AnswerForm, Layout, list_fields
from touche_llm.llm.protocol import Completion, Counter
from touche_llm.llm.request import Request

# As many characters as a token, so that a thought is as long as possible: the next prompt repeats
# it.
_THOUGHT_TOKEN = "hm, "
# Bytes of a SHA-256.
_DIGEST_BYTES = 32


@dataclass(slots=True)
class Usage:
    """Estimated usage of the requests of one prompt, without the chat template.

    Attributes:
        completion_tokens: Max tokens that the model writes, including reasoning.
        shared_tokens: Those of `prompt_tokens` that are also the beginning of the prompt before,
            which are about the tokens that a prefix cache can save.
        topics: Ids of the topics of the requests.
    """

    requests: int = 0
    prompt_tokens: int = 0
    shared_tokens: int = 0
    completion_tokens: int = 0
    topics: set[str] = field(default_factory=set, compare=False)


class DryRunEngine:
    """Engine of chats and of pooling models that sends nothing and answers without a model.

    Answers fit the schema and confirm the order of the ranking, as scores do, which fall with each
    document. Vectors depend on the text alone and mean nothing. Tokens are estimated.

    Attributes:
        answered: Keys of the requests with an answer.
        repeated: Number of requests that were answered before.
        usage: Usage by name of the prompt, in order of first use; requests to pooling models are
            under the name of the task and `embeddings` or `cross_encoder`.
    """

    def __init__(self, *, task: str = "", answered: set[str] | None = None) -> None:
        """Initialise the engine.

        Args:
            task: Name of the task, for the usage of pooling models.
            answered: Keys of requests that other engines answered, to which those of this engine
                are added; None if there are no others.
        """
        self.answered = set() if answered is None else answered
        self.repeated = 0
        self.usage: dict[str, Usage] = {}
        self._task = task
        self._answers = SchemaAnswers()
        self._tokenizer = EstimatingTokenizer()
        # Text of the last request, by prompt.
        self._last_texts: dict[str, str] = {}
        self._scored_documents = 0

    @property
    def counter(self) -> Counter:
        """Estimates of tokens."""
        return self._tokenizer

    async def complete(self, request: Request) -> Completion:
        """Return an answer that fits the schema, and count the request unless it is repeated."""
        if request.key in self.answered:
            self.repeated += 1
        else:
            self.answered.add(request.key)
            self._count_chat(request)
        return self._answers.make_completion(request)

    async def embed(self, texts: Sequence[str], dimensions: int | None) -> list[bytes]:
        """Return a vector for each text, of one value if the dimensions are None."""
        self._count(f"{self._task}/embeddings", "".join(texts))
        return [_make_vector(text, dimensions or 1) for text in texts]

    async def score(self, query: str, documents: Sequence[str]) -> list[float]:
        """Return scores that keep the order in which documents are given.

        They fall with each document, also from one request to the next: 0, -1, then -2, -3 and so
        on.
        """
        pairs = [query + document for document in documents]
        self._count(f"{self._task}/cross_encoder", "".join(pairs))

        first = self._scored_documents
        self._scored_documents += len(documents)
        return [float(-number) for number in range(first, self._scored_documents)]

    def _count_chat(self, request: Request) -> None:
        """Add the usage of a chat request to that of its prompt."""
        prompt = request.origin.prompt
        text = join_contents(request.messages)
        usage = self._count(prompt, text)
        usage.topics.add(request.origin.topic_id)
        usage.completion_tokens += request.sampling.max_tokens

        # A prefix cache saves the beginning that a text shares with the last one of its prompt.
        last_text = self._last_texts.get(prompt, "")
        self._last_texts[prompt] = text
        shared_beginning = text[: count_shared(last_text, text)]
        usage.shared_tokens += estimate_tokens(shared_beginning)

    def _count(self, name: str, text: str) -> Usage:
        """Count a request with this text, and return the usage under this name."""
        usage = self.usage.setdefault(name, Usage())
        usage.requests += 1
        usage.prompt_tokens += estimate_tokens(text)
        return usage


def _make_vector(text: str, dimensions: int) -> bytes:
    """Return a vector, as little-endian float32, whose values depend on the text alone."""
    digest = hashlib.sha256(text.encode()).digest()
    values: list[float] = []
    for dimension in range(dimensions):
        byte = digest[dimension % _DIGEST_BYTES]
        values.append(byte - 127.5)
    return struct.pack(f"<{dimensions}f", *values)


class SchemaAnswers:
    """Answers made from the schema of a request alone.

    For one document, or a topic alone, all grades are equally probable, and the first of several
    words is twice as probable as the others, since sentences without a side would form no pairs.
    Among several documents, the one shown first is certainly the best, also if they are shown again
    in another order: answers confirm the ranking. The text of the answer has the first label; a
    free text is made of the field's name.
    """

    def __init__(self) -> None:
        # Best documents by topic and documents compared.
        self._best: dict[tuple[str, frozenset[str]], str] = {}

    def make_completion(self, request: Request) -> Completion:
        """Return a completion that fits the schema of a request."""
        if request.layout.form is AnswerForm.TEXT:
            return _make_completion(request, _THOUGHT_TOKEN * request.sampling.max_tokens, [])

        labels = self._choose_labels(request)
        first_labels = {name: probable[0] for name, probable in labels.items()}
        text = request.layout.spell(first_labels)
        tokens: list[Token] = []
        if request.sampling.top_logprobs:
            tokens = _make_tokens(text, labels, request.layout)
        return _make_completion(request, text, tokens)

    def _choose_labels(self, request: Request) -> dict[str, Sequence[Label]]:
        """Return the probable labels of each field of an answer, the label of the text first."""
        fields = list_fields(request.schema)
        # Ids of all documents of the prompt, separated by spaces.
        documents = (request.origin.document_id or "").split()
        requests_objects = not documents and list(fields) == ["first", "second"]
        if requests_objects:
            return _choose_objects(fields["first"]["enum"], fields["second"]["enum"])

        topic_id = request.origin.topic_id
        labels: dict[str, Sequence[Label]] = {}
        for name, schema in fields.items():
            if "pattern" in schema:
                labels[name] = [_make_text(name, len(documents))]
            else:
                labels[name] = self._choose_from(schema["enum"], topic_id, documents)
        return labels

    def _choose_from(
        self, labels: Sequence[Label], topic_id: str, documents: Sequence[str]
    ) -> Sequence[Label]:
        """Return the probable labels of a field: the best of several documents, or else all labels.

        Args:
            labels: Labels of the field. With several documents, each label stands for one.
            topic_id: Id of the topic.
            documents: Ids of the documents in the prompt.
        """
        is_comparison = len(documents) > 1
        if not is_comparison:
            return labels
        best_place = self._find_best(topic_id, documents)
        return [labels[best_place]]

    def _find_best(self, topic_id: str, documents: Sequence[str]) -> int:
        """Return the place, from 0, of the best document: the first one when they were new."""
        key = (topic_id, frozenset(documents))
        best = self._best.setdefault(key, documents[0])
        return documents.index(best)


def _make_completion(request: Request, text: str, tokens: list[Token]) -> Completion:
    """Return a completion with this text and these tokens, and estimates of its numbers of tokens."""
    return Completion(
        text=text,
        finish_reason="stop",
        prompt_tokens=estimate_tokens(join_contents(request.messages)),
        completion_tokens=estimate_tokens(text),
        tokens=tokens,
    )


def _choose_objects(firsts: Sequence[str], seconds: Sequence[str]) -> dict[str, Sequence[Label]]:
    """Return an answer with the two objects that a topic compares, as different as possible.

    The first object is the first label. The second object is the last label that shares no word
    with it, or simply the last label if all of them share one.

    Args:
        firsts: Labels of the field `first`, spans of the topic's title.
        seconds: Labels of the field `second`.
    """
    first = firsts[0]
    first_words = set(first.casefold().split())
    different_labels: list[str] = []
    for label in seconds:
        if first_words.isdisjoint(label.casefold().split()):
            different_labels.append(label)

    second = different_labels[-1] if different_labels else seconds[-1]
    return {"first": [first], "second": [second]}


def _make_text(field_name: str, document_count: int) -> str:
    """Return the value of a field with a pattern: an order of documents, or words."""
    if field_name == "order":
        return " > ".join(string.ascii_uppercase[:document_count])
    return field_name.replace("_", "")


def _make_tokens(text: str, labels: Mapping[str, Sequence[Label]], layout: Layout) -> list[Token]:
    """Return the token of each field's value in the text of an answer.

    Args:
        text: Text of the answer.
        labels: Probable labels of each field, that of the text first.
        layout: Layout of the answer.
    """
    tokens: list[Token] = []
    for name, span in layout.find_values(text).items():
        shares = _estimate_shares(labels[name], layout)
        tokens.append(make_label_token(text, span, shares))
    return tokens


def _estimate_shares(labels: Sequence[Label], layout: Layout) -> dict[str, float]:
    """Return the probability of each label, by how the label is written.

    Grades are equally probable. Of labels that are words, the first is twice as probable as each of
    the others: PRO 0.5, CON 0.25, NEUTRAL 0.25.
    """
    weights: dict[str, float] = {}
    for label in labels:
        weights[layout.spell_value(label)] = 1.0

    first_label = labels[0]
    if isinstance(first_label, str):
        weights[layout.spell_value(first_label)] = 2.0

    total = sum(weights.values())
    return {spelling: weight / total for spelling, weight in weights.items()}
