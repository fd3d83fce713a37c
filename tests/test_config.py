from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from tests.expect import raises_at
from touche_llm.config.configuration import Config
from touche_llm.config.files import index_folder, load_config, write_config
from touche_llm.corpus.ir_dataset import dataset_index, topics_file
from touche_llm.engines.settings import EngineConfig
from touche_llm.errors import UsageError
from touche_llm.llm.cache import CacheMode
from touche_llm.tasks import get_task

NEEDED = {"topics": Path("topics.xml"), "corpus": Path("passages.jsonl")}
BASE = "topics: topics.xml\ncorpus: passages.jsonl\n"


def config_file(folder: Path, text: str | bytes) -> Path:
    path = folder / "config.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_an_unknown_task_is_located_in_the_option_or_the_file_that_names_it(tmp_path: Path) -> None:
    file = config_file(tmp_path, BASE + "task: chess\n")
    with raises_at(UsageError, "task", "chess"):
        load_config(None, NEEDED | {"task": "chess"})
    with raises_at(UsageError, file, "chess"):
        load_config(file, {})


def test_a_prompt_of_the_stance_needs_a_depth(tmp_path: Path) -> None:
    file = config_file(tmp_path, BASE + "stance: {prompt: both_orders, depth: 0}\n")
    with raises_at(UsageError, "stance.prompt", "depth"):
        load_config(file, {"stance.prompt": "own"})
    stance = load_config(file, {"stance.prompt": "own", "stance.depth": 7}).stance
    assert stance is not None and (stance.prompt, stance.depth) == ("own", 7)


def test_a_flag_overrides_the_file_and_leaves_the_rest(tmp_path: Path) -> None:
    file = config_file(
        tmp_path,
        BASE
        + "depth: 7\ntag: mine\ntopic: ['1']\nretriever: {k1: 0.9, b: 0.4}\ncache: {mode: replay}\n",
    )
    flags = {
        "depth": 9,
        "tag": None,
        "topic": (),
        "retriever.k1": 2.0,
        "engine.model": "some/model",
    }
    config = load_config(file, flags)
    assert (config.depth, config.tag, config.topic) == (9, "mine", ("1",))
    assert (config.retriever.k1, config.retriever.b, config.retriever.method) == (
        2.0,
        0.4,
        "robertson",
    )
    assert (config.engine.model, config.cache.mode) == ("some/model", CacheMode.REPLAY)


@pytest.mark.parametrize(
    "options", [{"hf_token": "s3cret"}, {"max_model_len": 5}, {"enforce-eager": 1}]
)
def test_options_of_vllm_that_are_secret_or_set_by_the_program_are_refused(
    options: dict[str, Any],
) -> None:
    with raises_at(UsageError, "EngineConfig.options") as caught:
        EngineConfig(name="managed", options=options)
    assert "s3cret" not in str(caught.value)


