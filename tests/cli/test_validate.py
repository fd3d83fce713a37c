"""`touche-llm validate` with a corpus."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Touche
from touche_llm.cli.demo import SAMPLES

CORPUS = SAMPLES / "comparative" / "passages.jsonl"


def test_bad_lines_of_a_corpus_are_left_out_only_if_that_is_requested(touche: Touche, tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text(CORPUS.read_text() + "{\n")
    (tmp_path / "run.txt").write_text("3 FIRST sample-heating-01___3 1 1 t\n")
    given = ["validate", "run.txt", "--task", "comparative", "--corpus", "corpus.jsonl"]
    refused = touche(*given)
    assert (refused.returncode, refused.stdout) == (1, "") and "--skip-bad-lines" in refused.stderr
    assert touche(*given, "--skip-bad-lines").returncode == 0
