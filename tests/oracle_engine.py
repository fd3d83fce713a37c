"""An engine that answers from known grades with set faults, to measure methods of ranking, never a language model."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from tests.prompt_variants import load_prompt
from tests.scripted_engine import FACTS, Label, ScriptedEngine
from touche_llm.data.records import Candidate, Comparison, Document, Failure, Judgment, Topic
from touche_llm.judging.judgments import judge
from touche_llm.judging.requests import RequestBuilder, TopicDocument
from touche_llm.llm.answer_schema import list_fields
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.model import ModelClient
from touche_llm.llm.request import Request, Sampling
from touche_llm.llm.settings import SamplingConfig
from touche_llm.prompts.prompt import Prompt
from touche_llm.prompts.purposes import list_template_variables
from touche_llm.ranking.steps import RankingSettings, list_comparison_kinds, parse_steps
from touche_llm.ranking.topics import RankingPlan, rank_topics
from touche_llm.tasks import get_task

# By topic and document, from 0 to 3.
Grades = Mapping[str, Mapping[str, float]]
# Of the answers' probabilities: a grade more makes a document e^2 times as probable.
TEMPERATURE = 0.5
_TASK = get_task("comparative")
_CONCURRENCY = 4


class OracleEngine(ScriptedEngine):
    """Answers as a reader would who knows the grades, but misreads documents and prefers those at the top.

    In each question each document is misread with probability `error_rate`, independently: its
    grade is taken for another one of its topic's grades, each as likely. What is misread depends on
    seed, topic, kind of question and the documents in the order shown alone, so that a repeated
    request has the same answer; in another order it is another question. A question about one
    document is thus answered wrongly at this very rate, one about more of them more or less often,
    as their grades are.

    Where several documents are shown, the first one's grade is raised by `position_bias`, that of
    the last by nothing, those between in proportion to their place. Then
    - `best`: a label's probability is proportional to exp(grade / TEMPERATURE); equal grades share
      it, and the one shown first is written;
    - `order`: by descending grade, equal ones as they are shown;
    - grades (fields of integers): the two integers around the grade, with the probabilities that
    have it as mean;
    - any other field: the last label of its enumeration, which says nothing.
    """

    def __init__(
        self, grades: Grades, error_rate: float = 0.0, position_bias: float = 0.0, seed: int = 0
    ) -> None:
        super().__init__(self._answer)
        self.grades, self.error_rate, self.position_bias, self.seed = (
            grades,
            error_rate,
            position_bias,
            seed,
        )
        self._levels = {topic: sorted(set(known.values())) for topic, known in grades.items()}

    def _answer(self, request: Request) -> Mapping[str, Label | Mapping[Label, float]]:
        fields: Mapping[str, Any] = list_fields(request.schema)
        seen = self._seen(
            request.origin.topic_id, str(request.origin.document_id).split(" "), " ".join(fields)
        )
        if "best" in fields:
            weights = [math.exp((each - max(seen)) / TEMPERATURE) for each in seen]
            total = sum(weights)
            shares: Mapping[Label, float] = {
                label: weight / total
                for label, weight in zip(ascii_uppercase, weights, strict=False)
            }
            return {"best": shares}
        if "order" in fields:
            places = sorted(range(len(seen)), key=lambda place: -seen[place])
            return {"order": " > ".join(ascii_uppercase[place] for place in places)}
        return {name: _label(fields[name]["enum"], seen[0]) for name in fields}

    def _seen(self, topic: str, documents: list[str], kind: str) -> list[float]:
        """What each document shown is taken for."""
        chance = random.Random(" ".join([str(self.seed), topic, kind, *documents]))
        last = max(len(documents) - 1, 1)
        seen = []
        for place, document in enumerate(documents):
            grade = self.grades[topic][document]
            others = [each for each in self._levels[topic] if each != grade]
            # Both numbers are drawn whatever comes of them: a higher rate misreads the same
            # documents and more.
            misread, other = chance.random() < self.error_rate, chance.random()
            if misread and others:
                grade = others[int(other * len(others))]
            seen.append(
                grade + (self.position_bias * (1.0 - place / last) if len(documents) > 1 else 0.0)
            )
        return seen


def _label(labels: Sequence[Label], grade: float) -> Label | Mapping[Label, float]:
    if not isinstance(labels[0], int):
        return labels[-1]
    below = math.floor(grade)
    return {below: 1.0 - (grade - below), below + 1: grade - below} if grade > below else below


Judgments = Mapping[str, Mapping[str, Judgment]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The documents of each topic, best first, the number of requests, comparisons and failures."""

    rankings: dict[str, list[str]]
    requests: int
    comparisons: list[Comparison]
    failures: list[Failure]


