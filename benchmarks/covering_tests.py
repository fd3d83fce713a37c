"""Which tests execute which lines: recorded once for each test file, to choose the tests that could notice a mutant."""

from __future__ import annotations

import ast
import gc
import hashlib
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
import pytest
from coverage import Coverage, CoverageData
from coverage.exceptions import DataError

# They need another server, a browser or hours, or test no package.
ELSEWHERE = ("tests/vllm", "tests/browser", "tests/faults", "tests/benchmarks")
# They look at the structure of every module.
STRUCTURE = ("tests/test_layers.py", "tests/test_records.py")
# Plain asserts: nobody reads their messages, and plugins of pytest can be imported before it runs.
OPTIONS = ["-q", "-p", "no:cacheprovider", "--assert=plain", "--hypothesis-profile=ci"]
OPTIONS += ["-m", "not vllm and not browser and not nightly"]
MEMORY = 8 << 30  # An endless loop may fill a list.
PATIENCE = 600.0  # Seconds to import and collect, and for each test without a mutant.
# The context of a program that a test starts is the test: pytest keeps its name in the environment.
SETTINGS = (
    "[run]\nsource = {tree}/touche_llm\nparallel = true\ndata_file = {data}\ncontext = ${{PYTEST_CURRENT_TEST-}}\n"
)


def limit_time(processor: float, wait: float) -> None:
    """End this process by a signal after some seconds of its processor time, or on the clock."""
    signal.setitimer(signal.ITIMER_PROF, processor)
    signal.setitimer(signal.ITIMER_REAL, wait)


def run_in_fork(action: Callable[[], int], tree: Path) -> tuple[int, float]:
    """Run an action in a fork, inside a tree; return its exit code and the processor seconds it took.

    The code is negative when a signal ended the fork, as those of `limit_time` do.
    """
    child = os.fork()
    if child == 0:
        os.setsid()
        os.environ.pop("PYTEST_CURRENT_TEST", None)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        # Ignored in the background and under nohup, but tests send them.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        limit_time(PATIENCE, PATIENCE)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.RLIM_INFINITY))
        os.chdir(tree)
        sys.path.insert(0, str(tree))
        os.environ["PYTHONPATH"] = str(tree)
        stream = os.open(f"{tree}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(stream, 1)
        os.dup2(stream, 2)
        os._exit(action())
    _, status, usage = os.wait4(child, 0)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime


def import_libraries(tree: Path) -> None:
    """Import all libraries that the tests import, but nothing of the project, so that forks need not."""
    options = ["--collect-only", *OPTIONS, "tests"]
    imported = f"import sys, pytest; pytest.main({options!r}); print('', *sys.modules, sep='\\n')"
    environment = os.environ | {"PYTHONPATH": str(tree)}
    command = [sys.executable, "-c", imported]
    listed = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True).stdout
    for name in listed.splitlines():
        # The home of ir_datasets is read when it is imported, and is each test's own.
        if re.fullmatch(r"(?!touche_llm|tests|benchmarks|ir_datasets|__main__)[\w.]+", name):
            with suppress(Exception):  # Forks import what cannot be imported alone.
                __import__(name)
    gc.collect()
    gc.freeze()  # Forks need not look at these objects, nor copy them.


@dataclass(eq=False)
class Recorder:
    """Plugin of pytest: the context of coverage is the running test, or the test file in a fixture of wider scope."""

    coverage: Coverage
    seconds: dict[str, float] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Record one test, as if it were the first."""
        limit_time(PATIENCE, PATIENCE)
        modules = [module for name, module in list(sys.modules.items()) if name.startswith("touche_llm")]
        for value in [value for module in modules for value in vars(module).values()]:
            if hasattr(value, "cache_clear"):
                value.cache_clear()
        started = time.monotonic()
        self.coverage.switch_context(item.nodeid)
        result = yield
        self.coverage.switch_context("")
        self.seconds[item.nodeid] = round(time.monotonic() - started, 3)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Generator[None, object, object]:
        """Record what further tests use as well."""
        if fixturedef.scope == "function":
            return (yield)
        test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
        self.coverage.switch_context(test.partition("::")[0])
        try:
            return (yield)
        finally:
            self.coverage.switch_context(test)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember failures."""
        if report.failed:
            self.failed.add(report.nodeid)


