"""The keys of a file's first JSON object, however long the values between them are.

Values are skipped, not read: hash ids or token ids may be megabytes long before a key comes that
tells the formats apart. Bounded, so that a document of any size costs a fraction of a second.
"""

from __future__ import annotations

import json
import re
from typing import IO

MOST_BYTES = 16 << 20
MOST_MARKS = 200_000
"""Strings and brackets."""
_BLOCK = 1 << 16
_MARK = re.compile(rb'["\[\]{}]')
_STRING = re.compile(rb'"([^"\\]*(?:\\.[^"\\]*)*)"', re.DOTALL)
_COLON = re.compile(rb"\s*(:|\S)")


def first_keys(stream: IO[bytes]) -> tuple[frozenset[str], bool]:
    """(keys, True) of the first object; False if it does not end within the bounds."""
    text = _Window(stream)
    keys: set[str] = set()
    depth = marks = 0
    while marks < MOST_MARKS and (mark := text.find(_MARK)) is not None:
        marks += 1
        if mark == b'"':
            string = text.match(_STRING)
            if string is None:
                break
            if depth == 1 and text.match(_COLON, keep=True) == b":":
                keys.add(_decoded(string))
            continue
        text.at += 1
        if mark in b"{[":
            depth += depth > 0 or mark == b"{"  # an array around it is no object
        elif depth:
            depth -= 1
            if not depth:
                return frozenset(keys), True
    return frozenset(keys), False


def _decoded(key: bytes) -> str:
    try:
        return str(json.loads(b'"' + key + b'"'))
    except ValueError:
        return key.decode(errors="replace")


class _Window:
    """What is held of a stream; `at` is where it is looked at."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._text = b""
        self._taken = 0
        self.at = 0

    def _more(self) -> bool:
        """Reads on, as much again as is held; False at the end or the bound."""
        if self._taken >= MOST_BYTES:
            return False
        block = self._stream.read(max(_BLOCK, len(self._text) - self.at))
        self._text, self.at = self._text[self.at :] + block, 0
        self._taken += len(block)
        return bool(block)

    def find(self, wanted: re.Pattern[bytes]) -> bytes | None:
        """Goes to the next that is `wanted`; None if there is none."""
        while (found := wanted.search(self._text, self.at)) is None:
            self.at = len(self._text)
            if not self._more():
                return None
        self.at = found.start()
        return found[0]

    def match(self, wanted: re.Pattern[bytes], *, keep: bool = False) -> bytes | None:
        """The group of `wanted`, which stands here; goes behind it unless told to `keep`."""
        while (found := wanted.match(self._text, self.at)) is None:
            if not self._more():
                return None
        if not keep:
            self.at = found.end()
        return found[1]
