"""Draw mutants of each package, run the tests against them, and print the killed share with its interval.

Cosmic Ray makes the mutants. Its own runner starts pytest anew for each of them; here the libraries are imported once,
and a fork of a worker runs, in its own copy of the tree, the tests that execute the changed lines, until one fails.
Results are kept in `.mutants/results.jsonl`: a run continues an interrupted one, and repeats only the survivors whose
tests, or what these depend on, have changed.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import hashlib
import json
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names
from statsmodels.stats.proportion import proportion_confint

from benchmarks.covering_tests import CoveringTests, digests, import_libraries, record, run_tests

ROOT = Path(__file__).parent.parent
WORK = ROOT / ".mutants"
TREE, RECORDS, RESULTS = WORK / "tree", WORK / "records", WORK / "results.jsonl"
EQUIVALENT = ROOT / "benchmarks" / "equivalent_mutants.yaml"
PACKAGES = [*sorted(each.parent.name for each in (ROOT / "touche_llm").glob("*/__init__.py")), "top"]
# Without Ray the default tests see nothing of this.
EXCLUDED = ("ray_job",)
# These need names of variables, or change nothing for small integers, short strings and None.
IDLE = ("VariableReplacer", "VariableInserter", "_Eq_Is", "_NotEq_IsNot", "_Is_Eq", "_IsNot_NotEq")

# These guard against slips in the code.
GUARDS = ("strict", "kw_only")


@dataclass(frozen=True)
class Mutant:
    """One change of one file; `before` and `after` are what differs in its lines, the first of which is `line`."""

    file: str
    operator: str
    occurrence: int
    line: int
    before: str
    after: str

    @property
    def name(self) -> tuple[str, str, str]:
        """What survives when other lines of the file change."""
        return self.file, self.before, self.after

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
    top = TREE / "touche_llm"
    files = sorted(top.glob("*.py") if package == "top" else (top / package).rglob("*.py"))
    everything = [(file, place) for file in files if not file.stem.startswith(EXCLUDED) for place in places(file)]
    chance.shuffle(everything)
    drawn: list[Mutant] = []
    for file, place in everything:
        operator, occurrence = chance.choice(place)
        source = file.read_text()
        # The latter: Cosmic Ray replaces no dotted name among the exceptions of a tuple.
        with suppress(SyntaxError, AttributeError), warnings.catch_warnings(action="ignore"):
            drawn.append(make_mutant(str(file.relative_to(TREE)), source, operator, occurrence))
        if len(drawn) == number:
            break
    return drawn


def keyword_only(source: str) -> int:
    """Return the number of parameters that are passed by name alone."""
    return sum(len(node.kwonlyargs) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.arguments))


def make_mutant(file: str, source: str, operator: str, occurrence: int) -> Mutant:
    """Return a mutant with what it changes; raise SyntaxError if it is none."""
    changed = Mutant(file, operator, occurrence, 0, "", "").apply(source)
    compile(changed, file, "exec", dont_inherit=True)
    old, new = source.splitlines(), changed.splitlines()
    if keyword_only(changed) != keyword_only(source):
        raise SyntaxError("the mark of keyword-only parameters is no product")
    differing = [
        each for each in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes() if each[0] != "equal"
    ]
    before = " ".join(line.strip() for _, first, last, _, _ in differing for line in old[first:last])
    after = " ".join(line.strip() for _, _, _, first, last in differing for line in new[first:last])
    if after in (before.replace(f"{name}=True", f"{name}=False") for name in GUARDS) or "if TYPE_CHECKING:" in before:
        raise SyntaxError("what only guards against a slip in the code, or runs for no one, is not a place for a bug")
    return Mutant(file, operator, occurrence, differing[0][1] + 1, before, after)


def prepare() -> None:
    """Copy the tree."""
    for tree in WORK.glob("tree*/"):
        shutil.rmtree(tree)
    listed = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, text=True)
    for name in filter(lambda name: (ROOT / name).is_file(), listed.splitlines()):
        (TREE / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, TREE / name)
    RECORDS.mkdir(exist_ok=True)


def own_tree() -> Path:
    """Return this worker's copy of the tree."""
    tree = TREE.with_name(f"tree-{os.getpid()}")
    if not tree.exists():
        shutil.copytree(TREE, tree)
    return tree


