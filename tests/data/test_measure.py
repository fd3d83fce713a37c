from __future__ import annotations

import pytest

from touche_llm.data.measure import MACRO_F1, Measure, MeasureName, make_headline_ndcg

TEXTS = {
    "relevance nDCG@5": make_headline_ndcg("relevance"),
    "quality touche_nDCG@5": Measure("quality", MeasureName.TOUCHE_NDCG, 5),
    "my_aspect P@5": Measure("my_aspect", MeasureName.PRECISION, 5),
    "relevance R@1000": Measure("relevance", MeasureName.RECALL, 1000),
    "relevance judged@10": Measure("relevance", MeasureName.JUDGED, 10),
    "stance judged": Measure("stance", MeasureName.JUDGED),
    "quality kappa": Measure("quality", MeasureName.KAPPA),
    "stance macro-F1": MACRO_F1,
    "stance accuracy@5": Measure("stance", MeasureName.ACCURACY, 5),
    "stance precision precision": Measure("stance", MeasureName.LABEL_PRECISION, label="precision"),
    "stance recall NO": Measure("stance", MeasureName.LABEL_RECALL, label="NO"),
}


@pytest.mark.parametrize("text", TEXTS)
def test_a_measure_is_written_as_its_text_and_read_from_it(text: str) -> None:
    measure = Measure.parse(text)
    assert measure == TEXTS[text] and str(measure) == text
    assert f"{measure.aspect} {measure.short_text}" == text


@pytest.mark.parametrize("text", ["", "nDCG@5", "relevance", "relevance ", "relevance nDCG@05"])
def test_text_without_the_parts_of_a_measure_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="is no measure") as error:
        Measure.parse(text)
    assert repr(text) in str(error.value)


def test_the_share_of_judged_documents_has_the_cutoff_of_its_measure() -> None:
    assert str(make_headline_ndcg("quality").judged) == "quality judged@5"
    assert str(MACRO_F1.judged) == "stance judged"
