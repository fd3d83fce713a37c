"""Judging of sentence pairs: sentences first, then pairs of the best sentences."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from touche_llm.corpus.store import Parts
from touche_llm.data.records import Candidate, Failure, Judgment, Topic
from touche_llm.judging.labels import combine_grades
from touche_llm.judging.pointwise import RequestBuilder, judge
from touche_llm.judging.sentence_pairs import (
    PairDocuments,
    Pairs,
    PairSettings,
    inherit_judgment,
    make_pairs,
    reverse_pair,
    select_sentences,
)
from touche_llm.pipeline.candidates import Candidates
from touche_llm.prompts.prompt import Prompt
from touche_llm.tasks.task import Task

Stage = Callable[[str, int], AbstractContextManager[Callable[[], None]]]
# By topic id and document id; empty for other topics.
JudgmentsByTopic = defaultdict[str, dict[str, Judgment]]


def group_judgments(judgments: Iterable[Judgment]) -> JudgmentsByTopic:
    """Return judgments by topic id and document id."""
    found: JudgmentsByTopic = defaultdict(dict)
    for judgment in judgments:
        found[judgment.topic_id][judgment.document_id] = judgment
    return found


@dataclass(slots=True)
class JudgedPairs:
    """Pairs with their judgments, judged sentences, failures and counts.

    Attributes:
        candidates: Pairs of each topic, in the order of the topics.
        judgments: Judgments of the pairs, both orders of a pair included.
        sentences: Judgments of the sentences.
        failures: Failures of sentences and of pairs.
        reversed_better: Number of pairs whose reversed order was graded better.
        largest_share: Largest share of a topic's pairs that contain the same sentence.
        largest_share_judged: The same among the pairs that were judged.
        too_few: Number of pairs of each topic that has fewer than the task wants.
    """

    candidates: list[list[Candidate]] = field(default_factory=list)
    judgments: list[Judgment] = field(default_factory=list)
    sentences: list[Judgment] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    reversed_better: int = 0
    largest_share: float = 0.0
    largest_share_judged: float = 0.0
    too_few: dict[str, int] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """Return the counts for the metadata."""
        made = sum(map(len, self.candidates))
        inherited = sum(judgment.source == "inherited" for judgment in self.judgments)
        return {
            "sentences judged": len(self.sentences),
            "pairs": made,
            "pairs judged by the model": made - inherited,
            "pairs with inherited grades": inherited,
            "pairs that read better the other way round": self.reversed_better,
            "largest share of a topic's pairs with one sentence": round(self.largest_share, 4),
            "largest share of those judged": round(self.largest_share_judged, 4),
            "topics with too few pairs": self.too_few,
        }


@dataclass(frozen=True, slots=True)
class PairJudge:
    """Judge of sentences and of the pairs made of them.

    Attributes:
        candidates: Sentences of a task with a `sentence_question`.
        settings: Settings of the pairs.
        parts: Texts of the sentences.
        prompts: Prompts by purpose: sentence, and judge for pairs.
        builder: Builds the requests.
        stage: Shows a stage by its title and number of steps.
    """

    candidates: Candidates
    settings: PairSettings
    parts: Parts
    prompts: Mapping[str, Prompt]
    builder: RequestBuilder
    stage: Stage

    @property
    def task(self) -> Task:
        """Task of the candidates."""
        return self.candidates.task

    async def judge(self, topics: list[Topic]) -> JudgedPairs:
        """Judge sentences of these topics, make pairs of them, and judge the best pairs.

        The best judged pairs are judged in the reversed order too; the order with the better grades is ranked, and both
        judgments are kept.

        Raises:
            ReplayMiss: The cache of a replay lacks an answer.
        """
        result = JudgedPairs()
        pairs = await self._judge_sentences(topics, result)
        made = {topic.id: pairs[topic.id].candidates if topic.id in pairs else [] for topic in topics}
        sentences = group_judgments(result.sentences)
        work = [(topic, pair.document_id) for topic in topics for pair in made[topic.id][: self.settings.judged]]
        judged = group_judgments(await self._judge_work("judging pairs", work, result))
        reversed_ = await self._judge_reversed(topics, judged, result)
        for topic in topics:
            ranking = []
            for pair in made[topic.id]:
                judgment = judged[topic.id].get(pair.document_id)
                judgment = judgment or inherit_judgment(pair, sentences[topic.id], self.settings)
                result.judgments.append(judgment)
                other = reversed_[topic.id].get(reverse_pair(pair.document_id))
                if other is not None:
                    result.judgments.append(other)
                    if self._grade(other) > self._grade(judgment):
                        result.reversed_better += 1
                        judgment = other
                ranking.append(msgspec.structs.replace(pair, document_id=judgment.document_id))
            result.candidates.append(ranking)
            if len(ranking) < self._min_pairs:
                result.too_few[topic.id] = len(ranking)
        result.largest_share = max((topic_pairs.share for topic_pairs in pairs.values()), default=0.0)
        result.largest_share_judged = max((topic_pairs.share_judged for topic_pairs in pairs.values()), default=0.0)
        return result

    @property
    def _min_pairs(self) -> int:
        return min(self.task.documents_per_topic.min, self.settings.most)

    async def _judge_sentences(self, topics: list[Topic], result: JudgedPairs) -> dict[str, Pairs]:
        """Judge sentences and make pairs of them, by topic.

        The first `depth` sentences of each topic are judged, then as many more of the topics with too few pairs, until
        they have enough or no sentence is left.
        """
        question = self.task.sentence_question
        assert question is not None
        rankings, depth = self.candidates.rankings, self.candidates.depth
        pairs: dict[str, Pairs] = {}
        lacking, start = topics, 0
        while lacking:
            work = [
                (topic, sentence.document_id)
                for topic in lacking
                for sentence in rankings.get(topic.id, [])[start : start + depth]
            ]
            if not work:
                break
            with self.stage("judging sentences", len(work)) as done:
                prompt = self.prompts["sentence"]
                judgments, failures = await judge(work, self.parts, question, prompt, self.builder, done)
            result.failures += failures
            result.sentences += judgments
            judged = group_judgments(result.sentences)
            start += depth
            for topic in lacking:
                sentences = select_sentences(
                    rankings.get(topic.id, [])[:start],
                    judged[topic.id],
                    self.parts.locate,
                    self.settings,
                    self.task.objectives["both"],
                    self.task.aspects,
                )
                pairs[topic.id] = make_pairs(topic.id, sentences, self.settings, self._min_pairs)
            lacking = [topic for topic in lacking if len(pairs[topic.id].candidates) < self._min_pairs]
        return pairs

    async def _judge_reversed(
        self, topics: list[Topic], judged: JudgmentsByTopic, result: JudgedPairs
    ) -> JudgmentsByTopic:
        """Judge the best pairs of each topic in reversed order; return the judgments by topic and reversed pair."""
        work = [
            (topic, reverse_pair(judgment.document_id))
            for topic in topics
            for judgment in sorted(judged[topic.id].values(), key=self._grade, reverse=True)[
                : self.settings.both_orders
            ]
        ]
        return group_judgments(await self._judge_work("judging pairs in reversed order", work, result) if work else ())

    async def _judge_work(self, title: str, work: list[tuple[Topic, str]], result: JudgedPairs) -> list[Judgment]:
        with self.stage(title, len(work)) as done:
            documents, question = PairDocuments(self.parts), self.task.question
            judgments, failures = await judge(work, documents, question, self.prompts["judge"], self.builder, done)
        result.failures += failures
        return judgments

    def _grade(self, judgment: Judgment) -> float:
        """Combine the grades by the task's weights; the run's weights must not change which pairs are judged."""
        return combine_grades(judgment, self.task.objectives["both"], self.task.aspects)
