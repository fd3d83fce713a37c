"""Commands in odd surroundings, as processes of their own: the exit code and the files are the same."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

import pytest

from tests.faults.scenarios import SCENARIOS, Scenario
from tests.faults.tally import Tally
from tests.faults.trials import prepare
from tests.faults.workplace import Workplace, differences, environment

_ODD: Mapping[str, Mapping[str, str | None]] = {
    "ascii output": {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
    "40 columns": {"COLUMNS": "40"},
    "no HOME": {"HOME": None, "MPLCONFIGDIR": None},
}
# What a shell does with the command: nobody reads its output, or it has none.
_PIPES = {"closed pipe": "{} | true; exit ${{PIPESTATUS[0]}}", "no output": "{} >&- 2>&-", "no input": "{} <&-"}


@pytest.mark.nightly  # Six processes for each command; tests/cli/test_streams.py tries odd streams by default.
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.name)
def test_surroundings_change_nothing(place: Workplace, tally: Tally, scenario: Scenario) -> None:
    undisturbed, problems = prepare(place, scenario), []
    for kind in (*_ODD, *_PIPES):
        place.restore(scenario.name)
        variables = {**environment(place.folder), **_ODD.get(kind, {})}
        arguments = [part.replace("{url}", place.model.server.url) for part in scenario.command]
        done = subprocess.run(
            [
                "bash",
                "-c",
                _PIPES.get(kind, "{}").format('"$@"'),
                "bash",
                sys.executable,
                "-m",
                "touche_llm",
                *arguments,
            ],
            cwd=place.folder,
            env={name: value for name, value in variables.items() if value is not None},
            capture_output=True,
        )
        found = differences(place.snapshot(), undisturbed.after)
        if done.returncode != 0 or b"Traceback" in done.stderr:
            found.append(f"ended with {done.returncode}: {done.stderr!r}")
        tally.add(f"odd: {kind}", tried=1, held=not found)
        problems += [f"{kind}: {each}" for each in found]
    assert not problems, "\n".join(problems)
