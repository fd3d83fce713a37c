"""RankLLM as a program for `benchmarks.peers`: its environment, its file of requests, what its driver prints."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from benchmarks.processes import Ended, run_program
from touche_llm.corpus.store import DocumentStore
from touche_llm.data.topics import read_topics
from touche_llm.data.trec_runs import read_candidates
from touche_llm.errors import DataError, UsageError

FLAG = "--rank-llm-python"
_MAKE = (
    "make an environment with `python3.11 -m venv FOLDER && FOLDER/bin/pip install "
    "'rank-llm[openai,local] @ git+https://github.com/castorini/rank_llm@1b3cabb'`, "
    f"and give `{FLAG} FOLDER/bin/python`"
)
_DRIVER = Path(__file__).with_name("rank_llm_driver.py")
_ORDER = re.compile(r"\[\d+\](?: > \[\d+\])*", re.ASCII)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Reply(_Strict):
    """An answer of the model to RankLLM; one without tokens is the text of an error."""

    text: str
    tokens: Annotated[int, Field(ge=0)]


class Report(_Strict):
    """What the driver prints.

    Attributes:
        seconds: Wall time of reranking.
        documents: Ids of all candidates, topic by topic, as reranked.
        scores: Their scores.
        replies: Replies to all requests: topic by topic, the windows of each in their order.
    """

    seconds: Annotated[float, Field(gt=0)]
    documents: list[str]
    scores: list[float]
    replies: list[Reply]

    def count_lost(self) -> int:
        """Count the answers that never came."""
        return sum(not reply.tokens for reply in self.replies)

    def count_unreadable(self, windows: Sequence[int] | None) -> int:
        """Count the answers that came and are neither yes nor no, or no order of all documents of the window.

        Args:
            windows: The number of documents in each request; None if pointwise.
        """
        if windows is None:
            return self.scores.count(0.0)
        pairs = zip(self.replies, windows, strict=True)
        return sum(reply.tokens > 0 and not _is_order(reply.text.strip(), window) for reply, window in pairs)


def _is_order(text: str, documents: int) -> bool:
    labels = sorted(map(int, re.findall(r"\d{1,3}", text, re.ASCII)))
    return bool(_ORDER.fullmatch(text)) and labels == list(range(1, documents + 1))


def read_report(output: str, requests: int, candidates: int) -> Report:
    """Read what the driver printed; raise DataError unless it is a report with as many replies and scores."""
    try:
        report = Report.model_validate_json(output)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "output"
        raise DataError(
            f"{_DRIVER.name}: {where}: {first['msg']}; expected a JSON object, got {output[:200]!r}"
        ) from error
    for what, found, expected in (("replies", report.replies, requests), ("scores", report.scores, candidates)):
        if len(found) != expected:
            raise DataError(f"{_DRIVER.name}: {what}: {len(found)}; expected {expected}; {_MAKE}")
    return report


def list_windows(documents: int, window: int, stride: int) -> list[int]:
    """List the sizes of the windows that slide over a ranking, from its end to its start."""
    sizes, end = [], documents
    while True:
        start = max(0, end - window)
        sizes.append(end - start)
        if start == 0:
            return sizes
        end -= stride


def check_python(python: Path | None) -> Path:
    """Return the Python with RankLLM as an absolute path; raise UsageError if there is none, with how to make it."""
    if python is None:
        raise UsageError(f"{FLAG}: missing; {_MAKE}")
    python = Path(os.path.abspath(python))  # not resolved: the link decides on the environment
    if not (python.is_file() and os.access(python, os.X_OK)):
        raise UsageError(f"{FLAG}: {python}: no such program; {_MAKE}")
    with tempfile.TemporaryDirectory() as folder:
        ended = run_driver(python, Path(folder), {})
    if ended.code:
        reason = (ended.errors.strip().splitlines() or [f"exit code {ended.code}"])[-1]
        raise UsageError(f"{FLAG}: {python}: {reason}; {_MAKE}")
    return python


def run_driver(python: Path, folder: Path, options: Mapping[str, object]) -> Ended:
    """Run the driver in RankLLM's environment, without this project's modules."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    flags = [f"--{name}={value}" for name, value in options.items()]
    return run_program([str(python), "-P", str(_DRIVER), *flags], folder, variables)


def write_requests(file: Path, candidates: Path, topics: Path, index: Path) -> list[int]:
    """Write candidates as RankLLM reads them, a topic a line; return their number for each topic.

    Args:
        file: File to write.
        candidates: Candidates as the first stage writes them.
        topics: Topics, whose titles are the queries.
        index: Folder with the stored documents.
    """
    titles = {topic.id: topic.title for topic in read_topics(topics)}
    rankings = read_candidates(candidates)
    with DocumentStore(index) as store, file.open("w") as stream:
        for topic_id, ranking in rankings.items():
            found = [
                {"docid": each.document_id, "score": each.score, "doc": {"contents": store.get(each.document_id).text}}
                for each in ranking
            ]
            query = {"text": titles[topic_id], "qid": topic_id}
            stream.write(json.dumps({"query": query, "candidates": found}) + "\n")
    return [len(ranking) for ranking in rankings.values()]
