"""The nouns that pass from stage to stage; all frozen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from touche_llm.data.json_records import JsonStruct


@dataclass(frozen=True, slots=True)
class Topic:
    """An information need. `objects` are the two things compared, or None where a topic names none."""

    id: str
    title: str
    description: str = ""
    narrative: str = ""
    objects: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a document that is retrieved by itself: a sentence of an argument."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Document:
    """A unit of retrieval: a passage, a web page, an argument, a sentence, a pair; its texts are untrusted.

    `title` is an argument's conclusion, `side` the argument's stance on it (PRO or CON), `parts` are its sentences. A
    sentence has title and side of its argument. Other documents have none of them.
    """

    id: str
    text: str
    title: str = ""
    side: str = ""
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class LabelledDocument:
    """A document in a prompt that shows several: `Passage {{ each.label }}: {{ each.text }}`."""

    label: str
    text: str


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """A document that the first stage proposes for a topic; ranks start at 1."""

    topic_id: str
    document_id: str
    rank: int
    score: float


class ScoredDocument(msgspec.Struct, frozen=True, gc=False):
    """A document of a ranking with its score; a ranking is a list of them, best first."""

    document_id: str
    score: float


class RunLine(msgspec.Struct, frozen=True, gc=False):
    """One line of a run: `qid stance doc rank score tag`."""

    topic_id: str
    stance: str
    document_id: str
    rank: int
    score: float
    tag: str


HIGHEST_GRADE = 3
# A grade or the mean of grades.
Grade = Annotated[float, msgspec.Meta(ge=0.0, le=HIGHEST_GRADE)]


class Reading(JsonStruct, frozen=True, kw_only=True):
    """What one field of an answer says.

    `answered` is the label that was written. `probabilities` are those of all labels of the field, renormalised to
    sum to 1, or None when the engine sent no log-probabilities. `outside` is the share that was on no label before
    renormalising; `shared` the share on tokens that begin several labels and were not followed (split evenly).
    """

    answered: int | str
    probabilities: dict[str, float] | None = None
    outside: float | None = None
    shared: float | None = None

    @property
    def shares(self) -> dict[str, float]:
        """The probabilities of the labels, or certainty for the answered one where there are none."""
        return self.probabilities or {str(self.answered): 1.0}


class Cut(JsonStruct, frozen=True, kw_only=True):
    """A document of which the model saw a part: how much, in characters and in prompt tokens (0 where not counted).

    `parts` are the spans of the document's characters that it saw, or None where it saw the first `kept_chars`.
    `only_boilerplate` says that no line of a web page looked like content, so that none was left out for its looks.
    """

    kept_chars: int
    of_chars: int
    prompt_tokens: int
    parts: list[tuple[int, int]] | None = None
    only_boilerplate: bool = False


class Judgment(JsonStruct, frozen=True, kw_only=True):
    """What the model says of one document for one topic.

    `grades` (relevance, quality, and for pairs coherence) are expected grades where `source` is "probabilities", the
    answered grades where it is "value"; `stance` is the most probable label. A pair that was not asked about, or whose
    answer could not be used, has the mean grades and the side of its sentences, and `source` is "inherited". `prompt`
    is the prompt that was asked with, `key` the answer's key in the cache.
    """

    topic_id: str
    document_id: str
    grades: dict[str, Grade]
    stance: str
    readings: dict[str, Reading] = {}
    source: Literal["probabilities", "value", "inherited"]
    cut: Cut | None = None
    prompt: str
    key: str | None = None
    sample: int = 0


class Comparison(JsonStruct, frozen=True, kw_only=True):
    """What the model says of several documents of a topic, for a step of the ranking.

    `documents` are in the order shown, labelled A, B, …; `best` reads which of them is the best, or `order` is the
    order answered, best first. `cut` holds the documents of which the model saw a part.
    """

    topic_id: str
    step: str
    documents: list[str]
    best: Reading | None = None
    order: list[str] | None = None
    cut: dict[str, Cut] = {}
    prompt: str
    key: str
    sample: int = 0


class Objects(JsonStruct, frozen=True, kw_only=True):
    """The two objects that the model found in the title of a topic that names none; `prompt` is what it was asked with.

    Files of older runs do not name it.
    """

    topic_id: str
    objects: tuple[str, str]
    prompt: str = ""


class Queries(JsonStruct, frozen=True, kw_only=True):
    """The queries that the model found for a topic beside its own; `key` is the answer's key in the cache."""

    topic_id: str
    queries: tuple[str, ...]
    prompt: str
    key: str


class StanceReading(JsonStruct, frozen=True, kw_only=True):
    """What the stance prompt says of one document for one topic.

    `probabilities` are those of the task's labels, the mean over the `orders` asked (1, or 2 where the objects were
    named in both orders too); 0 and 1 where `source` is "value", since the engine sent none. `prompt` is what was asked
    with, `keys` are those of the answers in the cache.
    """

    topic_id: str
    document_id: str
    probabilities: dict[str, Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]]
    source: Literal["probabilities", "value"] = "probabilities"
    orders: Annotated[int, msgspec.Meta(ge=1)]
    prompt: str
    keys: list[str]


class Attempt(JsonStruct, frozen=True, kw_only=True):
    """One answer that could not be used: `kind` names why, `text` is what came back (shortened)."""

    sample: int
    kind: str
    reason: str
    text: str = ""


class Failure(JsonStruct, frozen=True, kw_only=True):
    """A request that gave no usable answer.

    `document_id` is None for a request about the topic alone; of several documents, it holds their ids, parted by
    spaces.
    """

    topic_id: str
    document_id: str | None
    kind: str
    prompt: str
    attempts: list[Attempt]