def digests(tree: Path) -> dict[str, str]:
    """Return a digest of each test file and of everything that it may depend on: all but the other test files."""
    tests = {str(path.relative_to(tree)): path for path in sorted((tree / "tests").rglob("test_*.py"))}
    common = hashlib.sha256()
    for path in sorted(each for folder in ("touche_llm", "tests", "prompts") for each in (tree / folder).rglob("*")):
        name = str(path.relative_to(tree))
        if path.is_file() and name not in tests and "__pycache__" not in path.parts:
            common.update(name.encode() + b"\0" + path.read_bytes())
    kept = {name: path for name, path in tests.items() if not name.startswith(ELSEWHERE)}
    return {name: hashlib.sha256(common.digest() + path.read_bytes()).hexdigest() for name, path in kept.items()}


def record(test_file: str, tree: Path, record_file: Path) -> None:
    """Run one test file under coverage and write the seconds of its tests, and the tests of each line."""
    with TemporaryDirectory() as folder:
        settings = Path(folder, "coveragerc")
        settings.write_text(SETTINGS.format(tree=tree, data=Path(folder, "data")))

        def action() -> int:
            os.environ["COVERAGE_PROCESS_START"] = str(settings)  # of the programs that tests start
            coverage = Coverage(config_file=str(settings))
            coverage.start()
            recorder = Recorder(coverage)
            code = pytest.main([*OPTIONS, test_file], plugins=[recorder])
            coverage.stop()
            coverage.save()
            known = {"seconds": recorder.seconds, "failed": sorted(recorder.failed)}
            Path(folder, "tests.json").write_bytes(orjson.dumps(known))
            return code

        code, _ = run_in_fork(action, tree)
        if code not in (0, 1, 5):
            sys.exit(f"{test_file}: its tests ended with code {code} without a mutant; see {tree}.txt")
        entry = orjson.loads(Path(folder, "tests.json").read_bytes())
        tests: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        for path in Path(folder).glob("data*"):
            data = CoverageData(str(path))
            measured_files: set[str] = set()
            with suppress(DataError):  # of a program that a test killed
                data.read()
                measured_files = data.measured_files()
            for measured in measured_files:
                for line, contexts in data.contexts_by_lineno(measured).items():
                    # "test (call)" in a program that the test started
                    names = {re.sub(r" \((setup|call|teardown)\)$", "", each) for each in contexts}
                    tests[str(Path(measured).relative_to(tree))][line] |= names
        entry["tests"] = {name: {str(line): sorted(found) for line, found in of.items()} for name, of in tests.items()}
        record_file.write_bytes(orjson.dumps(entry))


