"""Datasets of ir_datasets in runs and evaluations, read by the library's own classes from local files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import touche_llm as tl
from tests import ir_datasets_home as home
from tests.cli.conftest import Touche
from tests.sample_runs import run_directly, run_lines
from tests.scripted_engine import ScriptedEngine
from touche_llm.cli.demo import SAMPLES
from touche_llm.config.files import load_config
from touche_llm.corpus.args_me import read_arguments, read_whole_arguments
from touche_llm.corpus.ir_dataset import DatasetDocuments
from touche_llm.corpus.json_lines import read_passages
from touche_llm.data.records import Document
from touche_llm.errors import BadLine, DataError
from touche_llm.evaluation.validation import validate_run
from touche_llm.llm.request import Request
from touche_llm.tasks import TASKS

ir_datasets = pytest.importorskip("ir_datasets")
SAMPLE = SAMPLES / "comparative"


@pytest.fixture(scope="module")
def files() -> Path:
    """The files of all datasets that a task names."""
    place = Path(os.environ["IR_DATASETS_HOME"])
    for write in (
        home.write_passages,
        home.write_sentences,
        home.write_arguments,
        home.write_beir,
        home.write_pages,
    ):
        write(place)
    return place


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: Path) -> None:
    monkeypatch.chdir(tmp_path)


def documents_of(dataset: str) -> list[Document]:
    task = tl.Dataset(dataset).task
    source = task.make_source(dataset)
    assert isinstance(source, DatasetDocuments)
    return [document for _, document in source.read()]


class Kind(NamedTuple):
    dataset: str
    task: str
    documents: int
    best: str
    text: str


KINDS = [
    Kind(
        home.ARGUMENTS_2021, "arguments_2021", 5, "S2-A1", "Conclusion: Homework should be banned"
    ),
    Kind(home.BEIR, "webis_touche2020_v2", 5, "S2-A1", "Conclusion: Homework should be banned"),
    Kind(
        home.PAGES_2021,
        "comparative_2021",
        5,
        "clueweb12-0000tw-00-00000",
        "contains less caffeine",
    ),
]


@pytest.mark.parametrize("kind", KINDS, ids=[kind.dataset for kind in KINDS])
async def test_a_dataset_is_run_and_measured_with_its_own_judgments(
    kind: Kind, touche: Touche, tmp_path: Path
) -> None:
    shown: dict[str, str] = {}

    def script(request: Request) -> dict[str, Any]:
        name = str(request.origin.document_id)
        shown[name] = request.messages[1].content
        return {aspect: 2 if name == kind.best else 0 for aspect in TASKS[kind.task].aspects}

    config = load_config(None, {"dataset": kind.dataset, "retriever.method": "lucene", "depth": 5})
    assert config.task == kind.task
    await run_directly(config, tmp_path / "out", ScriptedEngine(script))
    assert run_lines(tmp_path / "out/run.txt")
    assert validate_run(tmp_path / "out/run.txt", TASKS[kind.task]) == []
    assert kind.text in shown[kind.best]
    described = (tmp_path / "out/ir-metadata.yml").read_text()
    assert (
        f"ir_datasets: {kind.dataset}" in described and f"documents: {kind.documents}" in described
    )

    done = touche("evaluate", "out", "--format", "json")
    assert done.returncode == 0, done.stderr
    values = {(row["run"], row["measure"]): row["value"] for row in json.loads(done.stdout)}
    assert values["out", "relevance nDCG@5"] > 0
    assert touche("validate", "out", "--dataset", kind.dataset).returncode == 0


def test_documents_are_those_of_the_readers_of_published_files(files: Path) -> None:
    arguments = [
        document
        for source in home.SOURCES
        for _, document in read_whole_arguments(files / f"argsme/2020-04-01/{source}.json")
    ]
    assert documents_of(home.ARGUMENTS_2020) == documents_of(home.ARGUMENTS_2021) == arguments
    assert len(arguments) == len(home.ARGUMENTS)
    pairs = [
        document
        for _, document in read_arguments(SAMPLES / "sentence_pairs/args_processed_04_01.csv")
    ]
    assert documents_of(home.PAIRS) == pairs and pairs[0].parts
    assert documents_of(home.PASSAGES) == [
        document for _, document in read_passages(SAMPLE / "passages.jsonl")
    ]
    assert {document.side for document in documents_of(home.BEIR)} == {"PRO", "CON"}


@pytest.mark.parametrize(
    ("dataset", "topic", "judged"),
    [
        (home.PASSAGES, "3", {"relevance", "quality", "stance"}),
        (home.PAIRS, "3", {"relevance", "quality", "coherence"}),
        (home.PAGES_2021, "1", {"relevance", "quality"}),
    ],
)
def test_topics_and_judgments_are_those_of_the_dataset(
    dataset: str, topic: str, judged: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    found = tl.Dataset(dataset)
    assert found.topics[0].id == topic and found.topics[0].title.endswith("?")
    assert set(found.qrels_files) == judged == set(found.qrels.judged_topics)
    # A class of the library prints the name of its file.
    assert capsys.readouterr().out == ""


class Row(NamedTuple):
    doc_id: str
    text: str

    def default_text(self) -> str:
        return self.text


class Rows:
    """Documents and topics of a dataset that this test registers."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def docs_iter(self) -> Iterator[Any]:
        return iter(self.rows)

    def docs_handler(self) -> object:
        return self

    def docs_cls(self) -> type:
        return type(self.rows[0])


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    def add(*parts: object, name: str = "mine") -> str:
        monkeypatch.setitem(ir_datasets.registry._registered, name, ir_datasets.Dataset(*parts))
        return name

    return add


