"""The options of ranking, `--set` and `--dry-run`, as a user gives them."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.conftest import Touche
from tests.sample_runs import Silent
from tests.scripted_engine import FACTS, Label, ScriptedEngine
from tests.write_demo_cassette import script_of
from touche_llm.api.opening import open_client
from touche_llm.cli.demo import SAMPLES, sample_config
from touche_llm.engines.settings import EngineConfig
from touche_llm.llm.answer_schema import list_fields
from touche_llm.llm.model import ModelClient
from touche_llm.llm.request import Request
from touche_llm.llm.settings import CacheConfig, SamplingConfig
from touche_llm.runs import stages as pipeline
from touche_llm.runs.stages import run_all
from touche_llm.tasks import get_task

SAMPLE = SAMPLES / "comparative"
DATA = ["--topics", str(SAMPLE / "topics.xml"), "--corpus", str(SAMPLE / "passages.jsonl")]
REPLAY = ["--cache", str(SAMPLE / "cassette.jsonl"), "--cache-mode", "replay"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that the cassette holds all answers of: judge, stances, and comparisons of the best five."""
    folder = tmp_path_factory.mktemp("made")
    asyncio.run(
        run_all(sample_config("comparative", folder, {"topic": ["3"]}), folder / "o", Silent())
    )
    return folder / "o"


@pytest.fixture
def demo(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "o"))


def configured(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load((folder / "config.yaml").read_text())
    return values


def test_steps_are_changed_and_changed_back_in_a_folder(touche: Touche, demo: Path) -> None:
    compared = (demo / "run.txt").read_bytes()
    comparisons = (demo / "comparisons.jsonl").read_bytes()
    done = touche("rank", "--out", "o", "--rank", "judge")
    assert (done.returncode, configured(demo)["rank"]) == (0, ["judge"])
    assert not (demo / "comparisons.jsonl").exists() and (demo / "run.txt").read_bytes() != compared
    # The cassette holds the comparisons.
    assert touche("rank", "--out", "o", "--rank", "judge,pairwise:5").returncode == 0
    assert (demo / "run.txt").read_bytes() == compared
    assert (demo / "comparisons.jsonl").read_bytes() == comparisons
    # The steps hold for later calls.
    assert touche("rank", "--out", "o", "--tag", "mine").returncode == 0
    assert configured(demo)["rank"] == ["judge", "pairwise:5"]


def test_an_aim_brings_its_weights_and_a_weight_that_is_given_wins(
    touche: Touche, demo: Path
) -> None:
    objectives = get_task("comparative").objectives
    steps = ["--rank", "judge"]
    assert configured(demo)["weights"] == objectives["both"]
    assert touche("rank", "--out", "o", *steps, "--objective", "quality").returncode == 0
    assert (configured(demo)["objective"], configured(demo)["weights"]) == (
        "quality",
        objectives["quality"],
    )
    # A weight alone leaves the objective and the others.
    assert touche("rank", "--out", "o", "--weight-relevance", "3").returncode == 0
    assert configured(demo)["weights"] == {**objectives["quality"], "relevance": 3.0}
    done = touche("rank", "--out", "o", "--objective", "relevance", "--weight-first-stage", "0.5")
    assert done.returncode == 0
    # What was chosen stays, what was a default goes with its objective.
    assert configured(demo)["weights"] == {
        **objectives["relevance"],
        "relevance": 3.0,
        "first_stage": 0.5,
    }
    done = touche("rank", "--out", "o", "--objective", "beauty")
    assert (
        done.returncode == 2
        and "--objective: must be 'relevance', 'quality' or 'both', not 'beauty'" in done.stderr
    )
    assert configured(demo)["objective"] == "relevance"


def test_any_value_can_be_set(touche: Touche, demo: Path) -> None:
    done = touche(
        *("rank", "--out", "o", "--rank", "judge", "--weight-quality", "9"),
        *("--set", "ranking.listwise.window=10", "--set", "ranking.listwise.stride=4"),
        *(
            "--set",
            "stance.thresholds={NO: 0.25}",
            "--set",
            "actor={team: 'a=b'}",
            "--set",
            "weights.quality=2",
        ),
        *("--set", "rank=[judge, 'balance:3']"),
    )
    assert done.returncode == 0, done.stderr
    values = configured(demo)
    assert values["ranking"]["listwise"] == {"window": 10, "stride": 4, "shuffles": 1, "seed": 0}
    assert values["stance"]["thresholds"] == {"NO": 0.25} and values["stance"]["depth"] == 100
    assert values["actor"]["team"] == "a=b"
    # `--set` is the last word.
    assert (values["weights"]["quality"], values["rank"]) == (2.0, ["judge", "balance:3"])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("depth", "--set depth: must be NAME=VALUE, as --set ranking.listwise.window=10"),
        ("depth=", "--set depth=: has no value"),
        ("depth=!!python/object/apply:os.getcwd []", "the value is not YAML"),
        ("depth=many", "--set depth: must be a valid integer, not 'many'"),
        ("ranking.listwise.windw=3", "ranking.listwise.windw: no such name; expected one of w"),
        (
            "ranking.listwise.window=1",
            "--set ranking.listwise.window: must be greater than or equal to 2, not 1",
        ),
        ("ranking.listwise.window=5", "ranking.listwise: stride must be smaller than window"),
        (
            "stance.thresholds.MAYBE=0.5",
            "stance.thresholds.MAYBE: no such label; comparative has NO, NEUTRAL",
        ),
        ("engine.options.api_key=x", "engine.options: must not hold api_key"),
    ],
)
def test_a_value_that_cannot_be_set_is_told(
    touche: Touche, tmp_path: Path, value: str, message: str
) -> None:
    done = touche("run", *DATA, "--out", "o", "--set", value)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "o").exists()


