"""Judging of sentences, and of the pairs made of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest

import msgspec

from touche_llm.corpus.store import Parts
from touche_llm.data.records import Candidate, Failure, Judgment, Topic
from touche_llm.judging.grades import combine_grades
from touche_llm.judging.judgments import group_judgments, judge
from touche_llm.judging.requests import RequestBuilder, Stage
from touche_llm.kinds.pairs.documents import PairDocuments, reverse_pair
from touche_llm.kinds.pairs.inheritance import inherit_judgment
from touche_llm.kinds.pairs.pairing import make_pairs
from touche_llm.kinds.pairs.sentences import SentenceSelector
from touche_llm.kinds.pairs.settings import PairSettings
from touche_llm.prompts.prompt import Prompt
from touche_llm.tasks.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedPairs:
    """Pairs of some topics, with their judgments and those of the sentences.

    Attributes:
        rankings: Pairs of each topic, in the order of the topics.
        judgments: Judgments of the pairs; in both orders where both were judged.
        sentences: Judgments of the sentences.
        failures: Failed requests.
    """

    rankings: Sequence[list[Candidate]]
    judgments: Sequence[Judgment]
    sentences: Sequence[Judgment]
    failures: Sequence[Failure]


@dataclass(frozen=True, slots=True, kw_only=True)
class _MadePairs:
    """Pairs by topic id, and the judgments of the sentences that they were made of."""

    by_topic: Mapping[str, list[Candidate]]
    sentences: Sequence[Judgment]


# Judgments by topic id and document id.
_Judged = defaultdict[str, dict[str, Judgment]]


@dataclass(frozen=True, slots=True)
class PairJudge:
    """Judge of sentences, and of the pairs made of them.

    Attributes:
        task: Task of the run.
        rankings: Sentences by topic id, best first.
        depth: Number of sentences of a topic that are judged at a time.
        settings: Numbers of pairs that are made and judged.
        parts: Sentences of the corpus.
        prompts: Prompts of the purposes `sentence` and, for pairs, `judge`.
        builder: Builder of the requests.
        stage: Shows the progress.
        failures: Receives the failed requests.
    """

    task: Task
    rankings: Mapping[str, list[Candidate]]
    depth: int
    settings: PairSettings
    parts: Parts
    prompts: Mapping[str, Prompt]
    builder: RequestBuilder
    stage: Stage
    failures: list[Failure]

    async def judge(self, topics: Sequence[Topic]) -> JudgedPairs:
        """Judge sentences of these topics, make pairs of them, and judge the best pairs.

        The best judged pairs are judged in the reversed order too. The order with the better grades
        is ranked, and both judgments are kept.
        """
        made = await self._make_pairs(topics)
        judged = await self._judge_best_pairs(topics, made)
        reversed_ = await self._judge_reversed_pairs(topics, judged)
        sentences = group_judgments(made.sentences)

        judgments: list[Judgment] = []
        rankings: list[list[Candidate]] = []
        for topic in topics:
            ranking: list[Candidate] = []
            for pair in made.by_topic[topic.id]:
                judgment = judged[topic.id].get(pair.document_id)
                if judgment is None:
                    judgment = inherit_judgment(pair, sentences[topic.id], self.settings)
                orders = [judgment]

                reversed_judgment = reversed_[topic.id].get(reverse_pair(pair.document_id))
                if reversed_judgment is not None:
                    orders.append(reversed_judgment)

                judgments.extend(orders)
                best = max(orders, key=self._grade)
                ranking.append(msgspec.structs.replace(pair, document_id=best.document_id))
            rankings.append(ranking)

        return JudgedPairs(
            rankings=rankings,
            judgments=judgments,
            sentences=made.sentences,
            failures=self.failures,
        )

    @property
    def min_pairs(self) -> int:
        """Number of pairs per topic that the task requires."""
        return min(self.task.documents_per_topic.min, self.settings.most)

    async def _make_pairs(self, topics: Sequence[Topic]) -> _MadePairs:
        """Judge sentences and make pairs of them.

        As long as a topic has too few pairs, more of its sentences are judged, until none is left.
        """
        pairs: dict[str, list[Candidate]] = {topic.id: [] for topic in topics}
        sentences: list[Judgment] = []
        lacking = topics
        start = 0
        while True:
            stop = start + self.depth
            work: list[tuple[Topic, str]] = []
            for topic in lacking:
                for sentence in self._list_sentences(topic)[start:stop]:
                    work.append((topic, sentence.document_id))
            if not work:
                break

            sentences.extend(await self._judge_sentences(work))
            judged = group_judgments(sentences)
            for topic in lacking:
                candidates = self._list_sentences(topic)[:stop]
                pairs[topic.id] = self._pair_sentences(topic, candidates, judged[topic.id])
            lacking = [topic for topic in lacking if len(pairs[topic.id]) < self.min_pairs]
            start = stop
        return _MadePairs(by_topic=pairs, sentences=sentences)

    def _list_sentences(self, topic: Topic) -> list[Candidate]:
        """Return the sentences of a topic, best first."""
        return self.rankings.get(topic.id, [])

    def _pair_sentences(
        self,
        topic: Topic,
        candidates: Iterable[Candidate],
        judgments: Mapping[str, Judgment],
    ) -> list[Candidate]:
        """Return the pairs made of the judged sentences of a topic."""
        selector = SentenceSelector(
            locate=self.parts.locate,
            settings=self.settings,
            weights=self.task.objectives["both"],
            scales=self.task.aspects,
        )
        sentences = selector.select(candidates, judgments)
        return make_pairs(topic.id, sentences, self.settings, self.min_pairs)

    async def _judge_best_pairs(self, topics: Iterable[Topic], made: _MadePairs) -> _Judged:
        """Judge the first pairs of each topic."""
        work: list[tuple[Topic, str]] = []
        for topic in topics:
            for pair in made.by_topic[topic.id][: self.settings.judged]:
                work.append((topic, pair.document_id))
        return group_judgments(await self._judge_pairs("judging pairs", work))

    async def _judge_reversed_pairs(self, topics: Iterable[Topic], judged: _Judged) -> _Judged:
        """Judge the best pairs of each topic in the other order."""
        work: list[tuple[Topic, str]] = []
        for topic in topics:
            judgments = judged[topic.id].values()
            for judgment in nlargest(self.settings.both_orders, judgments, key=self._grade):
                work.append((topic, reverse_pair(judgment.document_id)))
        if not work:
            return group_judgments([])
        return group_judgments(await self._judge_pairs("judging pairs in reversed order", work))

    async def _judge_sentences(self, work: list[tuple[Topic, str]]) -> list[Judgment]:
        """Judge sentences, and add failed requests to `failures`."""
        prompt = self.prompts["sentence"]
        question = self.task.sentence_question
        assert question is not None
        with self.stage("judging sentences", len(work) * len(prompt.sent)) as done:
            judgments, failed = await judge(work, self.parts, question, prompt, self.builder, done)
        self.failures.extend(failed)
        return judgments

    async def _judge_pairs(self, title: str, work: list[tuple[Topic, str]]) -> list[Judgment]:
        """Judge pairs, and add failed requests to `failures`."""
        prompt = self.prompts["judge"]
        documents = PairDocuments(self.parts)
        question = self.task.question
        with self.stage(title, len(work) * len(prompt.sent)) as done:
            judgments, failed = await judge(work, documents, question, prompt, self.builder, done)
        self.failures.extend(failed)
        return judgments

    def _grade(self, judgment: Judgment) -> float:
        """Combine the grades by the task's weights.

        The run's weights must not change which pairs are judged.
        """
        return combine_grades(judgment, self.task.objectives["both"], self.task.aspects)
