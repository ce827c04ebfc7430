"""TraceLab sessions: closed-loop CSV, one round a row.

A round's prompt is `prefix_len` + `input_len`; `arrival_time` (milliseconds) is when the session
starts, and the next round starts `tool_wait_after_ms` after the last one has completed. Rounds of a
session continue one history, so that turns name what they share.
"""

from __future__ import annotations

from vtsim.request import Tick, Trace
from vtsim.traces.builder import Times, TraceBuilder
from vtsim.traces.csvtable import CsvTable
from vtsim.traces.registry import Head, ReadOptions
from vtsim.traces.source import Source

_COLUMNS = (
    *("session_id", "arrival_time", "round_idx", "prefix_len", "input_len", "output_len"),
    "tool_wait_after_ms",
)


_TIMES = Times("arrival_time", "tool_wait_after_ms", unit="ms")


class TraceLabReader:
    """See the module."""

    name = "tracelab"
    summary = "TraceLab sessions CSV (closed loop)"
    options: dict[str, str] = {}

    def detects(self, head: Head) -> bool:
        return head.columns(*_COLUMNS) >= 5

    def read(self, source: Source, options: ReadOptions) -> Trace:
        table = CsvTable(source)
        columns = [table.column(name) for name in _COLUMNS]
        others = table.others(set(columns))
        lengths = "prefix_len + input_len", "output_len"
        builder = TraceBuilder(source, self.name, fields=lengths, times=_TIMES, where=table.where)
        builder.note_unknown(name for name, _ in others)
        where = table.where
        last: dict[str, tuple[int, int | None, Tick, Tick]] = {}
        """session -> round, row, arrival of the session, wait behind the round"""
        for row in table.rows():
            session, arrival, round_idx, prefix, new, output, wait = (row[i] for i in columns)
            session = session.strip()
            if not session:
                raise where.error("is empty", "session_id")
            start = where.ticks(arrival, "arrival_time", "ms")
            turn = where.count(round_idx, "round_idx")
            prefix_tokens = where.count(prefix, "prefix_len")
            prompt = prefix_tokens + where.count(new, "input_len")
            output_tokens = where.count(output, "output_len")
            behind = where.ticks(wait, "tool_wait_after_ms", "ms")
            before = last.get(session)
            if before is None:
                parent, parent_wait = None, 0
            else:
                if turn <= before[0]:
                    raise where.error(
                        f"does not follow round {before[0]} of session {session}",
                        "round_idx",
                        turn,
                    )
                if start != before[2]:
                    raise where.error(
                        f"differs from the start of session {session}", "arrival_time", arrival
                    )
                parent, parent_wait = before[1], before[3]
            if builder.drop_if_empty(prompt, output_tokens):
                last[session] = turn, parent, start, parent_wait + behind
                continue
            number = builder.add(
                start + parent_wait if parent is None else None,
                prompt,
                output_tokens,
                session=session,
                turn=turn,
                after=() if parent is None else (parent,),
                wait=parent_wait,
                extra={"prefix_len": prefix_tokens, **{n: row[i] for n, i in others}},
            )
            last[session] = turn, number, start, behind
        return builder.finish()


READER = TraceLabReader()
