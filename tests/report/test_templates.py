"""Every attribute that a page template names exists in its record."""

from __future__ import annotations

import pytest

from tests.report.template_types import TemplateCheck
from touche_llm.report.comparison_page import ComparisonPage
from touche_llm.report.matrix import MatrixPage
from touche_llm.report.page import Page, create_environment
from touche_llm.report.run_page import RunPage

PAGES = (RunPage, ComparisonPage, MatrixPage)


def read_template(page: type[Page]) -> str:
    environment = create_environment()
    assert environment.loader is not None
    source, _, _ = environment.loader.get_source(environment, f"{page.template}.html.jinja")
    return source


def find_problems(source: str, page: type[Page]) -> list[str]:
    return TemplateCheck(create_environment()).check(source, page)


@pytest.mark.parametrize("page", PAGES)
def test_a_template_names_only_attributes_of_its_record(page: type[Page]) -> None:
    assert find_problems(read_template(page), page) == []


@pytest.mark.parametrize(
    ("page", "right", "wrong"),
    [
        (RunPage, "page.failures.total", "page.failures.sum"),
        (RunPage, "row.run %}", "row.runs %}"),
        (RunPage, "sentence.readings.items()", "sentence.reading.items()"),
        (ComparisonPage, "change.p_holm", "change.holm"),
        # A macro of another template gets a record of another type.
        (ComparisonPage, "interval(change.interval)", "interval(change)"),
        (MatrixPage, "cell.is_stance_hit", "cell.is_hit"),
    ],
)
def test_a_misspelt_attribute_is_found(page: type[Page], right: str, wrong: str) -> None:
    source = read_template(page)
    assert right in source
    assert find_problems(source.replace(right, wrong), page)
