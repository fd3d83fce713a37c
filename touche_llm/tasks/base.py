"""What a task is: everything in which the shared tasks differ, in one record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, model_validator

from touche_llm.corpus.store import Reader
from touche_llm.llm.answer import AnswerModel
from touche_llm.records import Topic


class Weights(BaseModel):
    """What a document's score is made of; each part lies between 0 and 1 before it is weighted."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    relevance: float = Field(ge=0.0, allow_inf_nan=False)
    quality: float = Field(ge=0.0, allow_inf_nan=False)
    first_stage: float = Field(ge=0.0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _not_all_zero(self) -> Weights:
        if not self.relevance + self.quality + self.first_stage:
            raise ValueError("relevance, quality and first_stage are all 0: nothing is left to rank by")
        return self


@dataclass(frozen=True, slots=True)
class Task:
    """A shared task.

    Attributes:
        name: as the command line spells it; also the folder of its prompts.
        title: for people.
        stances: the labels that a run may carry, in order of declaration.
        unknown_stance: the label that a document without a usable answer gets, counted as imputed.
        most_per_topic: the longest ranking that the organisers take.
        read_topics: reader of the topics file.
        read_corpus: streaming reader of the corpus.
        judge_answer: the answer model that the judge prompt asks for; has `relevance`, `quality` and `stance`.
        objects_answer: for a topic without objects, the answer model that asks for them (`first`, `second`); None
            where topics have no objects.
        weights: default weights of the ranking.
    """

    name: str
    title: str
    stances: tuple[str, ...]
    unknown_stance: str
    most_per_topic: int
    read_topics: Callable[[Path], list[Topic]]
    read_corpus: Reader
    judge_answer: type[AnswerModel]
    objects_answer: Callable[[Topic], type[AnswerModel]] | None
    weights: Weights
