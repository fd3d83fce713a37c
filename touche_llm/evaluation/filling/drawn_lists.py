"""Lists of drawn documents with the probability of each, for people to judge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from touche_llm.data.files import is_word, open_atomic, read_table_lines
from touche_llm.errors import DataError, UsageError
from touche_llm.evaluation.filling.grades import DocumentDraw
from touche_llm.evaluation.filling.pool import NONE, SystemPool

_HEADER = ("team", "topic", "document", "probability")


@dataclass(frozen=True, slots=True)
class DrawnDocument:
    """An unjudged document that was drawn for people to judge.

    Attributes:
        team: Team from whose unjudged documents it was drawn.
        topic: Id of the topic.
        document: Id of the document.
        probability: Probability with which it was drawn.
    """

    team: str
    topic: str
    document: str
    probability: float


def list_drawn(pool: SystemPool, team: int, drawn: DocumentDraw) -> list[DrawnDocument]:
    """Return the documents of a sample by topic and id."""
    listed: list[DrawnDocument] = []
    for number, probability in zip(drawn.documents, drawn.probabilities, strict=True):
        topic, document = pool.documents[number]
        listed.append(DrawnDocument(pool.teams[team], topic, document, float(probability)))
    return listed


def write_drawn_list(path: Path, drawn: Iterable[DrawnDocument]) -> None:
    """Write drawn documents as tab-separated lines under a header, atomically."""
    with open_atomic(path) as stream:
        stream.write(("\t".join(_HEADER) + "\n").encode())
        for item in drawn:
            line = f"{item.team}\t{item.topic}\t{item.document}\t{item.probability!r}\n"
            stream.write(line.encode())


def read_drawn_list(path: Path) -> list[DrawnDocument]:
    """Read a list that `write_drawn_list` wrote.

    Raises:
        DataError: A line is not as written, or a document is listed twice for a team. Names file
            and line.
    """
    drawn: list[DrawnDocument] = []
    seen: set[tuple[str, str, str]] = set()
    for number, text in read_table_lines(path, "a list of drawn documents"):
        columns = text.rstrip("\n").split("\t")
        if number == 1 and tuple(columns) == _HEADER:
            continue
        item = _parse_line(columns, f"{path}:{number}")
        key = item.team, item.topic, item.document
        if key in seen:
            raise DataError(f"{path}:{number}: {item.document} is listed twice; leave one line out")
        seen.add(key)
        drawn.append(item)
    if not drawn:
        raise DataError(f"{path}: no drawn document; give a list that --draw wrote")
    return drawn


def _parse_line(columns: list[str], place: str) -> DrawnDocument:
    if len(columns) != len(_HEADER) or not all(map(is_word, columns[1:3])):
        raise DataError(
            f"{place}: not a line `{' '.join(_HEADER)}`, separated by tabs; give a list that --draw wrote"
        )
    try:
        probability = float(columns[3])
    except ValueError:
        probability = 0.0
    if not 0.0 < probability <= 1.0:
        raise DataError(
            f"{place}: {columns[3]!r:.40} is no probability; it must be above 0, and at most 1"
        )
    return DrawnDocument(columns[0], columns[1], columns[2], probability)


def match_drawn(pool: SystemPool, drawn: Iterable[DrawnDocument]) -> dict[str, DocumentDraw]:
    """Return the samples of drawn documents by team.

    Raises:
        UsageError: A team or document is not in the pool, or people have not judged a document.
    """
    numbers = {document: number for number, document in enumerate(pool.documents)}
    by_team: dict[str, list[DrawnDocument]] = {}
    for item in drawn:
        if item.team not in pool.teams:
            raise UsageError(
                f"--drawn: team {item.team} has no system; give its systems as --systems {item.team}=RUN"
            )
        number = numbers.get((item.topic, item.document), NONE)
        if number == NONE or pool.grades[number] == NONE:
            raise UsageError(
                f"--drawn: people have not judged document {item.document} of topic {item.topic}; "
                "add its grade to the file of --human"
            )
        by_team.setdefault(item.team, []).append(item)
    return {team: _make_sample(items, numbers) for team, items in by_team.items()}


def _make_sample(
    items: list[DrawnDocument], numbers: Mapping[tuple[str, str], int]
) -> DocumentDraw:
    return DocumentDraw(
        documents=np.array([numbers[item.topic, item.document] for item in items]),
        probabilities=np.array([item.probability for item in items]),
    )
