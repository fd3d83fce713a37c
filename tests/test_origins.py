"""Each value of a configuration knows where it comes from, and errors about it say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from touche_llm.config.files import (
    METADATA,
    UserOptions,
    load_config,
    load_run_config,
    load_with_origins,
    write_config,
)
from touche_llm.config.origins import ARGUMENT, DEFAULT, OriginKind, Origins, ValueOrigin
from touche_llm.config.own_folders import record_configuration
from touche_llm.errors import DataError, UsageError

BASE = "topics: topics.xml\ncorpus: passages.jsonl\n"
FLAG = ValueOrigin(OriginKind.OPTION, "--depth")
VARIABLE = ValueOrigin(OriginKind.ENVIRONMENT, "MODEL")


def write_file(folder: Path, text: str, name: str = "run.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_value_is_a_default_or_of_a_file_or_of_what_overrides_it(tmp_path: Path) -> None:
    file = write_file(
        tmp_path, f"{BASE}depth: 7\nretriever: {{k1: 0.9, b: 0.4}}\nlimit_topics: null\n"
    )
    flags: dict[str, Any] = {"depth": 9, "retriever.b": 0.5, "engine.model": "m", "tag": None}
    origins = load_with_origins(file, flags, {"depth": FLAG, "engine.model": VARIABLE}).origins

    of_file = ValueOrigin(OriginKind.FILE, str(file))
    assert origins.find("topics") == of_file
    assert origins.find("retriever.k1") == of_file
    assert origins.find("depth") == FLAG
    assert origins.find("retriever.b") == ARGUMENT
    assert origins.find("engine.model") == VARIABLE
    assert origins.find("retriever.method") == DEFAULT
    assert origins.find("index") == DEFAULT
    assert origins.find("limit_topics") == DEFAULT


def test_a_mapping_that_is_given_as_a_whole_is_the_origin_of_its_values(tmp_path: Path) -> None:
    text = f"{BASE}stance: {{thresholds: {{NO: 0.5}}}}\nsampling: {{seed: 3}}\n"
    flags = {"stance.thresholds": {"NEUTRAL": 0.3}}
    origins = load_with_origins(write_file(tmp_path, text), flags).origins
    assert origins.find("stance.thresholds.NEUTRAL") == ARGUMENT
    assert origins.find("sampling.seed").kind is OriginKind.FILE


def test_a_value_of_the_file_that_was_replaced_is_a_default(tmp_path: Path) -> None:
    text = f"{BASE}engine: {{model: a, context: 99}}\nobjective: relevance\n"
    file = write_file(tmp_path, f"{text}weights: {{relevance: 1.0, quality: 0.0}}\n")
    relevance = load_config(file, {}).weights
    write_config(load_config(file, {}), file)

    loaded = load_with_origins(file, {"engine.model": "b", "objective": "quality"})
    assert loaded.config.engine.context is None
    assert loaded.origins.find("engine.context") == DEFAULT
    assert loaded.config.weights != relevance
    assert loaded.origins.find("weights.quality") == DEFAULT


def test_values_of_the_folder_of_a_run_have_it_as_their_origin(tmp_path: Path) -> None:
    file = write_file(tmp_path, f"{BASE}depth: 7\n", "config.yaml")
    (tmp_path / METADATA).write_text("")
    assert load_with_origins(file, {}).origins.find("depth").kind is OriginKind.FILE
    record_configuration(file, file.read_bytes())
    origins = load_run_config(file, UserOptions({"tag": "mine"})).origins
    assert origins.find("depth") == ValueOrigin(OriginKind.FOLDER, str(file))
    assert origins.find("corpus").kind is OriginKind.FOLDER
    assert origins.find("tag") == ARGUMENT


def test_origins_do_not_change_the_configuration(tmp_path: Path) -> None:
    text = f"{BASE}depth: 7\n"
    first = load_with_origins(write_file(tmp_path, text, "a.yaml"), {})
    second = load_with_origins(write_file(tmp_path, text, "b.yaml"), {"depth": 7})
    assert first.origins != second.origins
    assert first.config == second.config
    assert first.config.model_dump_json() == second.config.model_dump_json()


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        ("depth: too large", "--depth: too large"),
        ("engine.model: missing", "MODEL: engine.model: missing"),
        ("retriever.k1: too small", "run.yaml: retriever.k1: too small"),
        ("retriever: unknown", "run.yaml: retriever: unknown"),
        # The item of a list that was given as a whole.
        ("depth.0: no text", "--depth: depth.0: no text"),
        ("depth, retriever: contradict", "--depth: depth, retriever: contradict"),
        ("tag: two words", "tag: two words"),
        ("run.txt: damaged", "run.txt: damaged"),
        ("depth", "depth"),
    ],
)
def test_a_problem_is_located_where_its_value_comes_from(problem: str, expected: str) -> None:
    of_file = ValueOrigin(OriginKind.FILE, "run.yaml")
    origins = Origins({"depth": FLAG, "engine.model": VARIABLE, "retriever.k1": of_file})
    assert origins.locate(problem) == expected


def test_an_error_that_is_raised_later_is_located_and_keeps_its_type() -> None:
    origins = Origins({"depth": FLAG})
    with pytest.raises(DataError) as caught, origins.locate_errors():
        raise DataError("depth: more than the first stage has")
    assert str(caught.value) == "--depth: more than the first stage has"


@pytest.mark.parametrize(
    ("text", "location"),
    [("depth: 0", "depth"), ("retriever: {k1: x}", "retriever.k1"), ("task: chess", "task")],
)
def test_an_invalid_value_is_located_by_file_and_key_or_by_its_flag(
    text: str, location: str, tmp_path: Path
) -> None:
    file = write_file(tmp_path, f"{BASE}{text}\n")
    with pytest.raises(UsageError) as of_file:
        load_config(file, {})
    assert str(of_file.value).startswith(f"{file}: {location}: ")

    flags = {"topics": "t.xml", "corpus": "c.jsonl", location: "x"}
    flag = ValueOrigin(OriginKind.OPTION, "--flag")
    with pytest.raises(UsageError) as of_flag:
        load_with_origins(file, flags, {location: flag})
    assert of_flag.value.location == "--flag"


@pytest.mark.parametrize(
    "name", ["trust_remote_code", "logits_processors", "reasoning_parser_plugin", "worker_cls"]
)
def test_an_option_that_runs_code_is_taken_from_the_command_line_alone(
    tmp_path: Path, name: str
) -> None:
    text = f"{BASE}engine: {{name: managed, model: m, options: {{{name}: true}}}}\n"
    file = write_file(tmp_path, text)
    with pytest.raises(UsageError, match=name):
        load_with_origins(file, {})
    option = {"engine.name": "managed", f"engine.options.{name}": True}
    file = write_file(tmp_path, BASE)
    loaded = load_with_origins(file, option, {name: ARGUMENT for name in option})
    assert loaded.config.engine.options == {name: True}


@pytest.mark.parametrize("task", ["[chess]", "{name: chess}", "5", "chess"])
def test_a_malformed_task_in_a_folder_of_somebody_else_is_an_error_of_its_file(
    task: str, tmp_path: Path
) -> None:
    file = write_file(tmp_path, f"{BASE}task: {task}\n", "config.yaml")
    with pytest.raises(UsageError) as caught:
        load_run_config(file)
    assert str(caught.value).startswith(f"{file}: task: ")
    # The user's own task replaces it.
    options = UserOptions({"task": "passages"})
    assert load_run_config(file, options).config.task == "passages"
