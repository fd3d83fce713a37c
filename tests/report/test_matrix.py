from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from markupsafe import escape

from tests.prompt_variants import collection, config_of, opening, reader, wording
from tests.report.reports import ATTACKS
from tests.sample_runs import Silent
from tests.scripted_engine import ScriptedEngine
from touche_llm.errors import Rejected
from touche_llm.evaluation.qrels import Qrels, read_qrels
from touche_llm.prompt_lab.comparison import ComparisonInputs, PromptComparison, compare_prompts
from touche_llm.prompt_lab.sample import Plan
from touche_llm.report.matrix import build_rows, render_matrix
from touche_llm.tasks import get_task

Compared = tuple[PromptComparison, Qrels]


# Pages of several runs take a while to make.
pytestmark = pytest.mark.slow


class Refusing(ScriptedEngine):
    """Takes no request of the blunt wording about one document."""

    word = "BLUNT"

    async def complete(self, request: Any) -> Any:
        if request.origin.document_id == "2-4" and self.word in request.messages[0].content:
            raise Rejected(400, ATTACKS[1])
        return await super().complete(request)


async def compared(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str = "") -> Compared:
    """A blunt wording that takes each first and third document of a topic for the other, and two that agree."""
    monkeypatch.setattr("touche_llm.evaluation.randomisation.RESAMPLES", 20)
    blind: dict[str, Callable[[str, int], bool]] = {"BLUNT": lambda topic, number: number in (0, 2)}
    monkeypatch.setattr(
        "touche_llm.prompt_lab.comparison.open_client", opening(Refusing(reader(blind).script))
    )
    files = collection(folder, topics=4, text=text)
    words = {"blunt": "BLUNT", "sharp": "SHARP", "keen": "KEEN"}
    names = [str(wording(folder / "mine" / f"{name}.jinja", word)) for name, word in words.items()]
    qrels = read_qrels(
        {aspect: files[aspect] for aspect in ("relevance", "stance")}, get_task("comparative")
    )
    plan = Plan(split="all")
    return await compare_prompts(
        ComparisonInputs(config_of(folder, files), names, qrels, plan), Silent()
    ), qrels


async def test_documents_that_variants_differ_about_come_first_and_cells_say_what_each_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = build_rows(*await compared(tmp_path, monkeypatch))
    # A document without an answer comes first.
    assert rows[0].document_id == "2-4"
    assert {row.document_id for row in rows[1:9]} == {
        f"{topic}-{n}" for topic in range(1, 5) for n in (0, 2)
    }
    assert [bool(row.differs) for row in rows] == [True] * 9 + [False] * 15
    assert {(tuple(row.differs), row.spread) for row in rows[1:9]} == {
        (("relevance", "quality", "stance"), 3.0)
    }
    by_id = {row.document_id: row for row in rows}
    row = by_id["3-2"]
    assert [(grade.name, grade.value) for grade in row.assessments] == [
        ("relevance", 2.0)
    ] and row.label == "NEUTRAL"
    blunt, sharp, _ = row.cells
    assert [(grade.name, grade.value, grade.heat, grade.is_hit) for grade in blunt.grades] == [
        ("relevance", 0.0, 0, None),
        ("quality", 0.0, 0, None),
    ]
    # Grades from 0 to 3 cannot be compared with those of people from 0 to 2 one by one.
    assert [(grade.value, grade.heat, grade.is_hit) for grade in sharp.grades] == [
        (2.0, 3, None),
        (2.0, 3, None),
    ]
    assert (blunt.stance, blunt.is_stance_hit, sharp.stance, sharp.is_stance_hit) == (
        "FIRST",
        False,
        "NEUTRAL",
        True,
    )
    assert (row.misses, by_id["3-1"].misses, by_id["2-4"].misses) == (0, 0, 0)
    lost = by_id["2-4"].cells[0]
    assert lost.grades == [] and lost.failure is not None and lost.failure.kind == "server_error"


async def test_a_document_that_no_variant_has_an_answer_about_is_not_one_that_they_agree_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Refusing, "word", "")
    found, qrels = await compared(tmp_path, monkeypatch)
    head, _, tail = render_matrix(found, qrels, {}).partition('id="t3"')
    assert "No variant has an answer" in tail and "2-4" in tail.partition("</details>")[0]
    assert (
        tail.count('class="doc"') == 1
        and '<span class="id">2-4' not in head.partition('id="t1"')[2]
    )


async def test_the_page_has_everything_and_nothing_that_is_not_escaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, qrels = await compared(tmp_path, monkeypatch, " ".join(ATTACKS))
    noted = replace(found, notes=[*found.notes, f"note {ATTACKS[0]}"])
    page = render_matrix(noted, qrels, {"relevance": tmp_path / ATTACKS[3].replace("/", "")})
    assert not any(attack in page for attack in ATTACKS)
    assert escape(f"note {ATTACKS[0]}") in page and escape(ATTACKS[1]) in page
    for said in (
        "sharp.jinja",
        "passage 3-2",
        "server_error",
        "The variants differ",
        found.variants[0].prompt.label,
    ):
        assert said in page
    assert page.count('class="doc"') == 24
    # The wordings: the first whole, of the others what is otherwise.
    assert page.count("differences from A") == 2
    assert re.search(r"^-.*BLUNT.*$", page, re.MULTILINE) and re.search(
        r"^\+.*SHARP.*$", page, re.MULTILINE
    )
