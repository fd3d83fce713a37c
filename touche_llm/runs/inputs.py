"""Inputs of a run: the settings and files that decide on its outputs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from touche_llm.config.configuration import Config, find_settings, flatten, is_one_of
from touche_llm.corpus.store import hash_corpus
from touche_llm.data.files import sha256
from touche_llm.settings.section import Scope

INCIDENTAL = ("index", *find_settings(Scope.DELIVERY))
OF_RETRIEVE, OF_JUDGE, OF_MODEL = map(find_settings, (Scope.RETRIEVE, Scope.JUDGE, Scope.MODEL))
# Compared with the facts of the finished stages, whatever their names: by hash, version, or as the
# server reports them.
INPUT_SETTINGS = ("topics", "corpus", "candidates")
NOT_COMPARED = (*INCIDENTAL, *INPUT_SETTINGS, "prompts", *OF_MODEL)


def list_deciding_settings(config: Config, names: Collection[str]) -> dict[str, Any]:
    """Return the settings that decide on outputs, by dotted name.

    Those that are not set are left out.

    Args:
        config: Configuration of a run.
        names: Settings and sections to choose from.
    """
    values = config.model_dump(mode="json")
    # Their order in the configuration decides nothing.
    values["topic"] = sorted(config.topic)

    deciding: dict[str, Any] = {}
    for name, value in flatten(values).items():
        is_set = value not in (None, {})
        is_chosen = is_one_of(name, names) and not is_one_of(name, NOT_COMPARED)
        if is_set and is_chosen:
            deciding[name] = value
    return deciding


def hash_inputs(config: Config) -> dict[str, str]:
    """Return the SHA-256 of the files that a run reads, by setting; for an index that of its corpus."""
    hashes: dict[str, str] = {}
    files = {"topics": config.topics, "candidates": config.candidates}
    for name, file in files.items():
        if file is not None and file.is_file():
            hashes[name] = sha256(file)

    if config.index is not None:
        corpus_hash = hash_corpus(config.corpus, config.index)
        if corpus_hash is not None:
            hashes["corpus"] = corpus_hash
    return hashes