def test_a_written_configuration_reads_back_the_same(tmp_path: Path) -> None:
    flags: dict[str, Any] = {
        "candidates": Path("é #a.txt"),
        "topic": ("1", "null"),
        "tag": "1.5",
        "retriever.query": ("narrative", "title"),
        "engine.request_timeout": 1e-300,
        "sampling.chat_template_kwargs": {"a: b": None, "c": [True, 0x1F]},
        "weights.quality": 1e300,
        "rank": "judge, setwise:5",
        "ranking.setwise.children": 19,
        "stance.thresholds": {"NO": 0.5},
        "stance.calibrated_on": ("2024-01-31", "yes"),
        "cache.mode": CacheMode.OFF,
    }
    config = load_config(None, NEEDED | flags)
    write_config(config, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml", {}) == config


def test_each_corpus_has_an_index_folder_of_its_own() -> None:
    folders = {
        index_folder(Path(name)) for name in ("a/p.jsonl", "b/p.jsonl", "a/p.jsonl.gz", "a/q.jsonl")
    }
    assert len(folders) == 4
    assert load_config(None, NEEDED).index == index_folder(NEEDED["corpus"])
    assert index_folder(NEEDED["corpus"]) == index_folder(NEEDED["corpus"].absolute())


def test_every_default_is_written_out(tmp_path: Path) -> None:
    path = tmp_path / "new" / "config.yaml"
    config = load_config(None, NEEDED)
    write_config(config, path)
    written = yaml.safe_load(path.read_text())
    assert list(written) == list(Config.model_fields)
    assert set(written["weights"]) == {"relevance", "quality", "first_stage"}
    for name in ("retriever", "engine", "sampling", "prompts", "cache", "actor"):
        # What holds for one command alone is not written.
        assert set(written[name]) == set(type(getattr(config, name)).model_fields) - {
            "retry_failures"
        }
    assert (written["retriever"]["k1"], written["cache"]["mode"], written["limit_topics"]) == (
        1.5,
        "reuse",
        None,
    )
    assert load_config(path, {}) == config


@pytest.mark.parametrize(
    ("text", "fragments"),
    [
        ("detph: 7", ["detph: no such name; expected one of "]),
        ("retriever: {k2: 1}", ["retriever.k2: no such name"]),
        ("depth: 1001", ["depth: comparative takes at most 1000"]),
        ("topic: [true]", ["topic.0: "]),
        ("retriever: 3", ["retriever: "]),
        (
            "retriever: {name: splade}",
            ["retriever.name: ", "'dense', 'hybrid', 'chatnoir' or 'elasticsearch'"],
        ),
        ("retriever: {query: [text]}", ["retriever.query.0: ", "'narrative'"]),
        (
            "engine: {base_url: 'http://a:1/?api_key=s3cret'}",
            ["engine.base_url: must not hold a password or a key"],
        ),
        ("engine: {base_url: '127.0.0.1:8000'}", ["engine.base_url: must be an address"]),
        ("cache: {mode: rewind}", ["cache.mode: ", "'reuse'", "'replay'"]),
        ("weights: {relevance: 0, quality: 0, first_stage: 0}", ["weights: ", "all 0"]),
        ('tag: "a\\e[2J"', ["tag: ", "one word"]),
        ("rank: []", ["rank: '': no such step; write judge, or"]),
        (
            "rank: pairwise",
            ["rank: 'pairwise': needs the number of documents to rank", "as pairwise:10"],
        ),
        ("ranking: {setwize: {top: 2}}", ["ranking.setwize: no such name; expected one of "]),
        (
            "stance: {thresholds: {FIRST: 0.5}}",
            ["stance.thresholds.FIRST: no such label; comparative has NO, NEUTRAL"],
        ),
        (
            "expansion: {use: true}\ncandidates: run.txt",
            ["expansion: the candidates come from a run"],
        ),
    ],
)
def test_a_bad_value_is_named_with_file_and_key(
    tmp_path: Path, text: str, fragments: list[str]
) -> None:
    file = config_file(tmp_path, BASE + text)
    with pytest.raises(UsageError) as caught:
        load_config(file, {})
    assert str(caught.value).startswith(f"{file}: ")
    for fragment in fragments:
        assert fragment in str(caught.value)


def test_a_file_that_is_no_configuration_is_named(tmp_path: Path) -> None:
    for content, values in (
        (BASE + "x: !!python/object/apply:os.getcwd []", ["not YAML"]),
        ("- topics: t.xml\n", ["must hold names and values"]),
        ("topics: t.xml\n", ["`corpus: FILE`", "`index: FOLDER`"]),
    ):
        file = config_file(tmp_path, content)
        with raises_at(UsageError, file, *values):
            load_config(file, {})
    # A section that is none, when a flag goes into it.
    file = config_file(tmp_path, BASE + "retriever: 3\n")
    with raises_at(UsageError, file, "retriever: "):
        load_config(file, {"retriever.k1": 2.0})


def test_weights_are_those_of_the_task_where_left_out(tmp_path: Path) -> None:
    own = get_task("comparative").objectives["both"]
    assert load_config(None, NEEDED).weights == own
    file = config_file(tmp_path, BASE + "weights: {quality: 0.25}\n")
    assert load_config(file, {}).weights == {**own, "quality": 0.25}
    both = load_config(file, {"weights.first_stage": 0.0}).weights
    assert both == {**own, "quality": 0.25, "first_stage": 0.0}


def test_a_dataset_takes_the_place_of_topics_corpus_and_index(tmp_path: Path) -> None:
    (dataset, *_) = get_task("comparative").corpus.datasets
    file = config_file(tmp_path, BASE + "index: mine\n")
    config = load_config(file, {"dataset": dataset})
    assert (config.corpus, config.topics, config.index) == (
        None,
        topics_file(dataset),
        dataset_index(dataset),
    )
    write_config(config, file)
    assert load_config(file, {"dataset": dataset}) == config


@pytest.mark.parametrize(
    ("retriever", "section"),
    [
        ({"name": "chatnoir"}, "chatnoir"),
        ({"name": "elasticsearch", "method": "lucene"}, "elasticsearch"),
        ({"name": "dense"}, "dense"),
        ({"name": "hybrid"}, "dense"),
    ],
)
def test_a_retriever_has_its_own_section_and_no_other(
    retriever: dict[str, str], section: str
) -> None:
    needed = {
        "task": "controversial",
        "topics": "t.xml",
        "weights": {"relevance": 1.0},
        "retriever": retriever,
    }
    assert getattr(Config.model_validate(needed | {section: {}}), section) is not None
    with pytest.raises(ValidationError, match=f"{section}: missing"):
        Config.model_validate(needed)
    other = "chatnoir" if section == "dense" else "dense"
    with pytest.raises(ValidationError, match=f"{other}: settings of a retriever that is not"):
        Config.model_validate(needed | {section: {}, other: {}})


@pytest.mark.parametrize(
    ("engine", "context"),
    [
        ("{context: 4096}", 4096),
        ("{context: 4096, model: m}", 4096),
        ("{context: 4096, model: other}", None),
        ("{context: 4096, model: m, base_url: http://other:1}", None),
    ],
)
def test_the_context_goes_only_with_the_model_it_was_of(
    tmp_path: Path, engine: str, context: int | None
) -> None:
    file = config_file(tmp_path, BASE + f"engine: {engine}\n")
    flags = {"engine.model": "m", "engine.base_url": "http://127.0.0.1:8000"}
    assert load_config(file, flags).engine.context == context


def test_steps_may_be_written_as_on_the_command_line(tmp_path: Path) -> None:
    for text in (
        "rank: 'judge, pairwise:5'",
        "rank: judge,pairwise:5",
        "rank: [judge, 'pairwise:5']",
    ):
        assert load_config(config_file(tmp_path, BASE + text), {}).rank == ("judge", "pairwise:5")
    assert load_config(config_file(tmp_path, BASE), {}).rank == ("judge",)


def test_an_aim_brings_its_weights_and_those_that_are_given_win(tmp_path: Path) -> None:
    objectives = get_task("comparative").objectives
    assert load_config(None, NEEDED | {"objective": "quality"}).weights == objectives["quality"]
    file = config_file(tmp_path, BASE + "objective: relevance\nweights: {quality: 0.25}\n")
    assert load_config(file, {}).weights == {**objectives["relevance"], "quality": 0.25}
    assert load_config(file, {"objective": "relevance"}).weights == {
        **objectives["relevance"],
        "quality": 0.25,
    }
    # With another objective, what was chosen stays.
    assert load_config(file, {"objective": "quality"}).weights == {
        **objectives["quality"],
        "quality": 0.25,
    }
    given = {"objective": "quality", "weights.quality": 2.0}
    assert load_config(file, given).weights == {**objectives["quality"], "quality": 2.0}
    # The defaults of another objective that were written out go with it.
    given = {"objective": "relevance", "weights.first_stage": 0.5}
    write_config(load_config(None, NEEDED | given), tmp_path / "c.yaml")
    again = load_config(tmp_path / "c.yaml", {"objective": "quality"})
    assert again.weights == {**objectives["quality"], "first_stage": 0.5}
    # Given in so many words, a default of the old objective is a choice.
    again = load_config(tmp_path / "c.yaml", {"objective": "quality", "weights.relevance": 1.0})
    assert again.weights == {**objectives["quality"], "relevance": 1.0, "first_stage": 0.5}


def test_no_is_a_label_also_where_yaml_reads_it_as_false(tmp_path: Path) -> None:
    config = load_config(
        config_file(tmp_path, BASE + "stance: {thresholds: {NO: 0.3}, calibrated_on: [1, '2']}"), {}
    )
    assert config.stance is not None
    assert (config.stance.thresholds, config.stance.calibrated_on) == ({"NO": 0.3}, ("1", "2"))
    write_config(config, tmp_path / "again.yaml")
    assert load_config(tmp_path / "again.yaml", {}) == config


def test_a_section_that_is_written_as_null_can_be_given_values(tmp_path: Path) -> None:
    file = config_file(tmp_path, BASE + "stance: null\npairs: null\n")
    config = load_config(file, {"stance.depth": 3})
    assert config.stance is not None and config.stance.depth == 3
    with pytest.raises(UsageError, match="sentences, pairs: comparative"):
        load_config(file, {"pairs.judged": 3})


def test_another_corpus_takes_the_default_index_of_the_first_along_but_not_a_chosen_one(
    tmp_path: Path,
) -> None:
    written = config_file(tmp_path, b"")
    write_config(load_config(None, NEEDED), written)
    other = tmp_path / "other.jsonl"
    assert load_config(written, {}).index == index_folder(NEEDED["corpus"])
    assert (
        load_config(written, {"corpus": other}).index
        == index_folder(other)
        != index_folder(NEEDED["corpus"])
    )
    write_config(load_config(None, {**NEEDED, "index": Path("mine")}), written)
    assert load_config(written, {"corpus": other}).index == Path("mine")


@pytest.mark.parametrize(
    ("rank", "flags", "location"),
    [
        ("judge", {"rank": "balance:4"}, "rank"),
        ("balance:4", {"depth": 5}, "run.yaml"),
    ],
)
def test_a_step_that_the_task_cannot_take_is_blamed_on_what_named_it(
    rank: str, flags: dict[str, Any], location: str, tmp_path: Path
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(f"{BASE}task: arguments_2020\nrank: {rank}\n")
    with pytest.raises(UsageError, match="no stances") as caught:
        load_config(file, flags)
    assert caught.value.location.endswith(location)
