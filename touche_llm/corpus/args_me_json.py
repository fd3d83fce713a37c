"""Streaming reader for the JSON files of args.me, the largest of which does not fit in memory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any, cast

from touche_llm.data.lines import open_maybe_gzip, report_unreadable
from touche_llm.errors import DataError

# In characters. A real argument has tens of thousands, with a web page in its context hundreds of thousands.
MAX_ARGUMENT = 16 * 2**20
_CHUNK = 2**20
_SPACE = re.compile(r"[ \t\r\n]*")
_START = re.compile(r'\{[ \t\r\n]{0,100}"arguments"[ \t\r\n]{0,100}:[ \t\r\n]{0,100}\[')
_START_CHARS = 1000


def read_json_arguments(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield `(number, value)` for each value in the list `arguments` of a JSON object, one in memory at a time.

    args.me 2020-04-01 has five such files; several of them, concatenated into one file, are read in their order
    and numbered consecutively. The file may be gzipped.

    Raises:
        DataError: The file cannot be read, is not UTF-8 or is not such an object, or a value has more than
            `MAX_ARGUMENT` characters.
    """
    number = 0
    with report_unreadable(path, "argument", lambda: number), open_maybe_gzip(path) as stream:
        text = _JsonText(path, stream)
        while text.peek():
            text.take(_START, 'does not begin with {"arguments": [; is this a JSON file of args.me?')
            is_first = True
            while text.peek() != "]":
                if not is_first:
                    text.take(re.compile(","), f"no comma after argument {number}; download it again")
                is_first = False
                number += 1
                yield number, text.decode(number)
            text.take(
                re.compile(r"\][ \t\r\n]{0,100}\}"), "no end of the object after its arguments; download it again"
            )


class _JsonText:
    """Text of a JSON file, read in chunks."""

    def __init__(self, path: Path, stream: IO[bytes]) -> None:
        self._path = path
        self._stream = TextIOWrapper(cast(Any, stream), encoding="utf-8-sig")
        self._decoder = json.JSONDecoder()
        self._text, self._at = "", 0

    def peek(self) -> str:
        """Skip white space; return the next character, empty at the end of the file."""
        while True:
            match = _SPACE.match(self._text, self._at)
            assert match is not None
            self._at = match.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._read_more():
                return ""

    def take(self, pattern: re.Pattern[str], problem: str) -> None:
        """Skip white space and what the pattern matches; raise DataError with the problem if it does not."""
        self.peek()
        while len(self._text) - self._at < _START_CHARS and self._read_more():
            pass
        match = pattern.match(self._text, self._at)
        if match is None:
            raise DataError(f"{self._path}: {problem}")
        self._at = match.end()

    def decode(self, number: int) -> Any:
        """Return the next value."""
        self.peek()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except (ValueError, RecursionError) as error:
                # What looks like an error may be the end of the chunk.
                if len(self._text) - self._at > MAX_ARGUMENT:
                    problem = f"longer than {MAX_ARGUMENT:,} characters, or not JSON"
                    raise DataError(f"{self._path}:{number}: {problem} ({error!s:.100})") from error
                if not self._read_more():
                    raise DataError(
                        f"{self._path}:{number}: not JSON, or the file is truncated ({error!s:.100}); download it again"
                    ) from error
            else:
                # A number at the end of a chunk may go on.
                if end < len(self._text) or not self._read_more():
                    self._at = end
                    return value

    def _read_more(self) -> bool:
        """Read the next chunk and forget what was taken; return False at the end of the file."""
        try:
            chunk = self._stream.read(_CHUNK)
        except UnicodeDecodeError as error:
            raise DataError(f"{self._path}: not UTF-8: {error.reason}; download it again") from error
        self._text, self._at = self._text[self._at :] + chunk, 0
        return bool(chunk)
