"""Parsing of answers, with typed failures."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import cast

from pydantic import ValidationError
from pydantic_core import from_json

from touche_llm.errors import Unusable
from touche_llm.llm.answer_schema import AnswerForm, AnswerModel, AnswerT, abbreviate, get_labels

_PAIRS = json.JSONDecoder(object_pairs_hook=list)


def parse_answer(text: str, model: type[AnswerT], form: AnswerForm = AnswerForm.OBJECT) -> AnswerT:
    """Parse the text of an answer, which may be any text.

    Raise Unusable, of kind `not_json` or `outside_schema`.
    """
    return cast(AnswerT, _parse(text, model, form))


# Few different answers consist of labels, and each is parsed when it arrives and when it is read
# from the cache.
@lru_cache(maxsize=1024)
def _parse(text: str, model: type[AnswerModel], form: AnswerForm) -> AnswerModel:
    labels = get_labels(model)
    if form is AnswerForm.TEXT:
        return model.model_validate({"text": text.encode("utf-8", errors="replace").decode()})
    if not text.strip():
        raise Unusable("not_json", "the answer is empty", text)
    try:
        # Lone surrogates cannot be encoded; no engine sends them, but a cassette can hold them.
        values = from_json(text.encode("utf-8", errors="replace"), allow_inf_nan=False)
    except ValueError as error:
        raise Unusable("not_json", f"Invalid JSON: {error}"[:300], text) from error
    if form is not AnswerForm.OBJECT:
        if not isinstance(values, list) or len(values) != len(model.model_fields):
            raise Unusable(
                "outside_schema", f"expected {len(model.model_fields)} values in {form} form", text
            )
        values = dict(zip(model.model_fields, values, strict=True))
    if form is AnswerForm.LETTERS:
        for name, letter in values.items():
            found = [
                label
                for label in labels[name]
                if type(label) is type(letter) and abbreviate(label) == letter
            ]
            values[name] = found[0] if found else None
    try:
        answer = model.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        reason = f"{where}: {first['msg']}" if where else first["msg"]
        raise Unusable("outside_schema", reason[:300], text) from error
    # JSON does not define which value of a repeated key counts, so none does.
    if form is AnswerForm.OBJECT and len(_PAIRS.decode(text)) != len(values):
        raise Unusable("outside_schema", "a key occurs twice", text)
    # `false` and `0.0` equal 0 in Python, but not in JSON.
    for name, found in values.items():
        if name in labels and not any(
            type(found) is type(label) and found == label for label in labels[name]
        ):
            raise Unusable("outside_schema", f"{name}: {found!r} is no label", text)
    return answer
