"""The nouns that pass from stage to stage; all frozen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


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
    """What a corpus is made of: a passage, a web page, an argument; its texts are untrusted.

    `title` is an argument's conclusion, `side` the argument's stance on it (PRO or CON), `parts` are its sentences; all
    of them empty for other documents.
    """

    id: str
    text: str
    title: str = ""
    side: str = ""
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A document that the first stage proposes for a topic; ranks start at 1."""

    topic_id: str
    document_id: str
    rank: int
    score: float


@dataclass(frozen=True, slots=True)
class RunLine:
    """One line of a run: `qid stance doc rank score tag`."""

    topic_id: str
    stance: str
    document_id: str
    rank: int
    score: float
    tag: str


# A grade or the mean of grades.
Grade = Annotated[float, Field(ge=0.0, le=3.0, allow_inf_nan=False)]


class _FileRecord(BaseModel):
    """A record that is also a line of a JSON Lines file."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Reading(_FileRecord):
    """What one field of an answer says.

    `answered` is the label that was written. `probabilities` are those of all labels of the field, renormalised to
    sum to 1, or None when the engine sent no log-probabilities. `outside` is the share that was on no label before
    renormalising; `shared` the share on tokens that begin several labels and were not followed (split evenly).
    """

    answered: int | str
    probabilities: dict[str, float] | None = None
    outside: float | None = None
    shared: float | None = None


class Cut(_FileRecord):
    """A document that did not fit: how much of it the model saw, in characters and in prompt tokens."""

    kept_chars: int
    of_chars: int
    prompt_tokens: int


class Judgment(_FileRecord):
    """What the model says of one document for one topic.

    `relevance` and `quality` are expected grades (0 to 3) where `source` is "probabilities", the answered grades where
    it is "value". `stance` is the most probable label of the task. `key` is the answer's key in the cache.
    """

    topic_id: str
    document_id: str
    relevance: Grade
    quality: Grade
    stance: str
    readings: dict[str, Reading]
    source: str
    cut: Cut | None = None
    prompt: str
    key: str
    sample: int = 0


class Attempt(_FileRecord):
    """One answer that could not be used: `kind` names why, `text` is what came back (shortened)."""

    sample: int
    kind: str
    reason: str
    text: str = ""


class Failure(_FileRecord):
    """A request that gave no usable answer; `document_id` is None for a request about the topic alone."""

    topic_id: str
    document_id: str | None
    kind: str
    prompt: str
    attempts: list[Attempt]
