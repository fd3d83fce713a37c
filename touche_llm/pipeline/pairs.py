"""Judging for pairs of sentences: the sentences first, then pairs made of the best of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from touche_llm.config import Config
from touche_llm.corpus.store import Parts
from touche_llm.data.records import Candidate, Failure, Judgment, Topic
from touche_llm.judging.grades import combine_grades
from touche_llm.judging.pointwise import RequestBuilder, judge
from touche_llm.judging.sentence_pairs import (
    PairDocuments,
    Pairs,
    inherit_judgment,
    make_pairs,
    reverse_pair,
    select_sentences,
)
from touche_llm.prompts.prompt import Prompt
from touche_llm.tasks.base import Task

Stage = Callable[[str, int], AbstractContextManager[Callable[[], None]]]
_ByDocument = dict[str, Judgment]


@dataclass(slots=True)
class JudgedPairs:
    """What judging gave: candidates by topic, judgments of them, of the sentences, and failures of either."""

    candidates: list[list[Candidate]] = field(default_factory=list)
    judgments: list[Judgment] = field(default_factory=list)
    sentences: list[Judgment] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    turned: int = 0
    largest_share: float = 0.0
    largest_share_judged: float = 0.0
    too_few: dict[str, int] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """What the metadata says of the pairs."""
        made = sum(map(len, self.candidates))
        inherits = sum(judgment.source == "inherited" for judgment in self.judgments)
        return {
            "sentences judged": len(self.sentences),
            "pairs": made,
            "pairs judged by the model": made - inherits,
            "pairs with inherited grades": inherits,
            "pairs that read better the other way round": self.turned,
            "largest share of a topic's pairs with one sentence": round(self.largest_share, 4),
            "largest share of those judged": round(self.largest_share_judged, 4),
            "topics with too few pairs": self.too_few,
        }


async def judge_pairs(
    topics: list[Topic],
    candidates: Mapping[str, list[Candidate]],
    parts: Parts,
    task: Task,
    config: Config,
    sentence_prompt: Prompt,
    pair_prompt: Prompt,
    builder: RequestBuilder,
    stage: Stage,
) -> JudgedPairs:
    """Judge sentences, make pairs of them, and judge the best pairs.

    The first `depth` sentences of each topic are judged, and as many again for topics that do not reach the least
    number of pairs with them, until they do or there is no further sentence. The best pairs are asked with their
    sentences the other way round too; the order with the better grades stays, and both judgments are kept.

    Args:
        topics: the topics.
        candidates: sentences by topic.
        parts: the sentences.
        task: has a `sentence_question`.
        config: has `pairs`.
        sentence_prompt: asks about a sentence.
        pair_prompt: asks about a pair.
        builder: Builds the requests.
        stage: shows a stage of so many steps.

    Raises:
        ReplayMiss: in replay, when the cache lacks an answer.
    """
    settings, question = config.pairs, task.sentence_question
    assert settings is not None and question is not None
    least = min(task.min_per_topic, settings.most)
    result = JudgedPairs()
    judged: dict[str, _ByDocument] = {topic.id: {} for topic in topics}
    pairs: dict[str, Pairs] = {}

    async def ask(title: str, work: list[tuple[Topic, str]], prompt: Prompt, of_pairs: bool) -> list[Judgment]:
        with stage(title, len(work)) as done:
            documents = PairDocuments(parts) if of_pairs else parts
            about = task.question if of_pairs else question
            judgments, failures = await judge(work, documents, about, prompt, builder, done)
        builder.model.raise_on_misses()
        result.failures += failures
        return judgments

    lacking, start = topics, 0
    while lacking:
        work = [
            (topic, each.document_id)
            for topic in lacking
            for each in candidates.get(topic.id, [])[start : start + config.depth]
        ]
        if not work:
            break
        for judgment in await ask("judging sentences", work, sentence_prompt, of_pairs=False):
            judged[judgment.topic_id][judgment.document_id] = judgment
            result.sentences.append(judgment)
        start += config.depth
        for topic in lacking:
            sentences = select_sentences(
                candidates.get(topic.id, [])[:start],
                judged[topic.id],
                parts.locate,
                settings,
                task.weights,
            )
            pairs[topic.id] = make_pairs(topic.id, sentences, settings, least)
        lacking = [topic for topic in lacking if len(pairs[topic.id].candidates) < least]

    made = {topic.id: pairs[topic.id].candidates if topic.id in pairs else [] for topic in topics}
    asked = [(topic, each.document_id) for topic in topics for each in made[topic.id][: settings.judged]]
    answers = {topic.id: dict[str, Judgment]() for topic in topics}
    for judgment in await ask("judging pairs", asked, pair_prompt, of_pairs=True):
        answers[judgment.topic_id][judgment.document_id] = judgment

    def value(judgment: Judgment) -> float:
        # The task's weights, not the run's: ranking by others must not change what was asked.
        return combine_grades(judgment, task.weights)

    again = [
        (topic, reverse_pair(each.document_id))
        for topic in topics
        for each in sorted(answers[topic.id].values(), key=value, reverse=True)[: settings.both_orders]
    ]
    turned: dict[str, _ByDocument] = {topic.id: {} for topic in topics}
    if again:
        for judgment in await ask("judging pairs the other way round", again, pair_prompt, of_pairs=True):
            turned[judgment.topic_id][reverse_pair(judgment.document_id)] = judgment

    for topic in topics:
        ranking = []
        for each in made[topic.id]:
            as_made, other = answers[topic.id].get(each.document_id), turned[topic.id].get(each.document_id)
            judgment = as_made or inherit_judgment(each, judged[topic.id], settings)
            result.judgments.append(judgment)
            if other is not None:
                result.judgments.append(other)
                if value(other) > value(judgment):
                    result.turned += 1
                    judgment = other
            ranking.append(msgspec.structs.replace(each, document_id=judgment.document_id))
        result.candidates.append(ranking)
        if len(ranking) < least:
            result.too_few[topic.id] = len(ranking)
    result.largest_share = max((each.share for each in pairs.values()), default=0.0)
    result.largest_share_judged = max((each.share_judged for each in pairs.values()), default=0.0)
    return result
