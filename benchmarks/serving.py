"""Our client against vLLM's own load generator, and the share of its prefix cache, on a real vLLM on the CPU.

    python -m benchmarks.serving [--topics 50] [--depth 20] [--rounds 3] [--concurrency 64]

The comparative task's real topics and passages in `../shared/data`, or the project's sample where they are not there,
are judged by a tiny random model (`benchmarks.random_model --size tiny`, with a context that no passage exceeds).
Three clients ask for the same, by turns and each with an empty prefix cache: `touche-llm judge`, which renders,
checks, reads the probabilities and stores, with that many requests at a time and with `--concurrency auto`, its
default; `vllm bench serve`, which has the answers streamed and looks at their times; and a loop that only sends and
reads, so that it is the harder one to keep up with. Client and server share the cores, so that what a client costs is
missing to the server: with a GPU it is not. Needs `.venv-vllm` (`make test-vllm` installs it) with pandas, which
`vllm bench serve` reads prompts with. Targets are held against figures of the real data alone.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks.figures import show
from benchmarks.judge_rate import Measured, figures, measure, random_model, served, vllm_settings
from benchmarks.sizes import at_least
from tests.vllm.real_data import input_of
from tests.vllm.server import MODEL_NAME

_TOPICS, _DEPTH, _ROUNDS = 50, 20, 3
_VOCABULARY = 4096


def main() -> None:
    """Measure all rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=at_least(1), default=_TOPICS)
    parser.add_argument("--depth", type=at_least(1), default=_DEPTH)
    parser.add_argument("--rounds", type=at_least(1), default=_ROUNDS)
    parser.add_argument("--concurrency", type=at_least(1), default=64)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, vllm_settings(cpu=True):
        work = Path(name)
        data, real = input_of("comparative", work)
        assert data.corpus is not None
        random_model(work / MODEL_NAME, cpu=True, size="tiny", vocabulary=_VOCABULARY)
        with served(work / MODEL_NAME, {}, work / "server.log", cpu=True) as url:
            found = measure(
                work,
                data.topics,
                data.corpus,
                url,
                limit=options.topics,
                depth=options.depth,
                concurrency=options.concurrency,
                rounds=options.rounds,
            )
    title = f"Judge stage against vLLM on the CPU: {'the real topics and passages' if real else 'the sample'}, "
    title += f"depth {options.depth}, {options.concurrency} requests at a time, {options.rounds} rounds, median (range)"
    show(title, figures(found, real_size(options, found, real)))


def real_size(options: argparse.Namespace, found: Measured, real: bool) -> bool:
    """Whether the size is the target's: the real data, and as many requests of it as were asked for."""
    enough = options.topics >= _TOPICS and options.depth >= _DEPTH and options.rounds >= _ROUNDS
    return real and enough and found.requests == options.topics * options.depth


if __name__ == "__main__":
    main()
