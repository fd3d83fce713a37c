"""The command that compares wordings of a prompt by their agreement with human judgments."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from touche_llm.api.dataset import Dataset
from touche_llm.cli import measured_runs as m
from touche_llm.cli import options as s
from touche_llm.cli import shared_options as o
from touche_llm.cli.costs import print_costs
from touche_llm.cli.failures import FAILURES_EXIT, print_failures
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
from touche_llm.cli.requests import run_requests
from touche_llm.config.configuration import Config
from touche_llm.data.files import check_output
from touche_llm.data.measure import Measure, MeasureName
from touche_llm.errors import UsageError
from touche_llm.evaluation.qrels import Qrels, read_qrels

if TYPE_CHECKING:
    from touche_llm.prompt_lab.comparison import PromptComparison
    from touche_llm.prompt_lab.variants import PartMeasures, Variant

_MAX_ON_PAGE = 8
_HELD_OUT = "Held-out topics are not counted: the first prompt and the best judge as many documents of these."
_LEGEND = (
    "kappa: quadratically weighted, of the most probable label; random order: mean nDCG@5 of the same "
    "documents over all orders; outside: mean probability off the "
    "labels; tokens: of all prompts, cached ones included"
)
_CHANGE = ("difference", "low", "high", "p", "p_holm", "wins", "ties", "losses")
_OF_COMPARISON = (
    *s.INPUTS,
    *("skip_bad_lines", "limit_topics", "topic", "prompts.folder", "prompts.objects", "judge_per"),
    *("engine", "sampling", "cache"),
)


TemplatesArgument = Annotated[
    list[str], typer.Argument(metavar="NAME|FILE", help="Judge prompts: names or .jinja files.")
]
SplitOption = Annotated[
    Literal["half", "all"],
    typer.Option(
        "--split",
        help="Topics to choose on: their fixed half, and the others are held out; or all.",
    ),
]
ConfirmOption = Annotated[
    bool,
    typer.Option("--confirm", help="Compare best and first on the held-out topics; logged."),
]
SampleOption = Annotated[
    int,
    typer.Option(
        "--sample",
        min=1,
        metavar="N",
        help="Judged documents to draw, evenly over grades; those of held-out topics wait.",
    ),
]
HtmlOption = Annotated[
    Path | None,
    typer.Option(
        "--html",
        metavar="FILE",
        help="Also write a page with a row per document.",
        rich_help_panel="Output",
    ),
]


@s.configured(*_OF_COMPARISON)
@o.takes_qrels
def compare(
    config: Config,
    qrels_files: o.QrelsFiles,
    templates: TemplatesArgument,
    split: SplitOption = "half",
    confirm: ConfirmOption = False,
    sample: SampleOption = 200,
    html: HtmlOption = None,
    dry_run: o.DryRunOption = False,
    overwrite: o.OverwriteOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Compare prompts by their agreement with human judgments of a sample.

    Variants are chosen by nDCG@5 on one half of the topics; nothing is sent about the other half.
    Give `--confirm` once, when no wording is left to try. Answers in the cache are not requested
    again. Exit codes as for `run`.
    """
    from touche_llm.prompt_lab.comparison import (
        ComparisonInputs,
        compare_prompts,
        estimate_comparison,
    )
    from touche_llm.prompt_lab.sample import Plan

    if html is not None:
        if len(templates) > _MAX_ON_PAGE:
            raise UsageError(
                f"--html: a page shows at most {_MAX_ON_PAGE} prompts; name fewer than {len(templates)}"
            )
        inputs_of_run = (*qrels_files.values(), config.topics, config.corpus)
        check_output(html, overwrite, [file for file in inputs_of_run if file is not None])
    if not qrels_files and config.dataset is not None:
        qrels_files = Dataset(config.dataset, config.task).qrels_files

    qrels = read_qrels(qrels_files, config.task)
    progress = CommandProgress()
    inputs = ComparisonInputs(config, templates, qrels, Plan(sample, split, confirm))
    if dry_run:
        cost = run_requests(config, estimate_comparison(inputs, progress))
        print_costs(output, config, cost, [_HELD_OUT] if confirm else [])
        return

    comparison = run_requests(config, compare_prompts(inputs, progress))
    _print_comparison(output, comparison)
    if html is not None:
        _write_page(output, html, comparison, qrels, qrels_files)
    say(output, comparison.verdict.sentence)

    failures = comparison.all_failures()
    if failures:
        note = "documents without a judgment are ranked last; the same command requests them again"
        print_failures(output, failures, note)
        raise typer.Exit(FAILURES_EXIT)


