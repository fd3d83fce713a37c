"""The commands that make a run: all stages, or one of them.

What they do is imported when they run: the stages are slow to load, and the help and the completion
of the options need none.
"""

from __future__ import annotations

import sys

from touche_llm.cli import options as s
from touche_llm.cli import shared_options as o
from touche_llm.cli.output import Format, FormatOption, show_lines
from touche_llm.config.configuration import Config
from touche_llm.tasks import get_task


@s.configured(*s.OF_STAGE["retrieve"])
def retrieve(
    config: Config,
    out: o.OutOption,
    dry_run: o.DryRunOption = False,
    overwrite: o.OverwriteOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Retrieve the candidates of each topic.

    They are written to candidates.run.txt, or to sentences.run.txt for pairs of sentences. Only
    `--query-expansion` needs the model.
    """
    if dry_run:
        from touche_llm.cli.costs import show_cost

        show_cost(output, config, out, ("retrieve",), overwrite=overwrite)
        return

    from touche_llm.cli.stages import retrieve_candidates

    retrieve_candidates(output, config, out, overwrite=overwrite)


@s.configured(*s.OF_STAGE["judge"])
def judge(
    config: Config,
    out: o.OutOption,
    dry_run: o.DryRunOption = False,
    overwrite: o.OverwriteOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Judge the candidates of a run with the model. Exit code 3 if some have no usable answer."""
    if dry_run:
        from touche_llm.cli.costs import show_cost

        show_cost(output, config, out, ("judge",))
        return

    from touche_llm.cli.stages import judge_candidates

    judge_candidates(output, config, out, overwrite=overwrite)


@s.configured(*s.OF_STAGE["rank"])
def rank(
    config: Config,
    out: o.OutOption,
    dry_run: o.DryRunOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Write run.txt from the candidates and judgments of a run. Exit code 3 if some are missing.

    Needs the model only if a step of `--rank` compares documents.
    """
    if dry_run:
        from touche_llm.cli.costs import show_cost

        show_cost(output, config, out, ("rank",))
        return

    from touche_llm.cli.stages import rank_candidates

    rank_candidates(output, config, out)


@s.configured(*s.OF_RUN)
def run(
    config: Config,
    out: o.OutOption,
    dry_run: o.DryRunOption = False,
    overwrite: o.OverwriteOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Run the pipeline: retrieve, judge, rank. A stopped run resumes.

    Exit codes: 0 all judged; 1 data, prompt or engine error; 2 wrong usage; 3 some answers
    unusable, see failures.jsonl; 130 interrupted.
    """
    task = get_task(config.task)
    show_lines([f"task: {task.name} ({task.title})"], sys.stderr)
    if dry_run:
        from touche_llm.cli.costs import show_cost

        show_cost(output, config, out, ("retrieve", "judge", "rank"), overwrite=overwrite)
        return

    from touche_llm.cli.stages import run_all_stages

    run_all_stages(output, config, out, overwrite=overwrite)
