"""The commands that export and import answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from touche_llm.cli import shared_options as o
from touche_llm.cli.output import Format, FormatOption, print_result
from touche_llm.data.files import check_output
from touche_llm.errors import UsageError
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.settings import CacheConfig

CacheFile = Annotated[Path, typer.Option("--cache", help="The cache.")]
_DEFAULT_CACHE = CacheConfig().file


def export_(
    out: Annotated[
        Path, typer.Argument(metavar="FILE", help="The cassette to write, a .jsonl file.")
    ],
    cache: CacheFile = _DEFAULT_CACHE,
    overwrite: o.OverwriteOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Write all entries as JSON Lines sorted by key: a cassette, to be kept with a run or a test."""
    if out.suffix != ".jsonl":
        raise UsageError(f"{out}: a cassette ends in .jsonl")
    check_output(out, overwrite, [cache])
    with Cache(cache, CacheMode.REPLAY) as opened:
        entries = opened.export_cassette(out)
    print_result(output, f"{entries:,} entries written to {out}", {"file": out, "entries": entries})


def import_(
    cassette: Annotated[Path, typer.Argument(metavar="FILE", help="The cassette to read.")],
    cache: CacheFile = _DEFAULT_CACHE,
    output: FormatOption = Format.TABLE,
) -> None:
    """Add the entries of a cassette to a cache: all of them, or none if one does not fit."""
    if not cassette.is_file():
        raise UsageError(f"{cassette}: no such file; give a cassette, a .jsonl file")
    with Cache(cache) as opened:
        new, known = opened.import_cassette(cassette)
    sentence = f"{new:,} new entries in {cache}, {known:,} were there already"
    print_result(output, sentence, {"file": cache, "new": new, "known": known})
