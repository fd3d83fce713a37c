"""Text of template files, read without Jinja, which is slow to load."""

from __future__ import annotations

import re
from pathlib import Path

from touche_llm.data.files import read_bounded
from touche_llm.errors import PromptError

HEADER = re.compile(r"---\n(.*?)\n---\n", re.DOTALL)
_MAX_BYTES = 2**20


def read_text(path: Path) -> str:
    """Read a template file, with Unix line ends and without a byte order mark.

    Raises:
        PromptError: The file is too large, or not UTF-8.
        OSError: The file cannot be read.
    """
    content = read_bounded(path, _MAX_BYTES, PromptError)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PromptError(f"{path}: not UTF-8: {error}") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def resolve_reference(folder: Path, name: str, where: str) -> Path:
    """Return the path of a file in a template's folder.

    Args:
        folder: Folder of the template.
        name: Name of the file.
        where: Place of the reference, for messages.

    Raises:
        PromptError: The file is outside the folder, or missing.
    """
    path = folder / name
    is_inside = path.resolve().is_relative_to(folder.resolve())
    if not name.isprintable() or not is_inside:
        raise PromptError(
            f'{where}: {name!r:.80}: must be the path of a file within {folder}, as "base.jinja"'
        )
    if not path.is_file():
        raise PromptError(
            f"{where}: {path}: no such file; a template may reference files of its own folder only"
        )
    return path
