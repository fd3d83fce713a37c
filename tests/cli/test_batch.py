"""The batch commands as a user meets them."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest
import yaml

from tests import batch_replies as b
from tests.batch.conftest import FakeRay
from tests.cli.conftest import Done, Touche
from touche_llm.cli.demo import SAMPLES
from touche_llm.runs.directory import RunDirectory

SAMPLE = SAMPLES / "comparative"
DATA = [
    "--topics",
    str(SAMPLE / "topics.xml"),
    "--corpus",
    str(SAMPLE / "passages.jsonl"),
    "--topic",
    "3",
]
MODEL = ["--model", "served", "--context", "32768", "--stance-depth", "0"]
EXPORT = ["batch", "export", "judge", "--out", "run", *MODEL]
REPLAY = ["--out", "run", "--cache-mode", "replay", "--stance-depth", "0"]
GOOD = '[2,1,"Y","F"]'
ON_RAY = ["--model", "models/tiny", "--context", "32768"]
ON_RAY += ["--set", 'engine.options.placement_group_config={"bundles":[{"CPU":1}]}']


@pytest.fixture
def retrieved(touche: Touche) -> None:
    assert touche("retrieve", *DATA, "--out", "run", "--depth", "3").returncode == 0


@pytest.fixture
def ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    return FakeRay(tmp_path, monkeypatch)


def replied(requests: Path, text: str = GOOD) -> list[b.Line]:
    return [b.replied(line["custom_id"], b.body(text, model="served")) for line in b.read(requests)]


def run_batch(words: list[str], text: str) -> dict[str, str]:
    """Do as the command `vllm run-batch`, whose model says this text; the options by name."""
    assert words[:2] == ["vllm", "run-batch"]
    options = dict(zip(words[2:8:2], words[3:9:2], strict=True))
    options |= dict(word.split("=", 1) for word in words[8:])
    b.write(Path(options["-o"]), replied(Path(options["-i"]), text))
    return options


def commands_in(done: Done) -> list[list[str]]:
    """The words of the commands that were printed, of this program without its name."""
    lines = done.stdout.splitlines()
    own = [line[line.index("touche-llm ") :] for line in lines if "touche-llm " in line]
    of_vllm = [line for line in lines if "vllm run-batch " in line]
    return [*map(shlex.split, of_vllm), *(shlex.split(line)[1:] for line in own)]


@pytest.mark.usefixtures("retrieved")
def test_following_the_printed_commands_ranks_as_was_exported(
    touche: Touche, tmp_path: Path
) -> None:
    settings = ["--set", "ranking.listwise.shuffles=2", "--set", "ranking.document_tokens=5000"]
    given = ["--rank", "judge,listwise:3", "--weight-quality", "0", *settings]
    assert touche(*EXPORT).returncode == 0
    b.write(tmp_path / "responses.jsonl", replied(tmp_path / "run" / "requests.jsonl"))
    assert touche("batch", "import", "responses.jsonl", "--out", "run").returncode == 0
    done = touche(*EXPORT)
    assert (done.returncode, done.stdout.partition(":")[0]) == (0, "nothing is pending")
    assert not (tmp_path / "run" / "requests.jsonl").exists()
    assert touche("judge", *REPLAY).returncode == 0
    for _ in range(9):
        done = touche("batch", "export", "rank", "--out", "run", *MODEL[:4], *given)
        assert done.returncode == 0, done.stderr
        first, *others = commands_in(done)
        if not others:
            break
        options = run_batch(first, '["C > B > A"]')
        imported = touche(*others[0])
        assert imported.returncode == 0, imported.stderr
    assert commands_in(imported) == [first]
    assert touche(*" ".join(first).partition(",")[0].split(), *given).returncode == 0
    assert (options["-i"], options["-o"]) == ("run/requests.jsonl", "responses.jsonl")
    assert (options["--served-model-name"], options["--max-model-len"]) == ("served", "32768")
    assert json.loads(options["--structured-outputs-config"])["disable_any_whitespace"] is True
    written = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert (written["rank"], written["weights"]["quality"]) == (["judge", "listwise:3"], 0.0)
    assert written["ranking"]["listwise"]["shuffles"] == 2
    assert (tmp_path / "run" / "comparisons.jsonl").stat().st_size > 0


@pytest.mark.usefixtures("retrieved")
def test_unusable_answers_are_counted_by_kind_with_an_example(
    touche: Touche, tmp_path: Path
) -> None:
    touche(*EXPORT)
    b.write(
        tmp_path / "responses.jsonl", replied(tmp_path / "run" / "requests.jsonl", "Well\x1b[31m")
    )
    done = touche("batch", "import", "responses.jsonl", "--out", "run")
    assert done.returncode == 3
    assert done.stdout.splitlines()[2].split() == ["stored", "0"]
    assert (
        done.stdout.splitlines()[3].split()[:2] == ["not_json", "3"] and "\x1b" not in done.stdout
    )
    assert "3 requests now" in touche(*EXPORT).stdout


@pytest.mark.usefixtures("retrieved")
def test_a_refused_question_is_given_up_and_the_run_is_made_without_it(
    touche: Touche, tmp_path: Path
) -> None:
    touche(*EXPORT)
    first, *rest = replied(tmp_path / "run" / "requests.jsonl")
    b.write(tmp_path / "responses.jsonl", [b.refused(first["custom_id"]), *rest])
    done = touche("batch", "import", "responses.jsonl", "--out", "run")
    assert done.returncode == 3
    assert [line.split()[:2] for line in done.stdout.splitlines()[2:4]] == [
        ["stored", "2"],
        ["status_400", "1"],
    ]
    assert "--retry-failures" in done.stdout
    assert "1 questions have no usable answer" in done.stdout
    again = touche(*EXPORT)
    assert (again.returncode, again.stdout.partition(":")[0]) == (0, "nothing is pending")
    assert touche("judge", *REPLAY).returncode == 3
    assert touche("rank", "--out", "run").returncode == 3
    assert len((tmp_path / "run" / "run.txt").read_text().splitlines()) == 3
    (failure,) = b.read(tmp_path / "run" / "failures.jsonl")
    assert [each["reason"] for each in failure["attempts"]] == [
        "HTTP 400 from /v1/chat/completions: too long"
    ]
    assert {path.name for path in (tmp_path / "run").iterdir()}.isdisjoint({"batch_unusable.jsonl"})
    assert "1 requests now" in touche(*EXPORT, "--retry-failures").stdout
    # The next export goes by what the retried one has forgotten.
    assert "1 requests now" in touche(*EXPORT).stdout
    b.write(tmp_path / "responses.jsonl", replied(tmp_path / "run" / "requests.jsonl"))
    assert touche("batch", "import", "responses.jsonl", "--out", "run").returncode == 0
    assert touche("judge", *REPLAY).returncode == 0


@pytest.mark.usefixtures("retrieved")
def test_what_does_not_fit_is_one_line_that_says_what_to_do(touche: Touche, tmp_path: Path) -> None:
    def fails(code: int, said: str, *arguments: str) -> None:
        done = touche(*arguments)
        assert (done.returncode, done.stdout) == (code, "")
        assert said in done.stderr and "Traceback" not in done.stderr

    fails(
        1,
        "run `touche-llm batch export` for this folder first",
        "batch",
        "import",
        "r.jsonl",
        "--out",
        "run",
    )
    fails(2, "--model", *EXPORT[:5])
    fails(2, "a stage before `judge` depends on it", *EXPORT, "--set", "retriever.k1=1")
    fails(2, "--tokenizer", *EXPORT, "--context", "1100")
    fails(2, "nowhere: no tokenizer", *EXPORT, "--tokenizer", "nowhere")
    assert not (tmp_path / "run" / "requests.jsonl").exists()
    assert touche(*EXPORT).returncode == 0
    (tmp_path / "r.jsonl").write_text("{}\n")
    fails(1, "r.jsonl:1: not one of the responses", "batch", "import", "r.jsonl", "--out", "run")
    b.write(tmp_path / "r.jsonl", [b.replied("7", b.body(GOOD, model="served"))])
    fails(1, "r.jsonl:1: 7: ", "batch", "import", "r.jsonl", "--out", "run")


def test_queries_can_be_asked_for_before_there_is_a_folder(touche: Touche, tmp_path: Path) -> None:
    given = ["retrieve", *DATA, "--out", "new", "--query-expansion"]
    assert (
        touche("batch", "export", *given, "--model", "served", "--context", "4096").returncode == 0
    )
    text = '{"query1":"one more","query2":"another one","query3":"a third"}'
    b.write(tmp_path / "r.jsonl", replied(tmp_path / "new" / "requests.jsonl", text))
    assert touche("batch", "import", "r.jsonl", "--out", "new").returncode == 0
    assert touche(*given, "--cache-mode", "replay").returncode == 0
    assert "a third" in (tmp_path / "new" / "queries.jsonl").read_text()


@pytest.mark.usefixtures("retrieved")
def test_export_and_import_are_refused_while_another_command_writes_in_the_folder(
    touche: Touche, tmp_path: Path
) -> None:
    assert touche(*EXPORT).returncode == 0
    b.write(tmp_path / "responses.jsonl", replied(tmp_path / "run" / "requests.jsonl"))
    before = {
        path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.name[0] != "."
    }
    with RunDirectory(tmp_path / "run").lock("judge", print):
        for command in (EXPORT, ["batch", "import", "responses.jsonl", "--out", "run"]):
            done = touche(*command)
            assert (done.returncode, f"process {os.getpid()} " in done.stderr) == (2, True), (
                done.stderr
            )
        assert touche("judge", "--out", "run", "--dry-run").returncode == 0
    assert {
        path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.name[0] != "."
    } == before


@pytest.mark.usefixtures("retrieved")
def test_a_file_of_requests_is_answered_and_imported(
    touche: Touche, tmp_path: Path, ray: FakeRay
) -> None:
    assert touche(*EXPORT[:5], "--model", "models/tiny", *MODEL[2:]).returncode == 0
    answer = ["batch", "ray", "run/requests.jsonl", "-o", "responses.jsonl", *ON_RAY]
    done = touche(*answer, "--set", "engine.options.tensor_parallel_size=2")
    assert (done.returncode, done.stdout) == (0, "responses: responses.jsonl (3 requests)\n"), (
        done.stderr
    )
    vllm_options = ray.seen("config")[0]["engine_kwargs"]
    assert (vllm_options["max_model_len"], vllm_options["tensor_parallel_size"]) == (32768, 2)
    assert touche("batch", "import", "responses.jsonl", "--out", "run").returncode == 0

    before = (tmp_path / "responses.jsonl").read_bytes()
    refused = touche(*answer)
    assert (refused.returncode, len(ray.seen("config"))) == (2, 1)
    assert (tmp_path / "responses.jsonl").read_bytes() == before
    rows = json.loads(touche(*answer, "--overwrite", "--format", "json").stdout)
    assert rows == [{"file": "responses.jsonl", "requests": 3}]


@pytest.mark.usefixtures("retrieved")
def test_what_cannot_be_answered_ends_the_command_before_ray_starts(
    touche: Touche, tmp_path: Path, ray: FakeRay
) -> None:
    assert touche(*EXPORT[:5], "--model", "models/tiny", *MODEL[2:]).returncode == 0
    answer = ["batch", "ray", "run/requests.jsonl", *ON_RAY]
    for more in (
        ["-o", "run/requests.jsonl", "--overwrite"],
        ["-o", "r.jsonl", "--context", "0"],
        ["-o", "r.jsonl", "--set", "engine.options.api_key=1"],
        ["-o", "r.jsonl", "--set", "engine.revision=1"],
        ["-o", "r.jsonl", "--model", "nowhere"],
    ):
        done = touche(*answer, *more)
        assert (done.returncode, done.stdout) == (2, ""), more
        assert "Traceback" not in done.stderr
    assert ray.seen("init") == []
    # Without a context, and on a machine without a GPU.
    assert touche(*answer[:5], "-o", "r.jsonl").returncode == 2
    done = touche(*answer[:7], "-o", "r.jsonl")
    assert done.returncode == 1 and "RAY_ADDRESS" in done.stderr
    assert not (tmp_path / "r.jsonl").exists()


def test_one_command_makes_a_whole_run_with_ray(
    touche: Touche, tmp_path: Path, ray: FakeRay
) -> None:
    engine = ["--engine", "ray", *ON_RAY]
    given = [*DATA, "--out", "run", "--depth", "3", "--stance-depth", "0"]
    done = touche("run", *given, *engine)
    assert (done.returncode, "3 judgments" in done.stdout) == (0, True), done.stderr
    assert [len(rows) for rows in ray.seen("rows")] == [3]
    # Stage by stage: the answers are in the cache, and the ranking requests its own.
    assert touche("judge", *given[len(DATA) :]).returncode == 0
    assert touche("rank", "--out", "run", "--rank", "judge,pairwise:2").returncode == 0
    assert len(ray.seen("rows")) > 1
    assert len((tmp_path / "run" / "run.txt").read_text().splitlines()) == 3
