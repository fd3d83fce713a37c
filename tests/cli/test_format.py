"""`--format` of every command: rows for other programs stand alone, and text from outside cannot act."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.cells import cell_len

from tests.cli.conftest import Done, Touche
from tests.evaluation.test_calibration import gated, judgment, shares
from tests.own_runs import rewrite
from tests.report.reports import sample_run
from tests.sample_runs import run_lines
from touche_llm.cli.demo import SAMPLES
from touche_llm.cli.output import Column, Format, print_rows, show_table
from touche_llm.data.files import write_records
from touche_llm.llm.cache import Cache

Row = dict[str, Any]
SAMPLE = SAMPLES / "comparative"
PAIRS = SAMPLES / "sentence_pairs"
CASSETTE = SAMPLE / "cassette.jsonl"
DOCUMENT = "sample-heating-01___3"
CORPUS, TOPICS = SAMPLE / "passages.jsonl", SAMPLE / "topics.xml"
DATA = f"--topics {TOPICS} --corpus {CORPUS}"
REPLAY = f"--cache {CASSETTE} --cache-mode replay"
RUN = f"run --config {SAMPLE / 'demo.yaml'} {DATA} {REPLAY} --index o/index"
TASK = "--task comparative"
FIT = "calibrate judged --stance stance.txt"
EXAMPLES = gated(6)

# Every command is called, most of them on a run of their own.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the sample in `o`, runs to fuse and to check, judged documents, and caches."""
    folder = tmp_path_factory.mktemp("made")
    sample_run("comparative", folder).rename(folder / "o")
    config = folder / "o" / "config.yaml"
    rewrite(config, yaml.safe_dump(yaml.safe_load(config.read_text()) | {"index": "o/index"}))
    shutil.copytree(folder / "o", folder / "part")
    lines = (folder / "o" / "judgments.jsonl").read_text().splitlines(keepends=True)
    (folder / "part" / "judgments.jsonl").write_text("".join(lines[:-3]))
    (folder / "one").write_text("1 FIRST a 1 9 t\n1 SECOND b 2 8 t\n3 NO c 1 1 t\n")
    (folder / "two").write_text("1 SECOND a 1 9 t\n1 Q0 d 2 8 t\n")
    # More than a table shows.
    (folder / "bad").write_text("".join(f"3 Q0 d{n} {n} {-n}.0 t\n" for n in range(1, 151)))
    (folder / "empty").write_text("")
    (folder / "short").write_text("3 PRO a,b 1 2.0 t\n")
    (folder / "judged").mkdir()
    rewrite(
        folder / "judged" / "config.yaml",
        "task: comparative\ntopics: topics.xml\ncorpus: passages.jsonl\n",
    )
    records = [judgment(topic, name, shares(*said)) for topic, name, _, said in EXAMPLES]
    write_records(folder / "judged" / "judgments.jsonl", records)
    lines_of_run = run_lines(folder / "o" / "run.txt")
    judged = (f"{line.topic_id} 0 {line.document_id} {line.rank % 3}\n" for line in lines_of_run)
    (folder / "relevance").write_text("".join(judged))
    stances = (f"{line.topic_id} 0 {line.document_id} {line.stance}\n" for line in lines_of_run)
    (folder / "stance").write_text("".join(stances))
    (folder / "stance.txt").write_text(
        "".join(f"{topic} 0 {name} {stance}\n" for topic, name, stance, _ in EXAMPLES)
    )
    settings = yaml.safe_load((SAMPLE / "demo.yaml").read_text())
    (folder / "tira.yaml").write_text(yaml.safe_dump(settings | {"topic": ["3"]}))
    with Cache(folder / "answers.sqlite") as cache:
        cache.import_cassette(CASSETTE)
    return folder


@dataclass(frozen=True)
class Case:
    """A command, its exit code, the keys of its rows, and values of the last row."""

    command: str
    keys: str
    last: dict[str, Any] | None = None
    code: int = 0


