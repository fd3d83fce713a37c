"""Messages for invalid settings, from the errors of pydantic."""

from __future__ import annotations

from typing import Any

from pydantic_core import ErrorDetails

_MAX_QUOTE_CHARS = 40
# Expected value by the type of pydantic's error; placeholders come from the context of the error.
_EXPECTED = {
    "greater_than_equal": "{ge} or more",
    "greater_than": "more than {gt}",
    "less_than_equal": "{le} or less",
    "less_than": "less than {lt}",
    "finite_number": "a finite number",
    "literal_error": "{expected}",
    "enum": "{expected}",
    "string_pattern_mismatch": "text of the form {pattern}",
    "string_too_short": "text of at least {min_length} characters",
    "string_too_long": "text of at most {max_length} characters",
    "too_short": "a list of at least {min_length}",
    "too_long": "a list of at most {max_length}",
    **dict.fromkeys(("int_type", "int_parsing", "int_parsing_size", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("string_type", "string_unicode", "string_sub_type"), "text"),
    **dict.fromkeys(("path_type",), "a path"),
    **dict.fromkeys(("list_type", "tuple_type", "set_type"), "a list"),
    **dict.fromkeys(("dict_type", "mapping_type", "model_type", "model_attributes_type"), "names and values"),
    **dict.fromkeys(("datetime_type", "datetime_parsing", "datetime_from_date_parsing", "timezone_aware"), "a time"),
}
# Other text is not quoted: it may be an API key in the wrong place.
_QUOTED = (bool, int, float, type(None))
_QUOTED_TEXT = ("literal_error", "enum", "int_parsing", "float_parsing", "bool_parsing")


def describe_problem(error: ErrorDetails) -> str:
    """Return the expected value and, if it may be quoted, the actual one; the caller adds the location."""
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    if kind == "missing":
        return "missing"
    if kind == "extra_forbidden":
        return "no such name"
    if kind not in _EXPECTED:
        return error["msg"].removeprefix("Value error, ")
    is_quoted = isinstance(value, _QUOTED) or (isinstance(value, str) and kind in _QUOTED_TEXT)
    return f"must be {_EXPECTED[kind].format(**context)}{f', not {_quote(value)}' if is_quoted else ''}"


def _quote(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_QUOTE_CHARS else f"{text[:_MAX_QUOTE_CHARS]}…"
