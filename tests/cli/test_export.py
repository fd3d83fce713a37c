"""Tables of a run as files for other programs."""

from __future__ import annotations

import csv
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import touche_llm as tl
from tests.cli.conftest import Touche
from touche_llm.cli.demo import SAMPLES

SAMPLE = SAMPLES / "comparative"
_LINES = map(json.loads, (SAMPLE / "passages.jsonl").read_text().splitlines())
PASSAGES = {line["id"]: line["contents"] for line in _LINES}


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the run of the sample is made once."""
    return tmp_path_factory.mktemp("export")


@pytest.fixture
def run(touche: Touche, run_folder: Path, tmp_path: Path) -> Path:
    """A run of the sample with comparisons, from its stored answers."""
    if not (run_folder / "run").exists():
        sample = ("--topics", str(SAMPLE / "topics.xml"), "--corpus", str(SAMPLE / "passages.jsonl"))
        answers = ("--cache", str(SAMPLE / "cassette.jsonl"), "--cache-mode", "replay")
        config = ("--config", str(SAMPLE / "demo.yaml"), "--index", str(run_folder / "index"))
        assert touche("run", *config, *sample, *answers, "--out", str(run_folder / "run")).returncode == 0
    shutil.copytree(run_folder / "run", tmp_path / "run")
    return tmp_path / "run"


def read_lines(path: Path) -> pd.DataFrame:
    return pd.DataFrame([json.loads(line) for line in path.read_text().splitlines()])


def read_table(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, dtype={"topic": str})


READERS: dict[str, Callable[[Path], pd.DataFrame]] = {
    ".parquet": pd.read_parquet,
    ".jsonl": read_lines,
    ".csv": read_table,
}


@pytest.mark.parametrize("suffix", READERS)
@pytest.mark.parametrize("table", ["results", "judgments"])
def test_a_table_comes_back_as_it_is_in_python(touche: Touche, run: Path, suffix: str, table: str) -> None:
    done = touche("export", "run", "-o", f"out{suffix}", "--table", table)
    assert done.returncode == 0, done.stderr
    frame = READERS[suffix](run.parent / f"out{suffix}")
    expected = getattr(tl.Run.open(run), table)
    pd.testing.assert_frame_equal(frame, expected, check_dtype=False, check_exact=True)
    assert len(frame) > 50 and "text" not in frame


@pytest.mark.parametrize("suffix", READERS)
def test_comparisons_keep_their_documents(touche: Touche, run: Path, suffix: str) -> None:
    assert touche("export", "run", "-o", f"out{suffix}", "--table", "comparisons").returncode == 0
    frame = READERS[suffix](run.parent / f"out{suffix}")
    documents = [json.loads(each) if suffix == ".csv" else list(each) for each in frame["documents"]]
    comparisons = tl.Run.open(run).comparisons
    assert documents == comparisons["documents"].tolist() and len(documents) > 5
    assert frame["best"].tolist() == comparisons["best"].tolist()
    assert frame["order"].isna().all()


def test_texts_are_those_of_the_corpus(touche: Touche, run: Path) -> None:
    done = touche("export", "run", "-o", "out.csv", "--with-text", "--format", "json")
    assert json.loads(done.stdout)[0]["note"] is None
    with (run.parent / "out.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert rows and all(row["text"] == PASSAGES[row["document"]] for row in rows)


def change_ids(path: Path) -> None:
    """Give the documents of the sample the ids of another corpus."""
    path.write_text(path.read_text().replace("sample-", "clueweb12-"))


def test_texts_of_clueweb_come_with_a_note(touche: Touche, run: Path) -> None:
    shutil.copy(SAMPLE / "passages.jsonl", "passages.jsonl")
    for name in ("passages.jsonl", *(f"run/{file}" for file in ("run.txt", "candidates.run.txt", "results.tsv"))):
        change_ids(Path(name))
    for name in ("judgments.jsonl", "stances.jsonl", "comparisons.jsonl"):
        change_ids(run / name)
    config = (run / "config.yaml").read_text().splitlines()
    changed = [line for line in config if not line.startswith(("corpus:", "index:"))]
    (run / "config.yaml").write_text("\n".join([*changed, "corpus: passages.jsonl", "index: index"]) + "\n")
    note = "ClueWeb12 (https://lemurproject.org/clueweb12/), which may not be redistributed"
    assert note not in touche("export", "run", "-o", "out.csv").stdout
    done = touche("export", "run", "-o", "texts.csv", "--with-text")
    assert done.returncode == 0, done.stderr
    assert note in " ".join(done.stdout.split())
    assert touche("report", "run").returncode == 0
    assert note in (run / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("run", "-o", "out.xlsx"), 2, ".parquet, .jsonl, .csv"),
        (("run", "-o", "there.csv"), 2, "--overwrite"),
        (("run", "-o", "out.csv", "--table", "comparisons", "--with-text"), 2, "comparisons"),
        (("run", "-o", "out.csv", "--table", "nothing"), 2, "--table"),
        (("nowhere", "-o", "out.csv"), 1, "nowhere"),
    ],
)
def test_a_wrong_export_is_one_line(
    touche: Touche, run: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    (run.parent / "there.csv").write_text("mine")
    done = touche("export", *arguments)
    assert (done.returncode, done.stdout) == (code, "") and len(done.stderr.splitlines()) == 1
    assert said in done.stderr and not (run.parent / "out.csv").exists()
    assert (run.parent / "there.csv").read_text() == "mine"


def test_a_run_that_was_not_ranked_has_judgments_alone(touche: Touche, run: Path) -> None:
    (run / "results.tsv").unlink()
    done = touche("export", "run", "-o", "out.csv")
    assert done.returncode == 1 and "touche-llm rank" in done.stderr
    assert touche("export", "run", "-o", "out.csv", "--table", "judgments").returncode == 0


def test_parquet_without_its_library_names_the_extra(
    touche: Touche, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = touche("export", "run", "-o", "out.parquet")
    assert done.returncode == 2 and "pip install 'touche-llm[parquet]'" in done.stderr
    assert not (run.parent / "out.parquet").exists()


def test_values_are_exact_and_unknown_ones_are_null(touche: Touche, run: Path) -> None:
    lines = [json.loads(line) for line in (run / "judgments.jsonl").read_text().splitlines()]
    del lines[0]["grades"]["quality"]
    (run / "judgments.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    touche("export", "run", "-o", "out.jsonl", "--table", "judgments")
    rows: list[dict[str, Any]] = [json.loads(line) for line in (run.parent / "out.jsonl").read_text().splitlines()]
    assert rows[0]["quality"] is None
    assert [row["relevance"] for row in rows] == [line["grades"]["relevance"] for line in lines]
