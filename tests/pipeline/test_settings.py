"""A folder that holds a run with other settings is not written over, unless the user asks for it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fake_server import FakeServer
from tests.sample_runs import Silent, config_for, run_on
from touche_llm.config.configuration import Config
from touche_llm.config.files import load_config
from touche_llm.errors import UsageError
from touche_llm.runs import resume as provenance
from touche_llm.runs import stages as pipeline
from touche_llm.runs.context import RunContext
from touche_llm.runs.directory import RunDirectory
from touche_llm.tasks import prompts_folder

PORT_NOBODY_LISTENS_ON = "http://127.0.0.1:1"


def check_settings(folder: Path, config: Config, command: str, *, overwrite: bool) -> None:
    with RunContext(config, Silent()) as context:
        provenance.check_settings(RunDirectory(folder), context, command, overwrite=overwrite)


def short(folder: Path, **flags: Any) -> Config:
    return config_for(folder, **{"topic": ("3",), "depth": 3, **flags})


def contents(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.iterdir() if not path.name.startswith(".")}


def changes(error: UsageError) -> list[str]:
    """The names of the settings that an error lists."""
    return [line.partition(":")[0].strip() for line in str(error).splitlines()[1:]]


async def test_a_run_with_other_settings_is_left_as_it_is_and_what_differs_is_listed(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    await run_on(FakeServer(), short(tmp_path), out)
    before = contents(out)
    for name, value in (
        ("depth", 2),
        ("tag", "other"),
        ("weights.quality", 3.0),
        ("sampling.seed", 7),
        ("engine.model", "another"),
        ("retriever.k1", 0.9),
    ):
        changed = short(tmp_path, **{name: value}, engine__base_url=PORT_NOBODY_LISTENS_ON)
        for command in (pipeline.run_all, pipeline.run_retrieve, pipeline.run_judge):
            with pytest.raises(UsageError, match="overwrite: true") as caught:
                await command(changed, out, Silent())
            assert changes(caught.value) == [name]
    assert contents(out) == before
    page, progress = out / "report.html", Silent()
    page.write_text('<head><meta name="generator" content="touche-llm">')
    # The same settings go through wherever and however fast the server is.
    other = {"engine__retry_for": 3.0, "engine__request_timeout": 9.0, "engine__concurrency": 2}
    server = FakeServer()
    await run_on(server, short(tmp_path, **other, actor__name="me"), out)
    assert server.bodies == []
    assert contents(out)["run.txt"] == before["run.txt"]
    assert not page.exists()
    page.write_text("notes of the user")
    replayed = short(tmp_path, cache__mode="replay", engine__context=8192)
    await pipeline.run_all(replayed, out, progress)
    assert page.read_text() == "notes of the user" and not [
        note for note in progress.notices if str(page) in note
    ]
    # A server that serves another model now is noticed before anything is requested.
    before = contents(out)
    server = FakeServer(models=[{"id": "another", "max_model_len": 8192}])
    with pytest.raises(UsageError) as caught:
        await run_on(server, short(tmp_path), out)
    assert (changes(caught.value), server.bodies) == (["engine.model"], [])
    assert contents(out) == before


async def test_a_stage_may_choose_its_settings_as_long_as_nothing_was_made_with_others(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    await pipeline.run_retrieve(short(tmp_path), out, Silent())
    judged = short(
        tmp_path, depth=2, sampling__seed=7, rank=("judge", "balance:3"), engine__model="fake"
    )
    check_settings(out, judged, "judge", overwrite=False)
    for flags, command in (
        ({"depth": 2}, "run"),
        ({"retriever__k1": 0.9}, "judge"),
        ({"topic": ("7",)}, "judge"),
    ):
        with pytest.raises(UsageError):
            check_settings(out, short(tmp_path, **flags), command, overwrite=False)
    (out / "judgments.jsonl").touch()
    with pytest.raises(UsageError) as caught:
        check_settings(out, judged, "judge", overwrite=False)
    assert changes(caught.value) == ["depth", "sampling.seed"]


async def test_inputs_are_the_same_by_content_wherever_they_lie(tmp_path: Path) -> None:
    out = tmp_path / "out"
    await pipeline.run_retrieve(short(tmp_path), out, Silent())
    own = with_own_inputs(tmp_path)
    check_settings(out, short(tmp_path, **own, index=tmp_path / "other"), "run", overwrite=False)
    only_index = short(tmp_path).model_copy(update={"corpus": None})
    check_settings(out, only_index, "run", overwrite=False)
    own["corpus"].write_bytes(own["corpus"].read_bytes() + b'{"id": "x___1", "contents": "tea"}\n')
    await pipeline.run_retrieve(
        short(tmp_path, **own, index=tmp_path / "other"), tmp_path / "edited", Silent()
    )
    with pytest.raises(UsageError) as caught:
        check_settings(tmp_path / "edited", only_index, "run", overwrite=False)
    assert changes(caught.value) == ["corpus"]


async def test_an_output_without_a_configuration_is_not_replaced(tmp_path: Path) -> None:
    name = "candidates.run.txt"
    (tmp_path / name).write_text("of another tool")
    with pytest.raises(UsageError, match="retrieve.*overwrite: true"):
        await pipeline.run_retrieve(short(tmp_path), tmp_path, Silent())
    assert (tmp_path / name).read_text() == "of another tool"
    # To judge the candidates of another tool is no loss of them.
    check_settings(tmp_path, short(tmp_path), "judge", overwrite=False)


def with_own_inputs(folder: Path) -> dict[str, Any]:
    """Copy topics, corpus and a run of candidates; return the flags that take them from there."""
    config = config_for(folder)
    assert config.corpus is not None
    files = {"topics": config.topics, "corpus": config.corpus}
    own = {name: folder / f"own-{file.name}" for name, file in files.items()}
    for name, path in own.items():
        path.write_bytes(files[name].read_bytes())
    return own


async def test_a_template_that_was_edited_is_a_change_with_its_old_and_new_hash(
    tmp_path: Path,
) -> None:
    out, own = tmp_path / "out", {"prompts__folder": tmp_path / "prompts"}
    template = tmp_path / "prompts" / "comparative" / "judge.jinja"
    template.parent.mkdir(parents=True)
    template.write_bytes((prompts_folder() / "comparative" / "judge.jinja").read_bytes())
    await run_on(FakeServer(), short(tmp_path, **own), out)
    before, server = contents(out), FakeServer()
    old = yaml.safe_load(before["ir-metadata.yml"])["stages"]["judge"]["llm"]["prompts"]["judge"]
    template.write_text(template.read_text() + "{# another wording #}\n")
    with pytest.raises(UsageError, match="overwrite: true") as caught:
        await run_on(server, short(tmp_path, **own), out)
    (line,) = str(caught.value).splitlines()[1:]
    name, _, values = line.strip().partition(": ")
    assert (name, values.split(" → ")[0], server.bodies) == ("prompts.judge", old, [])
    for command in ("retrieve", "judge"):
        with pytest.raises(UsageError) as caught:
            check_settings(out, short(tmp_path, **own), command, overwrite=False)
        assert changes(caught.value) == ["prompts.judge"]
    assert contents(out) == before
    await run_on(FakeServer(), short(tmp_path, **own), out, overwrite=True)
    new = yaml.safe_load((out / "ir-metadata.yml").read_bytes())["stages"]["judge"]["llm"][
        "prompts"
    ]["judge"]
    assert values == f"{old} → {new}"


@pytest.mark.parametrize("name", ["topics", "corpus", "candidates"])
async def test_an_input_that_changed_under_the_same_path_is_a_change(
    tmp_path: Path, name: str
) -> None:
    out, own = tmp_path / "out", with_own_inputs(tmp_path)
    await pipeline.run_retrieve(short(tmp_path, **own), tmp_path / "first", Silent())
    if name == "candidates":
        own["candidates"] = tmp_path / "first" / "candidates.run.txt"
    await pipeline.run_retrieve(short(tmp_path, **own), out, Silent())
    os.utime(own[name])  # Read again and the same.
    check_settings(out, short(tmp_path, **own), "judge", overwrite=False)
    own[name].write_bytes(own[name].read_bytes() + b"\n")
    for command in ("run", "retrieve", "judge"):
        with pytest.raises(UsageError) as caught:
            check_settings(out, short(tmp_path, **own), command, overwrite=False)
        assert changes(caught.value) == [name]
    # Judging replaces no candidates, of which the folder has a copy.
    if name == "candidates":
        check_settings(out, short(tmp_path, **own), "judge", overwrite=True)
    else:
        with pytest.raises(UsageError) as caught:
            check_settings(out, short(tmp_path, **own), "judge", overwrite=True)
        assert changes(caught.value) == [name]
    check_settings(out, short(tmp_path, **own), "retrieve", overwrite=True)
    # Without its outputs a stage has made nothing.
    (out / "candidates.run.txt").unlink()
    check_settings(out, short(tmp_path, **own), "run", overwrite=False)


async def test_ranking_compares_no_other_topics_or_documents_than_those_judged(
    tmp_path: Path,
) -> None:
    out, own = tmp_path / "out", with_own_inputs(tmp_path)
    await run_on(FakeServer(), short(tmp_path, **own), out)
    before, server = contents(out), FakeServer()
    for name in ("topics", "corpus"):
        (kept := own[name]).with_suffix(".edited").write_bytes(kept.read_bytes() + b"\n")
        async with server.running():
            given = own | {name: kept.with_suffix(".edited")}
            comparing = short(
                tmp_path, **given, rank=("judge", "pairwise:2"), engine__base_url=server.url
            )
            with pytest.raises(UsageError) as caught:
                await pipeline.run_rank(comparing, out, Silent())
        assert (changes(caught.value), server.bodies, contents(out)) == ([name], [], before)
    # Other weights need neither texts nor titles.
    ranking = await pipeline.run_rank(short(tmp_path, **own, weights__quality=3.0), out, Silent())
    assert len(ranking.lines) == 3


async def test_the_model_is_compared_with_the_one_that_judged_whatever_ranked_since(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    await run_on(FakeServer(), short(tmp_path, engine__model="fake"), out)
    # Ranking without comparisons leaves the engine of the judgments.
    await pipeline.run_rank(short(tmp_path, engine__model="another", tag="again"), out, Silent())
    written = load_config(out / "config.yaml", {})
    assert (written.engine.model, written.tag) == ("fake", "again")
    check_settings(out, written, "judge", overwrite=False)
    other = short(tmp_path, rank=("judge", "pairwise:2"), engine__model="another", tag="again")
    server = FakeServer(models=[{"id": "another", "max_model_len": 8192}])
    async with server.running():
        engine = other.engine.model_copy(update={"base_url": server.url})
        await pipeline.run_rank(other.model_copy(update={"engine": engine}), out, Silent())
    written = load_config(out / "config.yaml", {})
    assert written.engine.model == "another"
    with pytest.raises(UsageError) as caught:
        check_settings(out, written, "judge", overwrite=False)
    assert str(caught.value).splitlines()[1:] == ["  engine.model: fake → another"]
    own = written.model_copy(update={"engine": written.engine.model_copy(update={"model": "fake"})})
    with pytest.raises(UsageError) as caught:
        check_settings(out, own, "judge", overwrite=False)
    assert str(caught.value).splitlines()[1:] == ["  engine.model: another → fake"]


async def test_judging_deeper_than_the_first_stage_is_refused_and_less_deep_is_recorded(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    await pipeline.run_retrieve(short(tmp_path, depth=4), out, Silent())
    found = (out / "candidates.run.txt").read_bytes()
    server = FakeServer()
    async with server.running():
        deeper = short(tmp_path, depth=5, engine__base_url=server.url)
        with pytest.raises(UsageError, match="`depth: 4`"):
            await pipeline.run_judge(deeper, out, Silent())
        assert server.bodies == []
        fewer = short(tmp_path, depth=2, engine__base_url=server.url)
        assert (await pipeline.run_judge(fewer, out, Silent())).requested == 2
        assert (out / "candidates.run.txt").read_bytes() == found
        first, *_ = yaml.safe_load((out / "ir-metadata.yml").read_bytes())["method"]["retrieval"]
        assert first["params"]["depth"] == 4
        all_found = short(tmp_path, depth=4, engine__base_url=server.url)
        assert (await pipeline.run_judge(all_found, out, Silent(), overwrite=True)).requested == 4
