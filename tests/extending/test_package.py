"""A package that registers through an entry point."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import orjson
import pytest

from tests.extending.conftest import Extended
from tests.fake_server import FakeServer

CHECK_MODULE = Path(__file__).with_name("allowed_models.py")


def install(module_text: str, tmp_path: Path) -> Path:
    """Install a package with one module and an entry point into a folder, and return the folder."""
    wheel = tmp_path / "touche_house_rules-1.0-py3-none-any.whl"
    info = "touche_house_rules-1.0.dist-info"
    files = {
        "touche_house_rules.py": module_text,
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: touche-house-rules\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[touche_llm]\nhouse_rules = touche_house_rules\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)

    packages = tmp_path / "packages"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--target", packages, wheel], check=True, timeout=60)
    return packages


def test_an_installed_package_is_found_without_any_import(
    extended: Extended, tmp_path: Path
) -> None:
    packages = install(CHECK_MODULE.read_text(), tmp_path)
    with FakeServer().in_thread() as server:
        done = extended("doctor", server.url, "--format", "json", packages=packages)
    assert done.returncode == 0, done.stderr
    assert "allowed model" in [row["name"] for row in orjson.loads(done.stdout)]


@pytest.mark.slow
def test_a_package_that_cannot_be_imported_is_named(extended: Extended, tmp_path: Path) -> None:
    packages = install("import a_module_that_is_missing\n", tmp_path)
    with FakeServer().in_thread() as server:
        done = extended("doctor", server.url, packages=packages)
    help_page = extended("--help", packages=packages)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: package touche-house-rules: ")
    assert "a_module_that_is_missing" in done.stderr and "Traceback" not in done.stderr
    assert help_page.returncode == 0 and "doctor" in help_page.stdout


@pytest.mark.slow
def test_the_options_of_a_first_stage_come_from_an_installed_package(
    extended: Extended, tmp_path: Path
) -> None:
    packages = install(Path(__file__).with_name("random_order.py").read_text(), tmp_path)
    done = extended("retrieve", "--help", packages=packages)
    assert done.returncode == 0, done.stderr
    assert "--random-seed" in done.stdout
