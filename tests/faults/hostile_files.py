"""Files that try to exhaust whoever reads them, one for each kind that the program reads, and who reads them."""

from __future__ import annotations

import gzip
import io
import json
import sqlite3
import tarfile
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

from touche_llm.corpus.args_me import HEADER

MIB = 2**20
# Writes files into a folder that holds a copy of `honest`, and returns the arguments of the command that reads them.
Case = Callable[[Path], list[str]]
CASES: dict[str, Case] = {}

VALIDATE = ["validate", "run/run.txt", "--task", "comparative"]
EVALUATE = ["evaluate", "run/run.txt", "--task", "comparative"]
INDEX = ["index", "--task", "comparative", "--index", "new", "--corpus"]
ARGUMENTS = ["index", "--task", "sentence_pairs", "--index", "new", "--corpus"]
RANK = ["rank", "--out", "run", "--cache", "cassette.jsonl", "--cache-mode", "replay"]
IMPORT = ["batch", "import", "responses.jsonl", "--out", "exported"]
CONFIRM = [
    *("prompts", "compare", "judge", "prompts/comparative/judge.jinja", "--confirm", "--split", "three.txt"),
    *("--topics", "six.xml", "--corpus", "passages.jsonl", "--index", "index"),
    *("--relevance", "six-relevance.txt", "--cache", "answers.sqlite", "--cache-mode", "replay"),
]
CHATNOIR = [
    *("retrieve", "--task", "controversial", "--topics", "web.xml", "--retriever", "chatnoir", "--out", "o"),
    *("--set", "chatnoir.cache=chatnoir.sqlite", "--set", "chatnoir.base_url=http://127.0.0.1:9/"),
    *("--set", "chatnoir.retry_for=0"),
]


def case(make: Case) -> Case:
    CASES[make.__name__] = make
    return make


def content(name: str, file: str, arguments: list[str], data: Callable[[], bytes]) -> None:
    """A case of one file with these bytes."""

    def make(folder: Path) -> list[str]:
        (folder / file).write_bytes(data())
        return arguments

    CASES[name] = make


def packed(part: bytes, times: int) -> bytes:
    """Gzip of a part many times over, in members, which takes no time to make."""
    return gzip.compress(part) * times


def topic(inside: str, times: int = 1) -> bytes:
    one = "<topic><number>{n}</number><title>T</title>" + inside + "</topic>"
    return ("<topics>" + "".join(one.replace("{n}", str(n)) for n in range(times)) + "</topics>").encode()


def passage(ident: str, text: str) -> bytes:
    return json.dumps({"id": ident, "contents": text}).encode() + b"\n"


def argument(ident: str, sentences: str) -> bytes:
    premises = "[{'text': 'a', 'stance': 'PRO', 'annotations': []}]"
    return f'{ident},conclusion,"{premises}",{{}},"{sentences}"\n'.encode()


def front_matter(data: Callable[[], bytes]) -> bytes:
    return b"---\n" + data() + b"\n---\n"


ENTITIES = b'<!DOCTYPE t [<!ENTITY a "' + b"a" * 9999 + b'">]><t>' + b"&a;" * 99_999 + b"</t>"
BOMB = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)
MERGES = BOMB.replace("[1, 1, 1, 1, 1, 1, 1, 1, 1]", "{b: 1}").replace(" [", " {<<: [").replace("]", "]}")

