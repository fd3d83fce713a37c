"""The command that writes a judge's labels as qrels, and measures systems with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from touche_llm.cli.judge_options import (
    JudgeTaskOption,
    ScaleOption,
    SkipBadLabelsOption,
    read_scale,
)
from touche_llm.cli.options import CommandProgress
from touche_llm.cli.output import (
    Column,
    Format,
    FormatOption,
    print_rows,
    say,
    show_lines,
    show_table,
)
from touche_llm.data.files import check_output
from touche_llm.errors import UsageError
from touche_llm.evaluation.filling.drawn_lists import (
    DrawnDocument,
    list_drawn,
    read_drawn_list,
    write_drawn_list,
)
from touche_llm.evaluation.filling.draws import draw_documents
from touche_llm.evaluation.filling.estimates import predict_drawn_half_widths
from touche_llm.evaluation.filling.pool import SystemPool
from touche_llm.evaluation.filling.systems import (
    MAX_HALF_WIDTH,
    MIN_EXPLAINED,
    FilledSystems,
    FillRefusal,
    SystemEstimate,
)
from touche_llm.evaluation.judges.labels import LabelSet
from touche_llm.runs.judge_qrels import (
    Systems,
    check_independence,
    choose_aspect,
    fill,
    list_pool,
    list_unlabelled,
    make_qrels,
    make_system_pool,
    read_judge_labels,
    read_people_labels,
    read_teams,
    write_as_candidates,
    write_qrels,
)
from touche_llm.runs.judges import find_judge_task

DEFAULT_DEPTH = 5
# Numbers of drawn documents whose half width is predicted.
_PREDICTED = (20, 50, 100)
_REMEDIES = {
    FillRefusal.FEW_TEAMS: "its error cannot be seen on other teams; give systems of five teams, or let people "
    "judge some of its documents (--draw 20)",
    FillRefusal.FEW_TOPICS: "so few topics carry no interval; let people judge documents of 20 topics",
    FillRefusal.WIDE_INTERVAL: "the value may be far from this; let people judge some of its documents (--draw 20), "
    "or try another judge",
}
Row = dict[str, object]


def qrels(
    judge: Annotated[
        Path,
        typer.Argument(
            metavar="JUDGE",
            help="Folder of a judged run, or file of labels in qrels form, of this or any other program.",
        ),
    ],
    human: Annotated[
        Path | None,
        typer.Option(
            "--human",
            metavar="FILE",
            help="Qrels of people, which come before the judge's.",
            rich_help_panel="Input",
        ),
    ] = None,
    systems: Annotated[
        list[str] | None,
        typer.Option(
            "--systems",
            metavar="TEAM=RUN",
            help="Run, or folder of run files, of a team; repeatable.",
            rich_help_panel="Input",
        ),
    ] = None,
    task: JudgeTaskOption = None,
    aspect: Annotated[
        str | None,
        typer.Option(
            "--aspect",
            metavar="NAME",
            help="Graded aspect (default: the first one of the task).",
            rich_help_panel="Input",
        ),
    ] = None,
    scale: ScaleOption = None,
    skip_bad_labels: SkipBadLabelsOption = False,
    drawn: Annotated[
        Path | None,
        typer.Option(
            "--drawn",
            metavar="FILE",
            help="List that --draw wrote; the grades of its documents are among those of --human.",
            rich_help_panel="Input",
        ),
    ] = None,
    pool: Annotated[
        int | None,
        typer.Option(
            "--pool",
            metavar="K",
            min=1,
            help=f"Keep the first K documents of each system; cutoff of nDCG (default: all; {DEFAULT_DEPTH} "
            "with --fill and --draw).",
        ),
    ] = None,
    fill_in: Annotated[
        bool,
        typer.Option(
            "--fill", help="Measure the systems, their unjudged documents filled in by the judge."
        ),
    ] = False,
    draw: Annotated[
        int | None,
        typer.Option(
            "--draw",
            metavar="N",
            min=2,
            help="Draw N unjudged documents of each team at random, for people to judge; written to --out.",
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", min=0, help="Seed of --draw (default: 0).")
    ] = 0,
    max_half_width: Annotated[
        float,
        typer.Option(
            "--max-half-width",
            metavar="NUMBER",
            min=0.0,
            help=f"Refuse a value with a wider interval (default: {MAX_HALF_WIDTH:.2f}).",
        ),
    ] = MAX_HALF_WIDTH,
    allow_own_judge: Annotated[
        bool,
        typer.Option(
            "--allow-own-judge",
            help="Measure runs that were made with the judge's model and prompt.",
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="Qrels or list to write.", rich_help_panel="Output"
        ),
    ] = None,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite/--no-overwrite", help="Replace files.", rich_help_panel="Output"),
    ] = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Write a judge's labels as qrels, and measure systems whose documents people did not judge.

    With --out, people's grades come first, and FILE.origins.tsv names the origin of each line. With
    --pool and --systems, the documents without a label are listed in FILE.unlabelled.run.txt, which
    `run` takes as --candidates.

    With --fill, the judge's labels are corrected by what is seen on documents that people judged.
    The 95 % intervals are measured on the other teams, whose documents are hidden in turn.

    With --draw, the file of --out lists documents for people to judge, and FILE.run.txt has them as
    a run. Add their grades to the file of --human, and give the list as --drawn.
    """
    if out is None and not fill_in:
        raise UsageError("--out: no file is named; name the qrels to write, or measure with --fill")
    if draw is not None and out is None:
        raise UsageError("--out: no file is named; name the list of drawn documents to write")
    needs_pool = fill_in or draw is not None or pool is not None
    if needs_pool and not systems:
        raise UsageError(
            "--systems: no run given; give the runs of the pool, as --systems TEAM=RUN"
        )
    if (fill_in or draw is not None) and human is None:
        raise UsageError(
            "--human: no qrels given; give the grades of people, on which the judge is measured"
        )
    if drawn is not None and not fill_in:
        raise UsageError("--drawn: has no effect alone; give --fill too")

    known = find_judge_task(task, [judge])
    chosen = choose_aspect(known, aspect)
    labels = read_judge_labels(
        judge,
        known,
        chosen,
        scale=read_scale(scale),
        skip_bad_labels=skip_bad_labels,
    )
    people = None if human is None else read_people_labels(human, chosen, known)
    teams, files = read_teams(systems or ())
    if files and not allow_own_judge:
        _warn_of_unknown(judge, check_independence(judge, files))

    depth = pool or DEFAULT_DEPTH
    if out is not None:
        inputs = [path for path in (judge, human, *files) if path is not None and path.is_file()]
        _check_outputs(out, overwrite, inputs)
    if draw is not None and out is not None and people is not None:
        _draw(out, make_system_pool(labels, people, teams, depth), draw, seed, output)
    elif out is not None:
        _write(out, labels, people, list_pool(teams, depth) if needs_pool else None, output)
    if fill_in and people is not None:
        filled = fill(
            labels,
            people,
            teams,
            depth=depth,
            drawn=() if drawn is None else read_drawn_list(drawn),
            max_half_width=max_half_width,
        )
        _warn_of_missing_topics(teams, people)
        _show_filled(filled, output)


