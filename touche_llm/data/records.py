"""Records, and how they are stored as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, Protocol, Self, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import PydanticSerializationError

from touche_llm.errors import DataError, describe_first_problem

# Label of a field of an answer, as its schema lists it: a grade, or a word.
Label = int | str
ValueT = TypeVar("ValueT")


class Malformed(ValueError):
    """Text that is not JSON or not of the expected form; the message has at most 400 characters."""

    def __init__(self, problem: str) -> None:
        # Names from the text may have any length, and the location comes last: cut the middle.
        if len(problem) > 400:
            problem = f"{problem[:200]} … {problem[-197:]}"
        super().__init__(problem)


class JsonRecord(Protocol):
    """Record that is stored as a line of JSON, of pydantic or of msgspec."""

    @classmethod
    def from_json(cls, content: bytes | str) -> Self:
        """Parse a record.

        Raises:
            Malformed: The content is no JSON of this form.
        """

    def to_json(self) -> bytes:
        """Return the record as one line, without line feed."""


class Model(BaseModel):
    """Base of records that pydantic validates, also when the program creates them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def from_json(cls, content: bytes | str) -> Self:
        """Parse a record.

        Raises:
            Malformed: The content is no JSON of this form.
        """
        try:
            return cls.model_validate_json(content)
        except ValidationError as error:
            raise Malformed(describe_first_problem(error)) from error

    def to_json(self) -> bytes:
        """Return the record as one line, without line feed.

        Raises:
            DataError: A path is not UTF-8.
        """
        try:
            return self.model_dump_json().encode()
        except PydanticSerializationError as error:
            raise DataError(f"{error!s:.200}; rename the file or folder") from error


