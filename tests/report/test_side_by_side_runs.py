"""One slow answer holds up nothing that does not depend on it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.fake_server import FakeServer, fields_in, good, reply, spell
from tests.sample_runs import SAMPLE, config_for, run_on
from touche_llm.data.topics import read_topics
from touche_llm.prompts.purposes import LABELS

TITLES = {topic.title: topic.id for topic in read_topics(SAMPLE / "topics.xml")}
# Only so that a test that should fail ends; nothing is measured.
GUARD = 60


@dataclass
class Comparisons:
    """Answers a run's questions; holds one comparison back until `release` is set.

    The answers are such that rankings change: of two documents the one with the longer text is the better one.

    Attributes:
        held: of which topics a comparison may be held; the first such one is.
        enough: how many comparisons of each topic are to be answered before `reached` is set.
        answered: the comparisons answered so far, by topic.
    """

    held: Callable[[str], bool] = lambda topic: False
    enough: Counter[str] = field(default_factory=Counter)
    answered: Counter[str] = field(default_factory=Counter)
    holding: str = ""
    release: asyncio.Event = field(default_factory=asyncio.Event)
    reached: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        properties = fields_in(body)
        if not {"best", "order"} & set(properties):
            return await good(request, body)
        message = body["messages"][1]["content"]
        topic, texts = TITLES[message.split("\n")[0].removeprefix("Question: ")], shown_texts(message)
        if not self.holding and self.held(topic):
            self.holding = topic
            await self.release.wait()
        self.answered[topic] += 1
        if self.enough and all(self.answered[each] >= count for each, count in self.enough.items()):
            self.reached.set()
        order = sorted(range(len(texts)), key=lambda place: (-len(texts[place]), texts[place]))
        if "best" in properties:
            return reply(spell(body, {"best": LABELS[order[0]]}))
        return reply(spell(body, {"order": " > ".join(LABELS[place] for place in order)}))


def shown_texts(message: str) -> list[str]:
    """The texts under their labels in a comparative prompt."""
    parts = message.split("\n\nThe labels are")[0].split("\n\nPassage ")[1:]
    return [part.split(":\n", 1)[1] for part in parts]


async def compare_all(folder: Path, step: str, **chosen: Any) -> tuple[Counter[str], bytes]:
    """A run in which nothing is held: how many comparisons each topic takes, and the ranking."""
    config = config_for(folder, rank=("judge", step), depth=12, **{"cache.file": folder / "free.sqlite"}, **chosen)
    comparisons = Comparisons()
    outcome = await run_on(FakeServer(rest=comparisons), config, folder / "free")
    assert not outcome.failures
    return comparisons.answered, (folder / "free" / "run.txt").read_bytes()


async def hold_one(
    folder: Path, step: str, held: Callable[[str], bool], enough: Counter[str], **chosen: Any
) -> tuple[Comparisons, bytes]:
    """A run in which one answer is held until the others were given; fails where they wait for it."""
    config = config_for(folder, rank=("judge", step), depth=12, **{"cache.file": folder / "held.sqlite"}, **chosen)
    comparisons = Comparisons(held, enough)
    run = asyncio.create_task(run_on(FakeServer(rest=comparisons), config, folder / "held"))
    try:
        await asyncio.wait_for(comparisons.reached.wait(), GUARD)
        assert comparisons.holding and not run.done()
    finally:
        comparisons.release.set()
        outcome = await run
    assert not outcome.failures
    return comparisons, (folder / "held" / "run.txt").read_bytes()


def of_topic_7(topic: str) -> bool:
    return topic == "7"


async def test_while_the_answer_about_one_pair_is_awaited_all_other_pairs_are_answered(tmp_path: Path) -> None:
    chosen = {"engine.concurrency": 2}
    counts, ranking = await compare_all(tmp_path, "pairwise:5", **chosen)
    assert counts == dict.fromkeys(TITLES.values(), 5 * 4)
    # Of its own topic and of all others.
    enough = counts - Counter({"7": 1})
    comparisons, same = await hold_one(tmp_path, "pairwise:5", of_topic_7, enough, **chosen)
    assert comparisons.answered == counts
    assert same == ranking


@pytest.mark.parametrize("step", ["setwise:12", "listwise:12"])
async def test_while_one_topic_waits_for_an_answer_the_others_are_ranked_to_the_end(tmp_path: Path, step: str) -> None:
    chosen = {"ranking.setwise.top": 4, "ranking.listwise.window": 6, "ranking.listwise.stride": 3}
    counts, ranking = await compare_all(tmp_path, step, **chosen)
    assert set(counts) == set(TITLES.values())
    others = counts - Counter({"7": counts["7"]})
    comparisons, same = await hold_one(tmp_path, step, of_topic_7, others, **chosen)
    assert comparisons.answered == counts
    assert same == ranking
