"""Topics that runs are measured on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from touche_llm.data.trec_runs import ParsedRun
from touche_llm.errors import DataError, shorten
from touche_llm.evaluation.qrels import STANCE, Qrels


def select_topics(qrels: Qrels, runs: Iterable[ParsedRun], *, shared: bool = False) -> Qrels:
    """Return the judgments of the topics that runs are measured on together; every figure of a run is over these.

    All judged topics count, or those that were chosen for each run with chosen topics: a run that lacks one of them
    lost it, and it counts 0. Only if `shared`, topics that a run lacks are left out.
    """
    for run in runs:
        if run.chosen_topics is not None:
            qrels = qrels.restrict_to(frozenset(run.chosen_topics))
        if shared:
            qrels = qrels.restrict_to(run.rankings)
    return qrels


def check_judged(qrels: Qrels, run: ParsedRun, *first_stages: ParsedRun) -> None:
    """Raise DataError if no document of a run and of its first stages is judged: the qrels are of another corpus.

    Lost topics have no documents and count 0; so does a run without the judged documents of its first stage.
    """
    judged: dict[str, Mapping[str, Collection[str]]] = {**qrels.grades, STANCE: qrels.stances}
    for aspect, by_topic in judged.items():
        documents = [
            (topic, candidate.document_id)
            for each in (run, *first_stages)
            for topic in by_topic.keys() & each.rankings.keys()
            for candidate in each.rankings[topic]
        ]
        if documents and not any(document in by_topic[topic] for topic, document in documents):
            topic, document = min(documents)
            whose = "the run and its first stage" if first_stages else "the run"
            raise DataError(
                f"no document of {whose} is in the {aspect} qrels (topic {topic}: {document}; judged are "
                f"{shorten(by_topic[topic], 3)}); give the qrels of the run's corpus, or none of this aspect"
            )


@dataclass(frozen=True, slots=True)
class Coverage:
    """The judged topics behind the measures of one aspect.

    Attributes:
        topics: Topics that the run is measured on.
        missing: Those of them that the run lacks.
        left_out: Judged topics that the run is not measured on.
        graded: Whether a missing topic counts 0; stances are measured over documents that the run has.
    """

    topics: tuple[str, ...]
    missing: tuple[str, ...]
    left_out: tuple[str, ...]
    graded: bool

    @classmethod
    def of(cls, run: ParsedRun, qrels: Qrels, aspect: str) -> Coverage:
        """Return the coverage of a run by the qrels of `select_topics`."""
        graded = aspect != STANCE
        topics = tuple(qrels.grades[aspect] if graded else qrels.stances)
        missing = tuple(topic for topic in topics if topic not in run.rankings)
        return cls(topics, missing, tuple(sorted(qrels.judged_topics[aspect].difference(topics))), graded)

    @property
    def judged(self) -> int:
        """Number of topics that the qrels file judges."""
        return len(self.topics) + len(self.left_out)

    def __str__(self) -> str:
        text = f"{len(self.topics)} of {self.judged} judged topics"
        if self.missing:
            text += f"; {len(self.missing)} not in the run" + (", which count 0" if self.graded else "")
        return text

    def describe(self) -> str:
        """Return the number of topics, with the ids of those left out, or of those that count if these are fewer."""
        text = f"{len(self.topics)} of {self.judged} judged topics"
        if not self.left_out:
            return text
        is_short = len(self.topics) < len(self.left_out)
        return text + (f" (only {shorten(self.topics)})" if is_short else f" (without {shorten(self.left_out)})")

    def describe_missing(self) -> str:
        """Return the ids of the topics that the run lacks, with what that means; empty if it has all."""
        effect = "they count 0" if self.graded else "their documents do not count"
        return f"not in the run, so {effect}: {shorten(self.missing)}" if self.missing else ""
