"""All first stages, with the settings that choose one of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator, Field

from touche_llm.errors import ExtensionError
from touche_llm.extensions import load_extensions

# Imported because each registers its first stages.
from touche_llm.retrieval import bm25, chatnoir, dense, elasticsearch, registry  # noqa: F401
from touche_llm.retrieval.registry import Retriever
from touche_llm.retrieval.settings import Bm25Settings, QueryField, to_texts
from touche_llm.settings.section import AnswerKey, Option, Section


def _list_retrievers() -> list[Retriever]:
    """Return all first stages in their order, after which none can be registered.

    Raises:
        ExtensionError: A package with a first stage cannot be imported.
    """
    load_extensions()
    registry.RETRIEVERS.close()
    retrievers = registry.RETRIEVERS.by_name.values()
    return sorted(retrievers, key=lambda retriever: (retriever.order, retriever.name))


RETRIEVERS: Mapping[str, Retriever] = {
    retriever.name: retriever for retriever in _list_retrievers()
}
if TYPE_CHECKING:
    RetrieverName = str
else:
    RetrieverName = Literal[tuple(RETRIEVERS)]


class RetrieverConfig(Bm25Settings):
    """Settings of the first stage; `method`, `k1` and `b` belong to the index."""

    name: Annotated[
        RetrieverName,
        Option(
            "--retriever",
            ", ".join(f"{name} ({retriever.help})" for name, retriever in RETRIEVERS.items()),
            "Retrieval",
            metavar="NAME",
        ),
    ] = "bm25"
    query: Annotated[
        tuple[QueryField, ...],
        BeforeValidator(to_texts),
        Field(min_length=1),
        Option(
            "--query",
            "Topic field of the query: title, description, narrative or objects; repeatable",
            "Retrieval",
            metavar="FIELD",
        ),
        # An embedding model gets the query.
        AnswerKey.ENTERS,
    ] = ("title",)

    @property
    def kind(self) -> Retriever:
        """The chosen first stage."""
        return RETRIEVERS[self.name]

    @property
    def bm25(self) -> Bm25Settings:
        """Settings of the index alone."""
        return Bm25Settings(method=self.method, k1=self.k1, b=self.b)


def _list_sections() -> dict[str, type[Section]]:
    """Return the types of the sections of first stages, by the name of the section.

    Raises:
        ExtensionError: Two first stages declare different settings of one section.
    """
    sections: dict[str, type[Section]] = {}
    for retriever in RETRIEVERS.values():
        section = retriever.section
        if section is None:
            continue
        settings = sections.setdefault(section.name, section.settings)
        if settings is not section.settings:
            raise ExtensionError(
                f"{retriever.name}: another retriever has other settings in the section "
                f"{section.name}; name this section otherwise"
            )
    return sections


SECTIONS: Mapping[str, type[Section]] = _list_sections()
