"""Seconds, memory and requests of each stage of a task, against a real vLLM on the CPU.

    python -m benchmarks.stages TASK [--depth 20] [--topics 50] [OPTION OF `touche-llm run` …]

The input is the task's real topics and corpus in `../shared/data`, or the project's sample where
they are not there. The model is the tests' tiny random one: the figures say what the program costs
and what the engine costs here, nothing about a model's quality or a GPU's speed. Needs `.venv-vllm`
(`make test-vllm` installs it).
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from benchmarks.figures import parse_sizes
from benchmarks.processes import read_stages, run_command
from tests.vllm.real_data import input_of
from tests.vllm.server import make_model, vllm_server
from touche_llm.data.files import read_records
from touche_llm.data.records import StanceReading
from touche_llm.runs.directory import STANCES
from touche_llm.tasks import TASKS


def run(name: str, out: Path, *arguments: Any) -> None:
    """Run the task in a process of its own, and print the figures of the run."""
    run_command("run", *arguments, "--out", out, folder=out.parent)
    stages = read_stages(out)
    retrieve, judge, rank = stages["retrieve"], stages["judge"], stages["rank"]
    stored = retrieve["seconds_to_open_corpus"]
    print(f"{name}")
    print(
        f"  store the corpus or open it   {stored:9.3f} s ({retrieve['corpus']['documents']:,} documents)"
    )
    print(
        f"  index, retrieve, write        {retrieve['seconds'] - stored:9.3f} s ({retrieve['topics']} topics)"
    )
    if retrieve["llm"] is not None:
        show_requests(retrieve["llm"])
    print(
        f"  judge                         {judge['seconds']:9.3f} s ({judge['judgments']:,} judgments)"
    )
    show_requests(judge["llm"])
    if (out / STANCES).exists():
        asked = sum(each.orders for each in read_records(out / STANCES, StanceReading, "stances"))
        print(f"    of these for the stance {asked:,}")
    if judge["pairs"] is not None:
        print(f"    sentences judged {judge['sentences']:,}, pairs {judge['pairs']:,}")
    print(f"  rank                          {rank['seconds']:9.3f} s ({rank['lines']:,} lines)")
    if rank["llm"] is not None:
        show_requests(rank["llm"])
    print(f"  peak memory of the program    {rank['peak_memory_mib']:9,} MiB", flush=True)


def show_requests(use: dict[str, Any]) -> None:
    """Print what a stage sent to the language model."""
    counts = use["counts"]
    print(f"    requests sent {counts['requests']:,}, cache hits {counts['cache_hits']:,}")
    print(f"    documents cut {counts['cut']}, failures {sum(use['failures'].values())}")
    cached, prompt = counts["prefix_cached_tokens"], counts["prompt_tokens"]
    share = (
        f" ({cached / prompt:.1%} of them from the prefix cache)"
        if cached is not None and prompt
        else ""
    )
    print(f"    prompt tokens {prompt:,}{share}, answer tokens {counts['completion_tokens']:,}")


def main() -> None:
    """Measure a first run, the same run again with its index, and a replay."""
    parser = parse_sizes(__doc__, depth=(1, 20), topics=(1, 50))
    parser.add_argument("task", choices=list(TASKS))
    options, others = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        given = input_of(options.task, work)
        print(
            f"{options.task}: {'the real input' if given.is_real else 'the sample'}, depth {options.depth}"
        )
        arguments: list[Any] = [
            *given.options,
            "--depth",
            options.depth,
            "--limit-topics",
            options.topics,
        ]
        arguments += ["--model", "tiny", "--cache", work / "answers.sqlite", *others]
        with vllm_server(make_model(work), work / "server.log") as url:
            run("first run, nothing there yet", work / "first", *arguments, "--base-url", url)
            run(
                "again with every answer in the cache",
                work / "again",
                *arguments,
                "--base-url",
                url,
            )
        run("replay, server stopped", work / "replay", *arguments, "--cache-mode", "replay")
        same = (work / "first" / "run.txt").read_bytes() == (
            work / "replay" / "run.txt"
        ).read_bytes()
        print(f"run.txt of the replay is {'the same to the byte' if same else 'DIFFERENT'}")


if __name__ == "__main__":
    main()
