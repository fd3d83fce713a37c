"""Second stage: the model judges the candidates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from touche_llm.api.progress import Progress
from touche_llm.api.retrieve import add_objects
from touche_llm.data.records import Failure, Objects, Topic
from touche_llm.judging.objects import find_objects
from touche_llm.judging.requests import Done, Requester, Stage
from touche_llm.judging.result import Judgments
from touche_llm.judging.stance_labels import StanceSettings
from touche_llm.kinds.known import get_kind
from touche_llm.kinds.registry import JudgingInputs
from touche_llm.llm.model import ModelClient
from touche_llm.prompts.prompt import Prompt
from touche_llm.retrieval.candidates import Candidates


async def judge(
    candidates: Candidates,
    prompts: Mapping[str, Prompt],
    requester: Requester,
    progress: Progress,
    *,
    stance: StanceSettings | None = None,
    judging_settings: object = None,
) -> Judgments:
    """Judge candidates, or the documents that the kind of their task makes of them.

    Args:
        candidates: Candidates to judge.
        prompts: Prompts by purpose: judge, and what the task and its topics need of objects,
            sentence and stance.
        requester: Client of the model, and the builder of its requests.
        progress: Display of the progress.
        stance: Settings of the stance prompt, which is used only with them.
        judging_settings: Settings that the kind of the task declares; None for the defaults.

    Raises:
        DataError: The corpus lacks a candidate, or the kind of the task is unknown.
        UsageError: The settings are not those of the kind, or it cannot judge these candidates.
        EngineError: The engine failed.
        ReplayMiss: The cache of a replay lacks an answer.
    """
    kind = get_kind(candidates.task)
    settings = kind.read_judging_settings(judging_settings)
    await candidates.check()

    stage = partial(_show_stage, progress=progress, model=requester.client)
    # A topic that compares objects can be judged only if both are known. The others stay among the
    # candidates, so that the run has all topics.
    named = await _name_topics(candidates, prompts, requester, stage)
    inputs = JudgingInputs(
        candidates=replace(candidates, topics=named.all_topics),
        topics=named.judged_topics,
        documents=candidates.documents,
        prompts=prompts,
        requester=requester,
        stage=stage,
        settings=settings,
        stance=stance,
        warn=progress.warn,
    )
    judgments = await kind.judge(inputs)
    warn_of_labels(requester.client, prompts, progress)

    return replace(
        judgments,
        objects=named.found,
        failures=[*named.failures, *judgments.failures],
    )


@contextmanager
def _show_stage(
    title: str, total: int, *, progress: Progress, model: ModelClient
) -> Iterator[Done]:
    """Show the progress of a stage of requests, and raise the errors of the model at its end.

    Args:
        title: Title of the stage.
        total: Number of requests.
        progress: Display of the progress.
        model: Model that answers.

    Yields:
        Function to call after each request.
    """
    with progress.stage(title, total, model.counts) as done:
        yield done
    model.raise_on_misses()
    model.labels.raise_on_unread()


@dataclass(frozen=True, slots=True, kw_only=True)
class _NamedTopics:
    """Topics with the two objects that each compares, if the task compares objects.

    Attributes:
        judged_topics: Topics to judge documents for: without those whose objects are unknown.
        all_topics: All topics, in the order of the run.
        found: Objects that the model found.
        failures: Failed requests for objects.
    """

    judged_topics: list[Topic]
    all_topics: list[Topic]
    found: Sequence[Objects] = ()
    failures: Sequence[Failure] = ()


async def _name_topics(
    candidates: Candidates,
    prompts: Mapping[str, Prompt],
    requester: Requester,
    stage: Stage,
) -> _NamedTopics:
    """Return the topics of candidates; the model finds the objects that a topic lacks.

    A topic as "Is tea better than coffee?" compares objects, whose names the judge prompt needs.
    """
    topics = candidates.topics
    unnamed = [topic for topic in topics if topic.objects is None]
    needs_objects = candidates.task.objects_answer is not None
    if not needs_objects or not unnamed:
        return _NamedTopics(judged_topics=topics, all_topics=topics)

    with stage("finding objects", len(unnamed)) as done:
        outcomes = await find_objects(topics, prompts["objects"], requester, done)

    all_topics = add_objects(topics, outcomes.results)
    return _NamedTopics(
        judged_topics=[topic for topic in all_topics if topic.objects is not None],
        all_topics=all_topics,
        found=outcomes.results,
        failures=outcomes.failures,
    )


def warn_of_labels(model: ModelClient, prompts: Mapping[str, Prompt], progress: Progress) -> None:
    """Warn if answers to a prompt have labels that cannot be read, or that say nothing.

    Args:
        model: Client that counted the labels of its answers.
        prompts: Prompts of the answers, by purpose.
        progress: Receives the warnings.
    """
    for prompt in prompts.values():
        counts = model.labels.summarize(prompt.name)
        if counts is not None:
            for problem in counts.list_problems():
                progress.warn(f"prompt {prompt.name}: {problem}")
