"""The command that holds runs against one of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from touche_llm.cli import figures as f
from touche_llm.cli import options as o
from touche_llm.cli.output import Format, FormatOption, say
from touche_llm.data.files import check_output
from touche_llm.errors import UsageError, to_printable
from touche_llm.evaluation.measures import describe_coverage
from touche_llm.pipeline.run_folder import find_run_file, find_task

if TYPE_CHECKING:
    from pandas import DataFrame

    from touche_llm.evaluation.measures import Evaluation


def compare(
    runs: f.RunsArgument,
    baseline: Annotated[Path, typer.Option("--baseline", help="The one of the runs that the others are held against.")],
    task: f.TaskOption = None,
    relevance: f.RelevanceOption = None,
    quality: f.QualityOption = None,
    stance: f.StanceOption = None,
    coherence: f.CoherenceOption = None,
    output: FormatOption = Format.TABLE,
    depth: f.DepthOption = None,
    run_topics: f.RunTopicsOption = False,
    html: Annotated[
        Path | None,
        typer.Option("--html", help="Write a page as well, with 2 to 8 runs side by side (report.html, say)."),
    ] = None,
    top: Annotated[
        int, typer.Option("--top", min=1, help="With --html: so many documents of each run and topic are shown.")
    ] = 20,
    overwrite: o.OverwriteOption = False,
) -> None:
    """Hold runs against one of them: differences with 95 % intervals, tests, and topics won, tied and lost.

    p is that of a two-sided paired randomisation test over topics.

    p Holm is corrected for the number of runs that are held against the baseline, measure by measure.

    Where --limit-topics or --topic limited a run, the topics that all runs have are compared; else a missing one counts
    0.

    Stances are compared over the documents that both runs label. Notes on standard error are those of `evaluate`.
    """
    from touche_llm.evaluation.measures import compare_runs

    if baseline not in runs:
        runs = [baseline, *runs]
    if len(runs) < 2:
        raise UsageError(f"{baseline} alone cannot be compared; name another run")
    files = {"relevance": relevance, "quality": quality, "stance": stance, "coherence": coherence}
    known = find_task(task, runs)
    qrels = f.given_qrels(known.name, **files)
    given = f.given_runs(runs, qrels, known)
    kept = [each for each in given if not each.first_stage]
    if html is not None:
        from touche_llm.report.comparison_page import render_comparison
        from touche_llm.report.page import write_page
        from touche_llm.report.run_comparison import NamedRun, check_runs, gather_comparison

        inputs = (*map(find_run_file, runs), *filter(None, files.values()))
        check_output(html, overwrite, inputs)
        shown = [NamedRun(each.name, each.run, each.folder) for each in kept]
        check_runs(shown, known)
    limits = f.limits(kept)
    if run_topics or limits:
        qrels = f.of_all_runs(qrels, kept)
    evaluations = f.evaluate_runs(kept, qrels, depth or f.recall_depth(given))
    name = to_printable(str(baseline))
    held = next(each for each in evaluations if each.name == name)
    frame, remarks = compare_runs(held, [each for each in evaluations if each is not held])
    notes = [*limits, *f.fitted(kept, qrels), *remarks]
    page = ""
    if html is not None:
        judged_by = {aspect: path for aspect, path in files.items() if path is not None}
        found = gather_comparison(shown, known, judged_by, evaluations, frame, notes, top)
        size = write_page(render_comparison(found), html)
        page = f"page: {html} ({len(found.topics):,} topics, {size:,} bytes)"
    if output is Format.TABLE:
        _show(frame, evaluations)
    else:
        f.print_frame(frame, output)
    f.tell(qrels, evaluations, kept, *notes)
    if page:
        say(output, page)


def _show(frame: DataFrame, evaluations: Sequence[Evaluation]) -> None:
    baseline = frame["baseline"].iloc[0]
    for aspect, rows in f.by_aspect(frame):
        cells = [
            (
                f.short(row.measure),
                row.run,
                (
                    f.spelled(row.value),
                    f.spelled(row.baseline_value),
                    f.spelled(row.difference, sign="+"),
                    f.spelled_interval(row.low, row.high, sign="+"),
                    f.spelled(row.p_holm),
                    f"{row.wins}/{row.ties}/{row.losses}",
                ),
            )
            for row in rows
        ]
        columns = ("value", "baseline", "difference", "95 % interval", "p Holm", "+/=/-")
        title, below = f"{aspect}, difference to the baseline {baseline}", describe_coverage(evaluations, aspect)
        f.show_figures(title, columns, f.grouped(cells), below)
    print("value, baseline: over the topics, and for stances the documents, that both runs have")
    print("p Holm: of a paired randomisation test, corrected for the number of runs; --format json has it as it was")
    print("+/=/-: topics in which the run is better than the baseline, as good, and worse")
