"""CSV files of simulators: vidur and sarathi (`arrived_at`, `num_prefill_tokens`,
`num_decode_tokens`), their lengths-only files, and splitwise (`arrival_timestamp`, `prompt_size`,
`token_size`). Times are seconds, counts may be written as floats (7564.0). No sharing is known.

A file without arrivals is refused unless the options say how requests arrive.
"""

from __future__ import annotations

from vtsim.request import Trace
from vtsim.traces.builder import Times, TraceBuilder
from vtsim.traces.csvtable import CsvTable
from vtsim.traces.registry import Head, ReadOptions
from vtsim.traces.source import Source

_DERIVED = ("num_total_tokens", "pd_ratio", "")
"""Columns that follow from the others: not kept. The unnamed one is a pandas index."""


class ColumnReader:
    """Reads CSV files whose arrivals, prompts and outputs stand in the named columns."""

    options: dict[str, str] = {}

    def __init__(
        self,
        name: str,
        summary: str,
        arrival: str | None,
        prompt: str,
        output: str,
        kept: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.summary = summary
        self._arrival = arrival
        self._prompt = prompt
        self._output = output
        self._kept = kept
        """Columns of the format that only `extra` has room for."""

    def detects(self, head: Head) -> bool:
        if self._arrival is not None:
            return head.columns(self._arrival, self._prompt, self._output) == 3 or (
                head.columns(self._arrival) == 1 and head.columns(self._prompt, self._output) == 1
            )
        return head.columns(self._prompt, self._output) >= 1

    def read(self, source: Source, options: ReadOptions) -> Trace:
        table = CsvTable(source)
        prompt, output = table.column(self._prompt), table.column(self._output)
        arrival = None if self._arrival is None else table.column(self._arrival)
        name = table.optional("request_id")
        used = {prompt, output, *(i for i in (arrival, name) if i is not None)}
        others = [(n, i) for n, i in table.others(used) if n.lower() not in _DERIVED]
        lengths = self._prompt, self._output
        times = Times(self._arrival or "")
        builder = TraceBuilder(source, self.name, fields=lengths, times=times, where=table.where)
        builder.note_unknown(n for n, _ in others if n.lower() not in self._kept)
        where = table.where
        names: set[str] = set()
        for row in table.rows():
            stamp: int | None = None
            if arrival is not None:
                stamp = where.ticks(row[arrival], str(self._arrival), "s")
            prompt_tokens = where.count(row[prompt], self._prompt)
            output_tokens = where.count(row[output], self._output)
            if builder.drop_if_empty(prompt_tokens, output_tokens):
                continue
            request_id = None
            if name is not None and row[name].strip():
                request_id = row[name].strip()
                if request_id in names:
                    raise where.error("stands twice", "request_id", request_id)
                names.add(request_id)
            extra = {n: row[i] for n, i in others if row[i] != ""}
            builder.add(stamp, prompt_tokens, output_tokens, request_id=request_id, extra=extra)
        builder.schedule_untimed(options.schedule)
        return builder.finish()


_LENGTHS = ("num_prefill_tokens", "num_decode_tokens")
VIDUR = ColumnReader("vidur", "vidur and sarathi CSV", "arrived_at", *_LENGTHS)
LENGTHS = ColumnReader("vidur-lengths", "vidur and sarathi CSV without arrivals", None, *_LENGTHS)
SPLITWISE = ColumnReader(
    "splitwise",
    "splitwise-sim CSV",
    "arrival_timestamp",
    "prompt_size",
    "token_size",
    kept=("request_type", "application_id", "batch_size"),
)
