"""The search for runs, and what their overviews take from an index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.expect import raises_at
from tests.sample_runs import Silent, config_for, retrieve_stage
from touche_llm.api.rank import list_result_columns
from touche_llm.data.measure import make_headline_ndcg
from touche_llm.errors import DataError
from touche_llm.runs.directory import RunDirectory
from touche_llm.runs.overview import (
    BROKEN,
    EMPTY,
    read_evaluation,
    read_overview,
    read_results,
    read_texts,
)
from touche_llm.settings.yaml_text import to_yaml
from touche_llm.tasks import get_task


@pytest.mark.parametrize("text", ["topic\trank\n3\t1\n", "{names}\n3\n", "{names}\n{texts}\n", '"'])
def test_results_of_another_program_are_no_results(tmp_path: Path, text: str) -> None:
    task = get_task("comparative")
    names = list_result_columns(task)
    file = tmp_path / "results.tsv"
    file.write_text(text.format(names="\t".join(names), texts="\t".join("first" for _ in names)))
    with raises_at(DataError, file):
        list(read_results(RunDirectory(tmp_path), task))


async def test_the_beginning_of_a_document_is_read_from_the_index_and_a_damaged_one_is_an_error(
    tmp_path: Path,
) -> None:
    config, task = config_for(tmp_path, topic=("3",), depth=1), get_task("comparative")
    found = await retrieve_stage(config, tmp_path / "out", Silent())
    document_id = found.rankings["3"][0].document_id
    wanted = ["nowhere", document_id]
    texts = read_texts(config, task, wanted)
    assert list(texts) == [document_id] and 0 < len(texts[document_id]) <= 300
    assert config.index is not None
    (config.index / "manifest.json").write_text("{}")
    with raises_at(DataError, str(config.index / "manifest.json")):
        read_texts(config, task, wanted)


def test_a_run_that_was_stopped_during_start_up_is_empty_and_not_broken(tmp_path: Path) -> None:
    with RunDirectory(tmp_path).lock("run", Silent().warn):
        pass
    overview = read_overview(tmp_path)
    assert (overview.state, overview.config, "start-up" in overview.problem) == (EMPTY, None, True)
    (tmp_path / "config.yaml").write_text("{")
    assert read_overview(tmp_path).state == BROKEN


def test_a_run_whose_record_is_damaged_is_broken(tmp_path: Path) -> None:
    (tmp_path / "ir-metadata.yml").write_bytes(to_yaml({"stages": {"judge": {"judgments": 3}}}))
    overview = read_overview(tmp_path)
    assert overview.state == BROKEN and "ir-metadata.yml" in overview.problem


@pytest.mark.parametrize(
    "content", ["measures: [", "{}", "task: comparative\nrun: ab\nqrels: {}\nmeasures: {nDCG: 1}\n"]
)
def test_what_is_no_evaluation_is_refused_with_its_file(content: str, tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    assert read_evaluation(directory) is None
    directory.evaluation_file.write_text(content)
    with raises_at(DataError, directory.evaluation_file):
        read_evaluation(directory)


def evaluation_of(measure: str) -> bytes:
    """A recorded evaluation by one measure."""
    content: dict[str, Any] = {"task": "comparative", "run": "ab", "qrels": {}, "coverage": {}}
    return to_yaml({**content, "measures": {measure: {"value": 0.5, "judged": 1.0}}})


def test_recorded_measures_are_known_ones(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.evaluation_file.write_bytes(evaluation_of("quality nDCG@5"))
    evaluation = read_evaluation(directory)
    assert evaluation is not None
    assert list(evaluation.measures) == [make_headline_ndcg("quality")]

    directory.evaluation_file.write_bytes(evaluation_of("quality F5"))
    with raises_at(DataError, directory.evaluation_file, "'quality F5'", "nDCG@K", "evaluate"):
        read_evaluation(directory)
