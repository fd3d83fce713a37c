"""The command for TIRA."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

import typer

from touche_llm.cli import options as s
from touche_llm.cli import shared_options as o
from touche_llm.cli.output import Format, FormatOption
from touche_llm.cli.stages import run_all_stages
from touche_llm.config.files import index_folder, load_with_origins
from touche_llm.config.origins import DEFAULT, OriginKind, ValueOrigin
from touche_llm.errors import UsageError
from touche_llm.integrations.tira import TiraInput, detect_input
from touche_llm.text.quoting import CHATNOIR_KEY_VARIABLE

# Where vLLM and its libraries write by default, and what keeps them from using the network.
_WRITES = {
    "VLLM_CACHE_ROOT": "vllm",
    "VLLM_CONFIG_ROOT": "vllm",
    "HF_HOME": "huggingface",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
}
_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}


InputFolderOption = Annotated[
    Path | None,
    typer.Option(
        "-i",
        "--input",
        envvar="TIRA_INPUT_DATASET",
        metavar="FOLDER",
        help="Folder with topics and corpus.",
    ),
]
OutputFolderOption = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        envvar="TIRA_OUTPUT_DIR",
        metavar="FOLDER",
        help="Folder for run.txt and the rest.",
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        envvar="TOUCHE_LLM_MODEL",
        metavar="FOLDER",
        help="Folder of the model's weights.",
    ),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        envvar="TOUCHE_LLM_CONFIG",
        help="YAML file with any of the values of a run.",
    ),
]
CacheFolderOption = Annotated[
    Path | None,
    typer.Option(
        "--cache-folder",
        envvar="TOUCHE_LLM_CACHE",
        metavar="FOLDER",
        help="For index, answers, and vLLM's files and log (default: touche-llm in $XDG_CACHE_HOME or ~/.cache).",
    ),
]


@s.takes_settings("prompts.folder", "cache.mode", "skip_bad_lines")
def tira(
    given: s.GivenSettings,
    context: typer.Context,
    input_folder: InputFolderOption = None,
    output_folder: OutputFolderOption = None,
    model: ModelOption = None,
    config: ConfigOption = None,
    cache_folder: CacheFolderOption = None,
    overwrite: o.OverwriteOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Make the run for an input folder of TIRA, without a network.

    The files there determine the task. A vLLM server is started and stopped for the run. Writes to
    the output folder and the cache folder only. Exit codes as `run`.
    """
    if input_folder is None or output_folder is None:
        raise UsageError(
            "tira: missing folders; give -i INPUT -o OUTPUT, or set TIRA_INPUT_DATASET and TIRA_OUTPUT_DIR"
        )
    found = detect_input(input_folder)
    cache = _find_cache_folder(cache_folder)
    settings = _list_settings(found, model, cache)
    loaded = load_with_origins(
        config,
        {**settings, **given},
        {**_list_origins(context, settings), **s.list_option_origins(given)},
    )
    _prepare_environment(cache)
    with loaded.origins.locate_errors():
        run_all_stages(output, loaded.config, output_folder, overwrite=overwrite)


def _find_cache_folder(given: Path | None) -> Path:
    """Return the cache folder, by default one in the user's caches.

    Raises:
        UsageError: No folder is given, and the user has no home.
    """
    if given is not None:
        return given
    try:
        caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError as error:
        raise UsageError(
            f"--cache-folder: no default ({error}); give a folder, or set TOUCHE_LLM_CACHE"
        ) from error
    return Path(caches) / "touche-llm"


def _list_settings(found: TiraInput, model: str | None, cache: Path) -> dict[str, Any]:
    """Return the settings of a run for an input folder, by dotted name.

    Raises:
        UsageError: The folder has no corpus, and there is no key to search ChatNoir.
    """
    settings: dict[str, Any] = {
        "task": found.task.name,
        "topics": found.topics,
        "corpus": found.corpus,
        "candidates": found.candidates,
        "engine.name": "managed",
        "engine.model": model,
        "cache.file": cache / "answers.sqlite",
    }
    if found.corpus is not None:
        settings["index"] = cache / "index" / index_folder(found.corpus).name
        return settings

    if not os.environ.get(CHATNOIR_KEY_VARIABLE):
        raise UsageError(
            f"{found.topics.parent}: no corpus; add one as published or as corpus.jsonl, or set "
            f"{CHATNOIR_KEY_VARIABLE} to search ChatNoir"
        )
    settings["retriever.name"] = "chatnoir"
    settings["chatnoir.cache"] = cache / "chatnoir.sqlite"
    return settings


def _list_origins(context: typer.Context, names: Collection[str]) -> dict[str, ValueOrigin]:
    """Return the origins of the settings that the command makes of its options and variables.

    Args:
        context: Context of the command.
        names: Dotted names of the settings.
    """
    of_input = s.find_parameter_origin(context, "input_folder")
    of_cache = s.find_parameter_origin(context, "cache_folder")
    if of_cache == DEFAULT and os.environ.get("XDG_CACHE_HOME"):
        of_cache = ValueOrigin(OriginKind.ENVIRONMENT, "XDG_CACHE_HOME")

    origins = {
        "task": of_input,
        "topics": of_input,
        "corpus": of_input,
        "candidates": of_input,
        "engine.model": s.find_parameter_origin(context, "model"),
        "cache.file": of_cache,
        "index": of_cache,
        "chatnoir.cache": of_cache,
    }
    return {name: origin for name, origin in origins.items() if name in names}


def _prepare_environment(cache: Path) -> None:
    """Let vLLM and its libraries write to the cache folder, and keep them from using the network."""
    for name, place in _WRITES.items():
        os.environ.setdefault(name, str(cache.absolute() / place))
    for name, value in _OFFLINE.items():
        os.environ.setdefault(name, value)
