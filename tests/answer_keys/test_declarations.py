"""Every setting says whether it enters answer keys."""

from __future__ import annotations

from tests.answer_keys.cases import CHANGES, OTHER_REQUESTS
from touche_llm.config.configuration import list_key_declarations
from touche_llm.settings.section import AnswerKey

DECLARATIONS = list_key_declarations()


def test_every_setting_declares_whether_it_enters_answer_keys() -> None:
    assert [name for name, declaration in DECLARATIONS.items() if declaration is None] == []


def test_every_setting_that_enters_has_another_value_to_test() -> None:
    entering = {name for name, found in DECLARATIONS.items() if found is AnswerKey.ENTERS}
    assert CHANGES.keys() == entering


def test_settings_that_are_tested_to_stay_out_declare_it() -> None:
    declared = {name: DECLARATIONS[name] for name in OTHER_REQUESTS}
    assert declared == dict.fromkeys(OTHER_REQUESTS, AnswerKey.STAYS_OUT)
