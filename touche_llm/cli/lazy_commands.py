"""Commands whose modules are imported only when they run or complete an argument."""

from __future__ import annotations

from functools import cached_property
from importlib import import_module
from typing import Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

from touche_llm.cli.commands import PANELS, CommandEntry, GroupEntry
from touche_llm.cli.shared_options import Command


class LazyCommand(TyperCommand):
    """Stand-in for a command, which its group lists without importing the module.

    The group reads only the name and the summary. A call and the completion of an argument both
    begin with `make_context`, which imports the module and returns a context of the command itself.
    """

    def __init__(self, entry: CommandEntry) -> None:
        super().__init__(entry.name, help=entry.summary, rich_markup_mode=None)
        self._function = entry.function

    @cached_property
    def loaded(self) -> TyperCommand:
        """The command with its arguments and options, from its module."""
        module_name, _, function_name = self._function.rpartition(".")
        function = getattr(import_module(module_name), function_name)
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(self.name, cls=Command)(function)
        return cast(TyperCommand, typer.main.get_command(app))

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """Return a context of the command itself, which then runs or completes its arguments."""
        return self.loaded.make_context(info_name, args, parent, **extra)


class Program(TyperGroup):
    """The program with the commands of the table."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for entries in PANELS.values():
            for entry in entries:
                self.add_command(_make_command(entry))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands by panel, each with its summary."""
        for panel, entries in PANELS.items():
            rows = []
            for entry in entries:
                summary = self.commands[entry.name].get_short_help_str(formatter.width)
                rows.append((entry.name, summary))
            with formatter.section(panel):
                formatter.write_dl(rows)


def _make_command(entry: CommandEntry | GroupEntry) -> LazyCommand | TyperGroup:
    """Return the command of an entry; the commands of a group are lazy too."""
    if isinstance(entry, CommandEntry):
        return LazyCommand(entry)

    group = TyperGroup(
        name=entry.name,
        help=entry.summary,
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    for command in entry.commands:
        group.add_command(LazyCommand(command))
    return group
