from __future__ import annotations

import pytest

from touche_llm.data.records import Malformed, Objects


def test_a_name_of_any_length_makes_a_message_of_bounded_length() -> None:
    content = b'{"topic_id":"1","objects":["a","b"],"prompt":"p","%s":1}' % (b"x" * 5000)
    with pytest.raises(Malformed) as refused:
        Objects.from_json(content)
    assert len(str(refused.value)) == 400