_COST_KEYS = "requests prompt_tokens shared_tokens completion_tokens"
_QRELS = "--relevance relevance --stance stance"
CASES = {
    "index": Case(
        f"index --corpus {CORPUS} --index new",
        "corpus documents sentences folder",
        {"folder": "new", "sentences": None},
    ),
    "retrieve": Case(
        f"retrieve {DATA} --index o/index --depth 5 --out new",
        "file failures",
        {"file": "new/candidates.run.txt", "failures": 0},
    ),
    "judge": Case("judge --out o", "file failures", {"file": "o/judgments.jsonl", "failures": 0}),
    "rank": Case("rank --out o", "file imputed failures", {"file": "o/run.txt", "imputed": 0}),
    "rank, some are missing": Case(
        "rank --out part --rank judge", "file imputed failures", {"imputed": 3, "failures": 0}, 3
    ),
    "run": Case(f"{RUN} --topic 3 --out new", "file judgments failures", {"failures": 0}),
    "run --dry-run": Case(
        f"run {DATA} --index o/index --topic 3 --depth 5 --rank judge,sliding:5 --cache none --out new --dry-run",
        f"stage prompt {_COST_KEYS}",
        {"stage": "rank"},
    ),
    "rank --dry-run, all is known": Case("rank --out o --dry-run", f"stage prompt {_COST_KEYS}"),
    "tira": Case(
        f"tira -i {SAMPLE} -o new --cache-folder cache --cache-mode replay --config tira.yaml",
        "file judgments failures",
        {"file": "new/run.txt"},
    ),
    "fuse": Case(
        "fuse one two --out new/f --task comparative",
        "file lines topics partial_topics disagreeing imputed left_out",
        {
            "lines": 4,
            "topics": 2,
            "partial_topics": 1,
            "disagreeing": 1,
            "imputed": 1,
            "left_out": 0,
        },
    ),
    "calibrate": Case(
        f"{FIT} --out new.yaml",
        "labels topics documents macro_f1 accuracy",
        {"labels": "most probable", "topics": 6, "documents": 96},
    ),
    "validate": Case(f"validate o/run.txt {TASK} {DATA}", "file line level message"),
    "validate, a short run": Case(
        f"validate short --task sentence_pairs --topics {PAIRS / 'topics.xml'}",
        "file line level message",
        {"file": "short", "line": None, "level": "warning"},
    ),
    "validate, problems": Case(
        f"validate bad {TASK}", "file line level message", {"level": "error"}, 1
    ),
    "evaluate": Case(
        f"evaluate o {_QRELS}",
        "run measure value low high n topics missing judged_topics judged",
        {"run": "o", "measure": "stance recall NO"},
    ),
    "evaluate --per-topic": Case(
        f"evaluate o {_QRELS} --per-topic", "run topic …", {"run": "o", "topic": "20"}
    ),
    "evaluate --leaderboard": Case(
        f"evaluate o {_QRELS} --leaderboard",
        "run measure value low high n topics missing judged_topics judged place "
        "published ahead ahead_value behind behind_value source",
        {"run": "o", "measure": "stance macro-F1"},
    ),
    "compare": Case(
        f"compare o part {_QRELS}", "run baseline measure …", {"baseline": "o", "run": "part"}
    ),
    "show": Case("show o", "topic title document rank …", {"rank": 3}),
    "show --topic": Case("show o --topic 3", "topic title document rank …", {"topic": "3"}),
    "runs": Case("runs", "run state problem …", {"run": "part", "state": "complete"}),
    "report": Case("report o -o new.html", "file topics bytes", {"file": "new.html", "topics": 4}),
    "prompts list": Case(
        f"prompts list {TASK}",
        "task name version hash answer fields purpose examples path error",
        {"task": "comparative", "examples": 0, "error": None},
    ),
    "prompts check": Case(
        f"prompts check judge stance {TASK}",
        "task name version hash path tokens errors warnings problems",
        {"name": "stance", "errors": 0, "problems": None},
    ),
    "prompts copy": Case(
        f"prompts copy judge mine.jinja {TASK}", "prompt file", {"file": "mine.jinja"}
    ),
    "prompts try": Case(
        f"prompts try judge --topic 3 --doc {DOCUMENT} {DATA} --index o/index {REPLAY}",
        "prompt topic documents field value people probabilities outside answer thought failure cached prompt_tokens "
        "completion_tokens",
        {"documents": DOCUMENT, "failure": None, "cached": True, "thought": None},
    ),
    "cache export": Case(
        f"cache export new.jsonl --cache {CASSETTE}",
        "file entries damaged gaps",
        {"file": "new.jsonl"},
    ),
    "cache import": Case(
        f"cache import {CASSETTE} --cache new.sqlite", "file new known", {"known": 0}
    ),
    "tasks list": Case("tasks list", "task title …"),
    "tasks show": Case(f"tasks show {'comparative'}", "task title …", {"task": "comparative"}),
    "data": Case("data", "task role name bytes records licence md5 url"),
}


