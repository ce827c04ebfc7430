"""Azure LLM inference traces: 2023, 2024 (week) and LMM 2025, CSV with a header.

`TIMESTAMP` is a date and time with 100 ns, microseconds, milliseconds or no fraction, with or
without a zone; `NumImages`, where there is one, is kept in `extra.num_images`. Source of the
schema: the AzurePublicDataset repository. No sharing is known: there are no hash ids.
"""

from __future__ import annotations

import csv
from array import array

import numpy as np

from vtsim.request import Trace
from vtsim.traces.azure_block import Block, parse_block
from vtsim.traces.builder import Times, TraceBuilder
from vtsim.traces.csvtable import CsvTable
from vtsim.traces.number import Where, date_time_ticks, seconds_since_1970
from vtsim.traces.registry import Head, ReadOptions
from vtsim.traces.source import MOST_LINE, Source

_QUANTUM = 1_000
"""Stamps are kept in nanoseconds: no published file has more than 100 ns."""
_BLOCK = 1 << 20
_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


class AzureReader:
    """See the module."""

    name = "azure"
    summary = "Azure LLM inference 2023, 2024, LMM 2025 (CSV)"
    options: dict[str, str] = {}

    def detects(self, head: Head) -> bool:
        return head.columns(*_COLUMNS) >= 2

    def read(self, source: Source, options: ReadOptions) -> Trace:
        table = CsvTable(source)
        columns = [table.column(name) for name in _COLUMNS]
        images = table.optional("NumImages")
        others = table.others({*columns, *([images] if images is not None else [])})
        builder = TraceBuilder(
            source,
            self.name,
            quantum=_QUANTUM,
            fields=_COLUMNS[1:],
            times=Times(_COLUMNS[0], unit=""),
            where=table.where,
        )
        builder.arrivals = array("q")
        builder.note_unknown(name for name, _ in others)
        reading = _Reading(builder, table.where)
        if len(table.names) == 3 and columns == [0, 1, 2] and table.delimiter == ",":
            reading.blocks(source)
        else:
            reading.table(table, columns, images, others)
        return builder.finish()


class _Reading:
    def __init__(self, builder: TraceBuilder, where: Where) -> None:
        self._builder = builder
        self._where = where
        self._stamps = _Stamps()

    def blocks(self, source: Source) -> None:
        """The three columns and nothing else: many rows at a time, where they are plain."""
        where = self._where
        with source.open() as stream:
            line = 1
            while not stream.readline().removeprefix(b"\xef\xbb\xbf").strip():
                line += 1
            while data := stream.read(_BLOCK):
                data += stream.readline(MOST_LINE)
                if not data.endswith(b"\n"):
                    data += b"\n"
                block = parse_block(data)
                if block is not None:
                    self._add_block(block, line + 1)
                    line += len(block.prompt)
                    continue
                for text in data[:-1].split(b"\n"):
                    line += 1
                    where.line = line
                    if text.strip():
                        self._line(text)

    def _add_block(self, block: Block, line: int) -> None:
        """`line` is that of the first row; a plain block has a row on every line."""
        builder = self._builder
        whole = (block.prompt > 0) & (block.output > 0)
        builder.drop("zero_prompt", int((block.prompt == 0).sum()))
        builder.drop("zero_output", int(((block.prompt > 0) & (block.output == 0)).sum()))
        builder.add_columns(
            block.nanoseconds[whole],
            block.prompt[whole],
            block.output[whole],
            line + np.flatnonzero(whole),
        )

    def _line(self, line: bytes) -> None:
        try:
            text = line.decode()
            cells = next(csv.reader([text]), [])
        except (UnicodeDecodeError, csv.Error) as error:
            raise self._where.error(f"malformed CSV: {error}") from None
        if not any(map(str.strip, cells)):
            return
        if len(cells) != 3:
            raise self._where.error(f"has {len(cells)} cells where the header has 3")
        stamp, asked, got = cells
        self._row(stamp, asked, got, None)

    def table(
        self,
        table: CsvTable,
        columns: list[int],
        images: int | None,
        others: list[tuple[str, int]],
    ) -> None:
        """Any columns in any order."""
        stamp, prompt, output = columns
        for row in table.rows():
            extra: dict[str, object] = {name: row[i] for name, i in others}
            if images is not None:
                count = self._where.count(row[images], "NumImages")
                if count:
                    extra["num_images"] = count
            self._row(row[stamp], row[prompt], row[output], extra)

    def _row(self, stamp: str, asked: str, got: str, extra: dict[str, object] | None) -> None:
        try:
            arrival = self._stamps.nanoseconds(stamp)
        except ValueError as error:
            raise self._where.error(str(error), _COLUMNS[0], stamp) from None
        prompt = self._where.count(asked, _COLUMNS[1])
        output = self._where.count(got, _COLUMNS[2])
        if not self._builder.drop_if_empty(prompt, output):
            self._builder.add(arrival, prompt, output, extra=extra)


class _Stamps:
    """Date and time to nanoseconds since 1970; the date and minute are worked out once a minute."""

    def __init__(self) -> None:
        self._minute = ""
        self._base = 0

    def nanoseconds(self, text: str) -> int:
        """Rounds below a nanosecond. Raises ValueError for what is no date and time."""
        if len(text) == 27 and text[19] == ".":
            if text[:17] != self._minute:
                base = seconds_since_1970(text[:17] + "00") * 10**9
                self._base = _in_range(base)
                self._minute = text[:17]
            second, digits = text[17:19], text[20:]
            if second.isdecimal() and digits.isdecimal() and second < "60" and digits.isascii():
                return self._base + int(second) * 10**9 + int(digits) * 100
        whole, rest = divmod(date_time_ticks(text), _QUANTUM)
        return _in_range(whole + (rest >= _QUANTUM // 2))


def _in_range(nanoseconds: int) -> int:
    if not -(2**62) <= nanoseconds < 2**62:
        raise ValueError("is outside the years 1824 to 2116")
    return nanoseconds


READER = AzureReader()
