"""A measure of grades: how far down the first relevant document is."""

from __future__ import annotations

from touche_llm.evaluation.registry import GradedTopic, TopicMeasure, register

# The lowest grade of a relevant document.
RELEVANT_GRADE = 1


def compute_reciprocal_rank(topic: GradedTopic) -> float:
    """Return 1 / rank of the first relevant document; 0 if there is none among the first ones."""
    for rank, candidate in enumerate(topic.top, start=1):
        if topic.grades.get(candidate.document_id, 0.0) >= RELEVANT_GRADE:
            return 1.0 / rank
    return 0.0


register(
    TopicMeasure(
        name="RR",
        definition="1 / rank of the first document with a grade of at least 1",
        reference="Kantor and Voorhees, Information Retrieval 2(2), 2000",
        cutoffs=(10,),
        compute=compute_reciprocal_rank,
    )
)
