"""The race with RankLLM: its environment, what its driver prints, lost answers, and the rows of the table."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path

import pytest

from benchmarks import peers
from benchmarks.judge_rate import retrieve_candidates
from benchmarks.peers import Course, Outcome, Turn, compare, parse_window
from benchmarks.processes import Ended, run_program
from benchmarks.rank_llm_peer import FLAG, check_python, list_windows, read_report, write_requests
from tests.expect import raises_at
from touche_llm.cli.demo import SAMPLES
from touche_llm.errors import DataError, EngineError, UsageError
from touche_llm.pipeline.run_files import CANDIDATES

# RankLLM's classes as the driver uses them, with prepared answers; a topic has so many candidates as are in the file.
FAKES = {
    "data.py": """
import argparse
import json
from types import SimpleNamespace
def read_requests_from_file(path):
    with open(path) as file:
        return [json.loads(line, object_hook=lambda found: SimpleNamespace(**found)) for line in file]
def answer(requests, replies):
    replies, results = iter(replies), []
    for request in requests:
        calls = []
        for count in range(request.calls):
            text, tokens, score = next(replies)
            calls.append(SimpleNamespace(response=text, output_token_count=tokens))
            if score is not None:
                request.candidates[count].score = score
        results.append(SimpleNamespace(candidates=request.candidates, invocations_history=calls))
    return results
""",
    "rerank/pointwise/pointwise_vllm.py": """
from rank_llm.data import answer
class PointwiseVLLM:
    def __init__(self, model, base_url, context_size, batch_size):
        print("Successfully created pointwise inference handler!")
        assert (model, base_url, batch_size) == ("tiny", "http://host/v1", 7)
    async def rerank_batch_async(self, requests, rank_end, populate_invocations_history):
        assert (rank_end, populate_invocations_history) == (3, True)
        if len(requests) > 2:
            raise RuntimeError("too many topics")
        return answer(requests, [("yes", 1, 0.9), ("Connection error.", 0, -1.0), ("a", 1, 0.0), ("no", 1, 0.1)])
""",
    "rerank/listwise/rank_listwise_os_llm.py": """
import vllm
from rank_llm.data import answer
class RankListwiseOSLLM:
    def __init__(self, model, base_url, context_size, window_size, stride, batch_size):
        assert (model, base_url, window_size, stride) == ("tiny", "http://host/v1", 2, 1)
    async def rerank_batch_async(self, requests, rank_end, populate_invocations_history):
        texts = [("[2] > [1]", 5), ("[2]", 5), ("Event loop is closed", 0), ("[1] > [1]", 5)]
        return answer(requests, [(text, tokens, None) for text, tokens in texts])
