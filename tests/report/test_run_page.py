from __future__ import annotations

import base64
import hashlib
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.report.reports import ATTACKS, POISON, poisoned
from touche_llm.data.files import write_records
from touche_llm.data.records import Attempt, Failure
from touche_llm.report.measures import Interval
from touche_llm.report.page import render
from touche_llm.report.run_page import FailureCount, FailureList, RunPage, gather_report
from touche_llm.runs.open_folder import SentenceView, StoredCompletion


class Page(HTMLParser):
    """The elements of a page with their attributes, its texts, and what its own style and script hold."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.inline: dict[str, str] = {}
        self.text = ""
        self._open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open.append(tag)

    def handle_data(self, data: str) -> None:
        if self._open[-1:] and self._open[-1] in ("style", "script"):
            self.inline[self._open[-1]] = self.inline.get(self._open[-1], "") + data
            self._open.append("")
        else:
            self.text += data


def count(page: Page, tag: str) -> int:
    return sum(name == tag for name, _ in page.elements)


@pytest.fixture(scope="module")
def hostile_page(hostile: Path) -> str:
    return render(gather_report(hostile, None, 20))


def test_hostile_texts_stay_texts(hostile_page: str) -> None:
    page = Page(hostile_page)
    assert (
        count(page, "script"),
        count(page, "style"),
        count(page, "main"),
        count(page, "body"),
    ) == (1, 1, 1, 1)
    assert not {"img", "iframe", "link", "object", "b/onclick"} & {tag for tag, _ in page.elements}
    for _, attributes in page.elements:
        assert not any(
            name.startswith("on") or name in ("style", "src", "srcdoc", "srcset")
            for name in attributes
        )
        assert (attributes.get("href") or "#").startswith("#")
    for attack in ATTACKS:
        assert page.text.count(attack) >= 2, "in its passage and in the narrative"


def test_no_text_of_a_report_leaves_its_place(judged: RunPage) -> None:
    """Raw answers, notes, comparisons, what people said … whatever the page shows, where it shows it."""
    view = judged.topics[0]
    attempt = Attempt(sample=0, kind="not_json", reason="no JSON", text="{")
    failures = [
        Failure(topic_id="3", document_id="d", kind="not_json", prompt="p", attempts=[attempt])
    ]
    sentence = SentenceView("s", "title", "PRO", view.documents[0].readings)
    answers = [*view.documents[0].judge_answers, StoredCompletion("prompt", None)]
    full = replace(
        view.documents[0],
        truncation="half",
        comparisons=["line"],
        failures=failures,
        sentences=[sentence],
        judge_answers=answers,
    )
    assert full.readings and full.text and full.row.people and full.answers[0].text
    shown = replace(view, documents=[full], rows=[view.documents[1].row])
    report = replace(
        judged,
        topics=[shown],
        failures=FailureList([FailureCount("not_json", "x", 1)], failures),
        notes=["note"],
    )
    page = Page(render(poisoned(report)))
    assert [tag for tag, _ in page.elements if tag.startswith("x-")] == []
    for _, attributes in page.elements:
        assert not any(name.startswith("on") or POISON in name for name in attributes)
    for text in ("note", full.answers[0].text, "line", "half", "{", "no JSON", full.text[:50]):
        assert POISON + text in page.text


def test_the_policy_allows_the_page_s_own_style_and_script_alone(hostile_page: str) -> None:
    page = Page(hostile_page)
    policy = next(
        a["content"] for tag, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"
    )
    rules = dict(rule.strip().split(" ", 1) for rule in (policy or "").split(";"))
    assert rules["default-src"] == "'none'"
    for name in ("style", "script"):
        digest = base64.b64encode(hashlib.sha256(page.inline[name].encode()).digest()).decode()
        assert rules[f"{name}-src"] == f"'sha256-{digest}'"
    assert (
        "http://" not in hostile_page.split("<body>")[0]
        and "unsafe" not in hostile_page.split("<body>")[0]
    )


def test_controls_of_the_direction_of_writing_are_visible(judged: RunPage) -> None:
    controls = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    page = render(replace(judged, notes=[f"a{controls}b"]))
    assert f"a{len(controls) * chr(0xFFFD)}b" in page
    assert not set(controls) & set(page)


def test_an_interval_is_drawn_within_its_scale_and_a_missing_one_is_noted_once(
    judged: RunPage,
) -> None:
    page = Page(render(judged))
    # Four topics are too few for any interval.
    assert not list_whiskers(page) and " ".join(page.text.split()).count("no 95 % interval") == 1
    assert judged.measured is not None
    first, *others = judged.measured.headline
    wide = replace(first, run=replace(first.run, interval=Interval(-0.1, 1.2)))
    measured = replace(judged.measured, headline=[wide, *others])
    page = Page(render(replace(judged, measured=measured)))
    ((low, high),) = list_whiskers(page)
    assert (low, high) == ("0.0%", "100.0%") and "-0.100 to 1.200" in page.text


def list_whiskers(page: Page) -> list[tuple[str | None, str | None]]:
    """Ends of the lines on the scales of the page."""
    return [
        (attributes["x1"], attributes["x2"])
        for tag, attributes in page.elements
        if tag == "line" and "%" in (attributes.get("x1") or "")
    ]


def test_failures_are_counted_by_kind_and_the_first_are_shown(
    comparative: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(comparative, tmp_path / "run")
    attempt = Attempt(sample=0, kind="not_json", reason="no JSON", text="x" * 5000)
    failures = [
        Failure(topic_id="3", document_id=f"d{n}", kind="not_json", prompt="p", attempts=[attempt])
        for n in range(70)
    ]
    write_records(run / "failures.jsonl", failures)
    write_records(run / "comparison_failures.jsonl", failures[:2])
    page = Page(render(gather_report(run, None, 1)))
    text = " ".join(page.text.split())
    assert "not_json failures.jsonl 70" in re.sub(
        r"(?<=json)(?=failures|comp)|(?<=jsonl)(?=\d)", " ", text
    )
    assert "The first 50 with their completions" in text and "x" * 301 not in page.text