@pytest.fixture
def call(
    made: Path, touche: Touche, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, str], Done]:
    """Calls a command with a format, each in a folder of its own with all that was made."""

    def call(command: str, output: str) -> Done:
        place = tmp_path / output
        shutil.copytree(made, place)
        # What `tira` looks up.
        (place / "cache").mkdir()
        shutil.copy(made / "answers.sqlite", place / "cache")
        monkeypatch.chdir(place)
        return touche(*command.split(), "--format", output)

    return call


def read_tsv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline=""), delimiter="\t", strict=True))


def as_text(rows: list[Row]) -> list[dict[str, str]]:
    return [
        {name: "" if value is None else str(value) for name, value in row.items()} for row in rows
    ]


@pytest.mark.parametrize("name", list(CASES))
def test_rows_stand_alone(name: str, call: Callable[[str, str], Done]) -> None:
    case = CASES[name]
    done = {output: call(case.command, output) for output in ("table", "json", "tsv")}
    assert {each.returncode for each in done.values()} == {case.code}, done["json"].stderr
    rows = json.loads(done["json"].stdout)
    tsv = read_tsv(done["tsv"].stdout)
    # The header is there without any row too, and nothing but line feeds ends a line.
    keys = tuple(done["tsv"].stdout.partition("\n")[0].split("\t"))
    known = tuple(case.keys.removesuffix(" …").split())
    assert keys[: len(known)] == known and (len(keys) == len(known) or case.keys.endswith("…"))
    assert {tuple(row) for row in rows} <= {keys} and "\r" not in done["tsv"].stdout
    # Sizes of pages and places of files are those of each folder.
    if not any(name == "bytes" or "qrels" in name for name in keys):
        assert tsv == as_text(rows)
    if case.last is not None:
        assert {key: rows[-1][key] for key in case.last} == case.last
    lines = done["table"].stdout.splitlines()
    assert lines and not lines[0].startswith(("[", "{"))


def test_text_from_outside_cannot_act_and_what_is_undefined_is_empty(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [
        {
            "path": Path("a\u202fb\udcff"),
            "text": "\x1b[31m\t“é”\n",
            "value": float("nan"),
            "none": None,
            "n": 1e-7,
        }
    ]
    print_rows(Format.JSON, rows)
    said = capsys.readouterr().out
    seen = {
        "path": "a\u202fb\ufffd",
        "text": "\ufffd[31m\ufffd“é”\n",
        "value": None,
        "none": None,
        "n": 1e-7,
    }
    assert json.loads(said) == [seen]
    print_rows(Format.TSV, rows)
    assert read_tsv(capsys.readouterr().out) == as_text([seen])


def test_a_narrow_terminal_gets_texts_wrapped_or_cut_and_no_number_lost(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    rows = [
        {
            "run": "runs/" + "x" * 40,
            "text": "[b]\x1b " + "word " * 30,
            "value": 0.12345,
            "n": 1234567,
        }
    ]
    show_table(
        (Column("run", is_text=True), Column("text", is_cut=True), Column("value"), Column("n")),
        rows,
    )
    lines = capsys.readouterr().out.splitlines()
    assert max(map(cell_len, lines)) <= 40 and "0.1235" in lines[2] and "1,234,567" in lines[2]
    assert "".join(lines).count("x") == 41 and "\x1b" not in "".join(lines) and "[b]" in lines[2]
