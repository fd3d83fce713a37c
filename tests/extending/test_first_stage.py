"""A first stage in a file of its own, through the command line and the library."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.cli.test_thinking import CORPUS, RUN, TOPICS
from tests.extending.conftest import Extended
from tests.fake_server import FakeServer

MODULES = ("tests.extending.random_order",)
RETRIEVE = [
    *("retrieve", "--retriever", "random"),
    *("--topics", str(TOPICS), "--corpus", str(CORPUS), "--topic", "3", "--depth", "3"),
]


def retrieve(
    extended: Extended, folder: Path, seed: int
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Return the finished command, and the ids of the documents that it retrieved."""
    options = ["--random-seed", str(seed), "--out", str(folder)]
    done = extended(*RETRIEVE, *options, modules=MODULES)
    lines = (folder / "candidates.run.txt").read_text().splitlines()
    return done, [line.split()[2] for line in lines]


def test_retrieve_uses_the_first_stage_and_records_its_settings(
    extended: Extended, tmp_path: Path
) -> None:
    done, documents = retrieve(extended, tmp_path / "one", seed=1)
    assert done.returncode == 0, done.stderr
    assert len(documents) == 3

    config = yaml.safe_load((tmp_path / "one" / "config.yaml").read_text())
    assert (config["retriever"]["name"], config["random"]) == ("random", {"seed": 1})
    metadata = yaml.safe_load((tmp_path / "one" / "ir-metadata.yml").read_text())
    (stage,) = metadata["method"]["retrieval"]
    assert (stage["name"], stage["method"]) == ("random", "random order")
    assert stage["params"]["random.seed"] == 1


@pytest.mark.slow
def test_retrieve_repeats_the_documents_of_the_same_settings_alone(
    extended: Extended, tmp_path: Path
) -> None:
    _, documents = retrieve(extended, tmp_path / "one", seed=1)
    _, repeated = retrieve(extended, tmp_path / "repeated", seed=1)
    _, others = retrieve(extended, tmp_path / "other", seed=2)
    assert documents == repeated and documents != others


@pytest.mark.slow
def test_a_dry_run_and_a_run_use_it_and_show_and_report_name_it(
    extended: Extended, tmp_path: Path
) -> None:
    chosen = ["--retriever", "random", "--set", "random.seed=3"]
    dry_run = extended(*RUN, *chosen, "--dry-run", modules=MODULES)
    assert dry_run.returncode == 0, dry_run.stderr
    with FakeServer().in_thread() as server:
        run = extended(*RUN, *chosen, "--base-url", server.url, modules=MODULES)
    assert run.returncode == 0, run.stderr
    show = extended("show", "out", modules=MODULES)
    assert show.returncode == 0 and "random, depth 3" in show.stdout, show.stderr
    report = extended("report", "out", modules=MODULES)
    assert report.returncode == 0, report.stderr


@pytest.mark.slow
def test_help_lists_it_with_its_options_and_index_has_nothing_to_do(extended: Extended) -> None:
    program_help = extended("--help", modules=MODULES)
    retrieve_help = extended("retrieve", "--help", modules=MODULES)
    rank_help = extended("rank", "--help", modules=MODULES)
    assert program_help.returncode == 0 and "retrieve" in program_help.stdout
    assert "random (random order)" in " ".join(retrieve_help.stdout.split())
    assert "--random-seed" in retrieve_help.stdout and "--random-seed" not in rank_help.stdout

    index = extended("index", "--retriever", "random", "--corpus", str(CORPUS), modules=MODULES)
    assert index.returncode == 2
    assert index.stderr.startswith("error: --retriever random: needs no index")


@pytest.mark.slow
def test_doctor_is_not_changed_by_a_first_stage(extended: Extended) -> None:
    with FakeServer().in_thread() as server:
        extended_card = extended("doctor", server.url, modules=MODULES)
        plain_card = extended("doctor", server.url)
    assert extended_card.returncode == 0
    assert extended_card.stdout == plain_card.stdout


@pytest.mark.parametrize(
    ("options", "setting"),
    [
        (["--retriever", "bm25", "--random-seed", "1"], "random"),
        pytest.param(
            *(["--retriever", "random", "--set", "random.seed=x"], "--set random.seed"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(["--retriever", "random", "--set", "random.size=1"], "random.size"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_its_settings_are_checked_as_those_of_the_package(
    extended: Extended, options: list[str], setting: str
) -> None:
    done = extended(*RUN, *options, "--dry-run", modules=MODULES)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: ") and setting in done.stderr


@pytest.mark.slow
def test_without_the_file_its_name_is_unknown(extended: Extended) -> None:
    done = extended(*RUN, "--retriever", "random", "--dry-run")
    assert done.returncode == 2 and "'elasticsearch'" in done.stderr


@pytest.mark.slow
def test_the_library_opens_it(extended: Extended) -> None:
    program = f"""
import tests.extending.random_order as random_order
import touche_llm as tl
topics = tl.read_topics({str(TOPICS)!r})[:1]
orders = []
for seed in (0, 1, 1):
    with tl.open_corpus(
        {str(CORPUS)!r},
        task="comparative",
        retriever=tl.RetrieverConfig(name="random"),
        retriever_settings=random_order.RandomOrderSettings(seed=seed),
    ) as corpus:
        candidates = tl.retrieve(topics, corpus, depth=5)
        orders.append([candidate.document_id for candidate in candidates.list_rankings()[0]])
assert len(orders[0]) == 5
assert orders[0] != orders[1] and orders[1] == orders[2]
"""
    done = extended(program=program)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_first_stage_that_comes_too_late_is_an_error(extended: Extended) -> None:
    done = extended(program="import touche_llm.config.configuration, tests.extending.random_order")
    assert "ExtensionError: random: " in done.stderr and done.returncode == 1