class JsonStruct(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Base of records that msgspec validates only when they are parsed.

    `gc=False`: the records are trees of strings and numbers, so there are no cycles to collect.
    """

    @classmethod
    def from_json(cls, content: bytes | str) -> Self:
        """Parse a record.

        Raises:
            Malformed: The content is no JSON of this form.
        """
        return decode_json(content, cls)

    def to_json(self) -> bytes:
        """Return the record as one line, without line feed."""
        return _ENCODER.encode(self)


_ENCODER = msgspec.json.Encoder()
# A number of tokens or characters. Some JSON parsers round larger integers.
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]


def decode_json(content: bytes | str | msgspec.Raw, form: type[ValueT]) -> ValueT:
    """Decode JSON as a value of a type.

    Args:
        content: JSON.
        form: Type of the value, as msgspec knows it.

    Raises:
        Malformed: The content is no JSON of this type.
    """
    try:
        return msgspec.json.decode(content, type=form)
    # msgspec raises the last two for text that is not UTF-8 and for deep nesting.
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise Malformed(str(error)) from error


def convert_plain(value: object, form: type[ValueT]) -> ValueT:
    """Convert a value of plain types, as a YAML file has it, to a type.

    Args:
        value: Value to convert.
        form: Type to convert to, as msgspec knows it.

    Raises:
        Malformed: The value is not of this form.
    """
    try:
        return msgspec.convert(value, form)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Malformed(str(error)) from error


@dataclass(frozen=True, slots=True)
class Topic:
    """Information need.

    Attributes:
        objects: The two things that are compared; None if the topic names none.
    """

    id: str
    title: str
    description: str = ""
    narrative: str = ""
    objects: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """Part of a document that is retrieved by itself: a sentence of an argument."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Document:
    """Passage, web page, argument, sentence or sentence pair; all texts are untrusted.

    Attributes:
        title: Conclusion of an argument, also for its sentences; empty for other documents.
        side: Stance of the argument on its conclusion (PRO or CON), also for its sentences.
        parts: Sentences of an argument.
    """

    id: str
    text: str
    title: str = ""
    side: str = ""
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class LabelledDocument:
    """Document in a prompt with several documents: `Passage {{ each.label }}: {{ each.text }}`."""

    label: str
    text: str


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """Document retrieved for a topic by the first stage; ranks start at 1."""

    topic_id: str
    document_id: str
    rank: int
    score: float


class ScoredDocument(msgspec.Struct, frozen=True, gc=False):
    """Document with its score; a ranking is a list of them, best first."""

    document_id: str
    score: float


class RunLine(msgspec.Struct, frozen=True, gc=False):
    """Line of a run: `qid stance doc rank score tag`; the stance is `Q0` if the task has none."""

    topic_id: str
    stance: str
    document_id: str
    rank: int
    score: float
    tag: str


# Highest grade of any scale; a task has a scale for each aspect.
HIGHEST_GRADE = 10
# A grade or the mean of grades.
Grade = Annotated[float, msgspec.Meta(ge=0.0, le=HIGHEST_GRADE)]


class Reading(JsonStruct, frozen=True, kw_only=True):
    """Reading of one field of an answer.

    Attributes:
        answered: Label in the text of the answer.
        probabilities: By label, renormalised to sum to 1; None if the engine sent no logprobs.
        off_label_mass: Probability mass outside all labels, before renormalising.
        shared: Probability mass of tokens that begin several labels and were not followed; it is
            split evenly.
    """

    answered: Label
    probabilities: dict[str, float] | None = None
    # Named in files as in the rows of `prompts try` and `prompts compare`.
    off_label_mass: float | None = msgspec.field(default=None, name="outside")
    shared: float | None = None

    @property
    def label(self) -> str:
        """Label in the text of the answer, as `probabilities` names it."""
        return str(self.answered)

    @property
    def is_grade(self) -> bool:
        """Whether the labels are grades."""
        return isinstance(self.answered, int)

    @property
    def shares(self) -> dict[str, float]:
        """Probabilities of the labels; without logprobs, 1 for the label in the text."""
        return self.probabilities or {self.label: 1.0}


class Cut(JsonStruct, frozen=True, kw_only=True):
    """Truncation of a document: the part of it that the model saw.

    Attributes:
        kept_chars: Characters that the model saw.
        of_chars: Characters of the document.
        prompt_tokens: Tokens of the prompt; 0 if not counted.
        parts: Spans of the document that the model saw; None for the first `kept_chars` characters.
        only_boilerplate: No line of a web page was recognised as content, so none was removed as
            boilerplate.
    """

    kept_chars: int
    of_chars: int
    prompt_tokens: int
    parts: list[tuple[int, int]] | None = None
    only_boilerplate: bool = False


class _JudgmentFields(JsonStruct, frozen=True, kw_only=True):
    """Fields of a judgment that have the same form in memory and in files."""

    topic_id: str
    document_id: str
    grades: dict[str, Grade]
    stance: str
    readings: dict[str, Reading] = {}
    source: Literal["probabilities", "value", "inherited"]
    cut: Cut | None = None
    prompt: str


class Judgment(_JudgmentFields, frozen=True, kw_only=True):
    """Judgment of one document for one topic.

    Attributes:
        prompt: Prompt of the request.
        grades: Relevance, quality and, for pairs, coherence: expected grades if `source` is
            "probabilities", the grades in the answer if it is "value".
        stance: Most probable label; `Q0` if the task has none.
        source: "inherited" for a pair that was not judged or whose answer is unusable: it has the
            mean grades and the side of its sentences.
        cut: Truncation of the document, if any; the shortest of several.
        answer_keys: Keys of the answers in the cache: one, or one for each field of a prompt that
            requests each by itself; none for an inherited judgment.
        sample: Index of the sample whose answer was usable; the highest of several.
        thought_keys: Keys of the thoughts before the answers; none if the model did not reason.
    """

    answer_keys: list[str] = []
    sample: int = 0
    thought_keys: list[str] = []

    @classmethod
    def from_json(cls, content: bytes | str) -> Self:
        """Parse a line of `judgments.jsonl`.

        Raises:
            Malformed: The content is no judgment.
        """
        line = _JudgmentLine.from_json(content)
        return cls(
            topic_id=line.topic_id,
            document_id=line.document_id,
            grades=line.grades,
            stance=line.stance,
            readings=line.readings,
            source=line.source,
            cut=line.cut,
            prompt=line.prompt,
            answer_keys=line.list_answer_keys(),
            sample=line.sample,
            thought_keys=line.thoughts or [],
        )

    def to_json(self) -> bytes:
        """Return the judgment as a line of `judgments.jsonl`, without line feed."""
        has_one_answer = len(self.answer_keys) == 1
        has_several_answers = len(self.answer_keys) > 1
        line = _JudgmentLine(
            topic_id=self.topic_id,
            document_id=self.document_id,
            grades=self.grades,
            stance=self.stance,
            readings=self.readings,
            source=self.source,
            cut=self.cut,
            prompt=self.prompt,
            key=self.answer_keys[0] if has_one_answer else None,
            keys=self.answer_keys if has_several_answers else msgspec.UNSET,
            sample=self.sample,
            thoughts=self.thought_keys or msgspec.UNSET,
        )
        return line.to_json()


class _JudgmentLine(_JudgmentFields, frozen=True, kw_only=True):
    """Judgment as a line of `judgments.jsonl`.

    Attributes:
        key: Key of the answer; null if there are several, or none.
        keys: Keys of the answers; left out unless there are several.
        thoughts: Keys of the thoughts; left out if there are none.
    """

    key: str | None = None
    keys: list[str] | msgspec.UnsetType = msgspec.UNSET
    sample: int = 0
    thoughts: list[str] | msgspec.UnsetType = msgspec.UNSET

    def list_answer_keys(self) -> list[str]:
        """Return the keys of all answers."""
        if self.keys is not msgspec.UNSET:
            return self.keys
        if self.key is not None:
            return [self.key]
        return []


class Comparison(JsonStruct, frozen=True, kw_only=True):
    """Comparison of several documents of a topic, for a ranking step.

    Attributes:
        cut: Truncated documents.
        documents: In the order of the prompt, labelled A, B, ….
        best: Reading of the label of the best document, or None.
        order: Documents in the order of the answer, best first, or None.
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
    """Two objects that the model extracted from the title of a topic without objects.

    Attributes:
        prompt: Prompt of the request.
    """

    topic_id: str
    objects: tuple[str, str]
    prompt: Annotated[str, msgspec.Meta(min_length=1)]


class Queries(JsonStruct, frozen=True, kw_only=True):
    """Additional queries that the model wrote for a topic.

    Attributes:
        queries: Queries, in the order of the answer.
        prompt: Prompt of the request.
        key: Key of the answer in the cache.
    """

    topic_id: str
    queries: tuple[str, ...]
    prompt: str
    key: str


class StanceReading(JsonStruct, frozen=True, kw_only=True, omit_defaults=True):
    """Stance of one document for one topic, from the stance prompt.

    Attributes:
        prompt: Prompt of the requests.
        answer_keys: Keys of the answers in the cache, one for each order of the objects.
        thought_keys: Keys of the thoughts before them; none if the model did not reason.
        probabilities: By label of the task, the mean over all orders; 0 and 1 if `source` is
            "value".
        source: "value" if the engine sent no logprobs, else "probabilities".
        orders: 2 if the objects were named in both orders, else 1.
    """

    topic_id: str
    document_id: str
    probabilities: dict[str, Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]]
    source: Literal["probabilities", "value"]
    orders: Annotated[int, msgspec.Meta(ge=1)]
    prompt: str
    answer_keys: list[str] = msgspec.field(name="keys")
    thought_keys: list[str] = msgspec.field(default_factory=list, name="thoughts")


class UserLabels(JsonStruct, frozen=True, kw_only=True):
    """Labels of a document by the user of a run.

    Attributes:
        labels: Grades by aspect, and the stance.
        note: Note of the user; empty if there is none.
    """

    topic_id: str
    document_id: str
    labels: dict[str, Label] = {}
    note: str = ""


class Attempt(JsonStruct, frozen=True, kw_only=True):
    """Unusable answer.

    Attributes:
        sample: Index of the sample.
        kind: Kind of the failure.
        reason: Reason, in words.
        text: Beginning of the answer; empty if there was none.
    """

    sample: int
    kind: str
    reason: str
    text: str = ""


class Failure(JsonStruct, frozen=True, kw_only=True):
    """Request without usable answer.

    Attributes:
        document_id: Id of the document, ids of several separated by spaces, or None for a request
            about a topic.
        kind: Kind of the last attempt's failure.
        prompt: Prompt of the request.
        attempts: Attempts to get an answer.
    """

    topic_id: str
    document_id: str | None
    kind: str
    prompt: str
    attempts: list[Attempt]
