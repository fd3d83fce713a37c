"""A check of a server in a file of its own, at the start-up and in `doctor`."""

from __future__ import annotations

import orjson
import pytest

from tests.cli.test_thinking import RUN
from tests.extending.conftest import Extended
from tests.fake_server import FakeServer
from touche_llm.doctor.registry import Feature
from touche_llm.errors import ExtensionError
from touche_llm.extensions import Registry

MODULES = ("tests.extending.allowed_models",)


@pytest.mark.slow
def test_doctor_makes_the_check_after_those_of_the_start_up(extended: Extended) -> None:
    with FakeServer().in_thread() as server:
        done = extended("doctor", server.url, "--format", "json", modules=MODULES)
    names = [row["name"] for row in orjson.loads(done.stdout)]
    place = names.index("allowed model")
    assert done.returncode == 0, done.stderr
    assert names.index("open thought") < place < names.index("white space")
    assert "checking the server: 9/9" in done.stderr


@pytest.mark.slow
def test_a_check_that_blocks_ends_a_run_with_its_remedy(extended: Extended) -> None:
    models = [{"id": "another", "max_model_len": 8192}]
    with FakeServer(models=models).in_thread() as server:
        card = extended("doctor", server.url, "--format", "json", modules=MODULES)
        run = extended(*RUN, "--base-url", server.url, modules=MODULES)
        plain = extended(*RUN, "--base-url", server.url, "--out", "plain")
    blocking = [row["name"] for row in orjson.loads(card.stdout) if row["is_blocking"]]
    assert (card.returncode, blocking) == (1, ["allowed model"])
    assert run.returncode == 1
    assert "another is not on the list; serve another model (--model)" in run.stderr
    assert plain.returncode == 0, plain.stderr


def test_a_name_is_registered_once() -> None:
    registry: Registry[Feature] = Registry("feature")
    feature = registry.register(Feature(name="batches", remedy="use another server"))
    with pytest.raises(ExtensionError) as caught:
        registry.register(Feature(name="batches", remedy="wait"))
    assert caught.value.location == "batches"
    assert registry.by_name == {"batches": feature}
