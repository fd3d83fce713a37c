"""Data frames of records, in both directions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from touche_llm.data.records import Candidate
from touche_llm.errors import DataError

if TYPE_CHECKING:
    from pandas import DataFrame

RecordT = TypeVar("RecordT")


def make_frame(rows: Iterable[Sequence[Any]], columns: Sequence[str]) -> DataFrame:
    """Return a frame of rows; also without rows it has the columns."""
    # Imported here because pandas is slow to load.
    import pandas as pd

    return pd.DataFrame.from_records(list(rows), columns=list(columns))


def to_frame(records: Sequence[Any]) -> DataFrame:
    """Return a frame with a row per record and a column per field.

    Args:
        records: Records of one class, such as `Topic`, `Candidate` or `RunLine`; at least one.

    Raises:
        DataError: There is no record, since the columns are unknown then.
    """
    if not records:
        raise DataError("records: empty; give at least one record, whose fields become the columns")
    names = _list_fields(type(records[0]))
    return make_frame(([getattr(record, name) for name in names] for record in records), names)


def from_frame(frame: DataFrame, record: type[RecordT]) -> list[RecordT]:
    """Return a record per row; columns that the record does not have are ignored, missing values are left out.

    Args:
        frame: Frame with the columns of the record's required fields.
        record: Class of the records, such as `Topic`.

    Raises:
        DataError: A required column is missing, or a value has the wrong type; names the row.
    """
    import pandas as pd

    names = [name for name in _list_fields(record) if name in frame.columns]
    records = []
    for number, row in enumerate(frame[names].itertuples(index=False, name=None)):
        values = {
            name: value
            for name, value in zip(names, row, strict=True)
            if isinstance(value, list | tuple | dict) or not pd.isna(value)
        }
        try:
            records.append(msgspec.convert(values, record, from_attributes=False))
        except msgspec.ValidationError as error:
            raise DataError(f"row {number}: not a {record.__name__}: {error}") from error
    return records


def group_rankings(frame: DataFrame) -> dict[str, list[Candidate]]:
    """Return the candidates of a frame by topic id, best first.

    Args:
        frame: Columns topic, document, and rank (1 is best), score or both; rank decides.

    Raises:
        DataError: A column is missing, a value is missing or not a number, a topic repeats a document, or scores grow
            along the ranks.
    """
    lacking = [name for name in ("topic", "document") if name not in frame.columns]
    order = [name for name in ("rank", "score") if name in frame.columns]
    if lacking or not order:
        missing = [*lacking, *([] if order else ["rank or score"])]
        known = ", ".join(map(str, frame.columns)) or "no columns"
        raise DataError(f"frame: no column {', '.join(missing)}; it has {known}")
    used = frame[["topic", "document", *order]]
    if used.isna().any().any():
        raise DataError("frame: missing values in topic, document, rank or score; drop these rows")
    repeated = used[used.duplicated(["topic", "document"])]
    if len(repeated):
        first = repeated.iloc[0]
        raise DataError(f"frame: topic {first['topic']}: document {first['document']} occurs twice; keep one row")
    try:
        ordered = used.astype(dict.fromkeys(order, float)).sort_values(
            order[0], ascending=order[0] == "rank", kind="stable"
        )
    except (TypeError, ValueError) as error:
        raise DataError(f"frame: {', '.join(order)}: not numbers: {error}") from error
    rankings: dict[str, list[Candidate]] = {str(topic): [] for topic in used["topic"].unique()}
    for topic, document, *values in ordered.itertuples(index=False, name=None):
        ranking = rankings[str(topic)]
        score = values[-1] if "score" in order else -float(values[0])
        if ranking and score > ranking[-1].score:
            raise DataError(
                f"frame: topic {topic}: document {document} scores higher than the one before it; make the ranks and "
                "the scores agree, or leave one of the columns out"
            )
        ranking.append(Candidate(str(topic), str(document), len(ranking) + 1, score))
    return rankings


def _list_fields(record: type) -> list[str]:
    if is_dataclass(record):
        return [field.name for field in fields(record)]
    return list(getattr(record, "__struct_fields__", ()))