""",
}


@pytest.fixture
def course(tmp_path: Path) -> Course:
    """Two topics with three candidates and one, and a Python that imports the classes above."""
    package = tmp_path / "site" / "rank_llm"
    for name, text in FAKES.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(package.parent))} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return Course(tmp_path, "http://host", 7, python, (3, 1))


def write_topics(course: Course, calls: list[int]) -> None:
    """Write a file of requests; the classes above send so many to the model for each topic."""
    lines = [
        {"calls": count, "candidates": [{"docid": str(number), "score": 1.0} for number in range(size)]}
        for size, count in zip(course.sizes, calls, strict=False)
    ]
    (course.work / peers.REQUESTS).write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_lost_answers_and_those_without_yes_and_no_are_counted_apart(course: Course) -> None:
    write_topics(course, [3, 1])
    outcome = course.run_peer()
    assert (outcome.lost, outcome.unreadable) == (1, 1)
    assert 0.0 < outcome.seconds < outcome.ended.seconds
    assert outcome.ended.mib > 1


def test_an_answer_that_is_no_order_of_the_whole_window_is_unreadable(course: Course) -> None:
    # Windows of two documents over three, by one, and a topic of two.
    wider = Course(course.work, course.url, course.concurrency, course.python, (3, 2, 2))
    write_topics(wider, [2, 1, 1])
    outcome = wider.run_peer((2, 1))
    assert (outcome.lost, outcome.unreadable) == (1, 2)


def test_fewer_replies_than_requests_are_an_error(course: Course) -> None:
    write_topics(course, [2, 1])
    with raises_at(DataError, "rank_llm_driver.py", "replies", 3, 4):
        course.run_peer()


def test_a_failure_of_rank_llm_is_an_error_with_its_reason(course: Course) -> None:
    many = Course(course.work, course.url, course.concurrency, course.python, (3, 1, 1))
    write_topics(many, [3, 1, 1])
    with raises_at(EngineError, course.python, "too many topics"):
        many.run_peer()


GOOD = {"seconds": 1.5, "documents": ["a"], "scores": [0.5], "replies": [{"text": "yes", "tokens": 1}]}


def test_a_report_is_read() -> None:
    report = read_report(json.dumps(GOOD) + "\n", 1, 1)
    assert (report.seconds, report.scores, report.replies[0].text) == (1.5, [0.5], "yes")


@pytest.mark.parametrize(
    "output",
    [
        "",
        "[]",
        "Successfully created pointwise inference handler!\n" + json.dumps(GOOD),
        json.dumps(GOOD) * 2,
        json.dumps(GOOD | {"seconds": 0.0}),
        json.dumps(GOOD | {"seconds": "1.5"}),
        json.dumps(GOOD | {"scores": [float("nan")]}),
        json.dumps(GOOD | {"scores": [None]}),
        json.dumps(GOOD | {"scores": [0.5, 0.5]}),
        json.dumps(GOOD | {"replies": []}),
        json.dumps(GOOD | {"replies": [{"text": "yes", "tokens": -1}]}),
        json.dumps(GOOD | {"replies": [{"text": "yes"}]}),
        json.dumps(GOOD | {"more": 1}),
    ],
)
def test_any_other_output_is_an_error(output: str) -> None:
    with raises_at(DataError, "rank_llm_driver.py"):
        read_report(output, 1, 1)


def test_a_missing_environment_is_an_error_that_says_how_to_make_it(tmp_path: Path) -> None:
    with raises_at(UsageError, FLAG, "castorini/rank_llm@1b3cabb"):
        check_python(None)
    with raises_at(UsageError, FLAG, tmp_path / "python", "castorini/rank_llm@1b3cabb"):
        check_python(tmp_path / "python")
    with raises_at(UsageError, FLAG, "rank_llm", "castorini/rank_llm@1b3cabb"):
        check_python(Path(sys.executable))


def test_an_environment_with_its_classes_is_taken(course: Course) -> None:
    assert check_python(course.python) == course.python


def test_without_an_environment_the_benchmark_ends_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks.peers"])
    with pytest.raises(SystemExit) as caught:
        peers.main()
    assert str(caught.value).startswith(f"error: {FLAG}: ")
    assert "\n" not in str(caught.value)


def test_both_programs_get_the_same_candidates(tmp_path: Path) -> None:
    sample = SAMPLES / "comparative"
    retrieve_candidates(tmp_path, sample / "topics.xml", sample / "passages.jsonl", 2, 3)
    file, candidates = tmp_path / "requests.jsonl", tmp_path / "run" / CANDIDATES
    sizes = write_requests(file, candidates, sample / "topics.xml", tmp_path / "index")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [len(line["candidates"]) for line in lines] == sizes == [3, 3]
    written = [(line["query"]["qid"], each["docid"]) for line in lines for each in line["candidates"]]
    assert written == [(row.split()[0], row.split()[2]) for row in candidates.read_text().splitlines()]
    passages = [json.loads(line) for line in (sample / "passages.jsonl").read_text().splitlines()]
    texts = {passage["id"]: passage["contents"] for passage in passages}
    assert all(each["doc"]["contents"] in texts[each["docid"]] for line in lines for each in line["candidates"])
    assert all(line["query"]["text"] in (sample / "topics.xml").read_text() for line in lines)


@pytest.mark.parametrize(
    ("documents", "window", "stride", "sizes"),
    [
        (20, 20, 10, [20]),
        (7, 20, 10, [7]),
        (21, 20, 10, [20, 11]),
        (20, 10, 5, [10, 10, 10]),
        (20, 5, 2, [5, 5, 5, 5, 5, 5, 5, 5, 4]),
    ],
)
def test_windows_slide_from_the_end_to_the_start(documents: int, window: int, stride: int, sizes: list[int]) -> None:
    assert list_windows(documents, window, stride) == sizes


@pytest.mark.parametrize("text", ["20", "20:20", "20:0", "0:0", "a:b", "20:10:5", "99:1", ""])
def test_a_window_that_cannot_slide_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="WINDOW:STRIDE"):
        parse_window(text)


def turns(*seconds: float) -> list[Turn]:
    """Turns that take so long, and 1 s for their start."""
    return [Turn(Outcome(Ended(0, "", "", each + 1.0, 1.0, 80.0), each, 0, 0), 5.0, 501, 1, 1) for each in seconds]


@pytest.mark.parametrize(("second", "held"), [(10.9, [True, True]), (11.05, [False, True]), (11.2, [False, False])])
def test_the_target_is_held_against_the_median_of_the_ratios_of_a_round(second: float, held: list[bool]) -> None:
    rows = compare("pointwise", turns(5.0, second, 60.0), turns(20.0, 10.0, 30.0), is_full=True)
    assert [(row.target, row.holds) for row in rows if row.target] == [("<= 1.1", each) for each in held]


def test_nothing_is_said_of_a_target_at_another_size_or_in_windows() -> None:
    for name, is_full in (("pointwise", False), ("listwise 20:10", True)):
        assert all(row.holds is None for row in compare(name, turns(1.0), turns(2.0), is_full))


@pytest.mark.skipif(sys.platform != "linux", reason="read from /proc")
def test_time_and_memory_are_those_of_the_program_alone(tmp_path: Path) -> None:
    script = "import os, sys, time\nheld = bytearray(60 * 2**20)\nwhile time.process_time() < 0.3: pass\n"
    script += "print(os.getcwd(), dict(os.environ)['NAME'])\nprint('why', file=sys.stderr)\nsys.exit(4)"
    ended = run_program([sys.executable, "-c", script], tmp_path, {"NAME": "value"})
    assert (ended.code, ended.output, ended.errors) == (4, f"{tmp_path} value\n", "why\n")
    assert 0.3 <= ended.cpu and 0.3 <= ended.seconds
    assert 60 < ended.mib < 500
