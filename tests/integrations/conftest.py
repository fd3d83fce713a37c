from __future__ import annotations

from tests.regression.conftest import copy_of

__all__ = ["copy_of"]
