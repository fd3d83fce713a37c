"""What the package says of its license and version, how it is built, and what runs elsewhere."""

from __future__ import annotations

import hashlib
import re
import tomllib
from pathlib import Path

import yaml

from touche_llm import __version__

ROOT = Path(__file__).parents[1]
# Of https://www.apache.org/licenses/LICENSE-2.0.txt
APACHE = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"


def test_the_license_is_apache_2_word_for_word_and_travels_with_the_package() -> None:
    described = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert described["project"]["license"] == "Apache-2.0"
    assert described["project"]["license-files"] == ["LICENSE"]
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE


def test_the_version_is_the_same_wherever_it_is_named() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == __version__
    changelog = (ROOT / "CHANGELOG.md").read_text()
    newest = re.search(r"^## (\S+) (.+)$", changelog, re.MULTILINE)
    assert newest is not None
    version, date = newest.groups()
    assert version == __version__.removesuffix(".dev0")
    is_released = re.fullmatch(r"- \d{4}-\d\d-\d\d", date) is not None
    assert is_released is not __version__.endswith(".dev0")
    assert is_released or date == "(unreleased)"


def test_the_image_has_an_exact_base_and_runs_as_an_ordinary_user() -> None:
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    instructions = [(name, " ".join(arguments)) for name, *arguments in lines]
    assert instructions[0][0] == "ARG" and instructions[1] == ("FROM", "${BASE}")
    assert re.fullmatch(r"BASE=[\w./-]+(:v\d+\.\d+\.\d+|@sha256:[0-9a-f]{64})", instructions[0][1])
    # A cluster that refuses root needs a number.
    users = [arguments for name, arguments in instructions if name == "USER"]
    assert len(users) == 1 and re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[0])
    assert [name for name, _ in instructions[-2:]] == ["USER", "ENTRYPOINT"]


def test_the_workflow_runs_targets_of_the_makefile_on_each_supported_python() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "checks.yml").read_text())["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"make check", "make docs", "make test-wheel"} <= set(commands)
    assert {command.removeprefix("make ") for command in commands} <= targets
    pythons = jobs["check"]["strategy"]["matrix"]["python"]
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert needed == f">={pythons[0]}" and len(pythons) == 3
