"""The program takes every command on the pages, and prints what the pages say of its runs on the sample."""

from __future__ import annotations

import doctest
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from tests.cli.conftest import Touche
from tests.docs.pages import DOCS, PAGES, ROOT, Block, list_blocks
from touche_llm import cli
from touche_llm.cli.demo import SAMPLES

BLOCKS = [block for page in PAGES for block in list_blocks(page)]
NOTEBOOKS = [page for page in PAGES if "```pycon\n" in page.read_text()]
PROGRAM: Any = get_command(cli.app)
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
OTHER_PROGRAMS = {"vllm", "llama-server", "pip", "pytest", "cp", "."}
BEYOND = re.compile(
    r"vllm serve|llama-server|run-batch|batch ray|--engine (managed|ray)|benchmarks\.gpu|touche-llm tira"
    r"|--retriever (chatnoir|elasticsearch)"
)
TRANSCRIPTS = sorted({block.page for block in BLOCKS if block.language == "console"})


def parse(words: list[str]) -> None:
    """Parse a command as the program does, without running it."""
    command, context = PROGRAM, None
    if words[0] == "--log-file":
        words = words[2:]
    while hasattr(command, "list_commands"):
        name = words.pop(0)
        assert name in command.list_commands(context), f"no command {name}"
        command = command.get_command(context, name)
    command.make_context(command.name, words)


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_command_of_a_page_is_parsed(block: Block) -> None:
    commands = list(block.commands())
    assert commands
    for words in commands:
        match words:
            case ["touche-llm", *arguments]:
                parse(arguments)
            case ["make", *arguments]:
                assert {argument for argument in arguments if "=" not in argument} <= TARGETS
            case ["python", "-m", module, *_]:
                assert (ROOT / f"{module.replace('.', '/')}.py").is_file()
            case [name, *_]:
                assert name in OTHER_PROGRAMS


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_what_needs_more_than_this_machine_is_marked(block: Block) -> None:
    assert bool(block.needs) is bool(BEYOND.search(block.text)), (
        "begin the block with `# needs …`, or leave that out"
    )


@pytest.mark.parametrize("page", TRANSCRIPTS, ids=lambda page: str(page.relative_to(DOCS)))
def test_a_console_prints_what_the_page_says(page: Path, touche: Touche, tmp_path: Path) -> None:
    shutil.copytree(SAMPLES / "comparative", tmp_path / "sample")
    for block in list_blocks(page):
        if block.language != "console":
            continue
        for (_, *arguments), expected in block.transcript():
            done = touche(*arguments)
            assert done.returncode == 0, done.stderr
            printed = iter(done.stdout.splitlines())
            # The page may leave lines out.
            missing = [line for line in expected if line not in printed]
            assert not missing, f"{block}: {' '.join(arguments)} printed\n{done.stdout}"


@pytest.mark.parametrize("page", NOTEBOOKS, ids=lambda page: str(page.relative_to(DOCS)))
@pytest.mark.filterwarnings("ignore::touche_llm.errors.ToucheWarning")
def test_python_prints_what_the_page_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(SAMPLES / "comparative", tmp_path / "sample")
    monkeypatch.chdir(tmp_path)
    examples = "\n".join(
        re.findall(r"^```pycon\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    )
    test = doctest.DocTestParser().get_doctest(examples, {}, str(page), str(page), 0)
    printed: list[str] = []
    failed, attempted = doctest.DocTestRunner(verbose=False).run(test, out=printed.append)
    assert attempted > 5 and not failed, "".join(printed)


def test_the_runs_of_a_folder_are_all_of_the_sample_or_of_none() -> None:
    """Else the run of a page is refused after that of another one."""
    is_sample: dict[str, bool] = {}
    commands = [
        words
        for block in BLOCKS
        for words in block.commands()
        if words[:2] == ["touche-llm", "run"]
    ]
    for words in commands:
        if "--out" in words and "--topics" in words:
            out, topics = (words[words.index(option) + 1] for option in ("--out", "--topics"))
            found = Path(topics).parent.name == "sample"
            assert is_sample.setdefault(out, found) is found, words
    assert set(is_sample.values()) == {True, False}