@dataclass(frozen=True)
class CoveringTests:
    """The tests of a tree: how long each takes, what it executes, and a digest of what it depends on."""

    tree: Path
    digests: dict[str, str]
    seconds: dict[str, float]
    failed: set[str]
    lines: dict[str, dict[int, set[str]]]

    @classmethod
    def read(cls, tree: Path, records: Path) -> CoveringTests:
        """Read the records of a tree's test files."""
        found = cls(tree, digests(tree), {}, set(), defaultdict(lambda: defaultdict(set)))
        for digest in found.digests.values():
            entry = orjson.loads((records / digest).read_bytes())
            found.seconds.update(entry["seconds"])
            found.failed.update(entry["failed"])
            for name, lines in entry["tests"].items():
                for line, tests in lines.items():
                    found.lines[name][int(line)].update(tests)
        return found

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """The modules that each file imports when it is imported."""
        paths = [path for folder in ("touche_llm", "tests") for path in sorted((self.tree / folder).rglob("*.py"))]
        pattern = re.compile(r"^(?:from|import) (touche_llm[\w.]*)", re.M)
        return {str(path.relative_to(self.tree)): set(pattern.findall(path.read_text())) for path in paths}

    def nearest_files(self, file: str) -> list[str]:
        """Return the test file named after a module, those that import it, of its package, that import its users."""
        near = {module_name(file)}
        users = {module_name(user) for user, modules in self.imports.items() if modules & near}
        package = Path("tests", *Path(file).parts[1:-1])

        def rank(test_file: str) -> int:
            modules, path = self.imports[test_file], Path(test_file)
            named = path == package / f"test_{Path(file).name}"
            return [named, bool(modules & near), path.parent == package, bool(modules & users), True].index(True)

        return sorted((each for each in self.digests if rank(each) < 4), key=rank)

    def digest(self, test: str) -> str:
        """Return the digest of what a test depends on."""
        return self.digests[test.partition("::")[0]]

    def choose(self, file: str, line: int, bound: float) -> list[str]:
        """Return the tests that could notice a change of a line, the nearest and quickest first.

        Args:
            file: Module, as a path in the tree.
            line: Number of the changed line.
            bound: Largest sum of the tests' seconds; one test is chosen in any case, and tests of structure are.
        """
        numbers, is_import = executed_lines((self.tree / file).read_text(), line)
        contexts = set().union(*(self.lines[file].get(number, set()) for number in numbers))
        nearest = self.nearest_files(file)
        of_file = defaultdict(list)
        for test in self.seconds:
            of_file[test.partition("::")[0]].append(test)
        # A context without a test is a file, or empty for an import.
        covering = {test for context in contexts for test in of_file.get(context, [context])}
        if is_import or "" in contexts:
            covering |= {test for each in (*nearest, *STRUCTURE) for test in of_file[each]}
        places = {name: number for number, name in enumerate(nearest)}

        def order(test: str) -> tuple[bool, int, float]:
            test_file = test.partition("::")[0]
            is_late = self.seconds[test] > 1 and test_file not in STRUCTURE
            return is_late, places.get(test_file, len(places)), self.seconds[test]

        chosen: list[str] = []
        spent = 0.0
        for test in sorted((covering & self.seconds.keys()) - self.failed, key=order):
            spent += self.seconds[test]
            if not chosen or spent <= bound or test.startswith(STRUCTURE):
                chosen.append(test)
        return chosen


def module_name(file: str) -> str:
    """Return the dotted name of a module."""
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def executed_lines(source: str, line: int) -> tuple[set[int], bool]:
    """Return the lines of the statement that a line belongs to, and whether an import executes it.

    Of a statement that holds others, the lines before these belong to it.
    """
    numbers, is_import = {line}, True
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.stmt | ast.ExceptHandler):
            continue
        body = getattr(node, "body", None)
        head = range(node.lineno, max(node.lineno, body[0].lineno - 1 if body else node.end_lineno or 0) + 1)
        if line in head:
            numbers |= set(head)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            is_import &= not node.body[0].lineno <= line <= (node.end_lineno or 0)
    return numbers, is_import


@dataclass(eq=False)
class Chosen:
    """Plugin of pytest: only some tests, in order, each for a multiple of the seconds it took without a mutant."""

    seconds: dict[str, float]

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the chosen tests."""
        order = {test: number for number, test in enumerate(self.seconds)}
        items[:] = sorted((item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        """Limit the time of a test generously: the machine may be busy."""
        limit_time(10 + 5 * self.seconds[item.nodeid], 120 + 20 * self.seconds[item.nodeid])


def run_tests(seconds: dict[str, float], tree: Path) -> tuple[str, float]:
    """Run tests in a fork until one fails.

    Args:
        seconds: The tests, in the order in which they run, and what each took without a mutant.
        tree: Where the tests are.

    Returns:
        `passed`, `failed` or `timeout`, and the processor seconds it took.
    """
    files = list(dict.fromkeys(test.partition("::")[0] for test in seconds))
    code, spent = run_in_fork(lambda: int(pytest.main(["-x", *OPTIONS, *files], plugins=[Chosen(seconds)])), tree)
    # 5: the mutant left no test; 2: a module cannot be imported.
    return "passed" if code in (0, 5) else "timeout" if code < 0 else "failed", spent
