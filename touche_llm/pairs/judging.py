"""Judging of pairs of sentences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import nlargest

import msgspec

from touche_llm.corpus.store import Parts
from touche_llm.data.records import Candidate, Failure, Judgment, Topic
from touche_llm.judging.grades import combine_grades
from touche_llm.judging.judgments import group_judgments, judge
from touche_llm.judging.requests import RequestBuilder, Stage, TopicDocument
from touche_llm.pairs.documents import PairDocuments, reverse_pair
from touche_llm.pairs.inheritance import inherit_judgment
from touche_llm.pairs.pairing import make_pairs, select_sentences
from touche_llm.pairs.settings import PairSettings
from touche_llm.prompts.prompt import Prompt
from touche_llm.tasks.task import Task


@dataclass(frozen=True, slots=True)
class PairJudge:
    """Judge of sentences, `depth` of a topic at a time, and of the pairs made of them.

    The prompts are those of the purposes `sentence` and, for pairs, `judge`.
    """

    task: Task
    rankings: Mapping[str, list[Candidate]]
    depth: int
    settings: PairSettings
    parts: Parts
    prompts: Mapping[str, Prompt]
    builder: RequestBuilder
    stage: Stage
    failures: list[Failure] = field(default_factory=list)

    async def judge(
        self, topics: list[Topic]
    ) -> tuple[list[list[Candidate]], list[Judgment], list[Judgment]]:
        """Judge sentences of these topics, make pairs of them, and judge the best pairs.

        The best judged pairs are judged in the reversed order too; the order with the better grades
        is ranked, and both judgments are kept.

        Returns:
            Pairs of each topic, their judgments, and those of the sentences.
        """
        made, sentences = await self._judge_sentences(topics)
        by_sentence = group_judgments(sentences)
        work = [
            TopicDocument(topic, pair.document_id)
            for topic in topics
            for pair in made[topic.id][: self.settings.judged]
        ]
        judged = group_judgments(await self._judge("judging pairs", work))
        work = [
            TopicDocument(topic, reverse_pair(judgment.document_id))
            for topic in topics
            for judgment in nlargest(
                self.settings.both_orders, judged[topic.id].values(), key=self._grade
            )
        ]
        reversed_ = group_judgments(
            await self._judge("judging pairs in reversed order", work) if work else ()
        )
        judgments: list[Judgment] = []
        rankings: list[list[Candidate]] = []
        for topic in topics:
            ranking = []
            for pair in made[topic.id]:
                judgment = judged[topic.id].get(pair.document_id)
                judgment = judgment or inherit_judgment(pair, by_sentence[topic.id], self.settings)
                other = reversed_[topic.id].get(reverse_pair(pair.document_id))
                orders = [judgment] if other is None else [judgment, other]
                best = max(orders, key=self._grade)
                judgments += orders
                ranking.append(msgspec.structs.replace(pair, document_id=best.document_id))
            rankings.append(ranking)
        return rankings, judgments, sentences

    @property
    def min_pairs(self) -> int:
        """Number of pairs per topic that the task requires."""
        return min(self.task.documents_per_topic.min, self.settings.most)

    async def _judge_sentences(
        self, topics: list[Topic]
    ) -> tuple[dict[str, list[Candidate]], list[Judgment]]:
        """Judge sentences, and more of the topics with too few pairs until none is left.

        Make pairs by topic.
        """
        pairs: dict[str, list[Candidate]] = {topic.id: [] for topic in topics}
        sentences: list[Judgment] = []
        lacking, start = topics, 0
        while work := [
            TopicDocument(topic, sentence.document_id)
            for topic in lacking
            for sentence in self.rankings.get(topic.id, [])[start : start + self.depth]
        ]:
            sentences += await self._judge("judging sentences", work, of_pairs=False)
            judged = group_judgments(sentences)
            start += self.depth
            for topic in lacking:
                selected = select_sentences(
                    self.rankings.get(topic.id, [])[:start],
                    judged[topic.id],
                    self.parts.locate,
                    self.settings,
                    self.task.objectives["both"],
                    self.task.aspects,
                )
                pairs[topic.id] = make_pairs(topic.id, selected, self.settings, self.min_pairs)
            lacking = [topic for topic in lacking if len(pairs[topic.id]) < self.min_pairs]
        return pairs, sentences

    async def _judge(
        self, title: str, work: list[TopicDocument], *, of_pairs: bool = True
    ) -> list[Judgment]:
        """Judge pairs or sentences.

        Return their judgments, and add failed requests to `failures`.
        """
        prompt = self.prompts["judge" if of_pairs else "sentence"]
        documents = PairDocuments(self.parts) if of_pairs else self.parts
        question = self.task.question if of_pairs else self.task.sentence_question
        assert question is not None
        with self.stage(title, len(work) * prompt.requests_per_document) as done:
            outcomes = await judge(work, documents, question, prompt, self.builder, done)
        self.failures.extend(outcomes.failures)
        return outcomes.results

    def _grade(self, judgment: Judgment) -> float:
        """Combine the grades by the task's weights.

        The run's weights must not change which pairs are judged.
        """
        return combine_grades(judgment, self.task.objectives["both"], self.task.aspects)