def _print_comparison(output: Format, comparison: PromptComparison) -> None:
    """Print the measures of all variants, part by part."""
    rows_by_part = {part.name: _make_rows(comparison, part) for part in comparison.parts}
    if output is not Format.TABLE:
        print_rows(output, [row for rows in rows_by_part.values() for row in rows])
        return

    for part in comparison.parts:
        _show(comparison, part, rows_by_part[part.name])
    show_lines([_LEGEND])


def _write_page(
    output: Format,
    page: Path,
    comparison: PromptComparison,
    qrels: Qrels,
    qrels_files: Mapping[str, Path],
) -> None:
    """Write a page with a row for each document, and print its name."""
    from touche_llm.report.matrix import render_matrix
    from touche_llm.report.page import write_page

    size = write_page(render_matrix(comparison, qrels, dict(qrels_files)), page)
    say(output, f"page: {page} ({size:,} bytes)")


def _show(
    comparison: PromptComparison, part: PartMeasures, rows: Sequence[Mapping[str, Any]]
) -> None:
    """Print the tables of a part: the measures of its variants, and their changes."""
    random_order = dict.fromkeys(rows[0])
    random_order["variant"] = "random order"
    random_order[_key(part.headline_measure)] = part.chance
    show_table(_list_columns(part), [*rows, random_order], _describe_part(part))
    print()

    changes: list[dict[str, Any]] = []
    for measure in part.measures:
        for variant in comparison.variants_in(part)[1:]:
            change = part.differences[variant.name, measure]
            changes.append({"measure": measure, "variant": variant.name, **change})
    show_table(_CHANGES, changes, f"change from {comparison.variants[0].name}")
    print()


def _list_columns(part: PartMeasures) -> list[Column]:
    """Return the columns of the measures and the costs of variants."""
    columns = [Column("variant", is_text=True)]
    for measure in part.measures:
        # Each graded aspect has a kappa or a correlation; the other measures occur once.
        is_repeated = measure.name in (MeasureName.KAPPA, MeasureName.SPEARMAN)
        title = str(measure) if is_repeated else measure.short_text
        columns.append(Column(title, value=_key(measure)))
    columns.append(Column("outside", drop=2))
    columns.append(Column("failures", drop=2))
    columns.append(Column("tokens", drop=2, value="prompt_tokens"))
    columns.append(Column("requests", drop=2))
    return columns


def _describe_part(part: PartMeasures) -> str:
    """Return the title of a part's table: its documents, its topics and what it is for."""
    purpose = {"all": "", "choice": ", to choose on", "hold-out": ", held out"}[part.name]
    topics = f"{len(part.topics)} topic{'' if len(part.topics) == 1 else 's'}"
    return f"{len(part.sample):,} documents of {topics}{purpose}"


_CHANGES = (Column("measure", is_text=True), Column("variant", is_text=True), *m.CHANGE_COLUMNS)


def _key(measure: Measure) -> str:
    """Return the name of a measure in rows for other programs, such as `relevance_ndcg_5`."""
    return re.sub(r"\W+", "_", str(measure).lower())


def _make_rows(comparison: PromptComparison, part: PartMeasures) -> list[dict[str, Any]]:
    """Return a row for each variant that judged a part, for other programs."""
    return [_make_row(comparison, part, variant) for variant in comparison.variants_in(part)]


def _make_row(comparison: PromptComparison, part: PartMeasures, variant: Variant) -> dict[str, Any]:
    """Return the measures of a variant, their differences from the first variant's, and its costs."""
    verdict = comparison.verdict
    is_best = variant.name == verdict.winner
    row: dict[str, Any] = {
        "part": part.name,
        "topics": len(part.topics),
        "documents": len(part.sample),
        "variant": variant.name,
        "prompt": variant.prompt.name,
        "version": variant.prompt.header.version,
        "hash": variant.prompt.hash,
        "best": is_best,
        "confirmed": verdict.confirmed if is_best else None,
    }
    for measure, estimate in part.estimates[variant.name].items():
        name = _key(measure)
        change = part.differences.get((variant.name, measure), {})
        row[name] = estimate.value
        for key in _CHANGE:
            row[f"{name}_{key}"] = change.get(key)

    accesses = comparison.earlier_accesses
    judgments = comparison.judged[part.name, variant.name]
    counts = judgments.counts
    row["random_ndcg_5"] = part.chance
    row["earlier_accesses"] = None if accesses is None else len(accesses)
    row["outside"] = part.off_label_mass[variant.name]
    row["failures"] = len(judgments.failures)
    row["prompt_tokens"] = counts.prompt_tokens + counts.cached_prompt_tokens
    row["requests"] = counts.requests
    row["cache_hits"] = counts.cache_hits
    return row
