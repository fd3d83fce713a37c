"""Judging of sentences, and of the pairs made of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import count

import msgspec

from touche_llm.corpus.store import Parts
from touche_llm.data.records import Candidate, Failure, Judgment, Topic
from touche_llm.judging.grades import combine_grades
from touche_llm.judging.judgments import group_judgments
from touche_llm.judging.outcomes import Outcomes
from touche_llm.judging.requests import TopicDocument
from touche_llm.kinds.pairs.documents import PairDocuments, reverse_pair
from touche_llm.kinds.pairs.inheritance import inherit_judgment
from touche_llm.kinds.pairs.pairing import make_pairs
from touche_llm.kinds.pairs.sentences import SentenceSelector
from touche_llm.kinds.pairs.settings import PairSettings
from touche_llm.kinds.registry import JudgingInputs


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
    """Pairs by topic id, and the judged sentences that they were made of."""

    by_topic: Mapping[str, list[Candidate]]
    sentences: Outcomes[Judgment]


@dataclass(frozen=True, slots=True, kw_only=True)
class _RankedPairs:
    """Pairs of a topic in the order that is ranked, and all judgments of them."""

    ranking: list[Candidate]
    judgments: Sequence[Judgment]


@dataclass(frozen=True, slots=True)
class PairJudge:
    """Judge of sentences, and of the pairs made of them.

    Attributes:
        inputs: Candidates, which are sentences, with the prompts and the settings.
        sentences: Sentences of the corpus.
    """

    inputs: JudgingInputs
    sentences: Parts

    @property
    def settings(self) -> PairSettings:
        """Numbers of pairs that are made and judged."""
        settings: PairSettings = self.inputs.settings
        return settings

    @property
    def min_pairs(self) -> int:
        """Number of pairs per topic that the task requires."""
        return min(self.inputs.task.documents_per_topic.min, self.settings.most)

    async def judge(self) -> JudgedPairs:
        """Judge sentences, make pairs of them, and judge the best pairs.

        The best judged pairs are judged in the reversed order too. The order with the better grades
        is ranked, and both judgments are kept.
        """
        made = await self._make_pairs()
        first_orders = await self._judge_best_pairs(made)
        reversed_orders = await self._judge_reversed_pairs(first_orders)

        pair_judgments = [*first_orders.results, *reversed_orders.results]
        ranked_by_topic = self._rank_topics(made, pair_judgments)
        return JudgedPairs(
            rankings=[ranked.ranking for ranked in ranked_by_topic],
            judgments=[judgment for ranked in ranked_by_topic for judgment in ranked.judgments],
            sentences=made.sentences.results,
            failures=[
                *made.sentences.failures,
                *first_orders.failures,
                *reversed_orders.failures,
            ],
        )

    async def _make_pairs(self) -> _MadePairs:
        """Judge sentences and make pairs of them.

        As long as a topic has too few pairs, more of its sentences are judged, until none is left.
        """
        depth = self.inputs.candidates.depth
        pairs: dict[str, list[Candidate]] = {topic.id: [] for topic in self.inputs.topics}
        judgments: list[Judgment] = []
        failures: list[Failure] = []

        # In each round, the next `depth` sentences are judged of topics that have too few pairs.
        unfinished = [*self.inputs.topics]
        for start in count(0, depth):
            work = self._list_sentence_work(unfinished, start, start + depth)
            if not work:
                break

            judged = await self._judge_sentences(work)
            judgments.extend(judged.results)
            failures.extend(judged.failures)

            # Pairs are made anew of all sentences judged so far, since new ones can be better.
            judgments_by_topic = group_judgments(judgments)
            for topic in unfinished:
                judged_so_far = self._list_sentences(topic)[: start + depth]
                pairs[topic.id] = self._pair_sentences(
                    topic,
                    judged_so_far,
                    judgments_by_topic[topic.id],
                )
            unfinished = [topic for topic in unfinished if len(pairs[topic.id]) < self.min_pairs]

        sentences = Outcomes(results=judgments, failures=failures)
        return _MadePairs(by_topic=pairs, sentences=sentences)

    def _list_sentence_work(
        self, topics: Iterable[Topic], start: int, stop: int
    ) -> list[TopicDocument]:
        """Return the sentences of topics at some places of their rankings, to be judged."""
        work: list[TopicDocument] = []
        for topic in topics:
            for sentence in self._list_sentences(topic)[start:stop]:
                work.append(TopicDocument(topic, sentence.document_id))
        return work

    async def _judge_sentences(self, work: list[TopicDocument]) -> Outcomes[Judgment]:
        """Judge sentences with the prompt for single sentences."""
        return await self.inputs.judge(
            work,
            self.sentences,
            title="judging sentences",
            purpose="sentence",
        )

    def _list_sentences(self, topic: Topic) -> list[Candidate]:
        """Return the sentences of a topic, best first."""
        return self.inputs.candidates.rankings.get(topic.id, [])

    def _pair_sentences(
        self,
        topic: Topic,
        candidates: Sequence[Candidate],
        judgments: Mapping[str, Judgment],
    ) -> list[Candidate]:
        """Return the pairs made of the judged sentences of a topic."""
        selector = SentenceSelector(
            locate=self.sentences.locate,
            settings=self.settings,
            weights=self.inputs.task.objectives["both"],
            scales=self.inputs.task.aspects,
        )
        sentences = selector.select(candidates, judgments)
        return make_pairs(topic.id, sentences, self.settings, self.min_pairs)

    async def _judge_best_pairs(self, made: _MadePairs) -> Outcomes[Judgment]:
        """Judge the first pairs of each topic."""
        work: list[TopicDocument] = []
        for topic in self.inputs.topics:
            for pair in made.by_topic[topic.id][: self.settings.judged]:
                work.append(TopicDocument(topic, pair.document_id))
        return await self._judge_pairs("judging pairs", work)

    async def _judge_reversed_pairs(self, judged: Outcomes[Judgment]) -> Outcomes[Judgment]:
        """Judge the best of the judged pairs of each topic in the other order."""
        by_topic = group_judgments(judged.results)
        work: list[TopicDocument] = []
        for topic in self.inputs.topics:
            judgments = by_topic[topic.id].values()
            for judgment in nlargest(self.settings.both_orders, judgments, key=self._grade):
                work.append(TopicDocument(topic, reverse_pair(judgment.document_id)))
        if not work:
            return Outcomes(results=[], failures=[])
        return await self._judge_pairs("judging pairs in reversed order", work)

    async def _judge_pairs(self, title: str, work: Sequence[TopicDocument]) -> Outcomes[Judgment]:
        """Judge pairs of some topics."""
        return await self.inputs.judge(work, PairDocuments(self.sentences), title=title)

    def _rank_topics(
        self,
        made: _MadePairs,
        pair_judgments: Iterable[Judgment],
    ) -> list[_RankedPairs]:
        """Return the ranked pairs of each topic, in the order of the topics.

        Args:
            made: Pairs of all topics, and judgments of their sentences.
            pair_judgments: Judgments of pairs in either order.
        """
        judgments_of_pairs = group_judgments(pair_judgments)
        judgments_of_sentences = group_judgments(made.sentences.results)

        ranked: list[_RankedPairs] = []
        for topic in self.inputs.topics:
            ranked_pairs = self._rank_pairs(
                made.by_topic[topic.id],
                judgments_of_pairs[topic.id],
                judgments_of_sentences[topic.id],
            )
            ranked.append(ranked_pairs)
        return ranked

    def _rank_pairs(
        self,
        pairs: Sequence[Candidate],
        judgments: Mapping[str, Judgment],
        sentences: Mapping[str, Judgment],
    ) -> _RankedPairs:
        """Return the pairs of a topic in their order, each in its better order of sentences.

        Args:
            pairs: Pairs of the topic, best first.
            judgments: Judgments of pairs in either order, by pair id; the others inherit theirs.
            sentences: Judgments of the sentences, by sentence id.
        """
        ranking: list[Candidate] = []
        all_judgments: list[Judgment] = []
        for pair in pairs:
            first_order = judgments.get(pair.document_id)
            if first_order is None:
                # A pair that was not judged gets the grades of its sentences.
                first_order = inherit_judgment(pair, sentences, self.settings)
            orders = [first_order]

            # Only the best judged pairs were judged in the reversed order too.
            reversed_order = judgments.get(reverse_pair(pair.document_id))
            if reversed_order is not None:
                orders.append(reversed_order)

            best_order = max(orders, key=self._grade)
            ranking.append(msgspec.structs.replace(pair, document_id=best_order.document_id))
            all_judgments.extend(orders)
        return _RankedPairs(ranking=ranking, judgments=all_judgments)

    def _grade(self, judgment: Judgment) -> float:
        """Combine the grades by the task's weights.

        The run's weights must not change which pairs are judged.
        """
        task = self.inputs.task
        return combine_grades(judgment, task.objectives["both"], task.aspects)
