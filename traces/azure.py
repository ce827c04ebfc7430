"""Azure LLM inference traces: 2023, 2024 (week) and LMM 2025, CSV with a header.

`TIMESTAMP` is a date and time with 100 ns, microseconds, milliseconds or no fraction, with or
without a zone; `NumImages`, where there is one, is kept in `extra.num_images`. Source of the
schema: the AzurePublicDataset repository. No sharing is known: there are no hash ids.
"""

from __future__ import annotations

from array import array

from vtsim.request import Trace
from vtsim.traces.builder import TraceBuilder
from vtsim.traces.number import date_time_ticks, seconds_since_1970
from vtsim.traces.registry import Head, ReadOptions
from vtsim.traces.source import CsvTable, Source

_QUANTUM = 1_000
"""Stamps are kept in nanoseconds: no published file has more than 100 ns."""
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
        stamp, prompt, output = (table.column(name) for name in _COLUMNS)
        images = table.optional("NumImages")
        used = {stamp, prompt, output} | ({images} if images is not None else set())
        others = table.others(used)
        builder = TraceBuilder(source, self.name, quantum=_QUANTUM)
        builder.arrivals = array("q")
        builder.note_unknown(name for name, _ in others)
        where = table.where
        stamps = _Stamps()
        for row in table.rows():
            try:
                arrival = stamps.nanoseconds(row[stamp])
            except ValueError as error:
                raise where.error(str(error), _COLUMNS[0], row[stamp]) from None
            asked, got = row[prompt], row[output]
            if asked.isdecimal() and got.isdecimal() and len(asked) < 10 and len(got) < 10:
                prompt_tokens, output_tokens = int(asked), int(got)
            else:
                prompt_tokens = where.count(asked, _COLUMNS[1])
                output_tokens = where.count(got, _COLUMNS[2])
            if prompt_tokens == 0 or output_tokens == 0:
                builder.drop_if_empty(prompt_tokens, output_tokens)
                continue
            if others or images is not None:
                extra: dict[str, object] = {name: row[i] for name, i in others}
                if images is not None:
                    count = where.count(row[images], "NumImages")
                    if count:
                        extra["num_images"] = count
                builder.add(arrival, prompt_tokens, output_tokens, extra=extra)
            else:
                builder.add_plain(arrival, prompt_tokens, output_tokens)
        return builder.finish()


class _Stamps:
    """Date and time to nanoseconds since 1970; the second's part is worked out once a second."""

    def __init__(self) -> None:
        self._second = ""
        self._base = 0

    def nanoseconds(self, text: str) -> int:
        """Rounds below a nanosecond. Raises ValueError for what is no date and time."""
        if len(text) == 27 and text[19] == ".":
            if text[:19] != self._second:
                self._base = seconds_since_1970(text[:19]) * 10**9
                self._second = text[:19]
            digits = text[20:]
            if digits.isdecimal() and digits.isascii():
                return _in_range(self._base + int(digits) * 100)
        whole, rest = divmod(date_time_ticks(text), _QUANTUM)
        return _in_range(whole + (rest >= _QUANTUM // 2))


def _in_range(nanoseconds: int) -> int:
    if not -(2**63) <= nanoseconds < 2**63:
        raise ValueError("is outside the years 1678 to 2262")
    return nanoseconds


READER = AzureReader()
