"""The README followed to its end: each command, in its order, with the real server and the files that it names."""

from __future__ import annotations

import gzip
import shutil
import time
from pathlib import Path

import pytest

from tests.docs.pages import list_blocks
from tests.vllm.command import touche
from tests.vllm.conftest import Tell
from tests.vllm.real_data import REAL
from tests.vllm.server import ROOT
from touche_llm.cli.demo import SAMPLES

pytestmark = [pytest.mark.vllm, pytest.mark.nightly]

URL = "http://127.0.0.1:8000"
PROGRAM = "touche-llm"


def lay_out(folder: Path) -> None:
    """Put topics, passages and judgments into a folder, under the README's names."""
    source = (REAL if REAL.is_dir() else SAMPLES) / "comparative"
    for name in ("topics.xml", "qrels-relevance.txt", "qrels-quality.txt", "qrels-stance.txt"):
        shutil.copy(source / name, folder / name)
    packed = source / "passages.jsonl.gz"
    content = (
        packed.read_bytes()
        if packed.exists()
        else gzip.compress((source / "passages.jsonl").read_bytes())
    )
    (folder / "passages.jsonl.gz").write_bytes(content)


def test_its_commands_lead_to_a_measured_and_valid_run(
    vllm_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tell: Tell
) -> None:
    lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    commands = [
        words[1:]
        for block in list_blocks(ROOT / "README.md")
        if not block.needs
        for words in block.commands()
        if words[0] == PROGRAM and words[1] != "lab"  # which serves until it is stopped
    ]
    done: list[str] = []
    for words in commands:
        began = time.monotonic()
        touche(*(word.replace(URL, vllm_url) for word in words))
        tell(f"{time.monotonic() - began:6.1f} s  {PROGRAM} {' '.join(words)[:100]}")
        done.append(words[0])
    assert {"data", "doctor", "run", "show", "evaluate", "report", "validate"} <= set(done)
    judged = [
        len(Path(f"runs/{run}/judgments.jsonl").read_bytes().splitlines())
        for run in ("first", "three")
    ]
    assert judged[0] > judged[1] > 0
    assert "nDCG@5" in Path("runs/first/report.html").read_text()
