"""The command that holds runs against one of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from touche_llm.cli import figures as f
from touche_llm.errors import UsageError, printable

if TYPE_CHECKING:
    from pandas import DataFrame


def compare(
    runs: f.RunsArgument,
    baseline: Annotated[Path, typer.Option("--baseline", help="The one of the runs that the others are held against.")],
    task: f.TaskOption,
    relevance: f.RelevanceOption = None,
    quality: f.QualityOption = None,
    stance: f.StanceOption = None,
    coherence: f.CoherenceOption = None,
    output: f.FormatOption = f.Format.TABLE,
    depth: f.DepthOption = None,
) -> None:
    """Hold runs against one of them: differences with 95 % intervals, tests, and topics won, tied and lost.

    p is that of a two-sided paired randomisation test over topics.

    p Holm is corrected for the number of runs that are held against the baseline, measure by measure.

    Notes on standard error are those of `evaluate`.
    """
    from touche_llm.evaluation import certainty

    if baseline not in runs:
        raise UsageError(f"--baseline {baseline}: is none of the runs: {', '.join(map(str, runs))}; name one of them")
    if len(runs) < 2:
        raise UsageError(f"{baseline} alone cannot be compared; name another run")
    qrels = f.given_qrels(task, relevance=relevance, quality=quality, stance=stance, coherence=coherence)
    evaluations = f.evaluate_runs(f.given_runs(runs, qrels, first_stages=False), qrels, depth)
    figures = {evaluation.name: evaluation.figures for evaluation in evaluations}
    name = printable(str(baseline))
    frame = certainty.compare(name, figures)
    if output is f.Format.TABLE:
        _show(frame, {measure: figure.value for measure, figure in figures[name].items()})
    else:
        f.print_frame(frame, output)
    f.tell(qrels, evaluations, runs)


def _show(frame: DataFrame, values: dict[str, float]) -> None:
    """Print the differences; `values` are the baseline's."""
    baseline = frame["baseline"].iloc[0]
    for aspect, rows in f.by_aspect(frame):
        cells = [
            (
                f"{f.short(row.measure)}, baseline {f.spelled(values[row.measure])}",
                row.run,
                (
                    f.spelled(row.difference, sign="+"),
                    f.spelled_interval(row.low, row.high, sign="+"),
                    f.spelled(row.p_holm),
                    f"{row.wins}/{row.ties}/{row.losses}",
                ),
            )
            for row in rows
        ]
        columns = ("difference", "95 % interval", "p Holm", "+/=/-")
        f.show_figures(f"{aspect}, difference to the baseline {baseline}", columns, f.grouped(cells))
    print("p Holm: of a paired randomisation test, corrected for the number of runs; --format json has it as it was")
    print("+/=/-: topics in which the run is better than the baseline, as good, and worse")
