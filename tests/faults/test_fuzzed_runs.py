"""Whole runs, and start-up checks, against a server whose endpoints all send malformed replies now and then."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import orjson
import pytest

from tests.fake_server import fields_in, schema_in
from tests.faults.fuzz_server import FuzzServer, Plan, honest, probe
from tests.faults.reply_kinds import KINDS, Good, Kind, Pieces, good, http
from tests.faults.tally import Tally
from tests.faults.test_replies import is_short
from tests.sample_runs import Silent, config_for
from touche_llm.config.configuration import Config
from touche_llm.doctor.examination import connect
from touche_llm.doctor.survey import ServerUnderTest
from touche_llm.engines.chat import ChatServer
from touche_llm.engines.settings import EngineConfig
from touche_llm.errors import EngineError, ReplayMiss
from touche_llm.evaluation.validation import validate_run
from touche_llm.llm.answer_schema import Layout
from touche_llm.llm.cache import CacheMode
from touche_llm.llm.settings import SamplingConfig
from touche_llm.runs import stages as pipeline
from touche_llm.runs.stages import RunResult
from touche_llm.tasks import get_task

_OF_ANY_JSON = (
    "JSON",
    "statuses",
    "statuses that end the run",
    "connections",
    "headers",
    "transfer",
)
GENERAL = [kind for kind in KINDS.values() if kind.family in _OF_ANY_JSON]
PASSING = [kind for kind in KINDS.values() if kind.outcomes != {"ends"}]


def start_up_plan(kind: Kind, endpoint: str, rng: random.Random) -> Plan:
    """Send one endpoint's replies as this kind, and the others as they are."""

    def plan(path: str, body: bytes) -> Pieces:
        payload = probe(body) if path == "/v1/chat/completions" else honest(path, body)
        assert payload is not None
        return (
            kind.make(rng, Good(orjson.loads(payload), {})) if path == endpoint else [http(payload)]
        )

    return plan


def run_plan(share: float, rng: random.Random) -> Plan:
    """Send this share of all replies after the start-up check malformed."""

    def plan(path: str, body: bytes) -> Pieces:
        if path != "/v1/chat/completions":
            payload = honest(path, body)
            if not is_checked or rng.random() >= share:
                return [http(payload)]
            kinds = [kind for kind in GENERAL if kind.outcomes != {"ends"} or rng.random() < 0.02]
            return rng.choice(kinds).make(rng, Good(orjson.loads(payload), {}))
        start_up = probe(body)
        if start_up is not None:
            is_checked.append(True)
            return [http(start_up)]
        request = orjson.loads(body)
        fields = {name: each["enum"] for name, each in fields_in(request).items()}
        form = Layout.of_schema(schema_in(request)).form
        kind = rng.choice(PASSING) if rng.random() < share else KINDS["good"]
        return kind.make(rng, good(rng, "", fields, form))

    is_checked: list[bool] = []
    return plan


@pytest.mark.parametrize(
    "rounds", [pytest.param(1, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.nightly)]
)
@pytest.mark.parametrize(
    "endpoint", ["/v1/models", "/version", "/tokenize", "/v1/chat/completions"]
)
async def test_a_malformed_reply_at_start_up_is_one_error_or_none(
    endpoint: str, rounds: int, fault_seed: int, tally: Tally
) -> None:
    for number, kind in enumerate(GENERAL * rounds):
        server = FuzzServer(
            start_up_plan(kind, endpoint, random.Random(f"{fault_seed}/{endpoint}/{number}"))
        )
        client = ChatServer("", concurrency=4, request_timeout=60.0, chat_template_kwargs={})
        outcome = "answers"
        async with server.running(), client, asyncio.timeout(120):
            client.base_url = server.url
            try:
                examined = await connect(ServerUnderTest(client, EngineConfig(), SamplingConfig()))
            except EngineError as error:
                outcome = "ended"
                assert is_short(error), kind.name
            else:
                assert examined.info.context >= 0 and examined.info.overhead >= 0
        tally.add("replies: start-up", replies=server.replies, tried=1, held=1, **{outcome: 1})


@pytest.mark.parametrize(
    "runs", [pytest.param(2, marks=pytest.mark.slow), pytest.param(10, marks=pytest.mark.nightly)]
)
async def test_a_run_ends_whole_or_with_one_error_and_replays(
    runs: int, tmp_path: Path, fault_seed: int, tally: Tally
) -> None:
    for number in range(runs):
        rng = random.Random(f"{fault_seed}/{number}")
        server = FuzzServer(run_plan(rng.choice([0.05, 0.3, 0.8]), rng))
        folder = tmp_path / str(number)
        flags = {"depth": 6, "stance__depth": 3, "engine__retry_for": 0.2, "engine__concurrency": 8}
        outcome = None
        async with server.running(), asyncio.timeout(300):
            config = config_for(folder, engine__base_url=server.url, **flags)
            try:
                outcome = await pipeline.run_all(config, folder / "out", Silent())
            except EngineError as error:
                assert is_short(error)
        if outcome is not None:
            assert validate_run(folder / "out" / "run.txt", get_task("comparative")) == []
            await check_replay(config, folder, outcome)
        how = "ended" if outcome is None else "failures" if outcome.failures else "answers"
        tally.add("replies: runs", replies=server.replies, tried=1, held=1, **{how: 1})


async def check_replay(config: Config, folder: Path, outcome: RunResult) -> None:
    """Check that a run comes out the same from its cache alone, or that failures are all that is missing."""
    replay = config.model_copy(
        update={"cache": config.cache.model_copy(update={"mode": CacheMode.REPLAY})}
    )
    try:
        again = await pipeline.run_all(replay, folder / "again", Silent())
    except ReplayMiss:
        assert outcome.failures
    else:
        assert again.failures == outcome.failures
        assert (folder / "again" / "run.txt").read_bytes() == (
            folder / "out" / "run.txt"
        ).read_bytes()
