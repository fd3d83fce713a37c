"""`--format` of every command: what standard output holds for other programs, and that nothing else stands there."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from tests.cli.conftest import Done, Touche
from tests.evaluation.test_calibration import gated, judgment
from tests.report.reports import sample_run
from tests.sample_runs import Silent, run_lines
from touche_llm.cli import app
from touche_llm.cli.demo import SAMPLE_TASKS, SAMPLES
from touche_llm.cli.emit import Format, print_rows
from touche_llm.cli.prompts import describe_fields
from touche_llm.cli.stages import report_failures
from touche_llm.data.io import read_records, write_records
from touche_llm.data.records import Attempt, Failure, Judgment
from touche_llm.evaluation.calibration import cross_validate, measure_thresholds
from touche_llm.evaluation.run_validation import validate_run
from touche_llm.llm.cache import Cache
from touche_llm.pipeline.config_file import load_config
from touche_llm.pipeline.dry_run import Cost, estimate_cost
from touche_llm.prompt_lab.lint import check
from touche_llm.prompt_lab.trial import estimate
from touche_llm.prompts.purposes import find_prompts, load_named
from touche_llm.tasks import get_task

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
    config.write_text(yaml.safe_dump(yaml.safe_load(config.read_text()) | {"index": "o/index"}))
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
    (folder / "judged" / "config.yaml").write_text("task: comparative\ntopics: topics.xml\ncorpus: passages.jsonl\n")
    records = [judgment(each.topic_id, each.document_id, dict(each.probabilities)) for each in EXAMPLES]
    write_records(folder / "judged" / "judgments.jsonl", records)
    (folder / "stance.txt").write_text("".join(f"{e.topic_id} 0 {e.document_id} {e.stance}\n" for e in EXAMPLES))
    settings = yaml.safe_load((SAMPLE / "demo.yaml").read_text())
    (folder / "tira.yaml").write_text(yaml.safe_dump(settings | {"topic": ["3"]}))
    with Cache(folder / "answers.sqlite") as cache:
        cache.import_cassette(CASSETTE)
    (folder / "t.yaml").write_text("stance: {thresholds: {NO: 0.75}}\n")
    return folder


@dataclass(frozen=True)
class Case:
    """A command, its exit code, and its rows: those that it must print, by the folder that it ran in."""

    command: str
    rows: Callable[[Path], list[Row]]
    code: int = 0


def lines_in(file: Path) -> int:
    return len(file.read_text().splitlines())


def stage(file: str, topics: int = 4, **counts: int) -> Callable[[Path], list[Row]]:
    def rows(folder: Path) -> list[Row]:
        return [{"file": file, "lines": lines_in(folder / file), "topics": topics, **counts}]

    return rows


def entries() -> list[Row]:
    return [json.loads(line) for line in CASSETTE.read_text().splitlines()]


def counted(folder: Path) -> list[Row]:
    names = {"kind": "kind", "model": "model", "prompt": "prompt", "version": "prompt_version", "hash": "prompt_hash"}
    found = [{name: each.get(place) for name, place in names.items()} for each in entries()]
    rows = [each | {"entries": found.count(each)} for number, each in enumerate(found) if each not in found[:number]]
    return sorted(rows, key=lambda row: (row["kind"], row["model"], row["prompt"] or ""))


def folds(folder: Path) -> list[Row]:
    report = cross_validate(EXAMPLES, get_task("comparative"), 2, 0)
    rows = []
    for number, each in enumerate(report.folds, start=1):
        rows.append({"held_out": f"fold {number}", "prompt": "judge", "topics": 3, "topic_ids": " ".join(each.topics)})
        rows[-1] |= {"documents": 48} | {f"threshold_{label}": value for label, value in each.thresholds.items()}
        rows[-1] |= {"macro_f1": each.scores.macro_f1, "accuracy": each.scores.accuracy}
        rows[-1] |= {f"{name}_without": getattr(each.most_probable, name) for name in ("macro_f1", "accuracy")}
    every: Row = {
        "held_out": "all folds",
        "prompt": "judge",
        "topics": 6,
        "topic_ids": " ".join(report.topics),
        "documents": 96,
    }
    every |= {"threshold_NO": None, "threshold_NEUTRAL": None}
    every |= {"macro_f1": report.scores.macro_f1, "accuracy": report.scores.accuracy}
    every |= {f"{name}_without": getattr(report.most_probable, name) for name in ("macro_f1", "accuracy")}
    return [*rows, every]


def measured(folder: Path) -> list[Row]:
    rows = []
    for name, threshold in (("thresholds", 0.75), ("most probable", None)):
        scores = measure_thresholds(EXAMPLES, {} if threshold is None else {"NO": threshold}, get_task("comparative"))
        rows.append({"labels": name, "topics": 6, "documents": 96, "threshold_NO": threshold})
        rows[-1] |= {"threshold_NEUTRAL": None, "macro_f1": scores.macro_f1, "accuracy": scores.accuracy}
    return rows


def problem(file: str, line: int | None, level: str, message: str) -> Row:
    return {"file": file, "line": line, "level": level, "message": message}


def with_judgments(at: Path) -> list[Row]:
    return stage("new/run.txt", topics=1, judgments=lines_in(at / "new" / "judgments.jsonl"), failures=0)(at)


def spent(cost: Cost) -> Row:
    row: Row = {"stage": cost.stage, "prompt": cost.prompt}
    for name in ("requests", "prompt_tokens", "shared_tokens", "completion_tokens"):
        row |= {f"{name}_least": getattr(cost.least, name), f"{name}_most": getattr(cost.most, name)}
    return row | {"known": None}


def sent(at: Path) -> list[Row]:
    steps = {"topics": TOPICS, "corpus": CORPUS, "index": at / "o" / "index", "rank": "judge,sliding:5"}
    config = load_config(None, steps | {"topic": ("3",), "depth": 5, "cache.file": at / "none"})
    result = asyncio.run(estimate_cost(config, None, ("retrieve", "judge", "rank"), Silent()))
    rows = [spent(cost) for cost in result.costs]
    assert rows[-1]["requests_least"] < rows[-1]["requests_most"]
    return rows


def known(at: Path) -> list[Row]:
    names = [
        f"{name}_{end}"
        for name in ("requests", "prompt_tokens", "shared_tokens", "completion_tokens")
        for end in ("least", "most")
    ]
    compared = lines_in(at / "o" / "comparisons.jsonl")
    return [{"stage": "rank", "prompt": None, **dict.fromkeys(names, 0), "known": compared}]


def listed(_: Path) -> list[Row]:
    found = []
    for each in find_prompts(get_task("comparative")):
        assert each.loaded
        purpose, prompt = each.loaded
        row = {
            "task": "comparative",
            "name": each.name,
            "version": prompt.header.version,
            "hash": prompt.hash,
            "answer": purpose.name,
        }
        row |= {
            "fields": describe_fields(purpose, prompt),
            "purpose": prompt.header.purpose,
            "examples": 0,
            "path": str(prompt.path),
        }
        found.append(row | {"error": None})
    return found


def found_good(_: Path) -> list[Row]:
    rows = []
    for name in ("judge", "stance"):
        purpose, prompt = load_named(get_task("comparative"), name)
        checked = asyncio.run(check(get_task("comparative"), purpose, prompt, (), estimate))
        row: Row = {
            "task": "comparative",
            "name": name,
            "version": prompt.header.version,
            "hash": prompt.hash,
            "path": str(prompt.path),
        }
        row |= {"longest_topic": checked.longest_topic, "tokens": checked.tokens, "estimated": True}
        for what, share in (("topics", checked.between_topics), ("documents", checked.between_documents)):
            assert share
            row |= {f"{what}_share_characters": share.chars, f"{what}_share_of_characters": share.of_chars}
            row |= {f"{what}_share_tokens": share.tokens, f"{what}_share_of_tokens": share.of_tokens}
        rows.append(row | {"errors": 0, "warnings": 0, "problems": None})
    return rows


def tried(at: Path) -> list[Row]:
    judged = read_records(at / "o" / "judgments.jsonl", Judgment, "judgments")
    (one,) = (each for each in judged if each.document_id == DOCUMENT and each.topic_id == "3")
    (answer,) = (each["value"] for each in entries() if each["key"] == one.key)
    rows: list[Row] = []
    for name, reading in one.readings.items():
        row: Row = {"prompt": one.prompt, "topic": "3", "documents": DOCUMENT, "field": name}
        row |= {"value": one.grades.get(name, one.stance), "people": None}
        row |= {
            "probabilities": json.dumps(reading.probabilities, separators=(",", ":")),
            "outside": reading.off_label_mass,
        }
        row |= {"answer": answer["text"], "thought": None, "failure": None, "cached": True}
        rows.append(row | {each: answer[each] for each in ("prompt_tokens", "completion_tokens")})
    return rows


CASES = {
    "index": Case(
        f"index --corpus {CORPUS} --index new",
        lambda _: [{"corpus": str(CORPUS), "documents": lines_in(CORPUS), "sentences": None, "folder": "new"}],
    ),
    "retrieve": Case(
        f"retrieve {DATA} --index o/index --depth 5 --out new", stage("new/candidates.run.txt", failures=0)
    ),
    "judge": Case("judge --out o", stage("o/judgments.jsonl", failures=0)),
    "rank": Case("rank --out o", stage("o/run.txt", imputed=0, failures=0)),
    "rank, some are missing": Case("rank --out part --rank judge", stage("part/run.txt", imputed=3, failures=0), 3),
    "run": Case(f"{RUN} --topic 3 --out new", with_judgments),
    "run --dry-run": Case(
        f"run {DATA} --index o/index --topic 3 --depth 5 --rank judge,sliding:5 --cache none --out new --dry-run", sent
    ),
    "rank --dry-run, all is known": Case("rank --out o --dry-run", known),
    "tira": Case(
        f"tira -i {SAMPLE} -o new --cache-folder cache --cache-mode replay --config tira.yaml",
        with_judgments,
    ),
    "fuse": Case(
        f"fuse one two --out new/f {TASK}",
        lambda _: [
            {"file": "new/f", "lines": 4, "topics": 2, "partial_topics": 1}
            | {"disagreeing": 1, "imputed": 1, "left_out": 0}
        ],
    ),
    "calibrate": Case(f"{FIT} --folds 2 --out new.yaml", folds),
    "calibrate --evaluate": Case(f"{FIT} --evaluate t.yaml", measured),
    "validate": Case(f"validate o/run.txt {TASK} {DATA}", lambda _: []),
    "validate, a short run": Case(
        f"validate short --task sentence_pairs --topics {PAIRS / 'topics.xml'}",
        lambda _: [
            problem("short", None, "note", "1 of 2 topics have no line"),
            problem("short", None, "warning", "topic 3 has 1 lines, the organisers want at least 100"),
        ],
    ),
    "validate, problems": Case(
        f"validate bad {TASK}",
        lambda at: [
            problem("bad", each.line, "error", each.message)
            for each in validate_run(at / "bad", get_task("comparative"))
        ],
        1,
    ),
    "validate, an empty file": Case(
        f"validate empty {TASK}", lambda _: [problem("empty", None, "error", "the file is empty")], 1
    ),
    "report": Case(
        "report o -o new.html",
        lambda at: [{"file": "new.html", "topics": 4, "bytes": (at / "new.html").stat().st_size}],
    ),
    "prompts list": Case(f"prompts list {TASK}", listed),
    "prompts check": Case(f"prompts check judge stance {TASK}", found_good),
    "prompts copy": Case(
        f"prompts copy judge mine.jinja {TASK}",
        lambda _: [{"prompt": load_named(get_task("comparative"), "judge")[1].label, "file": "mine.jinja"}],
    ),
    "prompts try": Case(f"prompts try judge --topic 3 --doc {DOCUMENT} {DATA} --index o/index {REPLAY}", tried),
    "cache stats": Case(f"cache stats --cache {CASSETTE}", counted),
    "cache export": Case(
        f"cache export new.jsonl --cache {CASSETTE}", lambda _: [{"file": "new.jsonl", "entries": len(entries())}]
    ),
    "cache import": Case(
        f"cache import {CASSETTE} --cache new.sqlite",
        lambda _: [{"file": "new.sqlite", "new": len(entries()), "known": 0}],
    ),
}


@pytest.fixture
def call(made: Path, touche: Touche, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Done]:
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
    return [{name: "" if value is None else str(value) for name, value in row.items()} for row in rows]


@pytest.mark.parametrize("name", list(CASES))
def test_rows_stand_alone_and_the_command_ends_as_ever(
    name: str, call: Callable[[str, str], Done], tmp_path: Path
) -> None:
    case = CASES[name]
    done = {output: call(case.command, output) for output in ("table", "json", "tsv")}
    assert {each.returncode for each in done.values()} == {case.code}, done["json"].stderr
    assert json.loads(done["json"].stdout) == case.rows(tmp_path / "json")
    tsv, rows = done["tsv"].stdout, case.rows(tmp_path / "tsv")
    assert read_tsv(tsv) == as_text(rows)
    # The header is there without any row too, and nothing but line feeds ends a line.
    assert len(tsv.splitlines()) == 1 + len(rows) and tsv.endswith("\n") and "\r" not in tsv
    assert done["table"].stdout and not done["table"].stdout.startswith(("[", "{"))


def test_the_demo_shows_the_first_documents_of_each_topic_in_rows(touche: Touche, tmp_path: Path) -> None:
    done = touche("demo", "--format", "json")
    rows = json.loads(done.stdout)
    assert (done.returncode, "no model gave them" in done.stderr) == (0, True)
    assert {tuple(row) for row in rows} == {
        ("task", "topic", "title", "rank", "document", "stance", "object", "relevance", "quality", "coherence", "text")
    }
    for task in SAMPLE_TASKS:
        found = [(row["topic"], row["rank"], row["document"], row["stance"]) for row in rows if row["task"] == task]
        run = run_lines(tmp_path / "runs" / "demo" / task / "run.txt")
        assert found == [(each.topic_id, each.rank, each.document_id, each.stance) for each in run if each.rank <= 3]
    assert {row["task"] for row in rows if row["coherence"] is not None} == {"sentence_pairs"}
    assert {row["stance"] for row in rows if row["object"] is not None} == {"FIRST", "SECOND"}
    pairs = touche("demo", "--task", "sentence_pairs", "--format", "tsv")
    assert read_tsv(pairs.stdout) == as_text([row for row in rows if row["task"] == "sentence_pairs"])


def test_failures_are_told_elsewhere_and_end_with_code_three(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    attempts = [Attempt(sample=0, kind="not_json", reason="Invalid JSON", text="no")]
    failure = Failure(topic_id="3", document_id="a", kind="not_json", prompt="judge", attempts=attempts)
    write_records(tmp_path / "failures.jsonl", [failure])
    said = []
    for output in (Format.TABLE, Format.JSON):
        with pytest.raises(typer.Exit) as ended:
            report_failures(output, tmp_path, [failure])
        assert ended.value.exit_code == 3
        said.append(capsys.readouterr())
    table, rows = said
    assert (rows.out, rows.err) == (table.err, table.out) and "failures: 1 not_json" in table.out


def test_an_error_leaves_standard_output_empty(touche: Touche) -> None:
    for command in ("validate none.txt --task comparative", "rank --out none", "cache stats --cache none"):
        done = touche(*command.split(), "--format", "json")
        assert done.returncode in (1, 2) and done.stdout == "" and "error: none" in done.stderr


def test_text_from_outside_cannot_act_and_what_is_undefined_is_empty(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"path": Path("a\u202fb\udcff"), "text": "\x1b[31m\t“é”\n", "value": float("nan"), "none": None, "n": 1e-7}]
    print_rows(Format.JSON, rows)
    said = capsys.readouterr().out
    seen = {"path": "a\u202fb\ufffd", "text": "\ufffd[31m\ufffd“é”\n", "value": None, "none": None, "n": 1e-7}
    assert json.loads(said) == [seen]
    print_rows(Format.TSV, rows)
    assert read_tsv(capsys.readouterr().out) == as_text([seen])


def commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    for name in group.commands:
        command = group.get_command(None, name)
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


def test_every_command_has_the_option_with_a_table_as_its_default() -> None:
    found = dict(commands(typer.main.get_command(app)))
    for name, command in found.items():
        (option,) = (each for each in command.params if "--format" in each.opts)
        assert option.default == "table", name
    elsewhere = {"demo", "evaluate", "compare", "regress record", "regress check", "regress update", "prompts compare"}
    elsewhere |= {"show", "runs", "prompts show", "prompts render", "batch export", "batch import", "batch run"}
    elsewhere |= {"tasks list", "tasks show", "tasks new", "doctor", "data"}
    assert set(found) - elsewhere == {name for name in found for case in CASES if case.partition(",")[0] == name}