for name, data in {
    "elements": lambda: b"<t>" + b'<a b=""/>' * (4 * MIB // 9 - 9) + b"</t>",
    "nested": lambda: b"<a>" * (4 * MIB // 7) + b"</a>" * (4 * MIB // 7),
    "large": lambda: b"<t>" + b"<a/>" * (64 * MIB) + b"</t>",
    "entities": lambda: ENTITIES,
    "million": lambda: topic("", 10**6),
    "objects": lambda: topic("<objects>['" + "'b'," * 2_400 + "']</objects>", 390),
    "literal": lambda: topic("<objects>['" + "'b'," * (9 * MIB // 4) + "']</objects>"),
    "nul": lambda: topic("<objects>a\0,b</objects>"),
    "json_deep": lambda: b'{"qid":' + b"[" * (3 * MIB),
    "json_lists": lambda: b'{"qid": 1, "query": "a", "x": [' + b"[]," * MIB + b"[]]}",
    "json_int": lambda: b'{"qid": ' + b"9" * MIB + b', "query": "a"}',
    "json_surrogate": lambda: b'{"qid": 1, "query": "\\ud800"}',
}.items():
    content(f"topics_{name}", "topics.xml", [*VALIDATE, "--topics", "topics.xml"], data)

for name, data in {
    "long_line": lambda: packed(b"x" * (64 * MIB), 128),
    "empty_lines": lambda: packed(b"\n" * (64 * MIB), 64),
    "lists": lambda: (b'{"x": [' + b"[]," * (5 * MIB) + b"[]]}\n") * 4,
    "deep": lambda: b'{"id":' * (2 * MIB) + b"\n",
    "id": lambda: passage("i" * (15 * MIB), "text") * 4,
    "surrogate": lambda: b'{"id": "a", "contents": "\\ud800"}\n',
    "words": lambda: b"".join(passage(f"d{d}", " ".join(f"w{d}x{n}" for n in range(MIB))) for d in range(12)),
    "one_word": lambda: passage("a", "x" * (15 * MIB)) * 1 + passage("b", "y " * (7 * MIB)),
}.items():
    content(f"passages_{name}", "hostile.jsonl", [*INDEX, "hostile.jsonl", "--skip-bad-lines"], data)

HEAD = (",".join(HEADER) + "\n").encode()
SENTENCE = "{'sent_id': 'a%d', 'sent_text': 'b'}"
for name, data in {
    "quote": lambda: packed(HEAD + b'a,"' + b"x\n" * (32 * MIB), 32),
    "empty_lines": lambda: HEAD + b"\n" * (64 * MIB),
    "literal": lambda: HEAD + b"".join(argument(f"a{n}", "[" + "0," * (MIB // 2 - 99) + "]") for n in range(8)),
    "nested": lambda: HEAD + b"".join(argument(f"a{n}", "[" * (MIB - 99)) for n in range(8)),
    "sentences": lambda: HEAD + argument("a", "[" + ", ".join(SENTENCE % n for n in range(400_000)) + "]"),
    "quotes": lambda: HEAD + argument("a", "'" * (15 * MIB)) + argument("b", "[{'sent_id': '" + "\\\\" * (7 * MIB)),
}.items():
    content(f"arguments_{name}", "hostile.csv", [*ARGUMENTS, "hostile.csv", "--skip-bad-lines"], data)


def tar(headers: list[tuple[str, int, bytes]]) -> bytes:
    """Gzip of a tar archive with members of zeros: `(name, size, type)`."""
    block, whole = gzip.compress(bytes(64 * MIB)), b""
    for name, size, kind in headers:
        info = tarfile.TarInfo(name)
        info.size, info.type = size, kind
        whole += gzip.compress(info.tobuf()) + block * (size // (64 * MIB))
    return whole + gzip.compress(bytes(1024))


TABLE = ("args.csv", 0, tarfile.REGTYPE)
for name, members in {
    "before": [("x.bin", 2**33, tarfile.REGTYPE), TABLE],
    "header": [("x", 2**32, tarfile.XHDTYPE), TABLE],
    "long_name": [("x", 2**32, tarfile.GNUTYPE_LONGNAME), TABLE],
    "zeros": [("args.csv", 2**33, tarfile.REGTYPE)],
    "many": [("x", 0, tarfile.REGTYPE)] * 20_000 + [TABLE],
}.items():
    content(f"arguments_tar_{name}", "args.tar.gz", [*ARGUMENTS, "args.tar.gz"], partial(tar, members))


@case
def arguments_tar_after(folder: Path) -> list[str]:
    table = HEAD + argument("a", "[" + SENTENCE % 1 + "]")
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as written:
        info = tarfile.TarInfo("args.csv")
        info.size = len(table)
        written.addfile(info, io.BytesIO(table))
    (folder / "args.tar.gz").write_bytes(gzip.compress(archive.getvalue()) + packed(bytes(64 * MIB), 128))
    return [*ARGUMENTS, "args.tar.gz"]


RUN_LINE = "3 FIRST d{n} {n} {s} tag\n"
for name, data in {
    "empty_lines": lambda: b"\n" * (64 * MIB),
    "long": lambda: b"x" * (256 * MIB),
    "columns": lambda: (b"a " * 4_900 + b"\n") * 20_000,
    "lines": lambda: "".join(RUN_LINE.format(n=n, s=-n) for n in range(3_000_000)).encode(),
    "topics": lambda: "".join(f"{n} FIRST d 1 1 t{n}\n" for n in range(3_000_000)).encode(),
    "numbers": lambda: f"3 FIRST d {'9' * 9_000} 1e{'9' * 900} t\n".encode() * 1000,
    "nul": lambda: b"3 FIRST \0 1 1 t\n" * 100_000,
}.items():
    content(f"run_{name}_validate", "hostile.txt", ["validate", "hostile.txt", "--task", "comparative"], data)
    judged = ["evaluate", "hostile.txt", "--task", "comparative", "--relevance", "qrels-relevance.txt"]
    content(f"run_{name}_evaluate", "hostile.txt", judged, data)
content(
    "run_packed",
    "hostile.txt",
    ["evaluate", "hostile.txt", "--task", "comparative", "--relevance", "qrels-relevance.txt"],
    lambda: packed(b"\n" * (64 * MIB), 64),
)
content(
    "run_rerank",
    "rerank.jsonl",
    ["fuse", "rerank.jsonl", "run/run.txt", "--out", "o", "--task", "comparative"],
    lambda: b'{"qid": 1, "docno": "a", "rank": 1, "score": ' + b"9" * 10**6 + b"}\n",
)

for name, data in {
    "lines": lambda: "".join(f"3 0 d{n} 1\n" for n in range(3_000_000)).encode(),
    "topics": lambda: "".join(f"{n} 0 d 1\n" for n in range(3_000_000)).encode(),
    "packed": lambda: packed(b"\n" * (64 * MIB), 64),
    "long": lambda: packed(b"x" * (64 * MIB), 128),
    "grade": lambda: b"3 0 d " + b"1" * 9_000 + b"\n",
}.items():
    content(f"qrels_{name}", "qrels.txt", [*EVALUATE, "--relevance", "qrels.txt"], data)

for name, data in {
    "bomb": lambda: BOMB.encode(),
    "merges": lambda: MERGES.encode(),
    "deep": lambda: b"[" * MIB,
    "sixty": lambda: b"depth: 1" + b":1" * (MIB // 2 - 9),
    "large": lambda: b"a" * (256 * MIB),
    "keys": lambda: b"".join(b"k%d: 1\n" % n for n in range(90_000)),
}.items():
    content(f"yaml_config_{name}", "c.yaml", ["run", "--config", "c.yaml", "--out", "o"], data)
    content(f"yaml_folder_{name}", "run/config.yaml", RANK, data)
    content(f"yaml_metadata_{name}", "run/ir-metadata.yml", RANK, data)
    content(f"yaml_report_{name}", "run/ir-metadata.yml", ["report", "run"], data)
    calibrated = ["calibrate", "run", "--stance", "qrels-stance.txt", "--evaluate", "t.yaml"]
    content(f"yaml_thresholds_{name}", "t.yaml", calibrated, data)
    content(f"yaml_recorded_{name}", "regress/comparative/config.yaml", ["regress", "check"], data)
    checked = ["prompts", "check", "--prompts", "prompts"]
    content(f"yaml_examples_{name}", "prompts/comparative/judge.examples.yaml", checked, data)
    content(
        f"yaml_front_{name}",
        "prompts/comparative/judge.jinja",
        checked,
        partial(front_matter, data),
    )

ENTRY = b'{"key":"%064d","kind":"answer","model":"m","value":%s}\n'
for name, data in {
    "lists": lambda: (ENTRY % (1, b'{"a":[' + b"[]," * (5 * MIB) + b"[]]}")) * 2,
    "deep": lambda: ENTRY % (1, b'{"a":' * (2 * MIB)),
    "integer": lambda: ENTRY % (1, b'{"a":' + b"9" * (2 * MIB) + b"}"),
    "sample": lambda: ENTRY.replace(b'"value"', b'"sample":' + b"9" * 30 + b',"value"') % (1, b"{}"),
    "long": lambda: b"x" * (256 * MIB),
    "surrogate": lambda: ENTRY % (1, b'{"a":"\\ud800"}'),
    "lines": lambda: b"".join(ENTRY % (n, b'{"text":"a"}') for n in range(300_000)),
    "more_lines": lambda: b"".join(ENTRY % (n, b"{}") for n in range(1_200_000)),
    "gigabyte": lambda: ENTRY % (1, b'{"text":"' + b"a" * (8 * MIB) + b'"}') * 128,
}.items():
    content(f"cassette_import_{name}", "h.jsonl", ["cache", "import", "h.jsonl", "--cache", "new.sqlite"], data)
    content(f"cassette_replay_{name}", "cassette.jsonl", RANK, data)
    content(f"cassette_regress_{name}", "regress/comparative/cassette.jsonl", ["regress", "check"], data)

JUDGMENT = b'{"topic_id":"3","document_id":"%d","prompt":"","source":"value","grades":{},"stance":"NO"%s}\n'
READINGS = b',"readings":{"a":{"answered":1,"probabilities":{%s}}}'
PARTS = b',"cut":{"kept_chars":1,"of_chars":1,"prompt_tokens":1,"parts":[%s]}'
FAILURE = b'{"topic_id":"3","document_id":"%d","kind":"timeout","attempts":[]}\n'
COMPARISON = b'{"topic_id":"3","step":"a","documents":[%s],"prompt":"a","key":"a"}\n'

for name, data in {
    "lists": lambda: b'{"a":[' + b"[]," * (5 * MIB) + b"[]]}\n",
    "deep": lambda: b'{"a":' * (2 * MIB),
    "large": lambda: b" " * (256 * MIB) + b"{}",
    "probabilities": lambda: JUDGMENT % (1, READINGS % b",".join(b'"%d":0' % n for n in range(MIB))) * 16,
    "parts": lambda: JUDGMENT % (1, PARTS % b",".join(b"[%d,1]" % n for n in range(300, MIB))) * 64,
    "judgments": lambda: b"".join(JUDGMENT % (n, b"") for n in range(3_000_000)),
    "wide": lambda: (
        JUDGMENT.replace(b'"value"', b'"value","key":"' + "\U0001f600".encode() + b"a" * MIB + b'"') % (1, b"") * 400
    ),
    "failures": lambda: b"".join(FAILURE % n for n in range(3_000_000)),
    "comparisons": lambda: COMPARISON % b",".join(b'"%d"' % n for n in range(MIB)) * 32,
}.items():
    content(f"records_judgments_{name}", "run/judgments.jsonl", RANK, data)
    content(f"records_judgments_report_{name}", "run/judgments.jsonl", ["report", "run"], data)
    content(f"records_failures_{name}", "run/failures.jsonl", ["report", "run"], data)
    content(f"records_comparisons_{name}", "run/comparisons.jsonl", ["report", "run"], data)
    content(f"records_recorded_{name}", "regress/comparative/recorded.json", ["regress", "check"], data)
    content(f"records_topics_{name}", "regress/comparative/topics.jsonl", ["regress", "check"], data)
    content(f"records_manifest_{name}", "index/manifest.json", [*VALIDATE, "--index", "index"], data)
    content(f"records_batch_{name}", "exported/batch.json", IMPORT, data)
    content(f"records_accesses_{name}", "hold_out_accesses.jsonl", CONFIRM, data)

MANIFEST = b'{"format":3,"corpus":"c","size":1,"mtime_ns":1,"sha256":"a","documents":1,"parts":0,"bad_lines":0}\n'
content("records_manifests", "index/manifest.json", [*VALIDATE, "--index", "index"], lambda: MANIFEST * 2_000_000)

ACCESS = (
    b'{"time":"2026-01-01T00:00:00Z","kind":"trial","topics":["t"],"judgments":{"relevance":"%064d"},"prompts":[%s]}\n'
)
LABEL = b'"comparative/judge@1-0123456789ab"'
for name, data in {
    "lines": lambda: ACCESS % (1, LABEL) * 1_000_000,
    "prompts": lambda: ACCESS % (1, b",".join([LABEL] * 25_000)) * 20,
    "many_prompts": lambda: ACCESS % (1, b",".join([LABEL] * 100_000)),
    "time": lambda: ACCESS.replace(b"2026", b"9" * 900_000) % (1, LABEL),
    "surrogate": lambda: ACCESS % (1, LABEL.replace(b"judge", b"\\ud800")),
    "open": lambda: (ACCESS % (1, LABEL))[:-1],
}.items():
    content(f"accesses_{name}", "hold_out_accesses.jsonl", CONFIRM, data)

REPLY = b'{"custom_id":"%s","response":{"status_code":%s,"body":%s},"error":null}\n'
CHAT = b'{"choices":[{"message":{"content":"%s"},"finish_reason":"stop","logprobs":{"content":[%s]}}],"model":"served"}'
TOKEN = b'{"token":"a","logprob":-0.1,"top_logprobs":[%s]}'
for name, data in {
    "lists": lambda: (REPLY % (b"a", b"200", b'{"choices":[' + b"[]," * (4 * MIB) + b"[]]}")) * 4,
    "deep": lambda: REPLY % (b"a", b"200", b'{"choices":' * MIB),
    "long": lambda: b"x" * (256 * MIB),
    "ids": lambda: b"".join(REPLY % (b"%d" % n + b"a" * (15 * MIB), b"500", b"1") for n in range(32)),
    "lines": lambda: b"".join(REPLY % (b"%064d" % n, b"200", CHAT % (b"a", b"")) for n in range(1_000_000)),
    "errors": lambda: b"".join(REPLY % (b"%064d" % n, b"500", b'"' + b"e" * 400 + b'"') for n in range(600_000)),
    "repeated": lambda: REPLY % (b"a" * 64, b"500", b"1") * 1_000_000,
    "status": lambda: REPLY % (b"a", b"9" * MIB, b"1"),
    "error_deep": lambda: REPLY % (b"a", b"500", b'{"error":' * MIB),
    "error_lists": lambda: REPLY % (b"a", b"400", b"[" + b"[]," * (4 * MIB) + b"[]]"),
    "tokens": lambda: REPLY % (b"a" * 64, b"200", CHAT % (b"a", b",".join([TOKEN % b""] * 300_000))),
    "alternatives": lambda: (
        REPLY % (b"a" * 64, b"200", CHAT % (b"a", TOKEN % b",".join([b'{"token":"a","logprob":-9}'] * 500_000)))
    ),
    "nan": lambda: REPLY % (b"a", b"200", CHAT % (b"a", TOKEN.replace(b"-0.1", b"NaN") % b"")),
    "surrogate": lambda: REPLY % (b"\\ud800", b"200", CHAT % (b"\\ud800", b"")),
    "nul": lambda: b"\0" * MIB,
    "utf8": lambda: REPLY % (b"\xff", b"200", CHAT % (b"\xff", b"")),
}.items():
    content(f"replies_{name}", "responses.jsonl", IMPORT, data)

STATS = ["cache", "stats", "--cache", "answers.sqlite"]
ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT "


def altered(name: str, file: str, arguments: list[str], *statements: str) -> None:
    """A case of an SQLite file of the program's own after some statements."""

    def make(folder: Path) -> list[str]:
        with closing(sqlite3.connect(folder / file)) as database:
            for statement in statements:
                database.execute(statement)
            database.commit()
        return arguments

    CASES[name] = make


COLUMNS = "'k', 'answer', 'm', 'p', 1, 'h', 't', 'd', 0, '{}'"
for reader, arguments in {
    "stats": STATS,
    "export": ["cache", "export", "new.jsonl", "--cache", "answers.sqlite"],
    "replay": ["rank", "--out", "run", "--cache", "answers.sqlite", "--cache-mode", "replay"],
    "reuse": ["cache", "import", "cassette.jsonl", "--cache", "answers.sqlite"],
}.items():
    for name, statements in {
        "view": ["DROP TABLE entries", f"CREATE VIEW entries AS {ENDLESS} x, {COLUMNS[5:]} FROM c"],
        "endless_view": ["DROP TABLE entries", f"CREATE VIEW entries AS {ENDLESS} {COLUMNS} FROM c"],
        "trigger": [
            "CREATE TRIGGER t BEFORE INSERT ON entries BEGIN "
            f"INSERT INTO entries {ENDLESS} x, {COLUMNS[5:]} FROM c; END"
        ],
        "large": ["UPDATE entries SET value = printf('{\"a\":\"%.*c\"}', 300000000, 'x') WHERE rowid = 1"],
        "blob": ["UPDATE entries SET value = randomblob(100)"],
        "null": ["UPDATE entries SET value = NULL"],
        "number": ["UPDATE entries SET value = 9e999, kind = 7, sample = 'x'"],
        "text": ["UPDATE entries SET value = '[1]', model = CAST(x'ff00' AS TEXT)"],
        "deep": [f"UPDATE entries SET value = '{'[' * 100_000}'"],
    }.items():
        altered(f"sqlite_{reader}_{name}", "answers.sqlite", arguments, *statements)

DOCUMENTS = "'d', 1, 'text', '', ''"
for name, statements in {
    "view": ["DROP TABLE documents", f"CREATE VIEW documents AS {ENDLESS} x AS row, {DOCUMENTS} FROM c"],
    "utf8": ["UPDATE documents SET text = CAST(x'ff' AS TEXT)"],
    "blob": ["UPDATE documents SET text = CAST(text AS BLOB)"],
}.items():
    altered(f"sqlite_store_{name}", "index/documents.sqlite", [*VALIDATE, "--index", "index"], *statements)
    altered(
        f"sqlite_store_retrieve_{name}",
        "index/documents.sqlite",
        [
            "retrieve",
            "--task",
            "comparative",
            "--topics",
            "topics.xml",
            "--index",
            "index",
            "--out",
            "o",
            "--retriever",
            "okapi",
        ],
        *statements,
    )

for name, statements in {
    "view": ["DROP TABLE documents", f"CREATE VIEW documents AS {ENDLESS} 'p' AS place, x AS id, 't', NULL FROM c"],
    "large": ["UPDATE documents SET text = printf('%.*c', 300000000, 'x')"],
    "blob": ["UPDATE documents SET text = CAST(text AS BLOB)"],
    "number": ["UPDATE documents SET reason = 7"],
    "null": ["UPDATE documents SET text = NULL, reason = NULL"],
    "utf8": ["UPDATE documents SET text = CAST(x'ff' AS TEXT)"],
    "id": ["UPDATE documents SET id = CAST(id AS BLOB)"],
    "page_large": ["UPDATE searches SET page = printf('{\"a\":\"%.*c\"}', 300000000, 'x')"],
    "page_blob": ["UPDATE searches SET page = x'ff00'"],
    "page_number": ["UPDATE searches SET page = 7"],
    "page_lists": [f"UPDATE searches SET page = '{{\"hits\": [{'[],' * (5 * MIB)}[]]}}'"],
    "page_deep": [f"UPDATE searches SET page = '{'[' * MIB}'"],
    "page_score": ["UPDATE searches SET page = replace(page, '1.0', '1e999')"],
    "page_total": [
        "UPDATE searches SET page = replace(page, '\"total\":1', '\"total\":' || printf('%.*c', 5000, '9'))"
    ],
    "page_id": ["UPDATE searches SET page = replace(page, 'd1', 'd 1\\n\\ud800')"],
    "page_hits": [
        "UPDATE searches SET page = replace(page, '[{', '[' || replace(printf('%.*c', 100000, 'x'), 'x', "
        '\'{"document_id":"d","uuid":"00000000-0000-0000-0000-000000000001","score":1.0},\') || \'{\')'
    ],
}.items():
    altered(f"sqlite_chatnoir_{name}", "chatnoir.sqlite", CHATNOIR, *statements)
