"""The command that holds wordings of a prompt against each other, by what people said."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from touche_llm.cli import measured_runs as m
from touche_llm.cli import options as o
from touche_llm.cli.output import Format, FormatOption, print_rows, say
from touche_llm.cli.stages import FAILURES_EXIT, asked
from touche_llm.cli.tables import Column, format_interval, format_value, show_table
from touche_llm.data.files import check_output
from touche_llm.errors import UsageError, to_printable
from touche_llm.pipeline.progress import ConsoleProgress
from touche_llm.pipeline.stages import count_by_kind

if TYPE_CHECKING:
    from touche_llm.evaluation.qrels import Qrels
    from touche_llm.prompt_lab.comparison import PromptComparison
    from touche_llm.prompt_lab.measures import PartMeasures

# Parameters that are none of the configuration's.
_QRELS = ("relevance", "quality", "stance", "coherence")
_OWN = ("templates", *_QRELS, "split", "confirm", "sample", "sample_seed", "sample_file", "html")
_MOST_ON_PAGE = 8
_CHANGE = ("difference", "low", "high", "p", "p_holm", "wins", "ties", "losses")


def compare(
    context: typer.Context,
    templates: Annotated[
        list[str], typer.Argument(metavar="PROMPT...", help="Judge prompts: names, or paths of .jinja files.")
    ],
    task: o.TaskOption = None,
    topics: o.TopicsOption = None,
    corpus: o.CorpusOption = None,
    index: o.IndexOption = None,
    config: o.ConfigOption = None,
    relevance: m.RelevanceOption = None,
    quality: m.QualityOption = None,
    stance: m.StanceOption = None,
    coherence: m.CoherenceOption = None,
    split: Annotated[
        str,
        typer.Option(
            "--split",
            metavar="odd|even|all|FILE",
            help="Topics to choose on: those at odd places among the judged ones of the topics' file, at even ones, "
            "all, or the ids in a file, one a line. The others are held out.",
        ),
    ] = "odd",
    confirm: Annotated[
        bool,
        typer.Option(
            "--confirm",
            help="Compare the best with the first on the topics held out too. Each such look is counted in a log "
            "beside the answer cache, and the next one lists those before it.",
        ),
    ] = False,
    sample: Annotated[
        int | None,
        typer.Option(
            "--sample", min=1, help="Documents to judge, evenly over grades, 10 or more a topic (default: 200)."
        ),
    ] = None,
    sample_seed: Annotated[
        int | None, typer.Option("--sample-seed", help="Another one draws others (default: 0).")
    ] = None,
    sample_file: Annotated[
        Path | None,
        typer.Option(
            "--sample-file",
            help="The sample: taken from this file, or drawn and written there (default: in .touche-llm/samples).",
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write a page as well: a row for each document (matrix.html, say).")
    ] = None,
    limit_topics: o.LimitOption = None,
    topic: o.TopicOption = None,
    skip_bad_lines: o.SkipOption = None,
    engine: o.EngineOption = None,
    base_url: o.BaseUrlOption = None,
    model: o.ModelOption = None,
    revision: o.RevisionOption = None,
    context_tokens: o.ContextOption = None,
    cache: o.CacheOption = None,
    cache_mode: o.CacheModeOption = None,
    retry_failures: o.RetryFailuresOption = None,
    prompts_folder: o.PromptsOption = None,
    objects_prompt: o.ObjectsPromptOption = None,
    concurrency: o.ConcurrencyOption = None,
    request_timeout: o.TimeoutOption = None,
    retry_for: o.RetryOption = None,
    temperature: o.TemperatureOption = None,
    seed: o.SeedOption = None,
    max_tokens: o.MaxTokensOption = None,
    logprobs: o.LogprobsOption = None,
    values: o.ValuesOption = None,
    overwrite: o.OverwriteOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Judge one sample of judged documents with several prompts, and tell which agrees best with people.

    Variants are chosen by nDCG@5 on one half of the topics; nothing is sent about the other half.

    `--confirm` compares the best with the first on the other half: once, when you have stopped trying wordings.

    Only what changed is asked again: all else is in the answer cache, also of a comparison that was stopped.

    Exit codes as those of `run`: 3 where some questions had no usable answer.
    """
    from touche_llm.prompt_lab.comparison import compare_prompts
    from touche_llm.prompt_lab.sample import Plan

    if html is not None and len(templates) > _MOST_ON_PAGE:
        raise UsageError(f"{len(templates)} prompts do not fit side by side; name {_MOST_ON_PAGE}, or leave --html out")
    files = {"relevance": relevance, "quality": quality, "stance": stance, "coherence": coherence}
    if html is not None:
        check_output(html, overwrite, filter(None, (*files.values(), sample_file, topics, corpus, config)))
    settings = o.configure(context, *_OWN)
    qrels = m.given_qrels(settings.task, **files)
    progress = ConsoleProgress()
    for note in qrels.notes():
        progress.warn(note)
    plan = Plan(sample, sample_seed, sample_file, split, confirm, texts=html is not None)
    found = asked(settings, compare_prompts(settings, templates, qrels, plan, progress))
    if output is Format.TABLE:
        for part in found.parts:
            _show(found, part)
        _explain(found, qrels)
    else:
        print_rows(output, [row for part in found.parts for row in _rows(found, part)])
    say(output, f"sample: {found.sample_file} ({sum(len(part.sample) for part in found.parts):,} documents)")
    if html is not None:
        from touche_llm.report.matrix import render_matrix
        from touche_llm.report.page import write_page

        judged_by = {name: path for name, path in files.items() if path is not None}
        size = write_page(render_matrix(found, qrels, judged_by), html)
        say(output, f"page: {html} ({size:,} bytes)")
    say(output, to_printable(found.verdict.sentence))
    _end(output, found)