def _name_beside(out: Path, suffix: str) -> Path:
    return out.with_name(f"{out.name}.{suffix}")


def _check_outputs(out: Path, overwrite: bool, inputs: Sequence[Path]) -> None:
    """Raise UsageError unless all files may be written."""
    suffixes = ("origins.tsv", "unlabelled.run.txt", "run.txt")
    for path in (out, *(_name_beside(out, suffix) for suffix in suffixes)):
        check_output(path, overwrite, inputs)


def _warn_of_unknown(judge: Path, unknown: Sequence[Path]) -> None:
    """Warn of runs of which it is not known whether the judge made them."""
    if unknown:
        CommandProgress().warn(
            f"{judge}: it is not known whether this judge made {len(unknown)} of the runs; a judge favours "
            "runs that it made"
        )


def _warn_of_missing_topics(systems: Systems, people: LabelSet) -> None:
    """Warn of systems without some topics that people judged."""
    for members in systems.values():
        for name, run in members.items():
            missing = people.labels.keys() - run.rankings.keys()
            if missing:
                CommandProgress().warn(
                    f"{name}: {len(missing)} of {len(people.labels)} judged topics are missing, and count as 0"
                )


def _write(
    out: Path,
    labels: LabelSet,
    people: LabelSet | None,
    pool: dict[str, list[str]] | None,
    output: Format,
) -> None:
    """Write qrels, their origins, and the documents of the pool without a label."""
    lines = make_qrels(labels, people, pool)
    origins = write_qrels(out, lines)
    counts = Counter(line.origin for line in lines)
    numbers = ", ".join(f"{count:,} of {origin}" for origin, count in counts.items()) or "none"
    say(output, f"qrels: {out} ({numbers}; origins: {origins})")
    missing = {} if pool is None else list_unlabelled(pool, lines)
    if missing:
        path = _name_beside(out, "unlabelled.run.txt")
        write_as_candidates(path, missing)
        count = sum(map(len, missing.values()))
        say(
            output,
            f"without a label: {count:,} documents; judge them (touche-llm run --candidates {path})",
        )


