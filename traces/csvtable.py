"""CSV files with a header: rows by physical line, columns by name, any of three delimiters."""

from __future__ import annotations

import csv
from collections.abc import Iterator

from vtsim.errors import TraceFormatError
from vtsim.traces.source import Source


def delimiter_in(source: Source) -> str:
    """What separates the cells of this file."""
    head = source.head_bytes.removeprefix(b"\xef\xbb\xbf").lstrip().decode(errors="replace")
    return delimiter_of(head.split("\n", 1)[0])


def delimiter_of(header: str) -> str:
    """What separates the cells of a header: a comma, else a semicolon or a tab."""
    return next((d for d in (",", ";", "\t") if d in header), ",")


def csv_rows(source: Source) -> Iterator[tuple[int, list[str]]]:
    """(physical line number, cells) of the non-blank rows, the header first."""
    number = [0]
    rows = csv.reader(source.text_lines(number), delimiter=delimiter_in(source))
    while True:
        first = number[0] + 1  # a quoted cell may run over many lines
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            said = f"malformed CSV: {error}"
            if "new-line character" in said:
                said = "a carriage return stands inside a line: end lines with LF or CRLF"
            raise TraceFormatError(said, path=source.path, line=first) from None
        if any(map(str.strip, row)):  # spreadsheets leave rows of nothing but commas
            yield first, row


class CsvTable:
    """A CSV file with a header row: columns are found by name, never by position."""

    def __init__(self, source: Source) -> None:
        self.where = source.where()
        self.delimiter = delimiter_in(source)
        self._rows = csv_rows(source)
        first = next(self._rows, None)
        if first is None:
            raise self.where.error("is empty")
        self.where.line, cells = first
        self.names = [cell.strip() for cell in cells]
        self._index: dict[str, int] = {}
        for i, name in enumerate(self.names):
            if name.lower() in self._index:
                raise self.where.error("stands twice in the header", name)
            self._index[name.lower()] = i

    def has(self, name: str) -> bool:
        return name.lower() in self._index

    def column(self, *names: str) -> int:
        """Index of the first of `names` that the header has; TraceFormatError if it has none."""
        for name in names:
            if name.lower() in self._index:
                return self._index[name.lower()]
        raise self.where.error(
            f"column {names[0]!r} is missing; the header has {', '.join(self.names)}", names[0]
        )

    def optional(self, *names: str) -> int | None:
        return next((self._index[n.lower()] for n in names if n.lower() in self._index), None)

    def others(self, used: set[int]) -> list[tuple[str, int]]:
        """Columns that a reader does not know: kept in `extra`."""
        return [(name, i) for i, name in enumerate(self.names) if i not in used and name]

    def rows(self) -> Iterator[list[str]]:
        """Rows of exactly the header's width; `where.line` follows."""
        width = len(self.names)
        for line, row in self._rows:
            self.where.line = line
            if len(row) != width:
                raise self.where.error(f"has {len(row)} cells where the header has {width}")
            yield row
