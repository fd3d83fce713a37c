"""The lab in a browser, with a server that answers by a script."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import Opened
from tests.browser.test_report import FAINT
from tests.fake_server import FakeServer, says
from tests.lab.labs import ASPECTS, copy_run, lab_in_thread, make_run, reading
from tests.report.reports import ATTACKS, hostile_run
from touche_llm.data.measure import make_headline_ndcg
from touche_llm.data.runs.reading import read_run
from touche_llm.evaluation.measures import evaluate_run
from touche_llm.evaluation.qrels import read_qrels
from touche_llm.lab.redirect import write_redirect
from touche_llm.prompt_lab.holdout import access_log, read_accesses
from touche_llm.tasks import prompts_folder

pytestmark = pytest.mark.browser

VIEWS = ("runs", "bench", "documents", "confirm")
BLUNT = "BLUNT "
# Longer than the pause after which a text is tried.
SETTLED = 700
OpenLab = Callable[..., AbstractContextManager[Opened]]


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run; made in a thread, since Playwright keeps an event loop in this one."""
    folder = tmp_path_factory.mktemp("lab")
    with ThreadPoolExecutor() as other:
        other.submit(make_run, folder, FakeServer(rest=reading({}))).result()
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copy_run(finished, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer(
        rest=reading({"BLUNT": lambda topic, number: number < 3})
    ).in_thread() as started:
        yield started


@pytest.fixture
def open_lab(browser: Browser, folder: Path, server: FakeServer) -> OpenLab:
    """Opens a view of a lab.

    At its end there was no message on the console, and no request to another host.
    """

    @contextmanager
    def opened(view: str = "runs", root: Path | None = None, **others: Any) -> Iterator[Opened]:
        inputs: dict[str, Any] = {"qrels": {aspect: folder / aspect for aspect in ASPECTS}}
        inputs |= {
            "settings": {"engine.base_url": server.url} | others.pop("settings", {})
        } | others.pop("inputs", {})
        with lab_in_thread(root or folder / "runs", **inputs) as address:
            context = browser.new_context(
                **{"reduced_motion": "reduce", "viewport": {"width": 1400, "height": 900}} | others
            )
            page = context.new_page()
            found = Opened(page)
            context.on("request", lambda request: found.requests.append(request.url))
            context.on("console", lambda message: found.problems.append(message.text))
            page.on("pageerror", lambda error: found.problems.append(str(error)))
            page.goto(address.url)
            page.goto(f"http://127.0.0.1:{address.port}/#/{view}")
            yield found
            context.close()
            assert found.problems == []
            origin = f"http://127.0.0.1:{address.port}/"
            own = (origin, f"blob:{origin}", "data:")
            assert [url for url in found.requests if not url.startswith(own)] == []

    return opened


def edit(page: Page, words: str = BLUNT) -> None:
    """Write words at the beginning of the template's first block."""
    area = page.get_by_label("Template", exact=True).and_(page.locator("textarea"))
    area.evaluate(
        "(area, words) => { const at = area.value.indexOf('\\n', area.value.indexOf('block system')) + 1;"
        " area.focus(); area.setSelectionRange(at, at); document.execCommand('insertText', false, words); }",
        words,
    )


def grade(page: Page, document: str) -> Any:
    """The expected relevance in an answer about a document."""
    return page.locator(f".answer[aria-label='{document}'] dd b").first


def wait_until(page: Page, is_true: Callable[[], bool]) -> None:
    """Wait, at most ten seconds, for something that is not on the page."""
    for _ in range(200):
        if is_true():
            return
        page.wait_for_timeout(50)
    raise AssertionError("waited ten seconds")


def test_answers_change_with_the_text_and_come_back_from_the_cache(
    open_lab: OpenLab, server: FakeServer
) -> None:
    with open_lab("bench?run=first") as found:
        page = found.page
        expect(grade(page, "1-2")).to_have_text("1.87")
        expect(page.locator("#draft")).to_contain_text("from the cache")
        assert server.bodies == []
        edit(page)
        expect(grade(page, "1-2")).to_have_text("0.40")
        expect(page.locator(".answer[aria-label='1-2'] .way").first).to_have_text("−1.47")
        expect(page.locator(".answer[aria-label='1-2'] .people.miss")).to_have_count(1)
        assert len(server.bodies) == 5
        page.keyboard.press("Control+Z")
        expect(grade(page, "1-2")).to_have_text("1.87")
        expect(page.locator("#draft")).to_have_text("saved, answers from the cache")
        assert len(server.bodies) == 5


def test_typing_sends_nothing_until_a_pause_and_cancels_what_is_outdated(
    open_lab: OpenLab, server: FakeServer
) -> None:
    server.rest = reading({"BLUNT": lambda topic, number: True}, delay=1.0)
    with open_lab("bench?run=first") as found:
        page = found.page
        expect(grade(page, "1-2")).to_have_text("1.87")
        edit(page, "one")
        page.keyboard.type(" two three", delay=60)
        assert server.bodies == []
        wait_until(page, lambda: len(server.bodies) == 5)
        page.keyboard.type(" BLUNT ", delay=20)
        expect(grade(page, "1-2")).to_have_text("0.40")
        assert len(server.bodies) == 10


def test_without_live_only_a_key_requests_answers(open_lab: OpenLab, server: FakeServer) -> None:
    with open_lab("bench?run=first") as found:
        page = found.page
        expect(grade(page, "1-2")).to_have_text("1.87")
        page.get_by_label("live").uncheck()
        edit(page)
        page.wait_for_timeout(SETTLED)
        assert server.bodies == []
        page.keyboard.press("Control+Enter")
        expect(grade(page, "1-2")).to_have_text("0.40")


def test_an_invalid_template_has_marks_at_its_lines_and_no_answers(
    open_lab: OpenLab, server: FakeServer
) -> None:
    with open_lab("bench?run=first") as found:
        page = found.page
        expect(grade(page, "1-2")).to_have_text("1.87")
        edit(page, "{{ nothing }} ")
        expect(page.locator("#draft")).to_have_text("invalid template")
        expect(page.locator("#findings li")).to_contain_text("nothing")
        expect(page.locator(".editor .line.error")).to_have_count(1)
        expect(page.get_by_role("button", name="Save as next version")).to_be_disabled()
        page.locator("#findings button").click()
        assert page.evaluate("document.activeElement.tagName") == "TEXTAREA"
        assert server.bodies == []


def test_a_sample_shows_its_progress_and_can_be_cancelled(
    open_lab: OpenLab, server: FakeServer
) -> None:
    server.rest = reading({"BLUNT": lambda topic, number: number < 3}, delay=0.4)
    with open_lab("bench?run=first", settings={"engine.concurrency": 4}) as found:
        page = found.page
        expect(grade(page, "1-2")).to_have_text("1.87")
        edit(page)
        button = page.get_by_role("button", name="Judge the sample")
        expect(button).to_contain_text("43 requests, about")
        button.click()
        expect(page.locator(".measures [role=status]")).to_contain_text(
            re.compile(r"judging with draft: [1-9]")
        )
        expect(page.locator("progress")).to_have_attribute("max", "48")
        page.get_by_role("button", name="Cancel").click()
        expect(page.locator(".measures")).to_contain_text("Cancelled")
        sent = len(server.bodies)
        assert sent < 40
        server.rest = reading({"BLUNT": lambda topic, number: number < 3})
        page.get_by_role("button", name="Judge the sample").click()
        expect(page.locator(".measures table")).to_be_visible(timeout=20_000)
        row = page.locator(".measures tr", has_text="relevance nDCG@5")
        expect(row.locator("td").nth(0)).to_have_text("1.000")
        expect(row.locator("td").nth(2)).to_have_class("way down")
        with page.context.expect_page() as opening:
            page.get_by_role("button", name="Documents by prompt").click()
        expect(opening.value.locator("h1")).to_be_visible()


def test_documents_are_labelled_with_keys_and_exported_as_qrels(
    open_lab: OpenLab, folder: Path
) -> None:
    run = read_run(folder / "runs" / "first" / "run.txt")
    with open_lab("documents?run=first&topic=1") as found:
        page = found.page
        expect(page.locator(".ranking a")).to_have_count(6)
        for each in run.rankings["1"]:
            page.keyboard.press("j")
            expect(page.locator(".document h2")).to_have_text(each.document_id)
            page.keyboard.press(str(int(each.document_id[-1]) % 3))
            expect(page.locator("[data-field=relevance] .chosen")).to_have_text(
                str(int(each.document_id[-1]) % 3)
            )
        page.keyboard.press("a")
        page.keyboard.press("2")
        page.keyboard.press("n")
        expect(page.locator("[data-field=quality] .chosen")).to_have_text("2")
        expect(page.locator("[data-field=stance] .chosen")).to_contain_text("NEUTRAL")
        expect(page.locator(".found").first).to_contain_text("6 with labels of yours")
        page.get_by_label("Note").fill("hard to say")
        page.get_by_label("Note").blur()
        expect(page.locator("#live")).to_have_text("Note saved.")
        with page.expect_download() as download:
            page.get_by_role("button", name="relevance", exact=True).click()
        download.value.save_as(folder / "own.txt")
        assert page.evaluate("document.querySelectorAll('.ranking .own').length") == 6
    own = read_qrels({"relevance": folder / "own.txt"}, "comparative")
    evaluation = evaluate_run("run", run, own.restrict_to({"1"}))
    assert evaluation.estimates[make_headline_ndcg("relevance")].value == pytest.approx(1.0)


def test_filters_are_in_the_address(open_lab: OpenLab, folder: Path) -> None:
    lines = (folder / "stance").read_text().replace("1 0 1-2 NEUTRAL", "1 0 1-2 NO")
    (folder / "stance").write_text(lines)
    with open_lab("documents?run=first&topic=1&differs=stance") as found:
        page = found.page
        expect(page.locator(".ranking a")).to_have_count(1)
        expect(page.locator(".ranking a")).to_contain_text("1-2")
        page.get_by_label("Unlike the assessors").select_option("")
        expect(page.locator(".ranking a")).to_have_count(6)
        page.keyboard.press("/")
        page.keyboard.type("1-4")
        expect(page.locator(".ranking a")).to_have_count(1)
        assert "filter=1-4" in page.url
        page.reload()
        expect(page.locator(".ranking a")).to_have_count(1)


def test_a_document_shows_prompt_and_answer_as_sent_and_received(open_lab: OpenLab) -> None:
    with open_lab("documents?run=first&topic=1&document=1-2") as found:
        page = found.page
        page.get_by_text("Request and answer").click()
        expect(page.locator(".request pre").nth(1)).to_contain_text("passage 1-2")
        expect(page.locator(".request pre").nth(2)).to_have_text('[2,2,"Y","N"]')


def test_a_chosen_document_comes_in_sight_on_a_narrow_screen(open_lab: OpenLab) -> None:
    with open_lab("documents?run=first&topic=1", viewport={"width": 400, "height": 800}) as found:
        found.page.locator(".ranking a").nth(1).click()
        expect(found.page.locator(".document .bar").first).to_be_in_viewport()


def test_judgments_of_a_held_out_topic_are_shown_on_request_and_counted(
    open_lab: OpenLab, folder: Path
) -> None:
    with open_lab("documents?run=first&topic=2") as found:
        page = found.page
        expect(page.locator(".ranking a")).to_have_count(6)
        expect(page.locator(".ranking .people")).to_have_count(0)
        assert read_accesses(access_log(folder / "answers.sqlite")) == []
        page.get_by_role("button", name="Show those of this topic").click()
        expect(page.locator(".ranking .people")).to_have_count(6)
        assert [access.kind for access in read_accesses(access_log(folder / "answers.sqlite"))] == [
            "evaluation"
        ]
        page.get_by_role("link", name="Confirm").click()
        expect(page.locator("main tbody tr")).to_contain_text("evaluation")
        expect(page.locator("main")).to_contain_text("1 earlier look by")


def test_a_template_is_saved_and_a_change_by_others_is_kept(
    open_lab: OpenLab, folder: Path
) -> None:
    with open_lab("bench?run=first") as found:
        page = found.page
        expect(grade(page, "1-2")).to_have_text("1.87")
        edit(page)
        expect(grade(page, "1-2")).to_have_text("0.40")
        page.keyboard.press("Control+S")
        mine = folder / "lab-prompts" / "comparative" / "judge-mine.jinja"
        expect(page.locator("section .kind")).to_contain_text("judge-mine.jinja")
        assert BLUNT in mine.read_text() and "version: 5" in mine.read_text()
        edit(page, "MORE ")
        expect(page.locator("#draft")).to_contain_text("draft")
        mine.write_text(theirs := mine.read_text().replace(BLUNT, "THEIRS "))
        page.get_by_role("button", name="Save as next version").click()
        expect(page.get_by_role("alert")).to_contain_text("changed on disk")
        assert mine.read_text() == theirs
        page.get_by_label("Name of the new template").fill("judge-second.jinja")
        page.get_by_role("button", name="Save mine under this name").click()
        expect(page.locator("section .kind")).to_contain_text("judge-second.jinja")
        assert (
            "MORE BLUNT" in mine.with_name("judge-second.jinja").read_text()
            and mine.read_text() == theirs
        )


def test_a_draft_is_kept_and_can_be_discarded(open_lab: OpenLab) -> None:
    with open_lab("bench?run=first") as found:
        page = found.page
        expect(grade(page, "1-2")).to_have_text("1.87")
        edit(page)
        expect(grade(page, "1-2")).to_have_text("0.40")
        page.reload()
        expect(grade(page, "1-2")).to_have_text("0.40")
        expect(page.locator("#draft")).to_contain_text("draft")
        expect(page.locator(".diff")).to_contain_text("+BLUNT")
        page.get_by_role("button", name="Discard draft").click()
        expect(grade(page, "1-2")).to_have_text("1.87")
        page.reload()
        expect(page.locator("#draft")).to_contain_text("saved")


def test_editing_goes_on_while_the_server_is_gone(open_lab: OpenLab, server: FakeServer) -> None:
    async def refuse(request: Any, _: dict[str, Any]) -> Any:
        request.transport.close()
        return web.Response()

    with open_lab("bench?run=first") as found:
        page = found.page
        expect(grade(page, "1-2")).to_have_text("1.87")
        behave, server.rest = server.rest, refuse
        edit(page)
        expect(page.locator("#server")).to_have_text("server gone", timeout=15_000)
        expect(page.get_by_role("alert")).to_be_visible()
        edit(page, "AND ")
        expect(page.locator(".diff")).to_contain_text("+AND BLUNT")
        server.rest = behave
        # It tries again by itself.
        expect(grade(page, "1-2")).to_have_text("0.40", timeout=15_000)
        expect(page.locator("#server")).to_have_text("server ready")
        expect(page.get_by_role("alert")).to_have_count(0)


def test_a_replay_says_that_nothing_is_sent(open_lab: OpenLab, server: FakeServer) -> None:
    with open_lab("bench?run=first", settings={"cache.mode": "replay"}) as found:
        page = found.page
        expect(page.locator("#server")).to_have_text("replay only")
        page.get_by_role("button", name="Request answers").click()
        expect(grade(page, "1-2")).to_have_text("1.87")
        edit(page)
        page.keyboard.press("Control+Enter")
        expect(page.locator(".answer[aria-label='1-2']")).to_contain_text("the cache has no answer")
        assert server.bodies == []


def test_a_second_tab_on_a_template_says_so(open_lab: OpenLab) -> None:
    with open_lab("bench?run=first") as found:
        expect(grade(found.page, "1-2")).to_have_text("1.87")
        second = found.page.context.new_page()
        second.goto(found.page.url)
        expect(second.get_by_role("alert")).to_contain_text("the address that")
        # The printed one.
        token = found.page.evaluate("sessionStorage.getItem('touche-llm lab token')")
        second.goto(f"{found.page.url.partition('#')[0]}#token={token}")
        expect(second.get_by_role("link", name="bench", exact=True)).to_be_visible()
        second.goto(found.page.url)
        expect(second.get_by_role("alert")).to_contain_text("open in another tab")
        expect(found.page.get_by_role("alert")).to_have_count(0)


def test_everything_can_be_done_with_the_keyboard(open_lab: OpenLab, folder: Path) -> None:
    with open_lab("runs") as found:
        page = found.page
        expect(page.locator("main tbody tr")).to_have_count(1)
        page.keyboard.press("Tab")
        expect(page.locator(".skip")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("main")).to_be_focused()
        page.keyboard.press("?")
        expect(page.locator("#help")).to_be_visible()
        expect(page.locator("#paths")).to_contain_text("drafts")
        page.keyboard.press("Escape")
        expect(page.locator("#help")).to_be_hidden()
        page.get_by_role("link", name="documents", exact=True).press("Enter")
        expect(page.locator(".ranking a")).to_have_count(6)
        page.keyboard.press("]")
        expect(page.locator(".topics [aria-current]")).to_contain_text("2")
        page.keyboard.press("[")
        expect(page.locator(".topics [aria-current]")).to_contain_text("1")
        page.keyboard.press("j")
        page.keyboard.press("j")
        page.keyboard.press("k")
        first = read_run(folder / "runs" / "first" / "run.txt").rankings["1"][0].document_id
        expect(page.locator(".document h2")).to_have_text(first)
        assert page.evaluate("document.activeElement.dataset.document") == first
        page.get_by_role("link", name="Bench").press("Enter")
        expect(grade(page, "1-2")).to_have_text("1.87")
        # The editor is reached and left by keys, since Tab moves on.
        page.get_by_role("checkbox", name="live").focus()
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.tagName") == "TEXTAREA"
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.tagName") != "TEXTAREA"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("view", VIEWS)
def test_each_view_fits_and_can_be_read(
    open_lab: OpenLab, view: str, width: int, scheme: str
) -> None:
    document = "&topic=1&document=1-2" if view == "documents" else ""
    with open_lab(
        f"{view}?run=first{document}", viewport={"width": width, "height": 900}, color_scheme=scheme
    ) as found:
        page = found.page
        expect(
            page.locator(
                {"bench": ".answer .bar", "documents": ".document .bar"}.get(view, "h1")
            ).first
        ).to_be_visible()
        if view == "bench":
            edit(page, "BLUNT {{ nothing }} {# a comment #} ")
            expect(page.locator(".line.error")).to_be_visible()
            page.get_by_text("Rendered").click()
        page.wait_for_timeout(300)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.evaluate(FAINT) == []
        nameless = (
            "[...document.querySelectorAll('main :is(input, select, textarea, button, a[href])')]"
        )
        nameless += ".filter(e => e.checkVisibility())"
        nameless += (
            ".filter(e => !(e.ariaLabel || e.labels?.length || e.textContent.trim())).length"
        )
        assert page.evaluate(nameless) == 0


def test_runs_are_sorted_filtered_compared_and_live(open_lab: OpenLab, folder: Path) -> None:
    with open_lab("runs") as found:
        page = found.page
        expect(page.locator("main tbody tr")).to_contain_text("1.000")
        shutil.copytree(folder / "runs" / "first", folder / "second")
        (folder / "second").rename(folder / "runs" / "second")
        expect(page.locator("main tbody tr")).to_have_count(2, timeout=15_000)
        page.get_by_role("button", name="run", exact=True).click()
        expect(page.locator("main tbody th b").first).to_have_text("first")
        page.get_by_role("button", name="run", exact=True).click()
        expect(page.locator("main tbody th b").first).to_have_text("second")
        page.get_by_label("Filter", exact=True).fill("sec")
        expect(page.locator("main tbody tr")).to_have_count(1)
        page.get_by_label("Filter", exact=True).fill("")
        expect(page.locator("main tbody tr")).to_have_count(2)
        for name in ("first", "second"):
            page.get_by_label(f"Select {name}").check()
        with page.context.expect_page() as opening:
            page.get_by_role("button", name="Compare 2 runs").click()
        expect(opening.value.locator("h1")).to_be_visible()
        expect(opening.value.locator("#measures")).to_contain_text("8 of 16 judged topics")
        assert opening.value.url.startswith("blob:")
        # Its own script ran, which shows the filters.
        expect(opening.value.locator("form").first).to_be_visible()


def test_hostile_texts_run_nothing_and_fetch_nothing(
    open_lab: OpenLab, folder: Path, server: FakeServer
) -> None:
    server.rest = says(" ".join(ATTACKS))
    attacked = folder / "attacked"
    attacked.mkdir()
    with ThreadPoolExecutor() as other:
        run = other.submit(hostile_run, attacked).result()
    facts = run / "ir-metadata.yml"
    facts.write_text(facts.read_text().replace("name: scripted", f"name: {json.dumps(ATTACKS[1])}"))
    text = Path("lab-prompts") / "comparative" / f"{ATTACKS[1].replace('/', '')}.jinja"
    text.parent.mkdir(parents=True)
    judge = (prompts_folder() / "comparative" / "judge.jinja").read_text()
    text.write_text(
        judge.replace("{% block system %}\n", "{% block system %}\n" + " ".join(ATTACKS[:7]) + "\n")
    )
    with open_lab("runs", root=attacked, inputs={"qrels": {}}) as found:
        page = found.page
        expect(page.locator("main tbody tr")).to_contain_text(ATTACKS[1])
        page.get_by_role("link", name="documents", exact=True).click()
        for _ in range(len(ATTACKS)):
            page.keyboard.press("j")
            page.wait_for_timeout(100)
        expect(page.locator(".document blockquote")).to_be_visible()
        page.get_by_role("link", name="Bench").click()
        expect(page.locator(".pins button").first).to_be_visible()
        page.get_by_role("combobox", name="Prompt").select_option(index=1)
        expect(page.locator(".editor .copy")).to_contain_text("window.ran")
        page.get_by_text("Rendered").click()
        page.wait_for_timeout(SETTLED)
        intruders = "document.querySelectorAll('main svg, main iframe, x-bad').length"
        ran = page.evaluate(
            f"[typeof window.ran, document.scripts.length, document.images.length, {intruders}]"
        )
        assert ran == ["undefined", 1, 0, 0]
        assert run.name in page.evaluate("document.body.textContent")


def test_the_page_of_the_command_leads_to_the_lab_and_no_cookie_is_set(
    browser: Browser, folder: Path
) -> None:
    with lab_in_thread(folder / "runs") as address, write_redirect(address.url) as redirect:
        page = browser.new_page()
        page.goto(redirect.as_uri())
        expect(page.locator("main tbody tr")).to_have_count(1)
        assert page.context.cookies() == []
        # It is not in the history, nor in the address that a screenshot shows.
        assert address.token not in page.url
        assert page.evaluate("history.length") <= 2
        page.context.close()
