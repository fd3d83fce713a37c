"""`touche-llm prompts compare` as a user meets it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Done, Touche
from tests.prompt_variants import collection, opening, reader, wording
from tests.scripted_engine import FACTS, ScriptedEngine
from touche_llm.engines.cached_info import store_engine_info
from touche_llm.errors import Rejected
from touche_llm.llm.cache import Cache

WORDINGS = ("mine/blunt.jinja", "mine/sharp.jinja")
DATA = (
    "--topics",
    "topics.xml",
    "--corpus",
    "passages.jsonl",
    "--index",
    "index",
    "--cache",
    "answers.sqlite",
)
QRELS = ("--relevance", "relevance", "--stance", "stance")


class Engine(ScriptedEngine):
    """Misreads with the blunt wording; takes no request about these documents."""

    def __init__(self, refused: tuple[str, ...] = ()) -> None:
        super().__init__(reader({"BLUNT": lambda topic, number: number < 4}).script)
        self.refused = refused

    async def complete(self, request: Any) -> Any:
        if request.origin.document_id in self.refused:
            raise Rejected(400, "not\x1b[2J this one")
        return await super().complete(request)


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Behind a collection with two wordings of its prompt."""
    collection(tmp_path, topics=12)
    for name, words in (("blunt", "BLUNT"), ("sharp", "SHARP")):
        wording(tmp_path / "mine" / f"{name}.jinja", words)
    found = Engine()
    monkeypatch.setattr("touche_llm.prompt_lab.comparison.open_client", opening(found))
    return found


def compare(touche: Touche, *arguments: str) -> Done:
    return touche("prompts", "compare", *WORDINGS, *DATA, *QRELS, *arguments)


def rows_of(done: Done) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["part"], row["variant"]): row for row in json.loads(done.stdout)}


def test_an_existing_page_is_refused_before_anybody_is_asked(
    touche: Touche, engine: Engine
) -> None:
    page = Path("matrix.html")
    page.write_text("mine")
    done = compare(touche, "--html", "matrix.html")
    assert (done.returncode, len(engine.requests), page.read_text()) == (2, 0, "mine")
    done = compare(touche, "--html", "matrix.html", "--overwrite", "--format", "tsv")
    assert done.returncode == 0 and done.stdout.count("\n") == 3, done.stderr
    assert (
        f"page: matrix.html ({page.stat().st_size:,} bytes)" in done.stderr
        and "passage 1-0" in page.read_text()
    )


def test_a_dry_run_sends_and_writes_nothing_and_counts_what_would_be_sent(
    touche: Touche, engine: Engine
) -> None:
    before = {path.name for path in Path().iterdir()}
    dry = compare(touche, "--confirm", "--dry-run", "--format", "json")
    assert dry.returncode == 0, dry.stderr
    assert not engine.requests and {path.name for path in Path().iterdir()} - before == {"index"}
    rows = json.loads(dry.stdout)
    assert sum(row["requests"] for row in rows) == 72 and "Held-out" in dry.stderr
    assert all(row["prompt_tokens"] > 0 for row in rows) and len(rows) == 2
    assert compare(touche).returncode == 0 and len(engine.requests) == 72
    with Cache(Path("answers.sqlite")) as cache:
        store_engine_info(FACTS, cache)
    again = compare(touche, "--dry-run", "--format", "json")
    assert sum(row["requests"] for row in json.loads(again.stdout)) == 0
    assert len(engine.requests) == 72


def test_topics_that_are_not_compared_are_named_with_the_reason(
    touche: Touche, engine: Engine
) -> None:
    done = compare(touche, "--sample", "20")
    notes = [line for line in done.stderr.splitlines() if line.startswith("note: ")]
    (dropped,) = (line for line in notes if "documents are drawn" in line)
    (halves,) = (line for line in notes if "to choose on" in line)
    chosen, held_out = (re.findall(r"\d+", part)[1:] for part in halves.split(" to choose on; "))
    listed = set(re.findall(r"\d+", dropped.partition(";")[0].partition("topics ")[2]))
    assert dropped.startswith("note: 12 of 20 documents are drawn")
    assert len({*chosen, *held_out, *listed}) == len(chosen) + len(held_out) + len(listed) == 12
    alone = compare(touche, "--topic", held_out[0], "--format", "json")
    assert (alone.returncode, alone.stdout) == (2, "")
    assert f"1 topics ({held_out[0]}) held out" in alone.stderr


