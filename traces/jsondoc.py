"""One large JSON document, read element by element in bounded memory, with line numbers.

Only the text of the element being read is held. Numbers come as int (of any size) or Decimal;
NaN and Infinity are refused.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import IO, Any, NoReturn

from vtsim.errors import TraceFormatError
from vtsim.traces.number import one_line
from vtsim.traces.source import Source

_CHUNK = 1 << 18
_NEAR_END = 32
"""A JSON token other than a string is shorter: an error further from the end is a real one."""
_BLANKS = " \t\r\n"
HALF_A_CHARACTER = "an escape names half a character (a lone surrogate)"


_REFUSED = " is no JSON number"
_NO_NUMBER = re.compile(r'"((?:[^"\\]|\\.)*)"\s*:\s*(-?Infinity|NaN)\b')


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name}{_REFUSED}")


def members_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object's members; ValueError if a key stands twice: which one is meant, nothing says."""
    members = dict(pairs)
    if len(members) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"key {key!r} stands twice in an object")
            seen.add(key)
    return members


_decoder = json.JSONDecoder(
    parse_float=Decimal, parse_constant=_refuse, object_pairs_hook=members_once
)


def _is_text(value: Any) -> bool:
    """False if a string in it cannot be written as UTF-8."""
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        return False
    return True


class JsonDocument:
    """A JSON file whose outermost value is an object or an array."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def kind(self) -> str:
        """`{` or `[`, what the document is; another first character is given as it is."""
        with self._source.open() as stream:
            return _Reader(stream, self._source).peek()

    def members(self, stream: str = "") -> Iterator[tuple[str, int, Any]]:
        """(key, line, value) of the outermost object. The value of the member called `stream` is,
        if an array, an iterator over (index, line, element), good until the next member."""
        with self._source.open() as raw:
            reader = _Reader(raw, self._source)
            reader.expect("{")
            if reader.peek() == "}":
                reader.expect("}")
                return reader.end()
            while True:
                if reader.peek() != '"':
                    raise reader.error("malformed JSON: a key in double quotes is wanted")
                key = reader.value()
                reader.expect(":")
                line = reader.line()
                if key == stream and reader.peek() == "[":
                    elements = reader.elements()
                    yield key, line, elements
                    for _ in elements:
                        pass
                else:
                    yield key, line, reader.value()
                if reader.expect(",", "}") == "}":
                    return reader.end()

    def elements(self) -> Iterator[tuple[int, int, Any]]:
        """(index, line, element) of the outermost array."""
        with self._source.open() as raw:
            reader = _Reader(raw, self._source)
            yield from reader.elements()
            reader.end()


class _Reader:
    """A window of text over the stream; `_at` is where reading goes on."""

    def __init__(self, stream: IO[bytes], source: Source) -> None:
        self._stream = stream
        self._path = source.path
        self._utf8 = codecs.getincrementaldecoder("utf-8-sig")()
        self._text = ""
        self._at = 0
        self._gone = 0
        """Characters of the first line held that are held no more."""
        self._counted = 0
        self._line = 1
        self._ended = False

    def line(self) -> int:
        """Physical line of the next value."""
        self.peek()
        return self._line_at(self._at)

    def _line_at(self, at: int) -> int:
        if at >= self._counted:
            self._line += self._text.count("\n", self._counted, at)
            self._counted = at
            return self._line
        return self._line - self._text.count("\n", at, self._counted)

    def _fill(self) -> bool:
        """Reads on, as much again as is held; False at the end."""
        if self._ended:
            return False
        self._line_at(self._at)
        line_start = self._text.rfind("\n", 0, self._at) + 1
        self._gone = self._at - line_start + (0 if line_start else self._gone)
        size = max(_CHUNK, len(self._text) - self._at)
        block = self._stream.read(size)
        self._ended = not block
        try:
            more = self._utf8.decode(block, final=self._ended)
        except UnicodeDecodeError:
            raise TraceFormatError(
                "is not UTF-8 text",
                path=self._path,
                line=self._line + self._text.count("\n", self._at),
            ) from None
        self._text = self._text[self._at :] + more
        self._at = self._counted = 0
        return not self._ended

    def peek(self) -> str:
        """The next character that is no blank, "" at the end."""
        while True:
            text, at = self._text, self._at
            while at < len(text) and text[at] in _BLANKS:
                at += 1
            self._at = at
            if at < len(text):
                return text[at]
            if not self._fill():
                return ""

    def expect(self, *wanted: str) -> str:
        found = self.peek()
        if found not in wanted or not found:
            what = " or ".join(repr(w) for w in wanted)
            raise self.error(
                f"malformed JSON: {what} is wanted"
                + ("; the file ends here (cut off?)" if not found else f", not {found!r}")
            )
        self._at += 1
        return found

    def end(self) -> None:
        if found := self.peek():
            what = {",": "a comma", "{": "another object"}.get(found, "something")
            how = ": put each object on a line of its own" if found == "{" else ""
            raise self.error(f"malformed JSON: {what} follows the document{how}")

    def value(self) -> Any:
        """The next JSON value, whole."""
        self.peek()
        while True:
            try:
                value, end = _decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                at = error.pos - self._at
                cut = error.msg.startswith("Unterminated string") or (
                    error.pos >= len(self._text) - _NEAR_END
                )
                if cut and self._fill():
                    continue
                said = error.msg[:1].lower() + error.msg[1:]
                raise self.error(f"malformed JSON: {said}", self._at + at) from None
            except RecursionError:
                raise self.error("malformed JSON: nested too deeply") from None
            except (ValueError, ArithmeticError) as error:
                said = str(error).partition(": value has")[0]  # the rest is advice on Python
                member = _NO_NUMBER.search(self._text, self._at)
                if said.endswith(_REFUSED) and member is not None:
                    said = f"{member[1]}: {member[2]}{_REFUSED}"
                    raise self.error(f"malformed JSON: {said}", member.start(2)) from None
                raise self.error(f"malformed JSON: {said}") from None
            if end == len(self._text) and self._fill():  # a number may go on
                continue
            if self._text.find("\\u", self._at, end) >= 0 and not _is_text(value):
                raise self.error(f"malformed JSON: {HALF_A_CHARACTER}")
            self._at = end
            return value

    def elements(self) -> Iterator[tuple[int, int, Any]]:
        self.expect("[")
        if self.peek() == "]":
            self._at += 1
            return
        index = 0
        while True:
            line = self.line()
            yield index, line, self.value()
            if self.expect(",", "]") == "]":
                return
            index += 1

    def error(self, message: str, at: int | None = None) -> TraceFormatError:
        at = self._at if at is None else min(at, len(self._text))
        line_start = self._text.rfind("\n", 0, at) + 1
        column = at - line_start + 1 + (0 if line_start else self._gone)
        said = one_line(message)
        return TraceFormatError(said, path=self._path, line=self._line_at(at), column=column)
