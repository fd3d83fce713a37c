"""Files where ir_datasets looks for them before it downloads any: the project's samples, and a few invented texts.

The library's own datasets read them, with the ids and the classes of the published ones.
"""

from __future__ import annotations

import ast
import csv
import gzip
import json
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TextIO

import lz4.frame

from touche_llm.cli.demo import SAMPLES

PASSAGES = "clueweb12/touche-2022-task-2"
PAIRS = "argsme/2020-04-01/processed/touche-2022-task-1"
ARGUMENTS_2020 = "argsme/2020-04-01/touche-2020-task-1"
ARGUMENTS_2021 = "argsme/2020-04-01/touche-2021-task-1"
BEIR = "beir/webis-touche2020/v2"
PAGES_2020 = "clueweb12/touche-2020-task-2"
PAGES_2021 = "clueweb12/touche-2021-task-2"

SOURCES = ("debateorg", "debatepedia", "debatewise", "idebate", "parliamentary")
ARGUMENTS = {
    "S1-A1": (
        "Schools should start later",
        "PRO",
        ["Tired pupils learn less.", "They sleep in class."],
    ),
    "S1-A2": ("Schools should start later", "CON", ["Parents of pupils have to be at work early."]),
    "S2-A1": ("Homework should be banned", "PRO", ["Pupils need time to play."]),
    "S2-A2": ("Tea is better than coffee", "PRO", ["It keeps you awake for longer."]),
    "S3-A1": ("Zoos should be closed", "CON", ["Animals are safe there."]),
}
CONTROVERSIAL = {1: "Should schools start later for pupils?", 2: "Should homework be banned?"}
PAGES = {
    "clueweb12-0000tw-00-00000": (
        "<title>Tea or coffee</title><nav><a href='/'>Home</a></nav><article><p>Tea is milder than coffee, "
        "and <b>contains less caffeine</b>.</p><p>Many people sleep better after tea than after coffee.</p></article>"
    ),
    "clueweb12-0000tw-00-00001": "<title>Bicycles</title><article><p>A bicycle needs oil and air.</p></article>",
    "clueweb12-0000tw-00-00002": "<title>Coffee</title><article><p>Coffee wakes people up.</p></article>",
    "clueweb12-0000tw-00-00003": "<title>Stairs</title><article><p>Old stairs creak at night.</p></article>",
    "clueweb12-0000tw-00-00004": "<title>Rain</title><article><p>Rain fills the barrel.</p></article>",
}
COMPARATIVE = {1: "Which is better, tea or coffee?"}
_RELEVANCE = {"1": {"S1-A1": 2, "S1-A2": 1, "S2-A2": -2}, "2": {"S2-A1": 2, "S1-A1": 0}}
_OF_PAGES = {"1": dict(zip(PAGES, (2, 0, 1, 0, 0), strict=True))}
_WITHOUT_OBJECTS = ("<title>Which is better in the morning, tea or coffee?</title>", "tea, coffee")
_CONTEXT = {
    "sourceId": "S1",
    "sourceTitle": "Debate",
    "discussionTitle": "A topic",
    "acquisitionTime": "2019-04-18T19:15:08Z",
    "mode": "discussion",
}


def write_passages(home: Path, texts: Iterable[str] | None = None) -> None:
    """Write the passages, topics and judgments of 2022, task 2: those of the sample."""
    folder, sample = home / "touche/2022/task-2", SAMPLES / "comparative"
    lines = (sample / "passages.jsonl").read_text().splitlines() if texts is None else texts
    # The library reads another key beside id and contents.
    passages = [
        json.dumps(json.loads(line) | {"chatNoirUrl": "https://example.org/"}) for line in lines
    ]
    _write(folder / "passages.jsonl", "\n".join(passages) + "\n")
    # The library needs the objects of every topic; these are those that the sample's answers find.
    topics = (sample / "topics.xml").read_text()
    title, objects = _WITHOUT_OBJECTS
    assert title in topics
    _write(folder / "queries.xml", topics.replace(title, f"{title}<objects>{objects}</objects>"))
    for aspect in ("relevance", "quality", "stance"):
        _write(folder / f"qrels-{aspect}.qrels", (sample / f"qrels-{aspect}.txt").read_text())


def write_sentences(home: Path) -> None:
    """Write the arguments, topics and judgments of 2022, task 1: those of the sample, with three invented judgments."""
    sample = SAMPLES / "sentence_pairs"
    path = home / "argsme/2020-04-01/processed.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        (sample / "args_processed_04_01.csv").open(newline="") as table,
        path.open("w", newline="") as stream,
    ):
        first = complete_contexts(table, stream)
    folder = home / "touche/2022/task-1"
    _write(folder / "queries.xml", (sample / "topics.xml").read_text())
    pairs = [
        f"{first}__PREMISE__{one},{first}__PREMISE__{two}" for one, two in ((1, 2), (2, 3), (3, 1))
    ]
    for aspect, grades in (
        ("relevance", (2, 1, 0)),
        ("quality", (1, 2, 0)),
        ("coherence", (2, 2, 1)),
    ):
        judged = zip(pairs, grades, strict=True)
        _write(
            folder / f"qrels-{aspect}.qrels",
            "".join(f"3 0 {pair} {grade}\n" for pair, grade in judged),
        )


