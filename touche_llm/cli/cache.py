"""The commands that export, import and remove answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from touche_llm.cli import shared_options as o
from touche_llm.cli.output import Format, FormatOption, print_result, say
from touche_llm.data.files import check_output
from touche_llm.errors import UsageError, shorten, to_printable
from touche_llm.llm.cache import Cache, CacheMode, Export
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
    """Write all entries as JSON Lines sorted by key: a cassette, to be kept with a run or a test.

    Damaged entries are left out and named. Exit code 1 if there are any.
    """
    if out.suffix != ".jsonl":
        raise UsageError(f"{out}: a cassette ends in .jsonl")
    check_output(out, overwrite, [cache])
    with Cache(cache, CacheMode.REPLAY) as opened:
        export = opened.export_cassette(out)

    sentence = f"{export.entries:,} entries written to {out}"
    row = {
        "file": out,
        "entries": export.entries,
        "damaged": len(export.damaged),
        "gaps": export.gaps,
    }
    print_result(output, sentence, row)
    damage = _describe_damage(export)
    if damage:
        new_cache = "import the cassette into a new cache with `touche-llm cache import`"
        forget_keys = f"remove them with `touche-llm cache forget KEY --cache {cache}`"
        say(output, f"{cache}: left out {damage}; {forget_keys}, or {new_cache}")
        raise typer.Exit(1)


def _describe_damage(export: Export) -> str:
    """Return what an export has left out; empty if nothing."""
    problems: list[str] = []
    if export.damaged:
        keys = shorten(map(to_printable, export.damaged))
        problems.append(f"damaged entries: {len(export.damaged):,} ({keys})")
    if export.gaps:
        problems.append(f"places of the file that cannot be read: {export.gaps:,}")
    return ", ".join(problems)


def import_(
    cassette: Annotated[Path, typer.Argument(metavar="FILE", help="The cassette to read.")],
    cache: CacheFile = _DEFAULT_CACHE,
    output: FormatOption = Format.TABLE,
) -> None:
    """Add the entries of a cassette to a cache: all of them, or none if one does not fit."""
    if not cassette.exists() or cassette.is_dir():
        raise UsageError(f"{cassette}: no such file; give a cassette, a .jsonl file")
    with Cache(cache) as opened:
        new, known = opened.import_cassette(cassette)
    sentence = f"{new:,} new entries in {cache}, {known:,} were there already"
    print_result(output, sentence, {"file": cache, "new": new, "known": known})


def forget(
    keys: Annotated[
        list[str],
        typer.Argument(metavar="KEY", help="The keys, as errors and cassettes have them."),
    ],
    cache: CacheFile = _DEFAULT_CACHE,
    output: FormatOption = Format.TABLE,
) -> None:
    """Remove entries from a cache, damaged ones too, so that the next run requests them again.

    Exit code 1 if the cache lacks a key.
    """
    if not cache.exists():
        raise UsageError(f"{cache}: no such file; give a cache with --cache")
    with Cache(cache) as opened:
        missing = [key for key in dict.fromkeys(keys) if not opened.remove(key)]

    removed = len(set(keys)) - len(missing)
    sentence = f"entries removed from {cache}: {removed:,}"
    print_result(output, sentence, {"file": cache, "removed": removed, "missing": len(missing)})
    if missing:
        say(output, f"{cache}: has no entry {shorten(missing)}; compare the keys with an export")
        raise typer.Exit(1)
