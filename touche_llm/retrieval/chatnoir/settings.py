"""Settings of ChatNoir."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, cast, get_args

from pydantic import AfterValidator, Field, SecretStr

from touche_llm.data.settings import Section, check_address
from touche_llm.errors import needs_extra

API_KEY_VARIABLE = "CHATNOIR_API_KEY"
_NEEDS_CLIENT = partial(needs_extra, "chatnoir", "`retriever.name: chatnoir`")


def _check_index(name: str) -> str:
    # Imported here because the client is slow to load, and every command reads these settings.
    with _NEEDS_CLIENT():
        from chatnoir_api.model import Index

    if name not in get_args(Index):
        raise ValueError(f"must be one of {', '.join(get_args(Index))}")
    return name


def _check_address(url: str) -> str:
    return check_address(url, API_KEY_VARIABLE) + "/"


class ChatNoirSettings(Section):
    """Settings of ChatNoir; times are in seconds.

    `api_key` overrides the environment variable CHATNOIR_API_KEY and is never written to a file. `leave_out` lists
    documents that are not fetched because ChatNoir cannot deliver them.
    """

    base_url: Annotated[str, AfterValidator(_check_address)] = "https://chatnoir.eu/"
    index: Annotated[str, AfterValidator(_check_index)] = "clueweb22/b"
    cache: Path = Path(".touche-llm/chatnoir.sqlite")
    requests_per_second: float = Field(2.0, gt=0.0, le=1000.0)
    page_size: int = Field(100, ge=1, le=1000)
    request_timeout: float = Field(60.0, gt=0.0)
    retry_for: float = Field(300.0, ge=0.0)
    leave_out: tuple[str, ...] = ()
    api_key: SecretStr | None = Field(None, exclude=True, repr=False)

    @property
    def index_id(self) -> str:
        """Id of the index in requests."""
        with _NEEDS_CLIENT():
            from chatnoir_api.model import Index, index_id

        return index_id(cast(Index, self.index))