def test_what_earlier_stages_went_by_cannot_be_set_any_more(touche: Touche, demo: Path) -> None:
    before = (demo / "config.yaml").read_bytes()
    stages = (
        ("rank", "depth=7"),
        ("rank", "retriever.k1=2"),
        ("rank", "stance.depth=3"),
        ("judge", "expansion.use=true"),
    )
    for command, value in stages:
        done = touche(command, "--out", "o", "--set", value)
        assert done.returncode == 2
        assert f"--set {value}: a stage before `{command}` depends on it" in done.stderr
    assert (demo / "config.yaml").read_bytes() == before


def test_thresholds_of_a_file_change_labels_and_stay(touche: Touche, demo: Path) -> None:
    labels = [line.split()[1] for line in (demo / "run.txt").read_text().splitlines()]
    assert set(labels) != {"NO"}
    (demo.parent / "t.yaml").write_text("stance: {thresholds: {NO: 0.0}, calibrated_on: [3, 7]}\n")
    done = touche("rank", "--out", "o", "--thresholds", "t.yaml")
    assert done.returncode == 0
    assert {line.split()[1] for line in (demo / "run.txt").read_text().splitlines()} == {"NO"}
    stance = configured(demo)["stance"]
    assert (stance["thresholds"], stance["calibrated_on"]) == ({"NO": 0.0}, ["3", "7"])
    # What the file does not say stays as it was.
    assert stance["depth"] == 100
    # A file without thresholds takes them away.
    (demo.parent / "none.yaml").write_text("stance: {thresholds: {}, calibrated_on: []}\n")
    assert touche("rank", "--out", "o", "--thresholds", "none.yaml").returncode == 0
    assert [line.split()[1] for line in (demo / "run.txt").read_text().splitlines()] == labels


def test_thresholds_of_labels_that_the_task_lacks_leave_the_run(touche: Touche, demo: Path) -> None:
    before = (demo / "run.txt").read_bytes()
    (demo.parent / "t.yaml").write_text("stance: {thresholds: {NEU: 0.3}}\n")
    done = touche("rank", "--out", "o", "--thresholds", "t.yaml")
    assert done.returncode == 2
    assert "stance.thresholds.NEU: no such label; comparative has NO, NEUTRAL" in done.stderr
    assert (demo / "run.txt").read_bytes() == before


@pytest.mark.parametrize(
    ("kind", "file"),
    [
        ("query1", "query_failures.jsonl"),
        ("position", "failures.jsonl"),
        ("best", "comparison_failures.jsonl"),
    ],
)
def test_a_question_of_any_stage_without_a_usable_answer_ends_with_3_and_names_its_file(
    touche: Touche, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, file: str
) -> None:
    answers = script_of("comparative")

    def script(request: Request) -> Mapping[str, Label | Mapping[Label, float]]:
        if kind in list_fields(request.schema):
            return {"nothing": "usable"}
        if "query1" in list_fields(request.schema):
            return {
                "query1": "cost of it",
                "query2": "comfort at home",
                "query3": "what people say",
            }
        return answers(request)

    def scripted(
        settings: EngineConfig, sampling: SamplingConfig, cache: CacheConfig, **_: Any
    ) -> AbstractAsyncContextManager[ModelClient]:
        return open_client(settings, sampling, cache, answers=ScriptedEngine(script), info=FACTS)

    monkeypatch.setattr(pipeline, "open_client", scripted)
    stance = ["--stance-depth", "1"]
    assert touche("retrieve", *DATA, "--out", "o", "--query-expansion", "--dry-run").returncode == 0
    assert not (tmp_path / "o").exists()
    depth = ["--topic", "3", "--depth", "3", "--query-expansion"]
    command = ["run", *DATA, "--out", "o", *depth, "--rank", "judge,pairwise:2"]
    done = touche(*command, *stance)
    assert done.returncode == 3, done.stderr
    assert "failures: " in done.stdout and "outside_schema" in done.stdout
    assert f"the answers of all attempts are in o/{file}\n" in done.stdout
    assert len((tmp_path / "o" / "run.txt").read_text().splitlines()) == 3
    # The stage alone ends so too.
    alone = {
        "query1": ["retrieve", *DATA, "--out", "o", *depth, "--overwrite"],
        "position": ["judge", "--out", "o"],
        "best": ["rank", "--out", "o"],
    }
    assert touche(*alone[kind]).returncode == 3


def test_the_command_needs_no_server_and_prints_what_each_stage_and_all_of_it_would_send(
    touche: Touche, tmp_path: Path
) -> None:
    # Nothing listens on that port.
    done = touche(
        *(
            "run",
            *DATA,
            "--out",
            "o",
            "--base-url",
            "http://127.0.0.1:1",
            "--dry-run",
            "--topic",
            "3",
        ),
        *("--depth", "5", "--stance-depth", "2", "--rank", "judge,pairwise:3,sliding:4"),
    )
    assert done.returncode == 0, done.stderr
    rows = [re.split(r"  +", line.strip())[:3] for line in done.stdout.splitlines()[2:]]
    assert rows[:2] == [["judge", "judge", "5"], ["judge", "stance", "4"]]
    # The first step compares three pairs in both orders. The second one compares three pairs of
    # neighbours, of which it has two from the first; other answers need up to six pairs.
    assert rows[2] == ["rank", "best", "8", *rows[2][3:]]
    assert rows[3][:2] == ["all", "17"]
    assert "sliding:4 sends at most 12 requests" in done.stdout
    assert "pairwise:3 sends" not in done.stdout
    assert "Nothing was sent." in done.stdout and "give it with --context" in done.stdout
    assert not (tmp_path / "o").exists() and not (tmp_path / ".touche-llm/answers.sqlite").exists()