def complete_contexts(table: TextIO, stream: TextIO) -> str:
    """Copy a table of arguments, with the keys of their contexts that the library reads too.

    Return the first id.
    """
    csv.field_size_limit(2**24)
    rows = csv.DictReader(table)
    writer = csv.DictWriter(stream, rows.fieldnames or ())
    writer.writeheader()
    first = ""
    for row in rows:
        first = first or row["id"]
        context = {
            name: value
            for name, value in ast.literal_eval(row["context"]).items()
            if value is not None
        }
        writer.writerow(row | {"context": repr(_CONTEXT | context)})
    return first


def write_arguments(home: Path) -> None:
    """Write arguments of args.me, and topics and judgments of 2020 and 2021, task 1."""
    for number, source in enumerate(SOURCES):
        arguments = [
            {
                "id": name,
                "conclusion": conclusion,
                "premises": [{"text": text, "stance": side, "annotations": []} for text in texts],
                "context": _CONTEXT,
            }
            for name, (conclusion, side, texts) in list(ARGUMENTS.items())[number :: len(SOURCES)]
        ]
        _write(home / f"argsme/2020-04-01/{source}.json", json.dumps({"arguments": arguments}))
    _write_topics(home / "touche/2020/task-1/queries.xml", CONTROVERSIAL)
    _write_qrels(home / "touche/2020/task-1/qrels.qrels", _RELEVANCE)
    _write_topics(home / "touche/2021/task-1/queries.xml", CONTROVERSIAL, only_titles=True)
    for aspect in ("relevance", "quality"):
        _write_qrels(home / f"touche/2021/task-1/qrels-{aspect}.qrels", _RELEVANCE)


def write_beir(home: Path) -> None:
    """Write the archive of BEIR with the arguments of 2020."""
    path = home / "beir/webis-touche2020/v2/source.zip"
    path.parent.mkdir(parents=True, exist_ok=True)
    documents = [
        {
            "_id": name,
            "title": title,
            "text": " ".join(texts),
            "metadata": {"stance": side, "url": ""},
        }
        for name, (title, side, texts) in ARGUMENTS.items()
    ]
    queries = [
        {
            "_id": str(number),
            "text": title,
            "metadata": {"description": "Described.", "narrative": "Told."},
        }
        for number, title in CONTROVERSIAL.items()
    ]
    rows = ["query-id\tcorpus-id\tscore"]
    rows += [
        f"{topic}\t{name}\t{max(grade, 0)}"
        for topic, of in _RELEVANCE.items()
        for name, grade in of.items()
    ]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            "webis-touche2020/corpus.jsonl", "".join(json.dumps(each) + "\n" for each in documents)
        )
        archive.writestr(
            "webis-touche2020/queries.jsonl", "".join(json.dumps(each) + "\n" for each in queries)
        )
        archive.writestr("webis-touche2020/qrels/test.tsv", "\n".join(rows) + "\n")


def write_pages(home: Path, pages: Mapping[str, str] = PAGES) -> None:
    """Write web pages as WARC records of ClueWeb12, and topics and judgments of 2020 and 2021, task 2."""
    corpus = home / "clueweb12/corpus"
    _write(
        corpus / "recordcounts/ClueWeb12_00_counts.txt",
        f"./0000tw/0000tw-00.warc.gz {len(pages)}\n",
    )
    records = b"".join(_make_record(name, html) for name, html in pages.items())
    path = corpus / "ClueWeb12_00/0000tw/0000tw-00.warc.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(_make_record("", "", kind="warcinfo") + records))
    # Places to jump to in the file, which reading from its beginning does without.
    places = home / "clueweb12/corpus.chk/ClueWeb12_00/0000tw/0000tw-00.warc.gz.chk.lz4"
    places.parent.mkdir(parents=True, exist_ok=True)
    places.write_bytes(lz4.frame.compress(b""))
    for year, aspects in (("2020", ("",)), ("2021", ("-relevance", "-quality"))):
        _write_topics(home / f"touche/{year}/task-2/queries.xml", COMPARATIVE)
        for aspect in aspects:
            _write_qrels(home / f"touche/{year}/task-2/qrels{aspect}.qrels", _OF_PAGES)


def _make_record(name: str, html: str, kind: str = "response") -> bytes:
    page = f"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n<html>{html}</html>".encode()
    lines: Sequence[str] = (
        "WARC/1.0",
        f"WARC-Type: {kind}",
        "WARC-Date: 2012-02-10T21:45:40Z",
        f"WARC-TREC-ID: {name}",
        "WARC-Target-URI: http://example.org/",
        "WARC-Record-ID: <urn:uuid:ff32c863-5066-4f51-802a-f31d4af074d5>",
        f"Content-Length: {len(page)}",
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + page + b"\r\n\r\n"


def _write_topics(path: Path, titles: Mapping[int, str], *, only_titles: bool = False) -> None:
    more = (
        "" if only_titles else "<description>Described.</description><narrative>Told.</narrative>"
    )
    topics = (
        f"<topic><number>{number}</number><title>{title}</title>{more}</topic>"
        for number, title in titles.items()
    )
    _write(path, f"<topics>{''.join(topics)}</topics>")


def _write_qrels(path: Path, grades: Mapping[str, Mapping[str, int]]) -> None:
    lines = (
        f"{topic} 0 {name} {grade}\n"
        for topic, judged in grades.items()
        for name, grade in judged.items()
    )
    _write(path, "".join(lines))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
