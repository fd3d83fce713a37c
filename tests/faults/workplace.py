"""A folder in which commands run, disturbed or not, and what it holds then."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests import batch_replies
from tests.faults.fork_server import Done, Fault, ForkServer, Job
from tests.faults.model_server import Model, steady_text
from tests.faults.scenarios import ANSWER_BATCH, WRITE_QRELS, Command
from touche_llm.cli.demo import SAMPLES
from touche_llm.runs.directory import EVALUATION

# By path: the bytes, or the rows of a database, or the metadata less what differs from run to run.
Snapshot = dict[str, Any]
_METADATA, _ACCESSES = "ir-metadata.yml", "hold_out_accesses.jsonl"
# Of a stage: how long it took, and what of it came from the cache.
_VOLATILE = re.compile(r"^time$|seconds|peak_memory|^counts$")
# What SQLite keeps beside a database is part of it; `evaluate`, with which the harness reads runs,
# keeps its values.
_IGNORED = ("-wal", "-shm", "-journal", EVALUATION)
# The marker of a temporary folder; it is empty.
_MARKERS = "*/.touche-llm-*/lock-*"
_GRADES = 3


class Workplace:
    """A folder with the samples.

    Everything in it is named by relative paths, so that copies are alike.
    """

    def __init__(self, folder: Path, forks: ForkServer, model: Model) -> None:
        self.folder, self.forks, self.model = folder, forks, model
        self._kept = folder.parent / f"{folder.name}-kept"
        self._kept.mkdir(parents=True)
        folder.mkdir()
        for task in ("comparative", "controversial", "sentence_pairs"):
            shutil.copytree(SAMPLES / task, folder / task)
        self.keep("samples")

    def keep(self, name: str) -> None:
        """Keep the folder as it is now under a name."""
        shutil.copytree(self.folder, self._kept / name)

    def restore(self, name: str, space: int | None = None) -> None:
        """Bring back what was kept; with `space`, on a disk that has so many bytes left."""
        self.close()
        shutil.rmtree(self.folder)
        (self.folder.parent / "page.html").unlink(missing_ok=True)
        if space is None:
            shutil.copytree(self._kept / name, self.folder)
            return
        self.folder.mkdir()
        self._mount("size=1g")
        shutil.copytree(self._kept / name, self.folder, dirs_exist_ok=True)
        disk = os.statvfs(self.folder)
        self._mount(f"remount,size={(disk.f_blocks - disk.f_bfree) * disk.f_frsize + space}")

    def give_space(self) -> None:
        """Give the disk more than enough room."""
        if self.folder.is_mount():
            self._mount("remount,size=1g")

    def close(self) -> None:
        """Remove the disk, where there is one."""
        if self.folder.is_mount():
            subprocess.run(["umount", self.folder], check=True)

    def _mount(self, options: str) -> None:
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", self.folder], check=True)

    def run(self, command: Command, fault: Fault | None = None, trace: str = "") -> Done:
        """Run a command in a fork."""
        if command == ANSWER_BATCH:
            return self._answer_batch()
        if command == WRITE_QRELS:
            return self._write_qrels()
        return self.forks.run(Job(self.fill(command), str(self.folder), trace, fault))

    def fill(self, command: Command) -> list[str]:
        """Return a command line with the address of the model."""
        return [part.replace("{url}", self.model.server.url) for part in command]

    def _answer_batch(self) -> Done:
        requests = self.folder / "run" / "requests.jsonl"
        if not requests.exists():
            return Done(1, stderr="error: no requests")
        lines = [
            batch_replies.replied(
                each["custom_id"], batch_replies.body(steady_text(each["body"]), model="fake")
            )
            for each in batch_replies.read(requests)
        ]
        batch_replies.write(self.folder / "responses.jsonl", lines)
        return Done(0)

    def _write_qrels(self) -> Done:
        (self.folder / "qrels").mkdir()
        lines = [
            line.split() for line in (self.folder / "run" / "run.txt").read_text().splitlines()
        ]
        labels = ("FIRST", "SECOND", "NEUTRAL", "NO")
        for aspect in ("relevance", "stance"):
            values = labels if aspect == "stance" else range(_GRADES)
            text = "".join(
                f"{topic} 0 {doc} {values[int(rank) % len(values)]}\n"
                for topic, _, doc, rank, *_ in lines
            )
            (self.folder / "qrels" / aspect).write_text(text)
        return Done(0)

    def snapshot(self) -> Snapshot:
        """What every file holds, less what may differ between two runs of the same commands."""
        return _snapshot(self.folder)

    def copied(self) -> Snapshot:
        """A snapshot of a copy: to open a database as a killed process left it changes its files."""
        copy = self.folder.parent / "copy"
        shutil.copytree(self.folder, copy)
        try:
            return _snapshot(copy)
        finally:
            shutil.rmtree(copy)


def is_temporary(path: str) -> bool:
    """Whether a killed process may leave such a file, for the next one to remove."""
    return any(part.startswith(".") and part != ".touche-llm" for part in Path(path).parts)


def _is_marker(path: Path) -> bool:
    """Whether a file is the marker of a temporary folder.

    A process that is killed after its output is complete may leave it, until the next output there.
    """
    return path.match(_MARKERS) and path.stat().st_size == 0


def environment(home: Path) -> dict[str, str]:
    """The variables of a command: those of this process, less what would reach for something outside."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in ("PATH", "PYTHONPATH", "LANG", "TMPDIR", "XDG_STATE_HOME")
    }
    single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**kept, **single, "HOME": str(home)}


