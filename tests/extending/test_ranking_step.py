"""A ranking step in a file of its own, through the command line and the library."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from aiohttp import web

from tests.cli.test_thinking import CORPUS, TOPICS
from tests.extending.conftest import Extended
from tests.fake_server import FakeServer, fields_in, good, reply, spell

MODULES = ("tests.extending.knockout",)
RUN = [
    *("run", "--topics", str(TOPICS), "--corpus", str(CORPUS), "--topic", "3", "--depth", "5"),
    *("--out", "out"),
]


async def prefer_the_last(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Choose the last document of a comparison; answer other requests as usual."""
    fields = fields_in(body)
    if "best" not in fields:
        return await good(request, body)
    return reply(spell(body, {"best": fields["best"]["enum"][-1]}))


def read_documents(folder: Path) -> list[str]:
    return [line.split()[2] for line in (folder / "run.txt").read_text().splitlines()]


def run(extended: Extended, *options: str) -> subprocess.CompletedProcess[str]:
    with FakeServer(rest=prefer_the_last).in_thread() as server:
        return extended(*RUN, "--base-url", server.url, *options, modules=MODULES)


@pytest.mark.slow
def test_a_run_ranks_by_it_and_records_show_and_report_name_it(
    extended: Extended, tmp_path: Path
) -> None:
    done = run(extended, "--rank", "judge,knockout:5", "--knockout-group", "3")
    assert done.returncode == 0, done.stderr
    ranked = read_documents(tmp_path / "out")

    judged = run(extended, "--rank", "judge", "--out", "judged")
    assert judged.returncode == 0, judged.stderr
    before = read_documents(tmp_path / "judged")
    # The last of three is the best of its group, and so is the last of the two winners.
    winner = before[4]
    assert ranked == [winner, *[document for document in before if document != winner]]

    config = yaml.safe_load((tmp_path / "out" / "config.yaml").read_text())
    assert config["ranking"]["knockout"] == {"group": 3}
    metadata = yaml.safe_load((tmp_path / "out" / "ir-metadata.yml").read_text())
    step = metadata["method"]["retrieval"][-1]
    assert (step["name"], step["method"]) == ("knockout:5", "tests.extending.knockout")
    assert step["params"]["ranking.knockout.group"] == 3
    comparisons = (tmp_path / "out" / "comparisons.jsonl").read_text().splitlines()
    assert sorted(len(orjson.loads(line)["documents"]) for line in comparisons) == [2, 2, 3]

    show = extended("show", "out", modules=MODULES)
    assert show.returncode == 0 and "knockout:5" in show.stdout, show.stderr
    report = extended("report", "out", modules=MODULES)
    assert report.returncode == 0, report.stderr
    assert "knockout:5" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.slow
def test_rank_ranks_the_judgments_of_a_run_anew_and_a_fusion_weighs_it(
    extended: Extended, tmp_path: Path
) -> None:
    first = run(extended, "--rank", "judge")
    assert first.returncode == 0, first.stderr
    last = read_documents(tmp_path / "out")[-1]

    places: list[int] = []
    with FakeServer(rest=prefer_the_last).in_thread() as server:
        rank = ["rank", "--out", "out", "--base-url", server.url]
        for weight in (0, 100):
            weigh = ["--set", f"ranking.fusion.weights.knockout={weight}"]
            steps = ["--rank", "judge,knockout:5,fusion:5"]
            done = extended(*rank, *steps, *weigh, modules=MODULES)
            assert done.returncode == 0, done.stderr
            places.append(read_documents(tmp_path / "out").index(last))
    assert places[0] > 0 and places[1] == 0


def test_a_dry_run_counts_its_requests(extended: Extended) -> None:
    options = ["--rank", "judge,knockout:5", "--set", "ranking.knockout.group=2"]
    done = extended(*RUN, *options, "--dry-run", "--format", "json", modules=MODULES)
    assert done.returncode == 0, done.stderr
    counts = {row["prompt"]: row["requests"] for row in orjson.loads(done.stdout)}
    # Two pairs and one alone, a pair of the winners and one alone, the final.
    assert counts == {"comparative/judge": 5, "comparative/best": 4}


@pytest.mark.slow
def test_help_lists_it_with_its_option_and_its_settings_are_checked(extended: Extended) -> None:
    rank_help = extended("rank", "--help", modules=MODULES)
    assert "fusion, balance, knockout" in " ".join(rank_help.stdout.split())
    assert "--knockout-group" in rank_help.stdout

    done = extended(*RUN, "--knockout-group", "1", "--dry-run", modules=MODULES)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: --knockout-group")


@pytest.mark.slow
def test_an_unknown_step_is_an_error_that_lists_the_known_ones(extended: Extended) -> None:
    plain = extended(*RUN, "--rank", "judge,knockout:5", "--dry-run")
    other = extended(*RUN, "--rank", "judge,bubble:5", "--dry-run", modules=MODULES)
    assert (plain.returncode, other.returncode) == (2, 2)
    assert "'knockout:5'" in plain.stderr and "fusion, balance\n" in plain.stderr
    assert "'bubble:5'" in other.stderr and "fusion, balance, knockout\n" in other.stderr


@pytest.mark.parametrize("name", ["judge", pytest.param("two words", marks=pytest.mark.slow)])
def test_a_name_with_another_meaning_is_an_error(extended: Extended, name: str) -> None:
    program = f"""
from touche_llm.ranking.registry import RankingStep, register
from tests.extending.knockout import Knockout
register(RankingStep(name={name!r}, method=Knockout, summary=""))
import touche_llm.ranking.steps
"""
    done = extended(program=program)
    assert done.returncode == 1 and f"ExtensionError: {name}: " in done.stderr


@pytest.mark.slow
def test_the_library_has_its_settings_and_takes_no_step_after_them(extended: Extended) -> None:
    program = """
import tests.extending.knockout
import touche_llm as tl
settings = tl.RankingSettings(knockout={"group": 2})
assert settings.knockout.group == 2
from touche_llm.ranking.registry import RankingStep, register
register(RankingStep(name="late", method=tests.extending.knockout.Knockout, summary=""))
"""
    done = extended(program=program)
    assert done.returncode == 1 and "ExtensionError: late: " in done.stderr
