from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.reports import hostile_run, sample_run, write_qrels
from touche_llm.evaluation.qrels import Qrels, read_qrels
from touche_llm.report.run_page import RunPage, gather_report
from touche_llm.tasks import get_task


@pytest.fixture(scope="session")
def comparative(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sample_run("comparative", tmp_path_factory.mktemp("sample"))


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sample_run("sentence_pairs", tmp_path_factory.mktemp("sample"))


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hostile_run(tmp_path_factory.mktemp("hostile"))


@pytest.fixture(scope="session")
def qrels(comparative: Path, tmp_path_factory: pytest.TempPathFactory) -> Qrels:
    return read_qrels(
        write_qrels(comparative, tmp_path_factory.mktemp("qrels")), get_task("comparative")
    )


@pytest.fixture(scope="session")
def judged(comparative: Path, qrels: Qrels) -> RunPage:
    """The report of the comparative sample with judgments of people."""
    return gather_report(comparative, qrels, 20)
