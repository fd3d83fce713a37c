"""Arguments per second and memory of reading args.me, beside the csv module with `ast.literal_eval`.

    python -m benchmarks.args_me_parsing FILE [--rounds 3]

FILE is `args_processed_04_01.csv`, plain or gzipped. Each measurement runs in a process of its own, the two readers by
turns; the fastest round of each counts. Both read `premises` and `sentences` and leave `context` alone; ours also makes
the documents and checks them.
"""

from __future__ import annotations

import argparse
import ast
import csv
import io
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.processes import read_status, run_alone
from touche_llm.corpus.args_me import MAX_ROW_BYTES, read_arguments
from touche_llm.data.io import open_maybe_gzip


def ours(path: Path) -> Iterator[int]:
    """The number of sentences of each argument, by our reader."""
    for _, document in read_arguments(path):
        yield len(document.parts)


def literal_eval(path: Path) -> Iterator[int]:
    """The same by the csv module and `ast.literal_eval`."""
    csv.field_size_limit(MAX_ROW_BYTES)
    with open_maybe_gzip(path) as packed, io.TextIOWrapper(packed, encoding="utf-8", newline="") as stream:
        rows = csv.reader(stream)
        next(rows)
        for _, _, premises, _, sentences in rows:
            ast.literal_eval(premises)
            yield len(ast.literal_eval(sentences))


READERS: dict[str, Callable[[Path], Iterator[int]]] = {"read_arguments": ours, "csv + literal_eval": literal_eval}


def measure(name: str, path: Path) -> tuple[float, int, int, float]:
    """Seconds, arguments, sentences and growth of the peak memory in MiB, of one reading."""
    status = Path("/proc/self/status")
    before, start = read_status(status)["VmHWM"], time.perf_counter()
    counts = list(READERS[name](path))
    seconds = time.perf_counter() - start
    return seconds, len(counts), sum(counts), (read_status(status)["VmHWM"] - before) / 1024


def main() -> None:
    """Measure both readers by turns and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with open_maybe_gzip(options.file) as stream:
        megabytes = sum(map(len, iter(lambda: stream.read(2**20), b""))) / 1e6
    results: dict[str, list[tuple[float, int, int, float]]] = {name: [] for name in READERS}
    for _ in range(options.rounds):
        for name, found in results.items():
            found.append(run_alone(measure, name, options.file)[0])
    print(f"{options.file.name}: {megabytes:.1f} MB unpacked, fastest of {options.rounds}")
    for name, found in results.items():
        seconds, arguments, sentences, _ = min(found)
        print(
            f"{name:20} {arguments / seconds:8,.0f} arguments/s {sentences / seconds:10,.0f} sentences/s "
            f"{megabytes / seconds:6.1f} MB/s  peak memory +{max(growth for *_, growth in found):.1f} MiB "
            f"({arguments:,} arguments, {sentences:,} sentences, {seconds:.2f} s)"
        )


if __name__ == "__main__":
    main()
