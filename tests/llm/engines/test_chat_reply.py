"""Completions in chat replies."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from touche_llm.data.records import Malformed, decode_json
from touche_llm.llm.chat import ChatReply, read_completion
from touche_llm.llm.engine import Completion, Transient

USAGE: dict[str, Any] = {"prompt_tokens": 31, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 16}}


def completion(**changes: Any) -> Completion:
    """Return the completion in a reply with these changes."""
    message = {"role": "assistant", "content": '{"relevance":2}'} | changes.pop("message", {})
    reply = {
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": USAGE,
        "system_fingerprint": "vllm-0.32",
    }
    return read_completion(decode_json(orjson.dumps(reply | changes), ChatReply))


def test_every_part_of_a_reply_is_in_the_completion() -> None:
    assert completion() == Completion(
        text='{"relevance":2}',
        finish_reason="stop",
        prompt_tokens=31,
        completion_tokens=7,
        tokens=[],
        fingerprint="vllm-0.32",
        cached_tokens=16,
    )


def test_parts_that_a_server_leaves_out_are_none() -> None:
    bare = completion(message={"content": None}, usage={}, system_fingerprint=None)
    assert (bare.text, bare.prompt_tokens, bare.completion_tokens) == ("", 0, 0)
    assert (bare.fingerprint, bare.cached_tokens, bare.refusal, bare.reasoning) == (None, None, None, None)


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_is_read_under_either_name(name: str) -> None:
    found = completion(message={"content": "", name: "Let me think.", "refusal": None})
    assert (found.text, found.reasoning, found.refusal) == ("", "Let me think.", None)


@pytest.mark.parametrize(
    ("finish_reason", "message", "lacks"),
    [("stop", {}, True), ("length", {}, False), ("stop", {"refusal": "No."}, False), ("stop", {"content": " "}, False)],
)
def test_only_a_complete_answer_can_lack_log_probabilities(
    finish_reason: str, message: dict[str, str], lacks: bool
) -> None:
    choice = {"message": {"content": '{"relevance":2}'} | message, "finish_reason": finish_reason}
    assert decode_json(orjson.dumps({"choices": [choice]}), ChatReply).lacks_logprobs is lacks


def test_a_refusal_is_separate_from_the_text() -> None:
    found = completion(message={"content": None, "refusal": "I will not."})
    assert (found.text, found.refusal, found.reasoning) == ("", "I will not.", None)


def test_a_reply_without_a_choice_is_broken_and_more_cached_than_prompt_tokens_are_malformed() -> None:
    with pytest.raises(Transient) as caught:
        completion(choices=[])
    assert caught.value.max_tries is not None
    with pytest.raises(Malformed):
        completion(usage=USAGE | {"prompt_tokens": 15})
    assert completion(usage=USAGE | {"prompt_tokens": 16}).cached_tokens == 16


def choice(text: str, alternatives: list[object]) -> dict[str, Any]:
    """Return a choice of one token."""
    token = {"token": text, "logprob": -0.1, "top_logprobs": alternatives}
    return {"message": {"content": text}, "finish_reason": "stop", "logprobs": {"content": [token]}}


def test_of_several_choices_the_first_counts() -> None:
    sent = {"choices": [choice("1", []), choice("2", [{"token": "2", "logprob": -0.1}])]}
    reply = decode_json(orjson.dumps(sent), ChatReply)
    assert (read_completion(reply).text, reply.lacks_logprobs) == ("1", True)


def test_alternatives_of_another_form_are_found_by_a_check() -> None:
    decode_json(orjson.dumps({"choices": [choice("1", [{"token": "1", "logprob": -0.1}])]}), ChatReply).check()
    with pytest.raises(Malformed):
        decode_json(orjson.dumps({"choices": [choice("1", [{"token": "1"}])]}), ChatReply).check()
