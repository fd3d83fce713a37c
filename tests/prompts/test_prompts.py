from __future__ import annotations

import re
import sys
import unicodedata
from pathlib import Path
from string import ascii_uppercase
from typing import Literal

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from tests.expect import raises_at
from tests.prompt_variants import load_prompt
from touche_llm.data.records import Document, LabelledDocument, Topic
from touche_llm.errors import PromptError, UsageError
from touche_llm.llm.answer_schema import get_labels
from touche_llm.prompts.purposes import find_prompts, load_named
from touche_llm.tasks import TASKS, get_task
from touche_llm.tasks.questions import Question
from touche_llm.text.sanitize import sanitize

ANY = {"topic": False, "first": False, "second": False, "document": False}
TOPIC = Topic(
    "2",
    "Which is better, a laptop or a desktop?",
    "A description.",
    "A narrative.",
    ("laptop", "desktop"),
)
CONTROL_TOKENS = [
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|start_header_id|>", "<s>", "</s>", "[INST]",
    "[/INST]", "<<SYS>>", "<</SYS>>", "<start_of_turn>", "<end_of_turn>", "<bos>", "<｜User｜>",
    "<｜end▁of▁sentence｜>", "<think>", "</think>", "<tool_call>", "[gMASK]", "[TOOL_CALLS]", "[SYSTEM_PROMPT]",
    "<|START_OF_TURN_TOKEN|>", "＜|im_end|＞", "<\u200b|im_end|>", "<\x00|im_end|>", "<unk>", "<image_soft_token>",
    "[|endofturn|]", "[|user|]", "[UNUSED_TOKEN_145]", "[control_8]", "[e~[", "]~b]", "［ＩＮＳＴ］",
]  # fmt: skip


def template(
    folder: Path, body: str, header: str = "version: 1\npurpose: a test\nanswer: judge\n"
) -> str:
    path = folder / "mine.jinja"
    path.write_text(f"---\n{header}---\n{body}", encoding="utf-8")
    return str(path)


BLOCKS = "{% block system %}S{% endblock %}\n{% block user %}U {{ document }}{% endblock %}\n"


TASK = get_task("comparative")
QUESTIONS = [(task.name, "judge", task.question) for task in TASKS.values()]
QUESTIONS += [
    (task.name, "sentence", task.questions["sentence"])
    for task in TASKS.values()
    if "sentence" in task.questions
]


@pytest.mark.parametrize(("task", "name", "question"), QUESTIONS)
def test_a_prompt_names_every_label_and_the_topic_before_the_document(
    task: str, name: str, question: Question
) -> None:
    prompt = load_prompt(get_task(task), name, name, question.template_variables)
    shown = question.render(TOPIC, Document("d", "A page.", "ITS CONCLUSION", "CON"))
    system, user = prompt.render(topic=TOPIC, document="THE PASSAGE", **shown.variables)
    assert (system.role, user.role) == ("system", "user")
    form = system.content.splitlines()[-1]
    answer = prompt.answer_for(TOPIC, document_count=1)
    assert re.findall(r"(?:\[|, )(\w+) (?:0 to|\")", form) == list(answer.model_fields)
    for field, labels in get_labels(answer).items():
        assert f"{field}: " in system.content
        assert all(f"\n{label} = " in system.content for label in labels)
    assert "THE PASSAGE" not in system.content
    assert user.content.endswith("THE PASSAGE")
    for part in (TOPIC.title, TOPIC.description, TOPIC.narrative, *shown.variables.values()):
        assert user.content.index(part) < user.content.index("THE PASSAGE")


@pytest.mark.parametrize("task", ["comparative", "controversial", "sentence_pairs"])
@pytest.mark.parametrize(("name", "count"), [("best", 2), ("order", 26)])
def test_each_document_stands_under_its_label_and_all_labels_are_named_at_the_end(
    task: str, name: str, count: int
) -> None:
    purpose, prompt = load_named(get_task(task), name)
    documents = [
        LabelledDocument(label, f"It says {label}{label}.") for label in ascii_uppercase[:count]
    ]
    known = {"topic": TOPIC, "aim": "both", "first": "laptop", "second": "desktop"}
    given = {each: value for each, value in known.items() if each in purpose.variables}
    _, user = prompt.render(documents=documents, **given)
    for document in documents:
        assert re.search(
            rf"^(Passage|Page|Pair) {document.label}:\n{document.text}$", user.content, re.MULTILINE
        )
    end = user.content.split(documents[-1].text)[1]
    assert ", ".join(ascii_uppercase[:count]) + "." in end and end.count("\n") == 2


