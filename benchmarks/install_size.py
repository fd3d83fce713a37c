"""Packages and megabytes that an installation of this program takes, alone and with each extra.

    python -m benchmarks.install_size [EXTRA...]

Each is installed into an empty environment in a temporary folder, with the versions of constraints.txt.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
_MB = 1e6


def measure(extra: str, folder: Path) -> tuple[int, float, float]:
    """Install the program into an empty environment.

    Args:
        extra: Name of an extra; empty for none.
        folder: Empty folder for the environment and the downloads.

    Returns:
        The number of packages that it needs beside itself, the MB of their wheels, and the MB of the installed files.
    """
    venv.create(folder / "environment", with_pip=True)
    pip = [str(folder / "environment/bin/python"), "-m", "pip"]
    packages = next(folder.glob("environment/lib/python*/site-packages"))
    before = {path.name for path in packages.iterdir()}
    wheels = folder / "wheels"
    wanted = f"{REPOSITORY}[{extra}]" if extra else str(REPOSITORY)
    constraints = ["--constraint", str(REPOSITORY / "constraints.txt")]
    subprocess.run([*pip, "wheel", "--quiet", *constraints, "--wheel-dir", wheels, wanted], check=True)
    files = list(wheels.glob("*.whl"))
    subprocess.run([*pip, "install", "--quiet", "--no-compile", "--no-deps", *files], check=True)
    added = [path for path in packages.iterdir() if path.name not in before]
    installed = [file for path in added for file in (path, *path.rglob("*")) if file.is_file()]
    return len(files) - 1, _sum(files), _sum(installed)


def _sum(files: list[Path]) -> float:
    return sum(file.stat().st_size for file in files) / _MB


def main() -> None:
    """Print a row for the program alone and one for each extra given."""
    print(f"{'':<28}{'packages':>10}{'download MB':>13}{'installed MB':>14}")
    for extra in ("", *sys.argv[1:]):
        with tempfile.TemporaryDirectory() as folder:
            packages, download, installed = measure(extra, Path(folder))
        name = f"touche-llm[{extra}]" if extra else "touche-llm"
        print(f"{name:<28}{packages:>10}{download:>13.0f}{installed:>14.0f}", flush=True)


if __name__ == "__main__":
    main()
