"""The kind of task that ranks pairs of sentences."""

from __future__ import annotations

from dataclasses import replace

from touche_llm.corpus.store import DocumentStore, Parts
from touche_llm.errors import UsageError
from touche_llm.judging.result import Judgments
from touche_llm.kinds.pairs.documents import find_pair_problem, split_pair
from touche_llm.kinds.pairs.judging import PairJudge
from touche_llm.kinds.pairs.search_space import PairSpace
from touche_llm.kinds.pairs.settings import PairSettings
from touche_llm.kinds.registry import JudgingInputs, Kind, register
from touche_llm.retrieval.candidates import normalise_rankings
from touche_llm.retrieval.sentences import SentenceSettings
from touche_llm.settings.section import NamedSection, Section
from touche_llm.tasks.parts import NO_SIDE
from touche_llm.tasks.task import Task


class PairKind(Kind):
    """Single sentences are judged, pairs made of the best, and these judged in both orders."""

    name = "pairs"
    help = "pairs of sentences of args.me, which are made of judged sentences and judged again"
    reference = "https://touche.webis.de/clef22/touche22-web/argument-retrieval-for-controversial-questions.html"
    noun = "pairs"
    candidate_noun = "sentences"
    makes_documents = True
    search_section = NamedSection(name="sentences", settings=SentenceSettings)
    judging_section = NamedSection(name="pairs", settings=PairSettings)
    length_setting = "pairs.most"
    pool_setting = "sentences.pool"
    dry_run_note = "The number of sentences and pairs depends on the answers too; here every sentence takes a side."
    nothing_made = (
        "no topic has two sentences on one side, so there is no pair; read the judgments of the sentences there, "
        "or set pairs.no_side_above higher"
    )
    order = 20

    def find_task_problem(self, task: Task) -> str | None:
        """Return what a task lacks to be of this kind; see the base class."""
        can_judge_sentences = task.reads_arguments and task.sentence_aspects
        takes_sides = task.stances and not task.no_stances and NO_SIDE not in task.stances
        if can_judge_sentences and takes_sides and not task.features:
            return None
        return (
            "kind: pairs needs no feature, but `corpus.reader: args_me`, `sentence_aspects`, and stance labels "
            f"that all take a side, without {NO_SIDE}"
        )

    def open_space(self, store: DocumentStore, settings: Section | None) -> PairSpace:
        """Return the sentences and the pairs of a store; see the base class."""
        if settings is None:
            return PairSpace(store, SentenceSettings())
        assert isinstance(settings, SentenceSettings), "that is the declared section"
        return PairSpace(store, settings)

    def find_id_problem(self, document_id: str) -> str | None:
        """Return why an id is not that of a pair; None if it is."""
        return find_pair_problem(document_id)

    def list_sentences(self, document_id: str) -> list[str]:
        """Return the ids of a pair's sentences."""
        return split_pair(document_id)

    async def judge(self, inputs: JudgingInputs) -> Judgments:
        """Judge sentences, make pairs of them and judge these; see the base class."""
        judge = PairJudge(inputs=inputs, sentences=_get_sentences(inputs))
        judged = await judge.judge()

        for topic, pairs in zip(inputs.topics, judged.rankings, strict=True):
            if len(pairs) < judge.min_pairs:
                inputs.warn(
                    f"topic {topic.id}: {len(pairs)} pairs, fewer than the {judge.min_pairs} wanted"
                )

        made = replace(
            inputs.candidates,
            rankings=normalise_rankings(judged.rankings),
            source="pairs",
            are_made=True,
        )
        return Judgments(
            candidates=made,
            judgments=judged.judgments,
            sentences=judged.sentences,
            failures=judged.failures,
        )


def _get_sentences(inputs: JudgingInputs) -> Parts:
    """Return the sentences of the corpus.

    Raises:
        UsageError: The corpus is not on disk.
    """
    sentences = inputs.candidates.require_corpus().candidates
    if not isinstance(sentences, Parts):
        raise UsageError(
            f"{inputs.candidates.source}: pairs are made of the sentences of a corpus on disk"
        )
    return sentences


register(PairKind())