def _show(found: PromptComparison, part: PartMeasures) -> None:
    from touche_llm.prompt_lab.measures import named

    # Counts are dropped before measures if the terminal is narrow.
    columns = [Column("variant", is_text=True), *(Column(_short(measure), drop=1) for measure in part.measures)]
    columns[1] = replace(columns[1], drop=0)
    columns += [Column(name, drop=2) for name in ("outside", "failures", "tokens", "requests", "cached")]
    variants = found.variants_in(part)
    rows = []
    for variant in variants:
        said, counts = found.judged[part.name, variant.name], found.judged[part.name, variant.name].counts
        outside = part.outside[variant.name]
        cells = [format_value(estimate.value) for estimate in part.estimates[variant.name].values()]
        cells.append("–" if outside is None else format_value(outside))
        numbers = (len(said.failures), counts.prompt_tokens + counts.cached_prompt_tokens, counts.requests)
        cells += [f"{number:,}" for number in (*numbers, counts.cache_hits)]
        rows.append((variant.name, *cells))
    rows.append(("random order", format_value(part.chance), *[""] * (len(part.measures) + 4)))
    purpose = {"all": "", "choice": ", to choose on", "hold-out": ", held out"}[part.name]
    show_table(columns, rows, title=f"{len(part.sample):,} documents of {len(part.topics)} topics{purpose}")
    print()
    changes = []
    for measure in part.measures:
        for variant in variants[1:]:
            change = part.differences[variant.name, measure]
            cells = [
                format_value(change["difference"], sign="+"),
                format_interval(change["low"], change["high"], sign="+"),
                format_value(change["p_holm"]),
                f"{change['wins']}/{change['ties']}/{change['losses']}",
            ]
            changes.append((named(measure), variant.name, *cells))
    columns = [Column("measure", is_text=True), Column("variant", is_text=True, is_cut=True)]
    columns += [Column("change"), Column("95 % interval"), Column("p Holm"), Column("+/=/-", drop=1)]
    show_table(columns, m.blank_repeats(changes), title=f"change from {found.variants[0].name}")
    print()


def _short(measure: str) -> str:
    """A measure's name for the head of a column; that of nDCG@5 is of one aspect only."""
    return measure.split(" ", 1)[1] if measure.endswith(("@5", "macro-F1")) else measure


def _explain(found: PromptComparison, qrels: Qrels) -> None:
    from touche_llm.prompt_lab.measures import describe_stance_measure

    print("random order: nDCG@5 that the same documents have on average, in any order")
    if qrels.stances:
        print(describe_stance_measure(found.task).removesuffix("."))
    print("kappa: with quadratic weights, of whole grades; outside: mean probability that was on no label")
    print(
        "tokens: of the prompts, also where the answer was in the cache; requests: sent now; cached: answers from there"
    )
    print("p Holm: of a paired randomisation test over topics, corrected for the number of variants")


def _rows(found: PromptComparison, part: PartMeasures) -> list[dict[str, Any]]:
    """A row for each variant: its figures, each with how it differs from the first variant's, and what it cost."""
    rows = []
    for variant in found.variants_in(part):
        prompt, said = variant.prompt, found.judged[part.name, variant.name]
        best = variant.name == found.verdict.winner
        row: dict[str, Any] = {
            "part": part.name,
            "topics": len(part.topics),
            "documents": len(part.sample),
            "variant": variant.name,
            "prompt": prompt.name,
            "version": prompt.header.version,
            "hash": prompt.hash,
            "best": best,
            "confirmed": found.verdict.confirmed if best else None,
        }
        for measure, figure in part.estimates[variant.name].items():
            name = re.sub(r"\W+", "_", measure.lower())
            change = part.differences.get((variant.name, measure), {})
            row |= {name: figure.value, **{f"{name}_{each}": change.get(each) for each in _CHANGE}}
        row["random_ndcg_5"] = part.chance
        row["earlier_looks"] = None if found.earlier_looks is None else len(found.earlier_looks)
        row |= {
            "outside": part.outside[variant.name],
            "failures": len(said.failures),
            "prompt_tokens": said.counts.prompt_tokens + said.counts.cached_prompt_tokens,
            "requests": said.counts.requests,
            "cache_hits": said.counts.cache_hits,
        }
        rows.append(row)
    return rows


def _end(output: Format, found: PromptComparison) -> None:
    """Say what failed, and exit with code 3 where something did."""
    failures = found.all_failures()
    if failures:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in count_by_kind(failures).items())
        reasons = Counter(failure.attempts[-1].reason for failure in failures)
        say(output, f"failures: {kinds}; most often: {to_printable(reasons.most_common(1)[0][0])}")
        say(output, "documents without an answer are ranked last; the same command asks for them again")
        raise typer.Exit(FAILURES_EXIT)