async def judge_with(engine: OracleEngine, rankings: Mapping[str, Sequence[str]]) -> Judgments:
    """The judgments of all documents; see `rank_with`."""
    judgments: dict[str, dict[str, Judgment]] = {topic: {} for topic in rankings}
    work = [
        TopicDocument(topic, document)
        for topic in _topics(rankings)
        for document in rankings[topic.id]
    ]
    with _builder(engine) as builder:
        outcomes = await judge(
            work, _Texts(), _TASK.question, _prompt("judge"), builder, lambda: None
        )
    assert not outcomes.failures
    for each in outcomes.results:
        judgments[each.topic_id][each.document_id] = each
    return judgments


async def rank_with(
    engine: OracleEngine,
    rankings: Mapping[str, Sequence[str]],
    steps: str,
    settings: Mapping[str, Any] | None = None,
    judgments: Judgments | None = None,
) -> Outcome:
    """Rank as a run does, with the task's own prompts and no cache.

    Args:
        engine: answers.
        rankings: for each topic the documents as the first stage has them, best first; a document's
            text is its id.
        steps: as for `--rank`.
        settings: those of `ranking` in a configuration.
        judgments: where the first step is `judge`.
    """
    parsed, before = parse_steps(steps.split(",")), len(engine.requests)
    candidates = {
        topic: [
            Candidate(topic, document, rank, float(-rank))
            for rank, document in enumerate(ranking, start=1)
        ]
        for topic, ranking in rankings.items()
    }
    with _builder(engine) as builder:
        ranked = await rank_topics(
            _topics(rankings),
            candidates,
            judgments or {},
            {topic: dict.fromkeys(ranking, "NO") for topic, ranking in rankings.items()},
            RankingPlan(
                _TASK,
                _TASK.objectives["relevance"],
                parsed,
                RankingSettings.model_validate(settings or {}),
                objective="relevance",
                documents=_Texts(),
                prompts={kind: _prompt(kind) for kind in list_comparison_kinds(parsed)},
                builder=builder,
            ),
            lambda: None,
        )
    found: dict[str, list[str]] = {topic: [] for topic in rankings}
    for line in ranked.lines:
        found[line.topic_id].append(line.document_id)
    requests = len(engine.requests) - before
    return Outcome(found, requests, ranked.comparisons, ranked.failures)


def _topics(ids: Iterable[str]) -> list[Topic]:
    return [Topic(each, f"Question {each}", objects=("this", "that")) for each in ids]


@contextmanager
def _builder(engine: OracleEngine) -> Iterator[RequestBuilder]:
    with Cache(Path("none.sqlite"), CacheMode.OFF) as off:
        yield RequestBuilder(
            ModelClient(engine_info=FACTS, engine=engine, cache=off, sampling=SamplingConfig()),
            Sampling(),
            {},
            _CONCURRENCY,
        )


class _Texts:
    """Documents whose text is their id."""

    def get(self, document_id: str) -> Document:
        return Document(document_id, document_id)

    def find_unknown(self, document_ids: Iterable[str]) -> list[str]:
        return []


@cache
def _prompt(name: str) -> Prompt:
    question = _TASK.question
    variables = (
        question.template_variables if name == "judge" else list_template_variables(question)
    )
    return load_prompt(_TASK, name, name, variables)


def ndcg(ranking: Sequence[str], grades: Mapping[str, float], depth: int = 5) -> float:
    """nDCG as trec_eval has it: gain = grade, discount = log2(rank + 1).

    0 where no document has a grade above 0.
    """

    def dcg(gains: Iterable[float]) -> float:
        return sum(
            gain / math.log2(rank + 1)
            for rank, gain in zip(range(1, depth + 1), gains, strict=False)
        )

    best = dcg(sorted(grades.values(), reverse=True))
    return dcg(grades[each] for each in ranking) / best if best else 0.0


def mean_ndcg(rankings: Mapping[str, Sequence[str]], grades: Grades) -> float:
    """The mean over the topics."""
    return sum(ndcg(ranking, grades[topic]) for topic, ranking in rankings.items()) / len(rankings)
