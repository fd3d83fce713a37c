"""Which labels a tokenizer splits, by tokenizers of a few lines."""

from __future__ import annotations

import re

import pytest

from benchmarks.label_tokens import find_split_labels, list_answers, list_rows
from tests.answer_models import ComparativeJudgment
from touche_llm.llm.answer_schema import AnswerForm, get_labels


@pytest.mark.parametrize("form", [AnswerForm.OBJECT, AnswerForm.ARRAY])
@pytest.mark.parametrize(
    ("pattern", "split"),
    [
        (r".", ["FIRST", "SECOND", "NEUTRAL", "NO"]),
        (r"\w+|\W", []),
        # Punctuation may share the token of a label.
        (r'\W?NO"?|\w{1,6}|\W', ["NEUTRAL"]),
    ],
)
def test_a_label_is_single_if_one_token_has_all_its_characters(
    form: AnswerForm, pattern: str, split: list[str]
) -> None:
    assert (
        find_split_labels(ComparativeJudgment, form, lambda text: re.findall(pattern, text))
        == split
    )


def test_the_table_has_a_row_for_each_form_with_the_labels_of_all_prompts() -> None:
    rows = list(list_rows({"characters": list, "words": lambda text: re.findall(r"\w+|\W", text)}))
    assert [row[0] for row in rows] == ["object", "array", "letters"]
    labels = {
        label
        for answer in list_answers().values()
        for allowed in get_labels(answer).values()
        for label in allowed
    }
    assert {row[1] for row in rows} == {str(len(labels))} and {row[3] for row in rows} == {"none"}
    # Every label of one character, and in letters all of them.
    assert rows[2][2] == "none" and "NEUTRAL" in rows[0][2]
