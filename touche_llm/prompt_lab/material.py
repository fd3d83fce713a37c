"""Topics and documents for checking prompts, real or invented."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from touche_llm.data.records import Document, Topic
from touche_llm.errors import DataError
from touche_llm.judging.pointwise import Documents
from touche_llm.judging.sentence_pairs import SEPARATOR
from touche_llm.pipeline.corpora import LocalCorpus
from touche_llm.prompts.prompt import Purpose

_MAX_DOCUMENTS = 4
_INVENTED = (
    Topic(
        "1",
        "Is a bicycle better than a car for going to work?",
        "A user who lives five kilometres from the office wants to know what to travel with.",
        "Highly relevant texts compare the two in cost, time and health. Texts about races or about repairs are not.",
        ("bicycle", "car"),
    ),
    Topic(
        "2",
        "Which keeps longer, bread from rye or from wheat?",
        "Somebody who bakes once a week asks for the flour with which bread stays fresh.",
        "Relevant texts name the flour and say something of days or of storing; recipes alone are not relevant.",
        ("rye", "wheat"),
    ),
)
_INVENTED_TEXTS = (
    "Most people who took the first for a year say that it saved them money, though not in winter. The second costs "
    "more to keep, as a study of forty households found, but nobody was late because of rain.",
    "Nobody can say this in general. It depends on the time at hand, on the weather and on what somebody likes, and "
    "those who tried both went back to what they were used to after a month.",
    "Last spring we looked at both. The figures speak for the second: fewer faults, less noise, half of the waiting.",
    "There are good reasons for the first, and cost is one of them. It needs little room and hardly any care.",
)


@dataclass(frozen=True, slots=True)
class Material:
    """Topics and documents for checking prompts.

    Attributes:
        topics: Topics of a file, or invented ones.
        documents: Documents by id.
        ids: Ids of four documents; two or three if there are no more.
    """

    topics: Sequence[Topic]
    documents: Documents
    ids: tuple[str, ...]


class Texts:
    """Documents with one text for all ids, or with a text for each id."""

    def __init__(self, texts: Mapping[str, str] | str) -> None:
        self._texts = texts

    def get(self, document_id: str) -> Document:
        """Return the document with this id."""
        text = self._texts if isinstance(self._texts, str) else self._texts[document_id]
        return Document(document_id, text, title="x", side="PRO")

    def find_unknown(self, document_ids: Iterable[str]) -> list[str]:
        """Return an empty list: every id is known."""
        return []


def make_invented_material(topics: Sequence[Topic] = ()) -> Material:
    """Return invented documents, with the given or else invented topics."""
    texts = dict(zip("abcd", _INVENTED_TEXTS, strict=True))
    return Material(topics or _INVENTED, Texts(texts), tuple(texts))


def take_corpus_material(topics: Sequence[Topic], corpus: LocalCorpus, purpose: Purpose) -> Material:
    """Return the first documents of a corpus; sentences or pairs of sentences if the prompt shows them.

    Raises:
        DataError: The corpus has fewer than two.
    """
    store = corpus.store
    if corpus.documents is store:
        ids = store.get_ids(list(range(min(_MAX_DOCUMENTS, len(store)))))
    else:
        ids = store.parts.get_ids(list(range(min(2 * _MAX_DOCUMENTS, len(store.parts)))))
        if purpose.name != "sentence":
            ids = [SEPARATOR.join(pair) for pair in zip(ids[::2], ids[1::2], strict=False)]
    if len(ids) < 2:
        raise DataError(f"{corpus.name}: has too few documents to compare two requests; give a corpus with more")
    documents = corpus.candidates if purpose.name == "sentence" else corpus.documents
    return Material(topics or _INVENTED, documents, tuple(ids[:_MAX_DOCUMENTS]))
