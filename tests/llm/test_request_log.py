"""Log of requests."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.answer_models import ComparativeJudgment
from tests.llm.test_model import ANSWER, request_about
from tests.scripted_engine import FACTS, ScriptedEngine
from touche_llm.llm.cache import Cache
from touche_llm.llm.engine import Completion, Rejected, Transient
from touche_llm.llm.model import ModelClient
from touche_llm.llm.request import Request


class Unreliable(ScriptedEngine):
    """Rejects or loses requests about documents with such a name."""

    async def complete(self, request: Request) -> Completion:
        text = request.messages[-1].content
        if "rejected" in text:
            raise Rejected(400, "a secret reason")
        if "lost" in text:
            raise Transient("timeout", "a secret reason")
        return await super().complete(request)


async def send(folder: Path, *documents: str) -> None:
    with Cache(folder / "c.sqlite") as cache:
        model = ModelClient(engine_info=FACTS, engine=Unreliable(lambda _: ANSWER), cache=cache, retry_for=0.0)
        for document in documents:
            await model.request(request_about(document), ComparativeJudgment)


async def test_each_request_is_logged_once_with_its_result_and_texts_only_in_their_own_logger(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "touche_llm")
    caplog.set_level(logging.DEBUG, "touche_llm.text")
    await send(tmp_path, "a secret", "rejected", "lost", "a secret")
    records = [record for record in caplog.records if record.name != "touche_llm.text"]
    name = "comparative/judge, topic 7, document doc, sample 0: "
    assert all(record.getMessage().startswith(name) for record in records)
    assert [(record.levelname, record.getMessage().removeprefix(name).split()[0]) for record in records] == [
        ("DEBUG", "answer"),
        ("WARNING", "server_error"),
        ("WARNING", "timeout"),
    ]
    assert not any("secret" in record.getMessage() for record in records)
    texts = [record.getMessage() for record in caplog.records if record.name == "touche_llm.text"]
    assert any("Passage: a secret" in text for text in texts) and any("a secret reason" in text for text in texts)
