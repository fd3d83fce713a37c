"""What the package says of its license, and that each way to build it finds the text."""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Of https://www.apache.org/licenses/LICENSE-2.0.txt
APACHE = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"


def test_the_license_is_apache_2_word_for_word_and_travels_with_the_package() -> None:
    described = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert described["project"]["license"] == "Apache-2.0"
    assert described["project"]["license-files"] == ["LICENSE"]
    assert "LICENSE" in described["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE


def test_the_image_copies_what_the_build_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    copied = next(line for line in (ROOT / "Dockerfile").read_text().splitlines() if "pyproject.toml" in line).split()
    assert {project["readme"], *project["license-files"]} <= set(copied)