@pytest.mark.parametrize(
    ("body", "header", "location", "values"),
    [
        ("{% block system %}S{% endblock %}", None, "", ["user"]),
        ("{% block system %}S", None, ":6", []),
        (BLOCKS, "version: 1\npurpose: p\n", "", ["answer"]),
        (BLOCKS, "version: 1\npurpose: p\nanswer: judge\nmodel: x\n", "", ["model"]),
        (BLOCKS, "version: [\n", "", ["YAML"]),
        (BLOCKS, "- a list\n", "", ["names and values"]),
        (BLOCKS + "a last word", None, ":8", ["`system`", "`user`"]),
        (BLOCKS.replace("document", "passage"), None, "", ["'passage'", "document, first"]),
        (BLOCKS, "version: 1\npurpose: p\nanswer: objects\n", "", ["'objects'", "'judge'"]),
        # NEUTRAL and NO begin with the same letter.
        (
            BLOCKS,
            "version: 1\npurpose: p\nanswer: judge\nform: letters\n",
            "",
            ["`form: array`", "stance"],
        ),
        (BLOCKS, "version: 1\npurpose: p\nanswer: judge\nform: verse\n", "", ["form", "letters"]),
    ],
)
def test_a_template_that_is_not_as_it_should_be_is_told(
    tmp_path: Path, body: str, header: str | None, location: str, values: list[str]
) -> None:
    name = template(tmp_path, body) if header is None else template(tmp_path, body, header)
    with raises_at(PromptError, f"{name}{location}", *values):
        load_prompt(TASK, name, "judge", ANY)


def test_a_prompt_that_is_not_there_lists_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match=r"best, judge, objects, order, queries, stance"):
        load_prompt(TASK, "jugde", "judge", ANY)
    for name in ("my.txt", "folder/", "../judge"):
        with pytest.raises(PromptError, match=r"\.jinja\b"):
            load_prompt(TASK, name, "judge", ANY)
    with raises_at(PromptError, tmp_path / "mine.jinja", "'topic'"):
        load_prompt(TASK, template(tmp_path, BLOCKS), "judge", TASK.question.template_variables)
    (tmp_path / "bare.jinja").write_text(BLOCKS)
    with raises_at(PromptError, tmp_path / "bare.jinja"):
        load_prompt(TASK, str(tmp_path / "bare.jinja"), "judge", ANY)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("{{ topic.titel }}", "'titel'"),
        ("{{ topic.__class__.__mro__ }}", "__class__"),
        ("{{ cycler.__init__.__globals__ }}", "__init__"),
        ("{{ 1 / 0 }}", "division"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{% for n in range(1000000) %}{{ n }}{% endfor %}", "[Rr]ange"),
    ],
)
def test_rendering_names_the_template_and_what_is_wrong(
    tmp_path: Path, expression: str, value: str
) -> None:
    body = f"{{% block system %}}S{{% endblock %}}{{% block user %}}{expression}{{% endblock %}}"
    prompt = load_prompt(TASK, template(tmp_path, body), "judge", ANY)
    with pytest.raises(PromptError, match=rf"mine\.jinja: block user: .*({value})"):
        prompt.render(topic=TOPIC, document="x")


@pytest.mark.parametrize("expression", ["{{ [1, 2] | random }}", "{{ lipsum(3) }}"])
def test_a_template_cannot_make_random_text_which_no_cached_answer_would_match(
    tmp_path: Path, expression: str
) -> None:
    body = f"{{% block system %}}S{{% endblock %}}{{% block user %}}{expression}{{% endblock %}}"
    with pytest.raises(PromptError, match=r"mine.jinja.*(random|lipsum)"):
        load_prompt(TASK, template(tmp_path, body), "judge", ANY)


def test_no_control_token_from_outside_survives_wherever_a_template_puts_it(tmp_path: Path) -> None:
    user_block = "{% block user %}{{ document }}{{ document | upper }}{% endblock %}"
    body = "{% block system %}{{ topic.title }}{% endblock %}" + user_block
    prompt = load_prompt(TASK, template(tmp_path, body), "judge", ANY)
    for token in CONTROL_TOKENS:
        for message in prompt.render(
            topic=Topic("1", f"before{token}after"), document=f"a {token} b{token}"
        ):
            for each in CONTROL_TOKENS:
                assert each not in message.content and each.upper() not in message.content


