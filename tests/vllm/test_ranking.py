"""Ranking by comparisons, the stance's own question and expansion against a real vLLM, and what a dry run says of them.

Weights are random: the tests are about what is sent, kept and written, not about which document is
better.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.sample_runs import run_lines
from tests.vllm.command import touche
from tests.vllm.conftest import Tell
from tests.vllm.real_data import TaskInput
from tests.vllm.server import MODEL_NAME, finished_requests, prefix_cache_hits
from touche_llm.data.files import read_records
from touche_llm.data.records import Comparison, Queries, StanceReading

pytestmark = pytest.mark.vllm
TOPICS = 2
# The start-up check of a run that sends requests, at most: the schema, two system messages, the
# labels of its prompts.
PROBES = 8
FILES = (
    "run.txt",
    "judgments.jsonl",
    "stances.jsonl",
    "comparisons.jsonl",
    "queries.jsonl",
    "candidates.run.txt",
)
NOWHERE = "http://127.0.0.1:1"
JUDGING = {
    "comparative": ["--depth", 20, "--stance-depth", 4],
    "controversial": ["--depth", 10, "--stance-depth", 2],
    "sentence_pairs": ["--depth", 30, "--judge-pairs", 6, "--both-orders", 1],
    "arguments_2020": ["--depth", 3],
}


def values(section: str, **given: object) -> list[str]:
    return [
        part
        for name, value in given.items()
        for part in ("--set", f"ranking.{section}.{name}={value}")
    ]


@dataclass(frozen=True)
class Case:
    """A way of ranking, with the settings that it takes here."""

    task: str
    steps: str
    settings: tuple[str, ...] = ()
    # Whether the number of requests depends on the answers.
    depends: bool = False
    # Requests for each topic, where that follows from the method.
    requests: int | None = None


CASES = [
    Case("comparative", "judge,pairwise:5", requests=5 * 4),
    Case("comparative", "judge,sliding:8", (*values("sliding", passes=3),), depends=True),
    Case("comparative", "judge,setwise:12", (*values("setwise", top=5),), depends=True),
    Case("comparative", "judge,insertion:12", (*values("insertion", top=5),), depends=True),
    Case(
        "comparative",
        "judge,listwise:12",
        (*values("listwise", window=6, stride=3, shuffles=2),),
        requests=3 * 2,
    ),
    Case(
        "comparative",
        "judge,tournament:12",
        (*values("tournament", group=6),),
        requests=2 * (2 + 1),
    ),
    Case("comparative", "judge,fusion:10,balance:10", requests=0),
    Case(
        "comparative",
        "listwise:6,fusion:12,balance:6",
        (*values("listwise", window=6, stride=3),),
        requests=1,
    ),
    Case("controversial", "judge,setwise:10", (*values("setwise", top=4),), depends=True),
    Case("arguments_2020", "judge,pairwise:2", requests=2),
    Case(
        "sentence_pairs",
        "judge,pairwise:4,listwise:6",
        (*values("listwise", window=6, stride=3),),
        requests=12 + 1,
    ),
]


@dataclass(frozen=True)
class Place:
    """The input of a task, with the answers that its runs share."""

    given: TaskInput
    folder: Path
    url: str

    def arguments(self, *more: object) -> list[object]:
        arguments = [*self.given.options, "--limit-topics", TOPICS, "--model", MODEL_NAME]
        return [
            *arguments,
            "--cache",
            self.folder / "answers.sqlite",
            *JUDGING[self.given.task.name],
            *more,
        ]

    def dry(self, *more: object) -> tuple[int, int | None]:
        """The expected requests of a dry run, and the maximum of a step if it has one."""
        done = touche(
            "run",
            "--dry-run",
            *self.arguments("--base-url", NOWHERE, "--out", self.folder / "dry", *more),
        )
        assert not (self.folder / "dry").exists()
        if done.stdout.startswith("0 requests"):
            return 0, None
        total = re.search(r"^\W*all\W+([\d,]+) ", done.stdout, re.MULTILINE)
        assert total and "Nothing was sent" in done.stdout, done.stdout
        expected = int(total[1].replace(",", ""))
        limit = re.search(r" sends at most ([\d,]+) requests", done.stdout)
        return expected, int(limit[1].replace(",", "")) if limit else None

    def run(self, name: str, *more: object, code: int = 0) -> Path:
        """Make a run; returns its folder."""
        out = self.folder / name
        touche("run", *self.arguments("--base-url", self.url, "--out", out, *more), code=code)
        return out

    def replayed(self, out: Path, *more: object) -> None:
        """Assert that a replay without a server makes the same files."""
        again = replace(self, url=NOWHERE).run(
            f"{out.name}-replayed", "--cache-mode", "replay", *more
        )
        written = [name for name in FILES if (out / name).exists()]
        assert "run.txt" in written
        assert [name for name in FILES if (again / name).exists()] == written
        for name in written:
            assert (again / name).read_bytes() == (out / name).read_bytes(), name

    def validated(self, out: Path) -> None:
        """Assert that the run is valid."""
        touche("validate", out / "run.txt", *self.given.options)
        assert len({line.topic_id for line in run_lines(out / "run.txt")}) == TOPICS


def stages(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((out / "ir-metadata.yml").read_text())["stages"]
    return found


def total(out: Path, name: str) -> int:
    """A count of the requests of all stages."""
    return sum(
        stage["llm"]["counts"][name] or 0
        for stage in stages(out).values()
        if stage["llm"] is not None
    )


@pytest.fixture(scope="module")
def places(
    inputs: Callable[[str], TaskInput], vllm_url: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Place]:
    """Each task, judged already."""
    found = {}
    for task in JUDGING:
        found[task] = Place(inputs(task), tmp_path_factory.mktemp(task), vllm_url)
        found[task].run("judged")
    return found


def name_of(case: Case) -> str:
    return f"{case.task}-{case.steps}"


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_a_ranking_sends_what_the_dry_run_said_and_is_replayed_to_the_byte(
    case: Case, places: dict[str, Place], tell: Tell
) -> None:
    place, asked_for = places[case.task], ("--rank", case.steps, *case.settings)
    expected, limit = place.dry(*asked_for)
    before = finished_requests(place.url)
    out = place.run(case.steps.replace(",", "-").replace(":", ""), *asked_for)
    finished = finished_requests(place.url) - before

    asks = case.requests != 0
    found = stages(out)
    sent = total(out, "requests")
    tell(
        f"{name_of(case)}: {expected} requests expected, limit {limit}, {sent} sent, "
        f"{found['rank']['seconds']} s"
    )
    # A finished ranking needs no check.
    assert sent <= finished <= sent + PROBES * (sent > 0)
    # Labels that the schema does not allow, or repeats, would have been requested again.
    assert total(out, "resamples") == 0
    assert (limit is not None) is case.depends
    if limit is None:
        assert sent == expected
    else:
        assert expected <= sent <= limit
    if case.requests is not None:
        assert sent == case.requests * TOPICS
    assert found["judge"]["llm"]["counts"]["requests"] == 0

    assert (out / "comparisons.jsonl").exists() is asks
    if asks:
        comparisons = read_records(out / "comparisons.jsonl", Comparison, "comparisons")
        assert (out / "comparison_failures.jsonl").read_bytes() == b""
        assert all(
            sorted(each.order or each.documents) == sorted(each.documents) for each in comparisons
        )
        assert all(each.best is None or each.best.probabilities for each in comparisons)
        assert (
            0
            < found["rank"]["llm"]["counts"]["prefix_cached_tokens"]
            < found["rank"]["llm"]["counts"]["prompt_tokens"]
        )
    place.validated(out)
    assert place.dry(*asked_for) == (0, None)
    place.replayed(out, *asked_for)


def test_a_first_run_with_expansion_sends_in_every_stage_what_the_dry_run_said(
    places: dict[str, Place], tmp_path: Path, tell: Tell
) -> None:
    # With a cache of its own: nothing is known yet, not even the server's context.
    place = replace(places["comparative"], folder=tmp_path)
    asked_for = (
        "--query-expansion",
        "--rank",
        "judge,pairwise:3",
        "--depth",
        6,
        "--stance-depth",
        4,
    )
    expected, _ = place.dry(*asked_for)
    hits = prefix_cache_hits(place.url)
    out = place.run("expanded", *asked_for)
    found = stages(out)
    # Queries, judgments, stances in both orders, and three pairs in both.
    parts = {"retrieve": 1, "judge": 6 + 2 * 4, "rank": 2 * 3}
    assert {name: stage["llm"]["counts"]["requests"] for name, stage in found.items()} == {
        name: count * TOPICS for name, count in parts.items()
    }
    assert expected == total(out, "requests")
    # What the metadata says of the prefix cache is what the server says, less the few tokens of the
    # start-up check.
    seen = prefix_cache_hits(place.url) - hits
    assert 0.99 * seen < total(out, "prefix_cached_tokens") <= seen
    share = total(out, "prefix_cached_tokens") / total(out, "prompt_tokens")
    tell(
        f"a first run: {expected} requests, {share:.0%} of the prompt tokens from the prefix cache"
    )

    queries = read_records(out / "queries.jsonl", Queries, "queries")
    assert [len(each.queries) for each in queries] == [3] * TOPICS
    stances = read_records(out / "stances.jsonl", StanceReading, "stances")
    assert [each.orders for each in stances] == [2] * 4 * TOPICS
    assert all(abs(sum(each.probabilities.values()) - 1) < 1e-6 for each in stances)
    place.validated(out)
    assert place.dry(*asked_for) == (0, None)
    place.replayed(out, *asked_for)
