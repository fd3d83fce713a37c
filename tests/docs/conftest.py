from __future__ import annotations

from tests.cli.conftest import made_app, touche

__all__ = ["made_app", "touche"]