def test_a_control_token_in_two_halves_does_not_come_together(tmp_path: Path) -> None:
    body = "{% block system %}{% endblock %}{% block user %}{{ topic.title }}{{ document }}{% endblock %}"
    prompt = load_prompt(TASK, template(tmp_path, body), "judge", ANY)
    for token in ("<|im_end|>", "[/INST]:::", "<<SYS>>:::"):
        for cut in range(1, 10):
            topic = Topic("1", token[:cut])
            assert (
                token.strip(":") not in prompt.render(topic=topic, document=token[cut:])[1].content
            )


@pytest.mark.parametrize(
    "expression",
    [
        "{{ topic }}",
        "{{ topic.objects }}",
        "{{ [document] }}",
        "{{ {'a': document} }}",
        "{{ document | list }}",
    ],
)
def test_a_control_token_inside_a_record_or_a_list_does_not_survive_either(
    tmp_path: Path, expression: str
) -> None:
    body = f"{{% block system %}}{{% endblock %}}{{% block user %}}{expression}{{% endblock %}}"
    prompt = load_prompt(TASK, template(tmp_path, body), "judge", ANY)
    topic = Topic("1", "<|im_end|>", objects=("<|im_end|>", "[INST]"))
    content = prompt.render(topic=topic, document="<|im_end|>")[1].content
    assert "<|im_end|>" not in content and "[INST]" not in content


@pytest.mark.parametrize(
    "seam",
    [
        "<{{ document }}",
        "< {{- document }}",
        "<{% if 1 %}{{ document }}{% endif %}",
        "[{# #}{{ document }}",
    ],
)
def test_a_bracket_just_before_what_is_inserted_is_refused(tmp_path: Path, seam: str) -> None:
    body = f"{{% block system %}}{{% endblock %}}{{% block user %}}{seam}{{% endblock %}}"
    with raises_at(PromptError, tmp_path / "mine.jinja:6"):
        load_prompt(TASK, template(tmp_path, body), "judge", ANY)


@pytest.mark.parametrize(
    "body",
    [
        "{# put <{{ document }}> here #}{{ document }}",
        "{% raw %}[{{x}}]{% endraw %} {{ document }}",
        "{% for part in document.split() %}({{ loop.index }}) {{ part }}{% endfor %}",
        "{% set shown = document %}{{ shown }}",
        "{% macro m(x) %}({{ x }}){% endmacro %}{{ m(document) }}",
        "{%- if document -%} {{ document }} {%- else -%} none {%- endif -%}",
        "{{ topic.objects[0] if topic.objects else '' }} {{ document }}",
    ],
)
def test_what_a_reasonable_template_does_is_allowed(tmp_path: Path, body: str) -> None:
    whole = f"{{# above #}}{{% block system %}}S{{% endblock %}}{{% block user %}}{body}{{% endblock %}}"
    prompt = load_prompt(TASK, template(tmp_path, whole), "judge", ANY)
    assert "THE" in prompt.render(topic=TOPIC, first="a", second="b", document="THE")[1].content


@drawn(st.text(alphabet=st.sampled_from("<>|[]/ aI_\n\u200b＜［") | st.characters()))
def test_neutralising_again_changes_nothing_and_words_stay(text: str) -> None:
    once = sanitize(text)
    assert sanitize(once) == once
    assert [c for c in once if c.isalnum()] == [c for c in text if c.isalnum()]
    assert "<|" not in once and "</" not in once


@pytest.mark.parametrize("folding", ["NFKC", "NFC"])
def test_no_character_that_a_tokeniser_folds_into_a_bracket_stays_joined(
    folding: Literal["NFKC", "NFC"],
) -> None:
    folded = 0
    for character in map(chr, range(sys.maxunicode + 1)):
        form = unicodedata.normalize(folding, character)
        for bracket, token in ("<", "|im_end|>"), ("<", "/s>"), ("[", "INST]"), ("[", "/INST]"):
            if bracket in form:
                folded += 1
                assert f"{bracket}{token}" not in unicodedata.normalize(
                    folding, sanitize(f"a {character}{token} b")
                )
    assert folded == {"NFKC": 12, "NFC": 4}[folding]
    assert sanitize("\ufe47INST\ufe48 \ufe48~b\ufe48") == "\ufe47 INST\ufe48 \ufe48 ~b\ufe48"


def test_a_folder_is_no_error_for_no_tasks(tmp_path: Path) -> None:
    assert find_prompts([], tmp_path) == []
    with raises_at(UsageError, tmp_path):
        find_prompts([get_task("comparative")], tmp_path)
