"""The commands for answer caches."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from touche_llm.cli import options as o
from touche_llm.cli.output import Format, FormatOption, print_result, print_rows
from touche_llm.cli.tables import Column, show_table
from touche_llm.data.files import check_output
from touche_llm.errors import UsageError
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.settings import CacheConfig

CacheFile = Annotated[Path, typer.Option("--cache", help="The cache.")]
_DEFAULT_CACHE = CacheConfig().file

app = typer.Typer(no_args_is_help=True, help="Inspect an answer cache, export and import cassettes.")


@app.command()
def stats(cache: CacheFile = _DEFAULT_CACHE, output: FormatOption = Format.TABLE) -> None:
    """Count the entries by kind, model and prompt."""
    o.require_cache(cache)
    names = ("kind", "model", "prompt", "version", "hash", "entries")
    with Cache(cache, CacheMode.REPLAY) as opened:
        counts = opened.count_entries()
    if output is not Format.TABLE:
        print_rows(output, [dict(zip(names, row, strict=True)) for row in counts], names)
        return
    columns = [Column(name, is_text=True, drop=drop) for name, drop in zip(names[:-1], (0, 0, 0, 1, 2), strict=True)]
    rows = ((*("" if value is None else str(value) for value in row), f"{count:,}") for *row, count in counts)
    show_table([*columns, Column("entries")], rows)


@app.command("export")
def export_(
    out: Annotated[Path, typer.Argument(metavar="FILE", help="The cassette to write, a .jsonl file.")],
    cache: CacheFile = _DEFAULT_CACHE,
    overwrite: o.OverwriteOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Write all entries as JSON Lines sorted by key: a cassette, to be kept with a run or a test."""
    o.require_cache(cache)
    if out.suffix != ".jsonl":
        raise UsageError(f"{out}: a cassette ends in .jsonl")
    check_output(out, overwrite, [cache])
    with Cache(cache, CacheMode.REPLAY) as opened:
        entries = opened.export_cassette(out)
    print_result(output, f"{entries:,} entries written to {out}", {"file": out, "entries": entries})


@app.command("import")
def import_(
    cassette: Annotated[Path, typer.Argument(metavar="FILE", help="The cassette to read.")],
    cache: CacheFile = _DEFAULT_CACHE,
    output: FormatOption = Format.TABLE,
) -> None:
    """Add the entries of a cassette to a cache: all of them, or none if one does not fit."""
    o.require_cache(cassette)
    with Cache(cache) as opened:
        new, known = opened.import_cassette(cassette)
    sentence = f"{new:,} new entries in {cache}, {known:,} were there already"
    print_result(output, sentence, {"file": cache, "new": new, "known": known})
