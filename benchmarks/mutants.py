"""Draw mutants of each package, run the tests against them, and print the killed share with its interval.

Cosmic Ray makes the mutants. Its own runner would start pytest anew for each of them; here the libraries are imported
once, and a fork of this process runs the tests in a copy of the tree, nearest tests first, until one fails. Results are
kept in `.mutants/results.jsonl`: a run that was ended continues, and tests only what is new or has survived before.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import pytest
import yaml
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names
from statsmodels.stats.proportion import proportion_confint

ROOT = Path(__file__).parent.parent
WORK = ROOT / ".mutants"
TREE, RESULTS, OUTPUT = WORK / "tree", WORK / "results.jsonl", WORK / "output.txt"
EQUIVALENT = ROOT / "benchmarks" / "equivalent_mutants.yaml"
PACKAGES = [*sorted(each.parent.name for each in (ROOT / "touche_llm").glob("*/__init__.py")), "top"]
# Without a GPU, Ray or a second server, the tests see little of these.
EXCLUDED = ("ray_", "adaptive", "concurrency", "elastic_server")
# These need names of variables, or change nothing for small integers, short strings and None.
IDLE = ("VariableReplacer", "VariableInserter", "_Eq_Is", "_NotEq_IsNot", "_Is_Eq", "_IsNot_NotEq")
# The whole: bytes of recorded runs, and the pipeline.
# Another server, a browser, hours.
ELSEWHERE = ("tests/vllm", "tests/browser", "tests/faults")
LAST = ["tests/regression", "tests/test_pipeline.py"]


@dataclass(frozen=True)
class Mutant:
    """One change of one file; `before` and `after` are what differs in its lines."""

    file: str
    operator: str
    occurrence: int
    before: str
    after: str

    def apply(self, source: str) -> str:
        """Return the changed source."""
        return str(mutate_code(source, get_operator(self.operator)(), self.occurrence))


def places(file: Path) -> Iterator[list[tuple[str, int]]]:
    """Yield the places of a file that can be changed, each with its operators and their occurrences."""
    source = file.read_text()
    # Nothing runs in an annotation.
    inside = [getattr(node, name, None) for node in ast.walk(ast.parse(source)) for name in ("annotation", "returns")]
    kept = [each for each in inside if isinstance(each, ast.expr)]
    spans = [((each.lineno, each.col_offset), (each.end_lineno or 0, each.end_col_offset or 0)) for each in kept]
    nodes = list(ast_nodes(get_ast(source)))
    found: dict[object, list[tuple[str, int]]] = defaultdict(list)
    for name in operator_names():
        if name.endswith(IDLE):
            continue
        positions = (position for node in nodes for position in get_operator(name)().mutation_positions(node))
        for occurrence, position in enumerate(positions):
            if not any(start <= position[0] < end for start, end in spans):
                found[position].append((name, occurrence))
    yield from found.values()


def draw(package: str, number: int, seed: int) -> list[Mutant]:
    """Return mutants of a package: a place first, then one of its changes, so that all places have the same weight."""
    chance = random.Random(f"{seed} {package}")
    files = sorted((TREE / "touche_llm" / ("" if package == "top" else package)).glob("*.py"))
    everything = [(file, place) for file in files if not file.stem.startswith(EXCLUDED) for place in places(file)]
    chance.shuffle(everything)
    drawn: list[Mutant] = []
    for file, place in everything:
        mutant = Mutant(str(file.relative_to(TREE)), *chance.choice(place), "", "")
        source = file.read_text()
        changed = mutant.apply(source)
        lines = list(difflib.ndiff(source.splitlines(), changed.splitlines()))
        before, after = (" ".join(line[2:].strip() for line in lines if line.startswith(f"{sign} ")) for sign in "-+")
        with suppress(SyntaxError), warnings.catch_warnings(action="ignore"):
            compile(changed, str(file), "exec", dont_inherit=True)
            drawn.append(Mutant(mutant.file, mutant.operator, mutant.occurrence, before, after))
        if len(drawn) == number:
            break
    return drawn


@cache
def nearest_tests(file: str, near_only: bool) -> list[str]:
    """Return the tests that import a module; and those of its package, and that import what imports it."""
    paths = [path for folder in ("touche_llm", "tests") for path in sorted((TREE / folder).rglob("*.py"))]
    imports = {
        str(path.relative_to(TREE)): set(re.findall(r"^(?:from|import) (touche_llm[\w.]*)", path.read_text(), re.M))
        for path in paths
    }
    module = {each: each.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for each in (file, *imports)}
    near = {module[file]}
    further = {module[each] for each, names in imports.items() if names & near}
    tests = [each for each in imports if "/test_" in each and not each.startswith(ELSEWHERE)]
    first, second = ([each for each in tests if imports[each] & names] for names in (near, further))
    package = "/".join(["tests", *Path(file).parts[1:-1]])
    named = [each for each in tests if each == f"{package}/test_{Path(file).name}"]
    folder = [package] if package != "tests" and (TREE / package).is_dir() else []
    nearest = list(dict.fromkeys([*named, *first])) or folder
    return nearest if near_only and nearest else list(dict.fromkeys([*nearest, *folder, *second, *LAST]))


def prepare() -> None:
    """Copy the tree, and import all libraries that the tests import, but nothing of the project."""
    shutil.rmtree(TREE, ignore_errors=True)
    listed = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, text=True)
    for name in filter(lambda name: (ROOT / name).is_file(), listed.splitlines()):
        (TREE / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, TREE / name)
    os.environ["PYTHONPATH"] = str(TREE)  # of the programs that tests start
    imported = "import sys, pytest; pytest.main(['-qq', '--collect-only', 'tests']); print('', *sys.modules, sep='\\n')"
    listed = subprocess.run([sys.executable, "-c", imported], cwd=TREE, capture_output=True, text=True).stdout
    for name in listed.splitlines():
        # Plugins of pytest are imported by pytest itself, which rewrites their asserts.
        if re.fullmatch(r"(?!touche_llm|tests|benchmarks|__main__|_?pytest|xdist|_?hypothesis|anyio)[\w.]+", name):
            with suppress(Exception):  # what cannot be imported alone, each fork imports
                importlib.import_module(name)


def run(tests: Sequence[str], limit: float) -> tuple[str, float]:
    """Run tests in a fork; return `passed`, `failed`, `timeout` or `broken`, and the processor seconds that it took."""
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background, but tests send it
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit) + 5))
        os.chdir(TREE)
        sys.path.insert(0, str(TREE))
        stream = os.open(OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(stream, 1)
        os.dup2(stream, 2)
        options = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not vllm and not browser and not nightly"]
        os._exit(pytest.main([*options, "--hypothesis-seed=0", *tests]))
    # One that waits for ever takes no time of the processor.
    while (ended := os.wait4(child, os.WNOHANG))[0] == 0 and time.monotonic() < started + 20 * limit:
        time.sleep(0.05)
    if ended[0] == 0:
        os.killpg(child, signal.SIGKILL)
        ended = os.wait4(child, 0)
    code = os.waitstatus_to_exitcode(ended[1])
    # pytest ends with 2 where a module cannot be imported.
    outcome = {0: "passed", 1: "failed", 2: "failed"}.get(code, "timeout" if code < 0 else "broken")
    return outcome, ended[2].ru_utime + ended[2].ru_stime


def write(file: Path, source: str) -> None:
    """Write a module; its bytecode goes, since a mutant can have the size and second of what it was made from."""
    file.write_text(source)
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
        compiled.unlink()


def outcomes(mutants: Sequence[Mutant], limit: float, near_only: bool = False) -> Iterator[tuple[Mutant, str, float]]:
    """Yield what the tests say of each mutant, and the processor seconds that it took, now or in an earlier run."""
    entries = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    known = {(each["file"], each["before"], each["after"]): each for each in entries}
    for mutant in mutants:
        entry = known.get((mutant.file, mutant.before, mutant.after))
        if entry is None or entry["outcome"] == "passed":
            file = TREE / mutant.file
            source = file.read_text()
            write(file, mutant.apply(source))
            outcome, seconds = run(nearest_tests(mutant.file, near_only), limit)
            write(file, source)
            entry = asdict(mutant) | {"outcome": outcome, "seconds": round(seconds, 1)}
            with RESULTS.open("a") as stream:
                stream.write(json.dumps(entry) + "\n")
        yield mutant, entry["outcome"], entry["seconds"]


def main() -> None:
    """Draw, test, and report package by package."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packages", nargs="+", default=PACKAGES, choices=PACKAGES)
    parser.add_argument("--mutants", type=int, default=200, help="of each package (default: 200)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--near", action="store_true", help="only the tests that import the module itself")
    given = parser.parse_args()
    prepare()
    equivalent = {(each["file"], each["before"], each["after"]) for each in yaml.safe_load(EQUIVALENT.read_text())}
    for package in given.packages:
        drawn = draw(package, given.mutants, given.seed)
        tests = list(dict.fromkeys(test for mutant in drawn for test in nearest_tests(mutant.file, given.near)))
        outcome, whole = run(tests, 3600)
        if outcome != "passed":
            sys.exit(f"{package}: its tests do not pass without a mutant; see {OUTPUT}")
        counted = [each for each in drawn if (each.file, each.before, each.after) not in equivalent]
        alive, minutes = [], 0.0
        for number, (mutant, outcome, seconds) in enumerate(outcomes(counted, 20 + 3 * whole, given.near), start=1):
            minutes += seconds / 60
            if outcome == "passed":
                alive.append(asdict(mutant))
            print(f"{package}: {number} of {len(counted)}, {len(alive)} alive", file=sys.stderr, end="\r", flush=True)
        (WORK / f"survivors-{package}.yaml").write_text(yaml.safe_dump(alive, sort_keys=False, width=120))
        killed = len(counted) - len(alive)
        low, high = proportion_confint(killed, len(counted), method="wilson")
        print(
            f"{package:<12}{len(drawn):>4} drawn, {len(drawn) - len(counted)} equivalent, {killed} of {len(counted)} "
            f"killed: {killed / len(counted):.1%} ({low:.1%} to {high:.1%}), {minutes:.0f} min",
            flush=True,
        )


if __name__ == "__main__":
    main()
