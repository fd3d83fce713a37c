"""A command whose errors name options: all that are missing, and what would help."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

from touche_llm.errors import BadLine, UsageError

# Commands that begin a run, and what these cannot do without unless a configuration has it; any one option gives it.
_BEGIN = ("run", "retrieve")
_RENAMED = {
    "--aim": "--objective",
    "--expand": "--query-expansion",
    "--no-expand": "--no-query-expansion",
}
_OF_CONFIGURATION = {"--topics": ("topics",), "--corpus": ("corpus", "index", "retriever")}


class Command(TyperCommand):
    """A command whose errors name all missing options, not the first one, and how to leave out bad lines."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments; raise UsageError where required ones are missing."""
        if not ctx.resilient_parsing:
            self._check_renamed(args)
            given, _, _ = self.make_parser(ctx).parse_args(list(args))
            if not given.get("help"):
                self._check(ctx.command_path, {name for name, value in given.items() if value not in (None, ())})
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; add to the error of a bad line the option that leaves it out, if the command has it."""
        try:
            return super().invoke(ctx)
        except BadLine as error:
            if any("--skip-bad-lines" in each.opts for each in self.params):
                error.add_note("--skip-bad-lines leaves such lines out, counts and lists them")
            raise

    def _check_renamed(self, args: list[str]) -> None:
        """Raise UsageError for an option of an earlier version."""
        known = {option for each in self.params for option in (*each.opts, *each.secondary_opts)}
        for argument in args:
            name = argument.partition("=")[0]
            if _RENAMED.get(name) in known:
                raise UsageError(f"{name}: renamed to {_RENAMED[name]}")

    def _check(self, path: str, given: set[str]) -> None:
        missing = [
            max(each.opts, key=len) if each.param_type_name == "option" else str(each.metavar or each.name)
            for each in self.params
            if each.required and each.name not in given
        ]
        if not missing:
            return
        hint = ""
        if self.name in _BEGIN and "config" not in given:
            others = [option for option, names in _OF_CONFIGURATION.items() if given.isdisjoint(names)]
            missing += others
            hint = f"; --config FILE can hold {' and '.join(others)}" if others else ""
        raise UsageError(f"{self.name}: missing {', '.join(missing)}{hint}; see {path} --help")
