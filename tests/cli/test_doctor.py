"""The card of a server, in the terminal and as JSON."""

from __future__ import annotations

import orjson
import pytest

from tests.cli.conftest import Touche
from tests.cli.test_thinking import RUN
from tests.docs.pages import DOCS
from tests.fake_server import FakeServer, hangs
from tests.llm.engines.test_conformance import Model
from tests.llm.engines.test_startup import DeafVllm, RefusingVllm, Shared
from tests.other_servers import FakeLlamaCpp, FakeLmStudio


def test_the_card_names_what_is_missing(touche: Touche) -> None:
    model = Model(("silent",))
    with FakeServer(
        rest=model.answer, probe=model.answer, labels=model.answer
    ).in_thread() as server:
        done = touche("doctor", server.url)
    table = done.stdout.split("prefix cache:")[0].splitlines()
    assert done.returncode == 0 and "determinism" not in done.stdout
    assert "checking the server: 8/8" in done.stderr
    assert [line.split("  ")[0] for line in table[2:]][:3] == ["server", "model", "context"]
    assert (
        "prefix cache: not reported" in done.stdout
        and "--enable-prompt-tokens-details" in done.stdout
    )


def test_each_check_and_both_verdicts_have_a_section_on_the_page_of_doctor(touche: Touche) -> None:
    model = Model(())
    with FakeServer(
        rest=model.answer, probe=model.answer, labels=model.answer
    ).in_thread() as server:
        done = touche(
            "doctor", server.url, "--thorough", "--thinking", "judge=64", "--format", "json"
        )
    page = (DOCS / "reference" / "doctor.md").read_text()
    names = [row["name"] for row in orjson.loads(done.stdout)]
    assert len(names) > 10 and [name for name in names if f"\n## {name}: " not in page] == []
    verdict = done.stderr.splitlines()[-1].removeprefix(f"{server.url}: ")
    assert f"\n## {verdict.capitalize()}\n" in page and "\n## A run could not be made\n" in page


def test_a_run_that_could_not_be_made_is_exit_code_1_and_options_are_named(touche: Touche) -> None:
    with FakeLmStudio().in_thread() as server:
        done = touche("doctor", server.url, "--format", "json")
        found = {row["name"]: row for row in orjson.loads(done.stdout)}
        assert done.returncode == 1 and "could not be made" in done.stderr
        assert [name for name, row in found.items() if row["is_blocking"]] == [
            "context",
            "logprobs",
            "tokens",
        ]
        remedies = [found[name]["remedy"] for name in ("context", "logprobs", "tokens")]
        flags = ("--context", "--no-logprobs", "--tokenizer")
        assert all(flag in text for flag, text in zip(flags, remedies, strict=True))
        done = touche("doctor", server.url, "--context", "512", "--no-logprobs", "--format", "json")
    assert [row["name"] for row in orjson.loads(done.stdout) if row["is_blocking"]] == ["tokens"]


def test_the_card_of_a_busy_server_has_what_is_known(touche: Touche) -> None:
    with Shared(probe=hangs).in_thread() as server:
        done = touche("doctor", server.url, "--request-timeout", "0.3", "--format", "json")
    found = {row["name"]: row["is_ok"] for row in orjson.loads(done.stdout)}
    assert found == dict.fromkeys(("server", "model", "context"), True)
    assert (done.returncode, done.stderr.splitlines()[-1].startswith(f"error: {server.url}: ")) == (
        1,
        True,
    )
    assert "240 requests wait" in done.stderr and "--request-timeout" in done.stderr


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://["])
def test_an_address_without_a_server_is_one_line(touche: Touche, url: str) -> None:
    done = touche("doctor", url)
    assert done.returncode != 0 and (done.stdout, done.stderr.count("error: ")) == ("", 1)
    assert done.stderr.splitlines()[-1].startswith("error: ")


ASKED = ["--system-message", "user"]


@pytest.mark.parametrize(
    ("server", "flags", "is_possible"),
    [
        (FakeServer(), ASKED, True),
        (FakeServer(ignored=("structured_outputs", "response_format")), [], False),
        (FakeLlamaCpp(), ["--no-logprobs"], True),
        (FakeLlamaCpp(), ["--context", "100000"], False),
        (FakeLmStudio(), ["--context", "2048"], False),
        (DeafVllm(), ASKED, True),
        (RefusingVllm(), [], False),
    ],
)
def test_a_run_is_made_where_the_card_says_so_and_nowhere_else(
    touche: Touche, server: FakeServer, flags: list[str], is_possible: bool
) -> None:
    with server.in_thread():
        card = touche("doctor", server.url, *flags)
        run = touche(*RUN, "--base-url", server.url, *flags)
    assert (card.returncode == 0, run.returncode == 0) == (is_possible, is_possible), (
        card.stdout + run.stderr
    )
    if is_possible and flags == ASKED:
        assert {message["role"] for body in server.bodies[-3:] for message in body["messages"]} == {
            "user"
        }


def test_a_finished_run_whose_server_is_gone_is_replayed_as_the_error_says(touche: Touche) -> None:
    with FakeServer().in_thread() as server:
        url = server.url
        first = touche(*RUN, "--base-url", url)
    gone = touche(*RUN, "--base-url", url)
    assert (first.returncode, gone.returncode) == (0, 1), first.stderr
    assert "--cache-mode replay" in gone.stderr
    assert touche(*RUN, "--base-url", url, "--cache-mode", "replay").returncode == 0


def test_an_unreachable_server_without_stored_answers_names_no_replay(touche: Touche) -> None:
    done = touche(*RUN, "--base-url", "http://127.0.0.1:1")
    assert done.returncode == 1 and "replay" not in done.stderr
