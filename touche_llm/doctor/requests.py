"""Requests of the checks of a server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from touche_llm.doctor.survey import Survey
from touche_llm.llm.answer_schema import count_alternatives
from touche_llm.llm.request import Message, Request

PROBE_SYSTEM = "Quokka rules apply."
PROBE_USER = "Say wombat."
_INSTRUCTIONS = (
    "Judge how relevant the passage is to the question, from 0 to 3, and which side it takes."
)
PASSAGE = "Question: are heat pumps better than gas boilers?\nPassage: heat pumps are cheaper to run, boilers to buy."


def build_request(
    survey: Survey, text: str, system: str = _INSTRUCTIONS, schema: Mapping[str, Any] | None = None
) -> Request:
    """Return a request for an answer of a schema, by default the first one of the survey."""
    schema = survey.schemas[0] if schema is None else schema
    top_logprobs = min(survey.top_logprobs, count_alternatives(schema))
    return survey.build((Message("system", system), Message("user", text)), schema, top_logprobs)
