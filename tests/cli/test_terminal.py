"""Tables on a real terminal of 80 and of 100 columns."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from rich.cells import cell_len

from tests.cli.terminal import run_on_terminal
from tests.report.reports import sample_run
from touche_llm.cli.demo import SAMPLES
from touche_llm.tasks import prompts_folder

pytestmark = pytest.mark.slow
FIRST, SECOND = "runs/qwen3-4b-instruct-2507-pairwise", "runs/qwen3-4b-instruct-2507-judge-only"
SAMPLE = SAMPLES / "comparative"
CASSETTE = SAMPLE / "cassette.jsonl"
QRELS = "--relevance relevance --quality quality --stance stance"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of the sample in folders with long names, and qrels for them."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "runs").mkdir()
    for name, grade in ((FIRST, 5), (SECOND, 7)):
        sample_run("comparative", folder).rename(folder / name)
        lines = [line.split() for line in (folder / name / "run.txt").read_text().splitlines()]
        for aspect in ("relevance", "quality"):
            judged = (f"{line[0]} 0 {line[2]} {len(line[2] + aspect) % grade % 4}\n" for line in lines)
            (folder / aspect).write_text("".join(judged))
        (folder / "stance").write_text("".join(f"{line[0]} 0 {line[2]} {line[1]}\n" for line in lines))
    shutil.copyfile(prompts_folder() / "comparative" / "judge.jinja", folder / "a-long-name-of-the-same-wording.jinja")
    # Its path is the longest that is its label.
    (folder / "runs" / "of-mine").symlink_to(folder / FIRST)
    return folder


COMMANDS = {
    "evaluate": (f"evaluate {FIRST} {SECOND} {QRELS}", ["nDCG@5", "nDCG@10", "touche_nDCG@5", "macro-F1@5"]),
    "evaluate of one": (f"evaluate runs/of-mine {QRELS}", ["nDCG@5", "touche_nDCG@5", "macro-F1@5"]),
    "evaluate --per-topic": (f"evaluate {FIRST} {SECOND} {QRELS} --per-topic", ["3", "7"]),
    "evaluate --leaderboard": (f"evaluate {FIRST} {SECOND} {QRELS} --leaderboard", ["relevance nDCG@5"]),
    "evaluate --confusion": (f"evaluate {FIRST} {SECOND} {QRELS} --confusion", ["FIRST", "NEUTRAL"]),
    "compare": (f"compare {SECOND} --baseline {FIRST} {QRELS}", ["nDCG@10", "touche_nDCG@5", "macro-F1@5"]),
    "tasks list": ("tasks list", ["comparative", "sentence_pairs"]),
    "tasks show": ("tasks show comparative", ["task", "aspects"]),
    "prompts list": ("prompts list", ["comparative/judge"]),
    "prompts check": ("prompts check --task comparative", ["comparative/judge"]),
    "cache stats": (f"cache stats --cache {CASSETTE}", ["answer"]),
    "validate": (f"validate {FIRST}", []),
    "show": (f"show {FIRST}", ["retrieve", "judge", "rank", "1"]),
    "show --topic": (f"show {FIRST} --topic 3", ["1", "20"]),
    "runs": ("runs", [FIRST, SECOND]),
    "run": (f"run --config {FIRST}/config.yaml --out run-{{width}}", ["1", "2"]),
    "run --dry-run": (
        f"run --config {FIRST}/config.yaml --cache none --cache-mode reuse --out o --dry-run",
        ["judge", "rank"],
    ),
    "calibrate": (
        f"calibrate {FIRST} --stance stance --out t-{{width}}.yaml --folds 2",
        ["fold 1", "all folds"],
    ),
    "prompts compare": (
        f"prompts compare judge a-long-name-of-the-same-wording.jinja --task comparative --topics {SAMPLE}/topics.xml "
        f"--corpus {SAMPLE}/passages.jsonl --cache {CASSETTE} --cache-mode replay --split all {QRELS}",
        ["judge", "relevance nDCG@5"],
    ),
    "prompts try": (
        f"prompts try judge --task comparative --topics {SAMPLE}/topics.xml --corpus {SAMPLE}/passages.jsonl --cache "
        f"{CASSETTE} --cache-mode replay --topic 3 --doc sample-heating-01___3 --stance stance",
        ["sample-heating-01___3"],
    ),
    "regress record": (f"regress record {FIRST} --dir kept-{{width}}", []),
}


# Columns that the tables of a command leave out at 60 and at 80 columns.
DROPPED = {
    "evaluate": (["n"], ["n"]),
    "evaluate --per-topic": (["touche_nDCG@5, judged@30", "judged@5"], ["judged@30"]),
    "evaluate --leaderboard": (["n, if judged, ahead, behind"], ["if judged, ahead, behind"]),
    "compare": (["value, baseline, +/=/-, judged@k"], ["value, baseline, judged@k"]),
    "tasks list": (["aspects, stances, reader"], ["aspects, stances"]),
    "prompts list": (["hash, purpose, folder"], ["purpose, folder"]),
    "prompts check": (["version and hash, two documents share"], ["version and hash"]),
    "cache stats": (["version, hash"], ["hash"]),
    # At 80 columns no command has built the index yet, so there are no texts.
    "show": (["tokens in, tokens out", "relevance, quality, score"], []),
    "show --topic": (
        ["relevance, quality, seen, score, before, p FIRST, p SECOND, p NEUTRAL, p NO"],
        ["score, before, p FIRST, p SECOND, p NEUTRAL, p NO"],
    ),
    "runs": (
        [
            "quality, stance, date, model, topics, requests, tokens, steps, "
            "relevance judged, quality judged, stance judged"
        ],
        ["model, prompt, topics, requests, tokens, steps, relevance judged, quality judged, stance judged"],
    ),
    "calibrate": (["prompt, topics, documents, above NO, above NEUTRAL"], ["prompt, above NO, above NEUTRAL"]),
}


@pytest.fixture(scope="module")
def printed(place: Path) -> dict[tuple[str, int], list[str]]:
    """The lines of each command, by its name and the width of the terminal."""
    widths = [(name, width) for width in (80, 100) for name in COMMANDS] + [("compare", 140)]
    widths += [(name, 60) for name in DROPPED]
    calls = [(width, COMMANDS[name][0].format(width=width).split()) for name, width in widths]
    return dict(zip(widths, map(str.splitlines, run_on_terminal(calls, place)), strict=True))


@pytest.mark.parametrize("width", (80, 100))
def test_no_line_is_wider_than_the_terminal_and_first_columns_are_whole(
    printed: dict[tuple[str, int], list[str]], width: int
) -> None:
    for name, (_, cells) in COMMANDS.items():
        lines = printed[name, width]
        assert lines, name
        assert [line for line in lines if cell_len(line) > width] == [], name
        for cell in cells:
            # Numbers are aligned at their end, texts at their beginning.
            indent = r"\s*" if cell.isdigit() else ""
            assert any(re.match(rf"{indent}{re.escape(cell)}(  |$)", line) for line in lines), (name, cell, lines)
        if name == "evaluate":
            # Names that are too long keep their ends, in which they differ.
            assert {"pairwise", "judge-only"} <= {name.rpartition("2507-")[2] for name in " ".join(lines).split()}
        if name == "run":
            # A finished stage shows its time.
            assert any(re.search(r"4/4 \d+\.\d s", line) for line in lines)


def test_a_ranking_of_pairs_leaves_their_long_ids_out_of_a_narrow_terminal_before_grades_and_texts(
    tmp_path: Path,
) -> None:
    run = sample_run("sentence_pairs", tmp_path)
    narrow, wide = run_on_terminal(
        [(width, ["show", str(run), "--topic", "3", "--top", "5"]) for width in (80, 180)], tmp_path
    )
    head, full = (next(line for line in text.splitlines() if line.startswith("rank")) for text in (narrow, wide))
    assert {"stance", "relevance", "text"} <= {*head.split()} and "document" not in head and "document" in full
    assert "(not shown in 80 columns: document, " in narrow


@pytest.mark.parametrize("name", DROPPED)
def test_a_narrow_terminal_drops_the_least_important_columns_and_names_them(
    printed: dict[tuple[str, int], list[str]], name: str
) -> None:
    for width, expected in zip((60, 80), DROPPED[name], strict=True):
        found = re.findall(rf"\(not shown in {width} columns: ([^);]*); [^)]*\)", " ".join(printed[name, width]))
        assert list(dict.fromkeys(found)) == expected
    if name == "compare":
        (head, *_) = (line for line in printed[name, 60] if line.startswith("measure"))
        assert head.split() == ["measure", "run", "change", "95", "%", "interval", "p", "Holm"]
        assert not any("not shown" in line for line in printed[name, 140])
