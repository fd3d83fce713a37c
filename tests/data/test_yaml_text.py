from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.expect import raises_at
from touche_llm.config.files import load_config
from touche_llm.errors import DataError, PromptError, UsageError
from touche_llm.judging.stance_labels import read_thresholds
from touche_llm.prompts.prompt import read_header
from touche_llm.runs.directory import RunDirectory
from touche_llm.settings.yaml_text import MAX_DEPTH, YamlError, parse_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("a: 1\nb: [x, 2.5, null, true]\n", {"a": 1, "b": ["x", 2.5, None, True]}),
        (
            "[NO, yes, off, TRUE, 2024-01-31, 7, False]",
            ["NO", "yes", "off", "TRUE", "2024-01-31", 7, False],
        ),
        ("1: a\n'1': b", {1: "a", "1": "b"}),
    ],
)
def test_what_is_within_the_bounds_is_read(text: str, value: Any) -> None:
    parsed = parse_yaml(text)
    assert parsed == value
    assert parse_yaml(text.encode()) == parse_yaml(text)


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("a: 1\nb: 2\na: 3", 3, "'a' occurs twice"),
        ("x:\n  - a: 1\n    'a': 2", 3, "'a' occurs twice"),
        ("a: !!python/object/apply:os.getcwd []", 1, "os.getcwd"),
    ],
)
def test_what_exceeds_a_bound_or_says_something_twice_is_an_error_with_its_line(
    text: str, line: int, said: str
) -> None:
    for content in (text, text.encode()):
        with pytest.raises(YamlError) as error:
            parse_yaml(content)
        assert f"line {line}" in str(error.value)
        assert said in str(error.value)
        assert len(str(error.value)) < 300


def nest(levels: int) -> str:
    return "[" * levels + "]" * levels


def test_as_many_levels_as_allowed_are_read() -> None:
    value = parse_yaml(nest(MAX_DEPTH))
    levels = 0
    while isinstance(value, list):
        levels += 1
        value = value[0] if value else None
    assert levels == MAX_DEPTH


@pytest.mark.parametrize(
    "text",
    [
        nest(MAX_DEPTH + 1),
        nest(15_000),
        "[" * 30_000,
        "{a: " * 15_000,
        "- " * 15_000,
        "? " * 15_000,
    ],
)
def test_more_levels_are_an_error_with_its_line(text: str) -> None:
    with pytest.raises(YamlError, match=rf"line 2: .*{MAX_DEPTH} levels"):
        parse_yaml(f"\n{text}")


@pytest.mark.parametrize(
    "text", ["task: comparative\ntask: controversial\n", "a: [", f"a: {nest(15_000)}"]
)
def test_every_reader_of_yaml_refuses_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ir-metadata.yml"
    path.write_text(text)
    with raises_at(UsageError, path, "line "):
        load_config(path, {})
    with raises_at(UsageError, path, "line "):
        read_thresholds(path)
    with raises_at(DataError, path, "line "):
        RunDirectory(tmp_path).read_metadata()


def test_the_front_matter_of_a_prompt_counts_the_lines_of_its_file(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="line 4: .*'version'"):
        read_header(tmp_path / "judge.jinja", "version: 1\nanswer: judgment\nversion: 2\n")
