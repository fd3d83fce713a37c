"""The commands that use recorded runs as tests."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from touche_llm.cli import options as o
from touche_llm.cli import setting_options as s
from touche_llm.cli.emit import Format, FormatOption, print_result, print_rows, say
from touche_llm.data.io import recover
from touche_llm.errors import UsageError
from touche_llm.evaluation.qrels import read_qrels

if TYPE_CHECKING:
    from touche_llm.regression.differences import RunDifference
    from touche_llm.regression.record import Recording

_DEFAULT = Path("regress")
DirOption = Annotated[Path, typer.Option("--dir", metavar="FOLDER", help="The folder of the recorded runs.")]
NamesArgument = Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Recorded runs (default: all).")]

regress_app = typer.Typer(no_args_is_help=True, help="Record runs, replay them offline, and compare.")


@regress_app.command("record")
@o.takes_qrels
def record_(
    qrels_files: o.QrelsFiles,
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    name: Annotated[
        str | None, typer.Argument(help="Name of the recorded run (default: the name of the folder).")
    ] = None,
    root: DirOption = _DEFAULT,
    output: FormatOption = Format.TABLE,
) -> None:
    """Store a finished run with everything that a replay needs, in DIR/NAME.

    Its first stage is copied and never repeated. With qrels, a check also reports how the measures change.
    """
    from touche_llm.regression.check import load_finished_run
    from touche_llm.regression.record import record
    from touche_llm.regression.snapshot import QUERIES_NOT_CHECKED, check_name

    target = root / check_name(run_dir.resolve().name if name is None else name)
    recover(root)
    if target.exists() or target.is_symlink():
        raise UsageError(
            f"{target}: exists; `touche-llm regress update {target.name} --dir {root} --run {run_dir}` shows "
            "what would change and replaces it"
        )
    config = load_finished_run(run_dir)
    qrels = read_qrels(qrels_files, config.task) if qrels_files else None
    made = asyncio.run(record(config, run_dir, target, qrels))
    print_result(output, _describe(target, made), {"folder": target, **asdict(made)})
    if made.note:
        say(output, f"note: {target}: {made.note}")
    if config.expansion.use:
        say(output, f"note: {QUERIES_NOT_CHECKED}")


@regress_app.command("check")
@s.takes_settings("prompts.folder")
def check_(
    given: s.GivenSettings,
    names: NamesArgument = None,
    root: DirOption = _DEFAULT,
    output: FormatOption = Format.TABLE,
) -> None:
    """Replay recorded runs offline, with the current program and templates, and print what differs.

    Exit code 0 if every run is reproduced byte for byte, 1 otherwise.
    """
    from touche_llm.regression.check import check_all
    from touche_llm.regression.differences import COLUMNS, format_differences
    from touche_llm.regression.snapshot import find_snapshots

    found: list[RunDifference] = []

    async def check() -> None:
        async for checked in check_all(find_snapshots(root, names or []), given.get("prompts.folder")):
            note = f"\n  note: {checked.note}" if checked.note else ""
            say(output, format_differences(checked.name, checked.differences) + note)
            found.extend(checked.differences)

    asyncio.run(check())
    if output is not Format.TABLE:
        print_rows(output, [each.row() for each in found], COLUMNS)
    if found:
        raise typer.Exit(1)


@regress_app.command("update")
@s.takes_settings("prompts.folder")
def update_(
    given: s.GivenSettings,
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Recorded runs.")],
    root: DirOption = _DEFAULT,
    run: Annotated[
        Path | None,
        typer.Option("--run", metavar="RUN", help="The folder of a new run, if answers are missing; for one NAME."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Store without asking.")] = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """After an intended change: show what differs, ask, and store the new expectation.

    If only the ranking changed, the replayed run is stored. If answers are missing, make a new run and give its folder
    with --run.
    """
    from touche_llm.regression.check import preview_update, require_run
    from touche_llm.regression.differences import COLUMNS, format_differences
    from touche_llm.regression.record import record
    from touche_llm.regression.snapshot import choose_templates, find_snapshots, open_snapshot

    if run is not None and len(names) > 1:
        raise UsageError("--run: the new run of one recorded run; give a single NAME")
    found: list[RunDifference] = []
    runs = [open_snapshot(folder) for folder in find_snapshots(root, names)]
    templates = choose_templates(runs, given.get("prompts.folder"))
    for snapshot in runs:
        with tempfile.TemporaryDirectory() as work:
            seen = asyncio.run(preview_update(snapshot, templates[snapshot.task.name], run, Path(work)))
            found += seen.differences
            say(output, format_differences(snapshot.name, seen.differences))
            if not seen.differences:
                say(output, "nothing to update")
                continue
            new = require_run(snapshot, seen)
            if yes or typer.confirm(f"store this as {snapshot.folder}?", err=True):
                made = asyncio.run(record(seen.config, new, snapshot.folder, snapshot.qrels()))
                say(output, _describe(snapshot.folder, made))
    if output is not Format.TABLE:
        print_rows(output, [each.row() for each in found], COLUMNS)


def _describe(target: Path, made: Recording) -> str:
    counts = (
        f"{made.topics:,} topics, {made.documents:,} documents, {made.answers:,} cassette entries, {made.size:,} bytes"
    )
    return f"recorded: {target} ({counts})"
