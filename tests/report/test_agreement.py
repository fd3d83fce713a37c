"""The section of a run's page on its judge and the assessors."""

from __future__ import annotations

from pathlib import Path

import pytest

from touche_llm.data.files import read_records
from touche_llm.data.records import Judgment
from touche_llm.evaluation.judges.agreement import AgreementName
from touche_llm.evaluation.qrels import Qrels
from touche_llm.report.agreement import describe_agreement
from touche_llm.runs.judges import agree
from touche_llm.tasks import get_task


def test_the_figures_are_those_of_the_command(comparative: Path, qrels: Qrels) -> None:
    task = get_task("comparative")
    judgments = read_records(comparative / "judgments.jsonl", Judgment, "judgments")
    section = describe_agreement(judgments, qrels, task)
    assert section is not None
    study = agree([comparative], qrels)
    for table, aspect in zip(section.tables, study.aspects, strict=True):
        (agreement,) = aspect.agreements
        assert table.rows == agreement.confusion.tolist()
        assert sum(map(sum, table.rows)) == agreement.documents > 0
        by_name = {figure.name: figure for figure in table.figures}
        for name in (AgreementName.SPEARMAN, AgreementName.MACRO_F1):
            if name in agreement.estimates:
                expected = agreement.estimates[name].value
                assert by_name[str(name)].value == pytest.approx(expected, nan_ok=True)
        assert all(figure.documents > 0 and figure.topics > 0 for figure in table.figures)


def test_qrels_of_other_documents_make_no_section(comparative: Path) -> None:
    judgments = read_records(comparative / "judgments.jsonl", Judgment, "judgments")
    task = get_task("comparative")
    foreign = Qrels({"relevance": {"x": {"y": 1.0}}}, {}, task.stances, task.qrels_scales)
    assert describe_agreement(judgments, foreign, task) is None
