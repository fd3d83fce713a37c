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
from touche_llm.evaluation.qrels import read_qrels

if TYPE_CHECKING:
    from touche_llm.prompt_lab.comparison import PromptComparison
    from touche_llm.prompt_lab.variants import PartMeasures

_MAX_ON_PAGE = 8
_HELD_OUT = "Held-out topics are not counted: the first prompt and the best judge as many documents of these."
_CHANGE = ("difference", "low", "high", "p", "p_holm", "wins", "ties", "losses")
_OF_COMPARISON = (
    *s.INPUTS,
    *("skip_bad_lines", "limit_topics", "topic", "prompts.folder", "prompts.objects", "judge_per"),
    *("engine", "sampling", "cache"),
)


@s.configured(*_OF_COMPARISON)
@o.takes_qrels
def compare(
    config: Config,
    qrels_files: o.QrelsFiles,
    templates: Annotated[
        list[str], typer.Argument(metavar="NAME|FILE", help="Judge prompts: names or .jinja files.")
    ],
    split: Annotated[
        Literal["half", "all"],
        typer.Option(
            "--split",
            help="Topics to choose on: their fixed half, and the others are held out; or all.",
        ),
    ] = "half",
    confirm: Annotated[
        bool,
        typer.Option("--confirm", help="Compare best and first on the held-out topics; logged."),
    ] = False,
    sample: Annotated[
        int,
        typer.Option(
            "--sample",
            min=1,
            metavar="N",
            help="Judged documents to draw, evenly over grades; those of held-out topics wait.",
        ),
    ] = 200,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html",
            metavar="FILE",
            help="Also write a page with a row per document.",
            rich_help_panel="Output",
        ),
    ] = None,
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
        check_output(
            html, overwrite, filter(None, (*qrels_files.values(), config.topics, config.corpus))
        )
    if not qrels_files and config.dataset is not None:
        qrels_files = Dataset(config.dataset, config.task).qrels_files
    qrels = read_qrels(qrels_files, config.task)
    progress = CommandProgress()
    plan = Plan(sample, split, confirm)
    inputs = ComparisonInputs(config, templates, qrels, plan)
    if dry_run:
        cost = run_requests(config, estimate_comparison(inputs, progress))
        print_costs(output, config, cost, [_HELD_OUT] if confirm else [])
        return
    found = run_requests(config, compare_prompts(inputs, progress))
    rows = {part.name: _make_rows(found, part) for part in found.parts}
    if output is Format.TABLE:
        for part in found.parts:
            _show(found, part, rows[part.name])
        show_lines(
            [
                "kappa: quadratically weighted, of the most probable label; random order: mean nDCG@5 of the same "
                "documents over all orders; outside: mean probability off the "
                "labels; tokens: of all prompts, cached ones included"
            ]
        )
    else:
        print_rows(output, [row for of_part in rows.values() for row in of_part])
    if html is not None:
        from touche_llm.report.matrix import render_matrix
        from touche_llm.report.page import write_page

        size = write_page(render_matrix(found, qrels, dict(qrels_files)), html)
        say(output, f"page: {html} ({size:,} bytes)")
    say(output, found.verdict.sentence)
    if failures := found.all_failures():
        note = "documents without a judgment are ranked last; the same command requests them again"
        print_failures(output, failures, note)
        raise typer.Exit(FAILURES_EXIT)


def _show(found: PromptComparison, part: PartMeasures, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the tables of a part: the measures of its variants, and their changes."""
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

    random_order = dict.fromkeys(rows[0])
    random_order["variant"] = "random order"
    random_order[_key(part.measures[0])] = part.chance
    show_table(columns, [*rows, random_order], _describe_part(part))
    print()

    changes: list[dict[str, Any]] = []
    for measure in part.measures:
        for variant in found.variants_in(part)[1:]:
            change = part.differences[variant.name, measure]
            changes.append({"measure": measure, "variant": variant.name, **change})
    show_table(_CHANGES, changes, f"change from {found.variants[0].name}")
    print()


def _describe_part(part: PartMeasures) -> str:
    """Return the title of a part's table: its documents, its topics and what it is for."""
    purpose = {"all": "", "choice": ", to choose on", "hold-out": ", held out"}[part.name]
    topics = f"{len(part.topics)} topic{'' if len(part.topics) == 1 else 's'}"
    return f"{len(part.sample):,} documents of {topics}{purpose}"


_CHANGES = (Column("measure", is_text=True), Column("variant", is_text=True), *m.CHANGE_COLUMNS)


def _key(measure: Measure) -> str:
    """Return the name of a measure in rows for other programs, such as `relevance_ndcg_5`."""
    return re.sub(r"\W+", "_", str(measure).lower())


def _make_rows(found: PromptComparison, part: PartMeasures) -> list[dict[str, Any]]:
    """Return a row per variant: its measures, their differences from the first variant's, and its costs."""
    rows = []
    for variant in found.variants_in(part):
        prompt, said = variant.prompt, found.judged[part.name, variant.name]
        best = variant.name == found.verdict.winner
        row: dict[str, Any] = {
            "part": part.name,
            "topics": len(part.topics),
            "documents": len(part.sample),
        }
        row |= {
            "variant": variant.name,
            "prompt": prompt.name,
            "version": prompt.header.version,
            "hash": prompt.hash,
        }
        row |= {"best": best, "confirmed": found.verdict.confirmed if best else None}
        for measure, figure in part.estimates[variant.name].items():
            name = _key(measure)
            change = part.differences.get((variant.name, measure), {})
            row |= {name: figure.value} | {f"{name}_{key}": change.get(key) for key in _CHANGE}
        accesses, counts = found.earlier_accesses, said.counts
        row |= {
            "random_ndcg_5": part.chance,
            "earlier_accesses": None if accesses is None else len(accesses),
        }
        row |= {"outside": part.off_label_mass[variant.name], "failures": len(said.failures)}
        row |= {"prompt_tokens": counts.prompt_tokens + counts.cached_prompt_tokens}
        row |= {"requests": counts.requests, "cache_hits": counts.cache_hits}
        rows.append(row)
    return rows
