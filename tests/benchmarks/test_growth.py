"""What the growth benchmark makes of its measurements: lines, and GPU hours by a formula."""

from __future__ import annotations

import sys

import pytest

from benchmarks.gpu_time import output_seconds, prompt_seconds
from benchmarks.growth import FirstStage, Judged, grids, lines_of, main
from benchmarks.lines import Line


def line(*points: tuple[float, float], goal: float = 100) -> Line:
    return Line("time", "s", "passage", points, goal)


def test_a_line_through_points_that_lie_on_one_is_that_line() -> None:
    found = line((10_000, 23), (100_000, 203), (868_655, 1740.31))
    assert found.slope_and_intercept == pytest.approx((0.002, 3))
    assert found.at(200_000_000) == pytest.approx(400_003)
    assert found.reaches(2_003) == pytest.approx(1_000_000)
    assert found.off == pytest.approx(0, abs=1e-9)


def test_the_largest_deviation_is_a_share_of_the_point_measured() -> None:
    # Least squares through (0, 1), (1, 1), (2, 4): y = 1.5 x + 0.5, which is 2 where 1 was measured.
    found = line((0, 1), (1, 1), (2, 4))
    assert found.slope_and_intercept == pytest.approx((1.5, 0.5))
    assert found.off == pytest.approx(1)


def test_hours_are_told_where_seconds_are_many() -> None:
    assert line((1, 72), (2, 144)).describe() == "7,200 s, 2.0 h at 100 passages"
    assert line((1, 0.01), (2, 0.02)).describe() == "1 s at 100 passages"


def test_a_line_that_falls_is_not_followed() -> None:
    assert line((1, 1.4), (10, 1.3)).describe() == "does not rise with the passages measured"
    assert line((1, 1.4), (10, 1.3)).reaches(24) == float("inf")


def test_prompts_cost_two_operations_for_each_parameter_and_token() -> None:
    # 8.03e9 parameters, and two fifths of 989e12 operations a second.
    assert prompt_seconds(1_000_000) == pytest.approx(2 * 8.03e15 / 395.6e12)


def test_answers_cost_the_weights_for_all_at_a_time_and_the_keys_and_values_of_each() -> None:
    # 256 answers of 17 tokens at a time: 17 steps, in each of which 16.06 GB of weights are read at 2.01 TB/s.
    weights = 17 * 16.06e9 / 2.01e12
    assert output_seconds(256, 0) == pytest.approx(weights)
    keys = 17 * 256 * 1_000 * 131_072 / 2.01e12
    assert output_seconds(256, 256_000) == pytest.approx(weights + keys)
    assert output_seconds(1_024, 1_024_000) == pytest.approx(4 * (weights + keys))


def test_a_prefix_cache_leaves_the_tokens_that_are_not_shared() -> None:
    stages = {
        size: FirstStage(size / 100, size / 100, 1 + size / 1e6, size, {1: (1, 1), 2: (2, 1)}) for size in (100, 200)
    }
    judges = {n: Judged(100 * n, 80_000 * n, 60_000 * n, 90 * n, 0.1 * n, 0.1 + 0.01 * n) for n in (1, 2)}
    lines = lines_of(stages, judges)
    assert lines["index"].at(200_000_000) == pytest.approx(2_000_000)
    assert lines["computed"].at(1_000) == pytest.approx(20_000_000)
    hours = {row[0]: float(row[1]) for row in grids(stages, judges, lines, 90)[-1].rows}
    output = output_seconds(100_000, 80_000_000)
    assert list(hours.values()) == pytest.approx(
        [
            each / 3600
            for each in (
                prompt_seconds(20_000_000),
                output,
                prompt_seconds(20_000_000) + output,
                prompt_seconds(80_000_000) + output,
            )
        ],
        abs=0.005,
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--topics", "5", "5"], "--topics: a line needs two different numbers"),
        (["--passages", "0", "100"], "--passages: a line needs two different numbers"),
        (["--passages", "100", "500", "--depth", "200"], "--depth 200: there are 100 --passages"),
    ],
)
def test_sizes_that_no_line_follows_from_are_refused(
    given: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["growth.py", *given])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert message in capsys.readouterr().err
