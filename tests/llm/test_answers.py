from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from tests.answer_models import ComparativeJudgment
from touche_llm.data.records import Topic
from touche_llm.llm.answers import AnswerModel, Unusable, build_schema, get_labels, parse_answer
from touche_llm.tasks.features import objects_answer

GOOD = {"relevance": 3, "quality": 0, "stance": "NO"}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(["relevance", "quality", "stance"]), JSON)
def test_a_changed_field_is_an_answer_only_if_it_is_a_label(field: str, value: Any) -> None:
    labels = get_labels(ComparativeJudgment)[field]
    allowed = any(type(value) is type(label) and value == label for label in labels)
    try:
        parse_answer(json.dumps({**GOOD, field: value}), ComparativeJudgment)
    except Unusable:
        assert not allowed
    else:
        assert allowed


class Coded(AnswerModel):
    kind: Literal["A", "B"]
    code: Annotated[str, Field(pattern="^[a-c]{2}( [a-c]{2})*$")]


def test_a_field_with_a_pattern_has_it_in_the_schema_and_no_labels() -> None:
    assert build_schema(Coded) == {
        "type": "object",
        "properties": {"kind": {"enum": ["A", "B"]}, "code": {"type": "string", "pattern": "^[a-c]{2}( [a-c]{2})*$"}},
        "required": ["kind", "code"],
        "additionalProperties": False,
    }
    assert get_labels(Coded) == {"kind": ("A", "B")}


# The end of the pattern is the end of the text: other readers of patterns allow a line feed there.
@pytest.mark.parametrize("code", ["", "abc", "ab ", "ab\n", "x\nab", "ａb", 1, None, ["ab"]])
def test_a_text_that_does_not_fit_its_pattern_is_a_typed_failure(code: Any) -> None:
    with pytest.raises(Unusable) as caught:
        parse_answer(json.dumps({"kind": "A", "code": code}), Coded)
    assert caught.value.kind == "outside_schema"
    assert caught.value.reason.startswith("code: ")


def test_the_two_objects_are_words_of_the_title_and_differ() -> None:
    model = objects_answer(Topic("1", "Which is better, a steel knife or a ceramic knife?"))
    assert "ceramic knife" in build_schema(model)["properties"]["first"]["enum"]
    found = parse_answer(orjson.dumps({"first": "steel", "second": "ceramic knife"}).decode(), model)
    assert found.model_dump() == {"first": "steel", "second": "ceramic knife"}
    for first, second in (("steel", "steel"), ("steel", "a steel knife"), ("Which is", "is"), ("steel", "bread")):
        with pytest.raises(Unusable) as caught:
            parse_answer(orjson.dumps({"first": first, "second": second}).decode(), model)
        assert caught.value.kind == "outside_schema"
