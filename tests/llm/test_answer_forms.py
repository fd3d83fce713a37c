"""Answers as JSON objects, JSON arrays and letters: their text, their values, and what is read from their tokens."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from tests.answer_models import ComparativeJudgment
from tests.llm.engines.test_server import question
from touche_llm.data.records import Label, Topic
from touche_llm.engines.chat import build_chat_body
from touche_llm.errors import Unusable
from touche_llm.llm.answer import Token
from touche_llm.llm.answer_schema import (
    AnswerForm,
    AnswerModel,
    Layout,
    build_schema,
    count_alternatives,
    get_labels,
    list_fields,
)
from touche_llm.llm.label_probabilities import TokenizedAnswer, read_label
from touche_llm.llm.parsing import parse_answer
from touche_llm.tasks.objects import objects_answer


class Verdict(AnswerModel):
    relevance: Literal[0, 1, 2, 3]
    quality: Literal[0, 1, 2, 3]
    stance: Literal["FIRST", "SECOND", "NO"]


VALUES: Mapping[str, Label] = {"relevance": 2, "quality": 1, "stance": "NO"}
LABELS = get_labels(Verdict)


class Order(AnswerModel):
    order: Annotated[str, Field(pattern="^[A-C](?: > [A-C]){2}$")]


# Free text has no fields.
FORMS = [form for form in AnswerForm if form is not AnswerForm.TEXT]


def layout_of(model: type[AnswerModel], form: AnswerForm) -> Layout:
    return Layout.of_schema(build_schema(model, form))


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (AnswerForm.OBJECT, '{"relevance":2,"quality":1,"stance":"NO"}'),
        (AnswerForm.ARRAY, '[2,1,"NO"]'),
        (AnswerForm.LETTERS, '[2,1,"N"]'),
    ],
)
def test_each_form_has_its_text_schema_and_spans(form: AnswerForm, text: str) -> None:
    schema = build_schema(Verdict, form)
    layout = Layout.of_schema(schema)
    assert layout == Layout(form, tuple(VALUES))
    stances = ("F", "S", "N") if form is AnswerForm.LETTERS else LABELS["stance"]
    assert {name: tuple(field["enum"]) for name, field in list_fields(schema).items()} == {
        **LABELS,
        "stance": stances,
    }
    assert layout.spell(VALUES) == text
    assert parse_answer(text, Verdict, form).model_dump() == VALUES
    spelled = {name: text[slice(*span)] for name, span in layout.find_values(text).items()}
    assert spelled == {name: layout.spell_value(value) for name, value in VALUES.items()}


@given(
    st.sampled_from(FORMS),
    st.tuples(*(st.sampled_from(allowed) for allowed in LABELS.values())),
    st.data(),
)
def test_a_form_is_read_back_and_no_other_form_is(
    form: AnswerForm, chosen: tuple[Label, ...], data: Any
) -> None:
    values = dict(zip(LABELS, chosen, strict=True))
    text = layout_of(Verdict, form).spell(values)
    assert parse_answer(text, Verdict, form).model_dump() == values
    other = data.draw(st.sampled_from([each for each in FORMS if each is not form]))
    with pytest.raises(Unusable):
        parse_answer(text, Verdict, other)


@pytest.mark.parametrize(
    ("form", "text", "kind"),
    [
        (AnswerForm.ARRAY, '[2,1,"NO"', "not_json"),
        (AnswerForm.ARRAY, '[2,1,"NO",0]', "outside_schema"),
        (AnswerForm.ARRAY, '[2,true,"NO"]', "outside_schema"),
        (AnswerForm.ARRAY, "[" * 100_000, "not_json"),
        (AnswerForm.LETTERS, '[2,1,"NO"]', "outside_schema"),
    ],
)
def test_another_text_is_a_typed_failure(form: AnswerForm, text: str, kind: str) -> None:
    with pytest.raises(Unusable) as caught:
        parse_answer(text, Verdict, form)
    assert caught.value.kind == kind


def pieces_of(
    form: AnswerForm, shares: Mapping[str, Mapping[Label, float]]
) -> tuple[str, list[Token]]:
    """An answer with a token for each value, together with the character after it where there is one."""
    layout = layout_of(Verdict, form)
    text, tokens = "", []
    for name, before, after in zip(layout.fields, layout.frame, layout.frame[1:], strict=False):
        text += before
        top = [
            (layout.spell_value(label) + after[:1], math.log(share))
            for label, share in shares[name].items()
        ]
        tokens.append(Token(at=len(text), token=top[0][0], logprob=top[0][1], top=top))
        text += layout.spell_value(next(iter(shares[name])))
    return text + layout.frame[-1], tokens


@pytest.mark.parametrize("form", FORMS)
def test_probabilities_do_not_depend_on_the_form(form: AnswerForm) -> None:
    shares: dict[str, dict[Label, float]] = {
        "relevance": {2: 0.5, 3: 0.25, 0: 0.25},
        "quality": {1: 1.0},
        "stance": {"NO": 0.75, "SECOND": 0.25},
    }
    text, tokens = pieces_of(form, shares)
    answer = TokenizedAnswer(text, tokens, layout_of(Verdict, form))
    for name, labels in LABELS.items():
        reading = read_label(answer, name, labels, next(iter(shares[name])))
        assert reading.probabilities == pytest.approx(
            {str(label): shares[name].get(label, 0.0) for label in labels}
        )
        assert reading.off_label_mass == pytest.approx(0.0, abs=1e-9)


def test_the_number_of_alternatives_depends_on_form_and_labels_alone() -> None:
    by_form = {form: count_alternatives(build_schema(Verdict, form)) for form in FORMS}
    assert by_form == {AnswerForm.OBJECT: 20, AnswerForm.ARRAY: 8, AnswerForm.LETTERS: 8}
    assert count_alternatives(build_schema(Order, AnswerForm.ARRAY)) == 0


def test_a_server_gets_the_schema() -> None:
    array = build_schema(ComparativeJudgment, AnswerForm.ARRAY)
    request = replace(question(), schema=array)
    # llama.cpp refuses `"items": false`, which the key keeps: tests/llm/test_request.py has keys of
    # stored answers.
    sent = {name: value for name, value in array.items() if name != "items"}
    assert array["items"] is False and sent.keys() >= {"prefixItems", "minItems", "maxItems"}
    assert build_chat_body(request)["structured_outputs"] == {"json": sent}
    assert (
        build_chat_body(request, "response_format")["response_format"]["json_schema"]["schema"]
        == sent
    )


class Coded(AnswerModel):
    kind: Literal["A", "B"]
    code: Annotated[str, Field(pattern="^[a-c]{2}( [a-c]{2})*$")]


# The end of the pattern is the end of the text: other readers of patterns allow a line feed there.
@pytest.mark.parametrize("code", ["", "ab\n", "ａb", 1])
def test_a_text_that_does_not_fit_its_pattern_is_a_typed_failure(code: Any) -> None:
    with pytest.raises(Unusable) as caught:
        parse_answer(json.dumps({"kind": "A", "code": code}), Coded)
    assert caught.value.kind == "outside_schema"
    assert caught.value.reason.startswith("code: ")


def test_the_two_objects_are_words_of_the_title_and_differ() -> None:
    model = objects_answer(Topic("1", "Which is better, a steel knife or a ceramic knife?"))
    assert "ceramic knife" in build_schema(model)["properties"]["first"]["enum"]
    found = parse_answer(
        orjson.dumps({"first": "steel", "second": "ceramic knife"}).decode(), model
    )
    assert found.model_dump() == {"first": "steel", "second": "ceramic knife"}
    for first, second in (
        ("steel", "steel"),
        ("steel", "a steel knife"),
        ("Which is", "is"),
        ("steel", "bread"),
    ):
        with pytest.raises(Unusable) as caught:
            parse_answer(orjson.dumps({"first": first, "second": second}).decode(), model)
        assert caught.value.kind == "outside_schema"