def test_rows_have_equal_keys_figures_and_differences(touche: Touche, engine: Engine) -> None:
    done = compare(touche, "--confirm", "--quality", "quality", "--format", "json")
    rows = rows_of(done)
    assert set(rows) == {(part, name) for part in ("choice", "hold-out") for name in WORDINGS}
    assert len({tuple(row) for row in rows.values()}) == 1
    blunt, sharp = (rows["hold-out", name] for name in WORDINGS)
    assert (sharp["best"], sharp["confirmed"], blunt["best"], blunt["confirmed"]) == (
        True,
        True,
        False,
        None,
    )
    for measure in (
        "relevance_ndcg_5",
        "relevance_spearman",
        "quality_spearman",
        "stance_macro_f1",
    ):
        assert sharp[measure] == 1.0 > blunt[measure]
        assert sharp[f"{measure}_difference"] == pytest.approx(1.0 - blunt[measure])
        low, high = sharp[f"{measure}_low"], sharp[f"{measure}_high"]
        assert low <= sharp[f"{measure}_difference"] <= high
        assert [sharp[f"{measure}_{each}"] for each in ("wins", "ties", "losses")] == [6, 0, 0]
        assert sharp[f"{measure}_p"] == pytest.approx(2 / 2**6)
        assert blunt[f"{measure}_p"] is None
    assert "mine/sharp.jinja has the best" in done.stderr
    # Six topics are enough for an interval, and too few for one that holds.
    assert "no 95 % interval" not in done.stderr
    assert done.stderr.count("6 topics are too narrow") == 1


def test_failures_are_told_and_end_with_their_code(touche: Touche, engine: Engine) -> None:
    engine.refused = ("1-2", "2-2")
    done = compare(touche, "--confirm", "--format", "json")
    assert done.returncode == 3
    assert {row["failures"] for row in rows_of(done).values()} == {1}
    assert (
        "failures: 4 server_error; most often: not\N{REPLACEMENT CHARACTER}[2J this one"
        in done.stderr
    )
    engine.refused, sent = (), len(engine.requests)
    again = compare(touche, "--confirm")
    assert again.returncode == 3 and "--retry-failures" in again.stderr
    assert len(engine.requests) == sent
    assert compare(touche, "--confirm", "--retry-failures").returncode == 0
    assert len(engine.requests) == sent + 4


def test_a_run_s_own_configuration_says_where_everything_is(touche: Touche, engine: Engine) -> None:
    Path("config.yaml").write_text(
        "topics: topics.xml\ncorpus: passages.jsonl\nindex: index\ncache: {file: answers.sqlite}\n"
        "prompts: {judge: mine/sharp.jinja, folder: mine}\nstance: {depth: 20}\n"
    )
    wording(Path("mine/comparative/other.jinja"), "BLUNT")
    given = ("--config", "config.yaml", *QRELS, "--split", "all", "--format", "json")
    done = touche("prompts", "compare", "judge", "other", *given)
    assert done.returncode == 0, done.stderr
    assert set(rows_of(done)) == {("all", "judge"), ("all", "other")}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("judge", "queries", *QRELS),
            "queries: is a prompt for 'queries'; only those for 'judge'",
        ),
        (("judge", *QRELS), "judge alone cannot be compared"),
        (WORDINGS, "no qrels given"),
        (
            (*WORDINGS, "--stance", "stance"),
            "qrels: no grades, by which documents are drawn; give those of at least one of relevance, quality",
        ),
        ((*"abcdefghi", *QRELS, "--html", "m.html"), "--html: a page shows at most 8 prompts"),
        ((*WORDINGS, *QRELS, "--topic", "1", "--confirm"), "split: choice: 1 topics"),
    ],
)
def test_what_cannot_be_done_is_told(
    touche: Touche, engine: Engine, arguments: tuple[str, ...], message: str
) -> None:
    done = touche("prompts", "compare", *arguments, *DATA)
    assert done.returncode in (1, 2)
    assert f"error: {message}" in done.stderr
    assert engine.requests == []
