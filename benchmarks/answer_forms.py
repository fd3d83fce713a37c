"""What the form of an answer costs: the judge stage on one real vLLM on the CPU, form by form.

    python -m benchmarks.answer_forms [--topics 15] [--depth 20] [--rounds 3] [--concurrency 64]

The comparative task's real passages in `../shared/data`, or the project's sample where they are not there, are judged
by a tiny random model with the prompt of version 1 (an object with 20 alternatives for each token, the stance without a
position) and with the present one in each form, whose text is the same for all. The variants take turns, each with an
empty prefix cache and an empty answer cache, and each is compared with version 1 in the same round. Such a model cannot
show whether a form changes what a real one answers. Needs `.venv-vllm` (`make vllm` installs it).
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.figures import Figure, parse_sizes, show
from benchmarks.vllm_load import (
    format_range,
    judge_candidates,
    reset,
    retrieve_candidates,
    served_model,
    served_tiny,
    server_seconds,
    vllm_settings,
)
from tests.vllm.real_data import input_of
from tests.vllm.server import ROOT

_BEFORE = ROOT / "tests" / "regress_objects" / "comparative" / "prompts" / "judge" / "judge.jinja"
_PRESENT = ROOT / "prompts" / "comparative" / "judge.jinja"
_VERSION_1, _DEFAULT = "object, version 1", "letters"


@dataclass
class Turns:
    """What came of the turns of one variant, round by round.

    Attributes:
        rates: Requests a second of the judge stage.
        server: Processor milliseconds of the server for each request.
        client: Those of the client with its start.
        tokens: Tokens of an answer, on average.
    """

    rates: list[float] = field(default_factory=list)
    server: list[float] = field(default_factory=list)
    client: list[float] = field(default_factory=list)
    tokens: float = 0.0


def write_variants(folder: Path) -> dict[str, Path]:
    """Write the present prompt in each form; return the templates by the name of the variant."""
    variants = {_VERSION_1: _BEFORE}
    for form in ("object", "array", _DEFAULT):
        variants[form] = folder / f"{form}.jinja"
        variants[form].write_text(_PRESENT.read_text().replace(f"form: {_DEFAULT}", f"form: {form}"))
    return variants


def measure(work: Path, url: str, rounds: int, concurrency: int) -> tuple[dict[str, Turns], int]:
    """Judge the candidates of `work/run` in each form, by turns; return the turns and the requests of each."""
    variants, model = write_variants(work), served_model(url)[0]
    found: dict[str, Turns] = defaultdict(Turns)
    requests = 0
    for number in range(-1, rounds):  # the first compiles the grammars
        turn = max(number, 0) % len(variants)
        for variant in [*variants, *variants][turn : turn + len(variants)]:
            reset(url)
            server, own = server_seconds(), own_seconds()
            stage = judge_candidates(work, url, model, concurrency, "--prompt", variants[variant])
            requests = stage["requests"]["requests"]
            if number < 0:
                continue
            turns = found[variant]
            turns.rates.append(requests / stage["seconds"])
            turns.server.append(1000 * (server_seconds() - server) / requests)
            turns.client.append(1000 * (own_seconds() - own) / requests)
            turns.tokens = stage["requests"]["completion_tokens"] / requests
            print(f"  round {number + 1}, {variant}: {turns.rates[-1]:.1f} requests/s", file=sys.stderr, flush=True)
    return found, requests


def compare(found: dict[str, Turns]) -> list[Figure]:
    """The rows of the table."""
    before, now = found[_VERSION_1], found[_DEFAULT]
    gains, times = _divide(now.rates, before.rates), _divide(now.server, before.server)
    return [
        *(
            Figure(
                f"{variant}: {turns.tokens:.1f} tokens an answer",
                f"{format_range(turns.rates, '.1f')} requests/s",
                peer=f"server {_median(turns.server)} ms, client {_median(turns.client)} ms",
            )
            for variant, turns in sorted(found.items(), key=lambda item: -item[1].tokens)
        ),
        Figure(f"rate of {_DEFAULT} as a multiple of that of {_VERSION_1}", format_range(gains, ".2f")),
        Figure(f"server time for {_DEFAULT}, as a share of that for {_VERSION_1}", format_range(times, ".1%")),
        Figure("load average at the end", f"{os.getloadavg()[0]:.1f}"),
    ]


def own_seconds() -> float:
    """Processor seconds of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _median(values: Sequence[float]) -> str:
    return format(statistics.median(values), ".1f")


def _divide(values: Sequence[float], by: Sequence[float]) -> list[float]:
    return [value / other for value, other in zip(values, by, strict=True)]


def main() -> None:
    """Measure all rounds and print the table."""
    parser = parse_sizes(__doc__, topics=(1, 15), depth=(1, 20), rounds=(1, 3), concurrency=(1, 64))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, vllm_settings(cpu=True):
        work = Path(name)
        given = input_of("comparative", work)
        retrieve_candidates(work, given.topics, given.corpus, options.topics, options.depth)
        with served_tiny(work) as url:
            found, requests = measure(work, url, options.rounds, options.concurrency)
    source = "real passages" if given.is_real else "the sample"
    title = f"Forms of the judge answer: {requests:,} requests, {source}, {options.rounds} rounds, median (range)"
    show(title, compare(found))


if __name__ == "__main__":
    main()