def write(file: Path, source: str) -> None:
    """Write a module; its bytecode goes, since a mutant can have the size and second of what it was made from."""
    file.write_text(source)
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
        compiled.unlink()


def record_tests(test_file: str, digest: str) -> None:
    """Record one test file in a worker."""
    record(test_file, own_tree(), RECORDS / digest)


def try_mutant(mutant: Mutant, tests: dict[str, float], digest: str) -> dict[str, Any]:
    """Run tests against a mutant in a worker; keep and return the result."""
    file = own_tree() / mutant.file
    source = file.read_text()
    write(file, mutant.apply(source))
    outcome, seconds = run_tests(tests, own_tree()) if tests else ("passed", 0.0)
    write(file, source)
    entry = asdict(mutant) | {"tests": digest, "outcome": outcome, "seconds": round(seconds, 1)}
    with RESULTS.open("a") as stream:
        stream.write(json.dumps(entry) + "\n")
    return entry


def try_all(
    mutants: list[Mutant], tests: CoveringTests, workers: ProcessPoolExecutor, bound: float
) -> Iterator[dict[str, Any]]:
    """Yield the result of each mutant, of this run or an earlier one.

    Args:
        mutants: What to try.
        tests: Tests to choose from.
        workers: Processes that run the tests.
        bound: Seconds that the tests of a mutant may take, as they were recorded.
    """
    entries = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    known = {(entry["file"], entry["before"], entry["after"]): entry for entry in entries}
    results: list[Future[dict[str, Any]] | dict[str, Any]] = []
    for mutant in mutants:
        chosen = tests.choose(mutant.file, mutant.line, bound)
        digest = hashlib.sha256("\n".join(f"{test} {tests.digest(test)}" for test in chosen).encode()).hexdigest()
        entry = known.get(mutant.name)
        if entry is None or (entry["outcome"] == "passed" and entry["tests"] != digest):
            seconds = {test: tests.seconds[test] for test in chosen}
            results.append(workers.submit(try_mutant, mutant, seconds, digest))
        else:
            results.append(entry)
    yield from (result.result() if isinstance(result, Future) else result for result in results)


def main() -> None:
    """Draw, test, and report package by package."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packages", nargs="+", default=PACKAGES, choices=PACKAGES)
    parser.add_argument("--mutants", type=int, default=200, help="of each package (default: 200)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="(default: one for each core)")
    parser.add_argument("--bound", type=float, default=60, help="seconds of tests for each mutant (default: 60)")
    given = parser.parse_args()
    prepare()
    import_libraries(TREE)
    equivalent = {(entry["file"], entry["before"], entry["after"]) for entry in yaml.safe_load(EQUIVALENT.read_text())}
    with ProcessPoolExecutor(given.workers, multiprocessing.get_context("fork")) as workers:
        missing = [(name, digest) for name, digest in digests(TREE).items() if not (RECORDS / digest).exists()]
        for number, _ in enumerate(workers.map(record_tests, *zip(*missing, strict=True)), start=1):
            print(f"recorded {number} of {len(missing)} test files", file=sys.stderr, end="\r", flush=True)
        tests = CoveringTests.read(TREE, RECORDS)
        if tests.failed:
            print("not used, since they fail without a mutant:", *sorted(tests.failed), sep="\n  ")
        for package in given.packages:
            drawn = draw(package, given.mutants, given.seed)
            counted = [mutant for mutant in drawn if mutant.name not in equivalent]
            alive, seconds = [], 0.0
            for number, result in enumerate(try_all(counted, tests, workers, given.bound), start=1):
                seconds += result["seconds"]
                if result["outcome"] == "passed":
                    alive.append(result)
                print(
                    f"{package}: {number} of {len(counted)}, {len(alive)} alive", file=sys.stderr, end="\r", flush=True
                )
            (WORK / f"survivors-{package}.yaml").write_text(yaml.safe_dump(alive, sort_keys=False, width=120))
            number, killed = len(counted), len(counted) - len(alive)
            low, high = proportion_confint(killed, number, method="wilson")
            print(
                f"{package:<12}{len(drawn):>4} drawn, {len(drawn) - number} equivalent, {killed} of {number} killed: "
                f"{killed / number:.1%} ({low:.1%} to {high:.1%}), {seconds / number:.1f} s each",
                flush=True,
            )


if __name__ == "__main__":
    main()
