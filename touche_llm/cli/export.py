"""The command that writes a run's tables to files for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from touche_llm.cli import options as o
from touche_llm.cli.output import Format, FormatOption, print_result, say
from touche_llm.cli.progress import CommandProgress
from touche_llm.pipeline.export import RunTable, export_run


def export(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="FILE", help="The file to write: .parquet, .jsonl or .csv.")
    ],
    table: Annotated[
        RunTable,
        typer.Option(
            "--table",
            metavar="NAME",
            help="results: lines of the run with grades and stances; judgments: of all candidates; comparisons: of the "
            "ranking's steps.",
        ),
    ] = RunTable.RESULTS,
    with_text: Annotated[
        bool, typer.Option("--with-text", help="Add the texts of the documents, from the run's corpus.")
    ] = False,
    overwrite: o.OverwriteOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Write results, judgments or comparisons of a run as one table.

    Texts are left out unless `--with-text` is given; those of ClueWeb may not be redistributed.
    """
    made = export_run(run_dir, out, CommandProgress(), table=table, with_text=with_text, overwrite=overwrite)
    sentence = f"{table.value}: {out} ({made.rows:,} rows: {', '.join(made.columns)})"
    row = {"file": out, "table": table.value, "rows": made.rows, "columns": " ".join(made.columns)}
    print_result(output, sentence, row | {"note": made.note or None})
    if made.note:
        say(output, f"note: {out}: {made.note}")
