"""The card of a server, in the terminal and as JSON."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import orjson
import pytest

from tests.fake_server import FakeServer
from tests.llm.engines.test_conformance import Model
from tests.other_servers import FakeLmStudio


async def doctor(server: FakeServer, *more: str) -> tuple[int | None, str, str]:
    """Exit code and output of the command."""
    async with server.running():
        process = await asyncio.create_subprocess_exec(
            *[sys.executable, "-m", "touche_llm", "doctor", server.url, *more],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        output, errors = await process.communicate()
    return process.returncode, output.decode(), errors.decode()


@pytest.mark.slow
async def test_the_card_fits_80_columns_and_names_what_is_missing() -> None:
    model = Model(("silent",))
    code, output, errors = await doctor(FakeServer(rest=model.answer, probe=model.answer))
    table = output.split("prefix cache:")[0].splitlines()
    assert (code, errors, max(map(len, table)) <= 80) == (0, "", True)
    assert [line.split("  ")[0] for line in table[2:]][:3] == ["server", "model", "context"]
    assert "prefix cache: not reported" in output and "--enable-prompt-tokens-details" in output


@pytest.mark.slow
async def test_a_run_that_could_not_be_made_is_exit_code_1_and_options_are_named() -> None:
    code, output, errors = await doctor(FakeLmStudio(), "--format", "json")
    found = {row["name"]: row for row in orjson.loads(output)}
    assert code == 1 and "could not be made" in errors
    assert [name for name, row in found.items() if row["is_blocking"]] == ["context", "tokens", "logprobs"]
    remedies = [found[name]["remedy"] for name in ("context", "tokens", "logprobs")]
    assert all(flag in text for flag, text in zip(("--context", "--tokenizer", "--no-logprobs"), remedies, strict=True))
    code, output, _ = await doctor(FakeLmStudio(), "--context", "512", "--no-logprobs", "--format", "json")
    assert [row["name"] for row in orjson.loads(output) if row["is_blocking"]] == ["tokens"]
