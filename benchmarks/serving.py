"""Our client against vLLM's own load generator, and the share of its prefix cache, on a real vLLM on the CPU.

    python -m benchmarks.serving [--topics 50] [--depth 20] [--rounds 3] [--concurrency 64 256]

The comparative task's real topics and passages in `../shared/data`, or the project's sample where they are not there,
are judged by a tiny random model (`benchmarks.random_model --size tiny`, with a context that no passage exceeds).
Two clients send the same requests in turn, each with an empty prefix cache: `touche-llm judge`, which renders, checks,
reads the probabilities and stores, once for each value of `--concurrency`; and `vllm bench serve`, which streams the
answers and takes their times, with as many requests at a time as the first value says. Client and server share the
cores, unlike with a GPU, so that the client's work takes time from the server. Needs `.venv-vllm` (`make test-vllm`
installs it) with pandas, with which `vllm bench serve` reads prompts.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks.figures import show
from benchmarks.judge_rate import figures, measure, random_model, served, vllm_settings
from benchmarks.sizes import at_least
from tests.vllm.real_data import input_of
from tests.vllm.server import MODEL_NAME

_VOCABULARY = 4096


def main() -> None:
    """Measure all rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=at_least(1), default=50)
    parser.add_argument("--depth", type=at_least(1), default=20)
    parser.add_argument("--rounds", type=at_least(1), default=3)
    parser.add_argument("--concurrency", type=at_least(1), nargs="+", default=[64, 256])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, vllm_settings(cpu=True):
        work = Path(name)
        given = input_of("comparative", work)
        random_model(work / MODEL_NAME, cpu=True, size="tiny", vocabulary=_VOCABULARY)
        with served(work / MODEL_NAME, {}, work / "server.log", cpu=True) as url:
            found = measure(
                work,
                given.topics,
                given.corpus,
                url,
                limit=options.topics,
                depth=options.depth,
                concurrency=options.concurrency,
                rounds=options.rounds,
            )
    source = "the real topics and passages" if given.is_real else "the sample"
    title = f"Judge stage against vLLM on the CPU: {source}, "
    title += f"depth {options.depth}, {options.rounds} rounds, median (range)"
    show(title, figures(found))


if __name__ == "__main__":
    main()
