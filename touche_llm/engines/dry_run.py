"""Engine of a dry run: answers without a model, and estimates of what a model would process."""

from __future__ import annotations

import hashlib
import string
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from touche_llm.engines.label_tokens import make_label_token
from touche_llm.engines.token_estimates import (
    EstimatingTokenizer,
    count_shared,
    estimate_tokens,
    join_contents,
)
from touche_llm.llm.answer import Token
from touche_llm.llm.answer_schema import AnswerForm, Label, Layout, list_fields
from touche_llm.llm.protocol import Completion, Counter
from touche_llm.llm.request import Request

# As many characters as a token, so that a thought is as long as possible: the next prompt repeats
# it.
_THOUGHT_TOKEN = "hm, "
# Bytes of a SHA-256.
_SEED_BYTES = 32


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
        self._last_prompts: dict[str, str] = {}
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
        """Return falling scores, all below those of the requests before."""
        pairs = [query + document for document in documents]
        self._count(f"{self._task}/cross_encoder", "".join(pairs))

        first = self._scored_documents
        self._scored_documents += len(documents)
        return [float(-place) for place in range(first, self._scored_documents)]

    def _count_chat(self, request: Request) -> None:
        """Add the usage of a chat request to that of its prompt."""
        prompt = request.origin.prompt
        text = join_contents(request.messages)
        last_text = self._last_prompts.get(prompt, "")
        self._last_prompts[prompt] = text

        usage = self._count(prompt, text)
        usage.topics.add(request.origin.topic_id)
        usage.completion_tokens += request.sampling.max_tokens
        usage.shared_tokens += estimate_tokens(text[: count_shared(last_text, text)])

    def _count(self, name: str, text: str) -> Usage:
        """Count a request with this text, and return the usage under this name."""
        usage = self.usage.setdefault(name, Usage())
        usage.requests += 1
        usage.prompt_tokens += estimate_tokens(text)
        return usage


def _make_vector(text: str, dimensions: int) -> bytes:
    """Return a vector, as little-endian float32, whose values depend on the text alone."""
    seed = hashlib.sha256(text.encode()).digest()
    values = [seed[place % _SEED_BYTES] - 127.5 for place in range(dimensions)]
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
        layout = request.layout
        tokens: list[Token] = []
        if layout.form is AnswerForm.TEXT:
            text = _THOUGHT_TOKEN * request.sampling.max_tokens
        else:
            labels = self._choose_labels(request)
            text = layout.spell({name: probable[0] for name, probable in labels.items()})
            if request.sampling.top_logprobs:
                tokens = _make_tokens(text, labels, layout)
        return Completion(
            text=text,
            finish_reason="stop",
            prompt_tokens=estimate_tokens(join_contents(request.messages)),
            completion_tokens=estimate_tokens(text),
            tokens=tokens,
        )

    def _choose_labels(self, request: Request) -> dict[str, Sequence[Label]]:
        """Return the probable labels of each field, that of the text first."""
        fields = list_fields(request.schema)
        documents = (request.origin.document_id or "").split()
        if not documents and list(fields) == ["first", "second"]:
            return _choose_objects(fields["first"]["enum"], fields["second"]["enum"])

        answer: dict[str, Sequence[Label]] = {}
        for name, schema in fields.items():
            if "pattern" in schema:
                answer[name] = [_make_text(name, len(documents))]
            elif len(documents) > 1:
                best = self._choose_best(request.origin.topic_id, documents)
                answer[name] = [schema["enum"][documents.index(best)]]
            else:
                answer[name] = schema["enum"]
        return answer

    def _choose_best(self, topic_id: str, documents: Sequence[str]) -> str:
        """Return the best of documents: the first, or that of the same ones before."""
        return self._best.setdefault((topic_id, frozenset(documents)), documents[0])


def _choose_objects(firsts: Sequence[str], seconds: Sequence[str]) -> dict[str, Sequence[Label]]:
    """Return two objects: the first label, and the last one that shares no word with it, if any."""
    first = firsts[0]
    words = set(first.casefold().split())
    for second in reversed(seconds):
        if words.isdisjoint(second.casefold().split()):
            return {"first": [first], "second": [second]}
    return {"first": [first], "second": [seconds[-1]]}


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
    """Return the probability of each label by how it is written."""
    weights: dict[str, float] = {}
    for place, label in enumerate(labels):
        is_first_word = place == 0 and isinstance(label, str)
        weights[layout.spell_value(label)] = 2.0 if is_first_word else 1.0

    total = sum(weights.values())
    return {label: weight / total for label, weight in weights.items()}