def _draw(path: Path, pool: SystemPool, number: int, seed: int, output: Format) -> None:
    """Draw documents of each team, write them, and say how narrow intervals will be."""
    random = np.random.default_rng(seed)
    drawn: list[DrawnDocument] = []
    for team, name in enumerate(pool.teams):
        unjudged = len(pool.list_unjudged(team))
        if unjudged == 0:
            continue
        for size in _PREDICTED:
            width = predict_drawn_half_widths(pool, team, size, random).mean()
            say(
                output,
                f"{name}: with {min(size, unjudged)} of {unjudged} documents about ±{width:.3f}",
            )
        sample = draw_documents(pool, team, number, np.random.default_rng([seed, team]))
        drawn += list_drawn(pool, team, sample)
    write_drawn_list(path, drawn)
    by_topic: dict[str, dict[str, None]] = {}
    for item in drawn:
        by_topic.setdefault(item.topic, {})[item.document] = None
    documents = {topic: list(names) for topic, names in sorted(by_topic.items())}
    write_as_candidates(_name_beside(path, "run.txt"), documents)
    say(output, f"drawn: {path} ({len(drawn):,} documents for people to judge)")


def _show_filled(filled: FilledSystems, output: Format) -> None:
    """Print the estimates of systems, for people or as rows."""
    if output is not Format.TABLE:
        print_rows(output, filled.to_rows())
        return
    _show_values(filled)
    print()
    with_unjudged = [estimate for estimate in filled.systems if estimate.unjudged > 0.0]
    if with_unjudged:
        _show_alternatives(with_unjudged)
        print()
    show_lines(_describe(filled))


def _show_values(filled: FilledSystems) -> None:
    """Print values with both intervals."""
    columns = [
        Column("system", is_text=True),
        Column("unjudged", digits=2, drop=1),
        Column("value", digits=3),
        Column("these topics", value="these"),
        Column("other topics", value="others"),
        Column("no judge", value="without"),
    ]
    rows: list[Row] = []
    for estimate in filled.systems:
        is_given = estimate.refusal is None
        row: Row = {
            "system": f"{estimate.team}: {estimate.system}",
            "unjudged": estimate.unjudged,
            "value": estimate.value if is_given else None,
            "these": _format_range(estimate.value, estimate.half_width) if is_given else "refused",
            "others": _format_range(estimate.value, estimate.half_width_of_topics)
            if is_given
            else "",
            "without": _format_half_width(estimate.half_width_without_judge),
        }
        rows.append(row)
    show_table(
        columns,
        rows,
        title=f"nDCG@{filled.depth} of {filled.topics} topics, unjudged documents filled in",
        below=[
            "these topics: 95 % interval of the value on these topics, had people judged everything",
            "other topics: 95 % interval of the value on other topics",
            "no judge: half the width if unjudged documents get the mean grade of one team's judged ones",
        ],
    )


def _format_half_width(half_width: float) -> str:
    return f"±{half_width:.3f}" if np.isfinite(half_width) else "–"


def _format_range(value: float, half_width: float) -> str:
    return f"{max(value - half_width, 0.0):.3f} to {min(value + half_width, 1.0):.3f}"


def _show_alternatives(estimates: Sequence[SystemEstimate]) -> None:
    """Print other ways to treat unjudged documents."""
    columns = [Column("system", is_text=True)]
    columns += [
        Column(name, digits=3) for name in ("lowest", "highest", "condensed", "bootstrapped")
    ]
    rows: list[Row] = [
        {**asdict(estimate), "system": f"{estimate.team}: {estimate.system}"}
        for estimate in estimates
    ]
    show_table(
        columns,
        rows,
        title="the same without estimates of grades",
        below=[
            "lowest, highest: unjudged documents as 0, and as the highest grade",
            "condensed: unjudged documents left out; bootstrapped: grades of random judged documents",
        ],
    )


def _describe(filled: FilledSystems) -> list[str]:
    """Return what the judge adds, and what to do about refused values."""
    lines: list[str] = []
    if filled.adds_nothing is not None:
        lines.append(_describe_judge(filled))
    counts = Counter(item.refusal for item in filled.systems if item.refusal is not None)
    for refusal, count in counts.items():
        noun = "system" if count == 1 else "systems"
        lines.append(f"refused: {count} {noun} ({refusal}): {_REMEDIES[refusal]}")
    lines.append(
        "a new kind of system may have a larger error: the intervals rest on the other teams"
    )
    return lines


def _describe_judge(filled: FilledSystems) -> str:
    """Return in a sentence how much the labels of the judge say."""
    by_judge = [item for item in filled.systems if item.is_error_of_judge_known]
    ours = np.mean([item.half_width for item in by_judge])
    without = np.mean([item.half_width_without_labels for item in by_judge])
    widths = (
        f"the intervals are ±{ours:.3f} in the mean with its labels, and ±{without:.3f} without"
    )
    share = f"{filled.explained:.0%} of the variance of people's grades"
    if filled.adds_nothing:
        return f"the judge adds nothing: its labels explain {share}, less than {MIN_EXPLAINED:.0%}; {widths}"
    return f"the judge's labels explain {share}; {widths}"