def _snapshot(folder: Path) -> Snapshot:
    paths = [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.endswith(_IGNORED) and not _is_marker(path)
    ]
    names = {path: str(path.relative_to(folder)) for path in paths}
    contents = {path: None if is_temporary(name) else _read(path) for path, name in names.items()}
    return {names[path]: content for path, content in contents.items()}


def _read(path: Path) -> Any:
    """The content of a file: bytes, the rows of a database, or metadata and accesses without times."""
    if path.suffix == ".sqlite":
        return _rows(path)
    if path.name == _METADATA:
        return _timeless(yaml.safe_load(path.read_bytes()))
    if path.name == _ACCESSES:
        # A comparison that is repeated is logged again.
        accesses = [_timeless(json.loads(line)) for line in path.read_bytes().splitlines()]
        return sorted({json.dumps(access, sort_keys=True) for access in accesses})
    if path.suffix == ".html":
        # Times and memory are among the numbers of a page.
        return re.sub(rb"[0-9][0-9,.]*", b"0", path.read_bytes())
    return path.read_bytes()


def _rows(path: Path) -> list[tuple[Any, ...]]:
    database = sqlite3.connect(path)
    try:
        tables = database.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
        ).fetchall()
        rows = [row for (table,) in tables for row in database.execute(f'SELECT * FROM "{table}"')]
        return sorted(rows, key=repr)
    finally:
        database.close()


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: _timeless(each) for name, each in value.items() if not _VOLATILE.search(str(name))
        }
    return [_timeless(each) for each in value] if isinstance(value, list) else value


def lasting(found: Snapshot) -> Snapshot:
    """The files less those that are temporary."""
    return {path: content for path, content in found.items() if not is_temporary(path)}


def differences(found: Snapshot, wanted: Snapshot) -> list[str]:
    """The files that differ, each with how."""
    found_problems = []
    for path in sorted({*found, *wanted}):
        if path not in wanted:
            found_problems.append(f"{path}: is left over")
        elif path not in found:
            found_problems.append(f"{path}: is missing")
        elif found[path] != wanted[path]:
            found_problems.append(f"{path}: differs: {_difference(found[path], wanted[path])}")
    return found_problems


def _difference(found: Any, wanted: Any) -> str:
    """The first place where two contents differ."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        name = next(name for name in (*wanted, *found) if found.get(name) != wanted.get(name))
        return f"{name}: {_difference(found.get(name), wanted.get(name))}"
    if isinstance(found, bytes | list) and isinstance(wanted, bytes | list):
        place = next(
            (n for n, (a, b) in enumerate(zip(found, wanted, strict=False)) if a != b),
            min(len(found), len(wanted)),
        )
        return f"at {place}: {found[place : place + 100]!r:.300} instead of {wanted[place : place + 100]!r:.300}"
    return f"{found!r:.300} instead of {wanted!r:.300}"
