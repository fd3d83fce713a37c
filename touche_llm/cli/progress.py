"""Progress of the commands."""

from __future__ import annotations

from touche_llm.cli.setting_options import name_options
from touche_llm.pipeline.progress import ConsoleProgress


class CommandProgress(ConsoleProgress):
    """Progress on standard error whose notes name options in place of settings."""

    def warn(self, message: str) -> None:
        """Print a line."""
        super().warn(name_options(message))
