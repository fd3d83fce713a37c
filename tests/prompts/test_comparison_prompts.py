"""The project's prompts that compare documents."""

from __future__ import annotations

import re
from string import ascii_uppercase

import pytest

from touche_llm.data.records import LabelledDocument, Topic
from touche_llm.prompts.purposes import load_named
from touche_llm.tasks import get_task

TOPIC = Topic("2", "THE QUESTION", "THE DESCRIPTION", "THE NARRATIVE", ("OBJECT ONE", "OBJECT TWO"))
GIVEN = {"topic": TOPIC, "aim": "both", "first": "OBJECT ONE", "second": "OBJECT TWO"}


@pytest.mark.parametrize("task", ["comparative", "controversial", "sentence_pairs"])
@pytest.mark.parametrize("name", ["best", "order"])
@pytest.mark.parametrize("count", [2, 26])
def test_each_document_stands_under_its_label_and_all_labels_are_named_at_the_end(
    task: str, name: str, count: int
) -> None:
    purpose, prompt = load_named(get_task(task), name)
    documents = [LabelledDocument(label, f"It says {label}{label}.") for label in ascii_uppercase[:count]]
    given = {each: value for each, value in GIVEN.items() if each in purpose.variables}
    _, user = prompt.render(documents=documents, **given)
    for document in documents:
        assert re.search(rf"^(Passage|Page|Pair) {document.label}:\n{document.text}$", user.content, re.MULTILINE)
    end = user.content.split(documents[-1].text)[1]
    assert ", ".join(ascii_uppercase[:count]) + "." in end and end.count("\n") == 2
