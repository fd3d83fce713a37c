from __future__ import annotations

from tests.cli.conftest import made_app, touche
from tests.regression.conftest import copy_of

__all__ = ["copy_of", "made_app", "touche"]
