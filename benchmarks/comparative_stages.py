"""Seconds, memory and requests per second of each stage of the comparative task, against a real vLLM on the CPU.

    python -m benchmarks.comparative_stages FOLDER [--depth 20] [--topics 50]

FOLDER holds `topics.xml` and `passages.jsonl.gz` of Touché 2022 task 2. The model is the tests' tiny random one: the
figures say what the program costs and what the engine costs here, nothing about a model's quality or a GPU's speed.
Needs `.venv-vllm` (`make test-vllm` installs it).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from tests.vllm.server import make_model, vllm_server


def run(arguments: list[Any], out: Path) -> dict[str, Any]:
    """One `touche-llm run` in a process of its own; returns what its metadata says of the stages."""
    command = [sys.executable, "-m", "touche_llm", "run", *map(str, arguments), "--out", str(out)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=out.parent)
    stages: dict[str, Any] = yaml.safe_load((out / "ir-metadata.yml").read_text())["stages"]
    return stages


def show(name: str, stages: dict[str, Any]) -> None:
    """Print the figures of one run."""
    retrieve, judge, rank = stages["retrieve"], stages["judge"], stages["rank"]
    requests = judge["requests"]
    stored = retrieve["seconds to store the corpus or open it"]
    print(f"{name}")
    print(f"  store the corpus or open it   {stored:9.3f} s ({retrieve['corpus']['documents']:,} documents)")
    print(f"  index, retrieve, write        {retrieve['seconds'] - stored:9.3f} s ({retrieve['topics']} topics)")
    print(f"  judge                         {judge['seconds']:9.3f} s ({judge['judgments per second']} judgments/s)")
    print(f"    requests sent {requests['asked']:,}, cache hits {requests['cache_hits']:,}")
    print(f"    documents cut {judge['documents cut']}, failures {sum(judge['failures'].values())}")
    print(f"    prompt tokens {requests['prompt_tokens']:,}, answer tokens {requests['completion_tokens']:,}")
    print(f"  rank                          {rank['seconds']:9.3f} s ({rank['lines']:,} lines)")
    print(f"  peak memory of the program    {rank['peak memory MiB']:9,} MiB")


def main() -> None:
    """Measure a first run, the same run again with its index, and a replay."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--depth", type=int, default=20)
    parser.add_argument("--topics", type=int, default=50)
    options = parser.parse_args()
    data = options.folder.absolute()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        arguments = ["--topics", data / "topics.xml", "--corpus", data / "passages.jsonl.gz", "--index", work / "index"]
        arguments += ["--depth", options.depth, "--limit-topics", options.topics, "--model", "tiny"]
        arguments += ["--cache", work / "answers.sqlite"]
        with vllm_server(make_model(work), work / "server.log") as url:
            show("first run, nothing there yet", run([*arguments, "--base-url", url], work / "first"))
            show("again with every answer in the cache", run([*arguments, "--base-url", url], work / "again"))
        show("replay, server stopped", run([*arguments, "--cache-mode", "replay"], work / "replay"))
        same = (work / "first" / "run.txt").read_bytes() == (work / "replay" / "run.txt").read_bytes()
        print(f"run.txt of the replay is {'the same to the byte' if same else 'DIFFERENT'}")


if __name__ == "__main__":
    main()
