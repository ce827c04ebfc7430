"""BurstGPT: CSV with seconds, 6 columns (files 1 and 2) or 8 (file 3: session and elapsed time).

Columns are found by name. A row with 0 response tokens is a failed request: it is dropped and
counted, or with `keep_failures` kept as a prompt without output, `recorded.failed` set. Sessions
are named, but what their prompts share is not known. Source of the schema: the BurstGPT README.
"""

from __future__ import annotations

from vtsim.request import Trace
from vtsim.traces.builder import Times, TraceBuilder
from vtsim.traces.csvtable import CsvTable
from vtsim.traces.number import decimal_of
from vtsim.traces.registry import Head, ReadOptions
from vtsim.traces.source import Source

_STAMP, _PROMPT, _OUTPUT = "Timestamp", "Request tokens", "Response tokens"
_TOTAL, _MODEL, _KIND = "Total tokens", "Model", "Log Type"
_SESSION, _ELAPSED = "Session ID", "Elapsed time"


class BurstGptReader:
    """See the module."""

    name = "burstgpt"
    summary = "BurstGPT CSV, 6 or 8 columns"
    options = {"keep_failures": "flag: keep rows without response as prompts with 0 output"}

    def detects(self, head: Head) -> bool:
        return head.columns(_STAMP, _PROMPT, _OUTPUT, _TOTAL, _KIND) >= 3

    def read(self, source: Source, options: ReadOptions) -> Trace:
        table = CsvTable(source)
        stamp, prompt, output = (table.column(name) for name in (_STAMP, _PROMPT, _OUTPUT))
        session, elapsed, total = (table.optional(n) for n in (_SESSION, _ELAPSED, _TOTAL))
        kept = {"model": table.optional(_MODEL), "log_type": table.optional(_KIND)}
        shown = [(name, at) for name, at in kept.items() if at is not None]
        used = {stamp, prompt, output, *(i for i in (session, elapsed, total) if i is not None)}
        others = table.others(used | {at for _, at in shown})
        lengths, times = (_PROMPT, _OUTPUT), Times(_STAMP)
        builder = TraceBuilder(source, self.name, fields=lengths, times=times, where=table.where)
        builder.note_unknown(name for name, _ in others)
        keep_failures = options.flag("keep_failures")
        where = table.where
        extras: dict[tuple[str, ...], dict[str, object]] = {}
        odd_totals = failed = 0
        for row in table.rows():
            arrival = where.ticks(row[stamp], _STAMP, "s")
            prompt_tokens = where.count(row[prompt], _PROMPT)
            output_tokens = where.count(row[output], _OUTPUT)
            if total is not None:
                odd_totals += where.count(row[total], _TOTAL) != prompt_tokens + output_tokens
            recorded: dict[str, object] = {}
            if elapsed is not None and row[elapsed].strip():
                where.ticks(row[elapsed], _ELAPSED, "s")
                recorded["duration_s"] = float(decimal_of(row[elapsed]))
            if output_tokens == 0 and prompt_tokens > 0 and keep_failures:
                recorded["failed"] = True
                failed += 1
            elif builder.drop_if_empty(prompt_tokens, output_tokens):
                continue
            values = tuple(row[at] for _, at in (*shown, *others))
            extra = extras.get(values)
            if extra is None:
                names = (name for name, _ in (*shown, *others))
                extra = extras[values] = dict(zip(names, values, strict=True))
            builder.add(
                arrival,
                prompt_tokens,
                output_tokens,
                session=(row[session].strip() or None) if session is not None else None,
                recorded=recorded,
                extra=extra,
            )
        if odd_totals:
            builder.warn(f"{odd_totals} rows whose {_TOTAL} is not the sum of request and response")
        if keep_failures and not failed:
            builder.warn("no request failed: keep_failures does nothing")
        return builder.finish()


READER = BurstGptReader()