def test_any_dataset_with_texts_is_run_for_a_task_that_is_named(
    register: Callable[..., str], touche: Touche, tmp_path: Path
) -> None:
    (tmp_path / "docs.tsv").write_text(
        "d1\tTea is mild.\nd2\tCoffee is strong.\nd3\tRain is wet.\nd4\tSnow\n"
    )
    (tmp_path / "queries.tsv").write_text("q1\ttea or coffee\n")
    (tmp_path / "qrels.txt").write_text("q1 0 d1 1\nq1 0 d2 0\n")
    local = ir_datasets.create_dataset("docs.tsv", "queries.tsv", "qrels.txt")
    name = register(*local._constituents)
    unknown = touche("retrieve", "--dataset", name, "--out", "out")
    assert unknown.returncode == 2 and "--task" in unknown.stderr
    done = touche("retrieve", "--dataset", name, "--task", "comparative", "--out", "out")
    assert done.returncode == 0, done.stderr
    run = tmp_path / "out/candidates.run.txt"
    assert {line.document_id for line in run_lines(run)} == {"d1", "d2"}
    measured = touche(
        "evaluate", str(run), "--task", "comparative", "--dataset", name, "--format", "json"
    )
    assert {row["measure"].split()[0] for row in json.loads(measured.stdout)} == {"relevance"}
    wrong = touche("retrieve", "--dataset", name, "--task", "sentence_pairs", "--out", "pairs")
    assert (
        wrong.returncode == 2
        and "sentences" in wrong.stderr
        and len(wrong.stderr.splitlines()) <= 2
    )


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (Row("two words", "text"), "doc_id"),
        (Row("d2", "\ud800"), "surrogates"),
        (Row("d1", "again"), "d1"),
    ],
)
def test_a_bad_document_is_named_and_can_be_left_out(
    register: Callable[..., str], row: Row, reason: str, tmp_path: Path
) -> None:
    dataset = tl.Dataset(
        register(Rows([Row("d1", "Tea."), row, Row("d3", "Coffee.")])), "comparative"
    )
    with pytest.raises(BadLine, match=reason) as caught:
        tl.open_corpus(dataset)
    assert (str(caught.value.source), caught.value.line) == ("irds:mine", 2)
    with tl.open_corpus(dataset, skip_bad_lines=True) as corpus:
        assert corpus.documents.find_unknown(["d1", "d3"]) == []
        assert corpus.description.bad_lines == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("run", "--dataset", "clueweb12/touche-2022-task2"), "touche-llm tasks list"),
        (("run", "--dataset", "../up", "--task", "comparative"), "no such dataset"),
        (("run", "--dataset", home.PASSAGES, "--topics", "t.xml"), "leave out"),
        (
            ("evaluate", "run.txt", "--dataset", home.PASSAGES, "--relevance", "q.txt"),
            "leave it out",
        ),
        (("validate", "run.txt", "--dataset", home.PASSAGES, "--topics", "t.xml"), "--topics"),
    ],
)
def test_a_wrong_dataset_is_one_line(
    touche: Touche, tmp_path: Path, arguments: tuple[str, ...], expected: str
) -> None:
    (tmp_path / "run.txt").write_text("3 FIRST sample-heating-01___3 1 1 tag\n")
    out = ("--out", "out") if arguments[0] == "run" else ()
    done = touche(*arguments, *out)
    assert done.returncode == 2
    (line,) = (line for line in done.stderr.splitlines() if not line.startswith("task: "))
    assert expected in line and not (tmp_path / "out").exists()


def test_a_missing_download_is_one_line_that_says_where_the_file_belongs(
    touche: Touche, monkeypatch: pytest.MonkeyPatch
) -> None:
    import requests

    def fail(**_: object) -> None:
        raise requests.exceptions.ConnectionError("no route\nto host")

    monkeypatch.setattr(requests, "get", fail)
    topics = touche(
        "retrieve", "--dataset", "antique/test", "--task", "comparative", "--out", "out"
    )
    (line,) = topics.stderr.splitlines()
    assert (
        topics.returncode == 1
        and "no route to host" in line
        and os.environ["IR_DATASETS_HOME"] in line
    )
    # A collection that is not downloaded at all.
    with pytest.raises(DataError, match="clueweb09/corpus"):
        list(DatasetDocuments("clueweb09/en/trec-web-2009", "text").read())
