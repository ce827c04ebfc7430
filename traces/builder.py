"""Collects rows into a `Trace`: the rules that hold for every reader live here, once.

Hash ids are renumbered densely in order of first appearance (any Python int, so u64-safe, with a
namespace where ids are local) and kept as runs; rows are put in time order by a stable sort, with
a count of those that stood out of it; arrivals become relative to the first kept request; rows
read = kept + dropped by reason. Each row's line is kept for errors that are found later. Nothing
here knows a format.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from vtsim.errors import TraceFormatError
from vtsim.request import IntArray, ReadReport, Tick, Trace
from vtsim.traces.ids import HashId, HashIds
from vtsim.traces.number import MAX_TICK, MAX_TOKENS, UNITS, Where, one_line, plain
from vtsim.traces.order import Column, Places, WaitsForItself, in_time_order

if TYPE_CHECKING:
    from vtsim.traces.schedule import Schedule
    from vtsim.traces.source import Source


class Times(NamedTuple):
    """What a file calls the times of a request and whom it waits for, and the unit that it counts
    them in; "" where it states dates."""

    arrival: str = "arrival"
    wait: str = "wait"
    after: str = "after"
    unit: str = "s"

    def shown(self, ticks: Tick) -> str | None:
        """A time as the file states it."""
        if not self.unit:
            return None
        return f"{Decimal(ticks).scaleb(-UNITS[self.unit]).normalize():f} {self.unit}"


class TraceBuilder:
    """Rows in file order; `finish` makes the trace.

    `quantum` is the number of ticks in one unit of the arrivals given to `add`: readers whose
    stamps are multiples of it (Azure's 100 ns) keep them small.
    """

    def __init__(
        self,
        source: Source,
        format_name: str,
        *,
        block_size: int = 0,
        tail_rule: str = "exact",
        hash_scope: str = "global",
        quantum: Tick = 1,
        fields: tuple[str, str] = ("prompt_tokens", "output_tokens"),
        times: Times | None = None,
        where: Where | None = None,
    ) -> None:
        """`fields` are what the file calls the two lengths, `times` its times, `where` what follows
        its lines."""
        self.source = source
        self.where = source.where() if where is None else where
        self.block_size = block_size
        self.tail_rule = tail_rule
        self.hash_scope = hash_scope
        self.quantum = quantum
        self.times = Times() if times is None else times
        self.report = ReadReport(format=format_name, path=self.where.path, fields=fields)
        self.about: dict[str, object] = {}
        self.arrivals: list[int | None] | array[int] = []
        self.prompts = array("q")
        self.outputs = array("q")
        self._priorities, self._sessions, self._turns = Column(0), Column(-1), Column(-1)
        self._session_index: dict[str, int] = {}
        self._by_clock: set[int] = set()
        """Sessions whose turns are numbered anew in the order of their rows."""
        self._ids: list[object] = []
        """None where a row has none; shorter than the rows where the last have none."""
        self._after: dict[int, tuple[int, ...]] = {}
        self._wait: dict[int, Tick] = {}
        self._recorded: dict[int, Mapping[str, object]] = {}
        self._extra: dict[int, Mapping[str, object]] = {}
        self._hash_ids = HashIds()
        self._lines = array("I")
        self._files: dict[int, str] = {}
        """Of rows that stand in another file than `source`: in one of a folder."""
        self._unknown_keys: set[str] = set()
        self._earliest, self._latest = 1, 0
        """What lies within 64-bit picoseconds of the first arrival; none is known yet."""

    def __len__(self) -> int:
        return len(self.prompts)

    def add(
        self,
        arrival: int | None,
        prompt: int,
        output: int,
        *,
        hash_ids: Sequence[HashId] = (),
        scope: object = None,
        session: str | None = None,
        turn: int = -1,
        priority: int = 0,
        request_id: object = None,
        after: tuple[int, ...] = (),
        wait: Tick = 0,
        recorded: Mapping[str, object] | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> int:
        """Adds one request, returns its row in file order (what `after` refers to).

        `arrival` counts quanta, None where `after` rules. Hash ids are integers of any size or
        strings; with a `scope`, any hashable name, they mean something there only.
        """
        row = len(self.prompts)
        if prompt > MAX_TOKENS or output > MAX_TOKENS:  # a sum of what a file states
            which = int(prompt <= MAX_TOKENS)
            said = f"is larger than {MAX_TOKENS}"
            raise self.where.error(said, self.report.fields[which], (prompt, output)[which])
        if arrival is not None and not self._earliest <= arrival <= self._latest:
            self._set_reach(arrival)
        self.arrivals.append(arrival)  # type: ignore[arg-type]
        self.prompts.append(prompt)
        self.outputs.append(output)
        self._lines.append(min(self.where.line or 0, _MOST_LINES))
        if self.where.path != self.report.path:
            self._files[row] = self.where.path
        if hash_ids:
            self._hash_ids.add(row, hash_ids, scope)
        if session is not None:
            self.set_session(row, session, turn)
        elif turn >= 0:
            self._turns.put(row, turn)
        if priority:
            self._priorities.put(row, priority)
        if request_id is not None:
            ids = self._ids
            if len(ids) < row:
                ids += [None] * (row - len(ids))
            ids.append(request_id)
        if after:
            self.set_after(row, after, wait)
        if recorded:
            self._recorded[row] = self._plain_items(recorded, "recorded")
        if extra:
            self._extra[row] = self._plain_items(extra, "extra")
        self.report.rows_read += 1
        return row

    def _set_reach(self, arrival: int) -> None:
        """Of the first arrival; TraceFormatError for one that is out of its reach."""
        if self._earliest <= arrival <= self._latest:
            return
        if self._earliest <= self._latest:
            raise self.where.error(
                f"arrives more than the {MAX_TICK // 10**12:,} s that 64-bit picoseconds hold "
                "before or behind the first request",
                self.times.arrival,
                self.times.shown(arrival * self.quantum),
            )
        reach = MAX_TICK // self.quantum
        self._earliest, self._latest = arrival - reach, arrival + reach

    @property
    def waits(self) -> int:
        """Rows that wait for others."""
        return len(self._after)

    def add_columns(
        self, arrivals: IntArray, prompts: IntArray, outputs: IntArray, lines: IntArray
    ) -> None:
        """Adds requests that state nothing else. Only with `arrivals` an array."""
        assert isinstance(self.arrivals, array)
        self.arrivals.frombytes(arrivals.tobytes())
        self.prompts.frombytes(prompts.tobytes())
        self.outputs.frombytes(outputs.tobytes())
        self._lines.frombytes(np.minimum(lines, _MOST_LINES).astype(np.uint32).tobytes())
        self.report.rows_read += len(prompts)

    def set_after(self, row: int, after: tuple[int, ...], wait: Tick) -> None:
        """Makes `row` arrive `wait` ticks after the last of the rows `after` has finished."""
        if wait > MAX_TICK:
            said = f"is longer than the {MAX_TICK // 10**12:,} s that 64-bit picoseconds hold"
            raise self.where.error(said, self.times.wait, self.times.shown(wait))
        self._after[row] = after
        self._wait[row] = wait

    def set_arrival(self, row: int, arrival: int) -> None:
        """Makes `row`, which waited for others, arrive by itself."""
        del self._after[row], self._wait[row]
        self._set_reach(arrival)
        self.arrivals[row] = arrival

    def set_parents(self, row: int, after: tuple[int, ...]) -> None:
        self._after[row] = after

    def set_session(self, row: int, session: str, turn: int) -> None:
        """The session of `row`, and its place in it (-1: unknown)."""
        index = self._session_index
        self._sessions.put(row, index.setdefault(session, len(index)))
        if turn >= 0:
            self._turns.put(row, turn)

    def turns_by_clock(self, session: str) -> None:
        """The turns of `session` follow the order in which its rows come, not that of the file."""
        self._by_clock.add(self._session_index[session])

    def set_recorded(self, row: int, recorded: Mapping[str, object]) -> None:
        """What was measured of `row`, where that is known later than the row."""
        self._recorded[row] = recorded

    def drop(self, reason: str, rows: int = 1) -> None:
        """Counts rows that were read and are not kept."""
        if rows:
            self.report.rows_read += rows
            self.report.dropped[reason] = self.report.dropped.get(reason, 0) + rows

    def drop_if_empty(self, prompt: int, output: int) -> bool:
        """Drops, with a count, the rows that asked or got nothing: failed requests of a log."""
        if prompt == 0:
            self.drop("zero_prompt")
        elif output == 0:
            self.drop("zero_output")
        else:
            return False
        return True

    def warn(self, message: str) -> None:
        if message not in self.report.warnings:
            self.report.warnings.append(message)

    def unknown(self, row: Mapping[str, object], known: frozenset[str]) -> dict[str, object]:
        """What of `row` is not `known`, for `extra`; noted for the one warning."""
        if row.keys() <= known:
            return {}
        found = {key: value for key, value in row.items() if key not in known}
        self._unknown_keys.update(found)
        return found

    def note_unknown(self, keys: Iterable[str]) -> None:
        """Keys that went to `extra` unread: named in one warning."""
        self._unknown_keys.update(keys)

    def _plain_items(self, items: Mapping[str, object], field: str) -> Mapping[str, object]:
        """The same mapping if its values are plain already: readers may share one between rows."""
        if _NESTED.isdisjoint(map(type, items.values())):
            return items
        try:
            return {key: plain(value) for key, value in items.items()}
        except ValueError as error:
            raise self.where.error(str(error), field) from None

    def schedule_untimed(
        self, schedule: Schedule | None, *, else_at_start: bool = False, field: str = "arrival"
    ) -> None:
        """Gives arrivals to the rows that have none and wait for nobody, in file order.

        Without a schedule that is an error, as nothing says when they come, or with
        `else_at_start` (files that are sent at once by their nature) 0, said in a warning. Where
        other rows state theirs (in `field`), the schedule is left to act on the whole trace.
        """
        untimed = [r for r, a in enumerate(self.arrivals) if a is None and r not in self._after]
        if not untimed:
            return
        assert self.quantum == 1 and isinstance(self.arrivals, list)
        some = len(untimed) + len(self._after) < len(self.arrivals)
        if some and not else_at_start:
            self.where.line = self._lines[untimed[0]] or None
            raise self.where.error("is missing, while other requests state theirs", field)
        if some:
            times = [0] * len(untimed)
            self.warn(
                f"{len(untimed)} requests state no time and others do: sent at 0 of the file's "
                "clock"
            )
        elif schedule is not None:
            times = schedule.times(len(untimed)).tolist()
            self.report.arrivals_made = str(schedule)
        elif else_at_start:
            times = [0] * len(untimed)
            self.warn("the file states no arrivals: all at 0 (--rate spreads them)")
            self.report.arrivals_made = "all at 0"
        else:
            raise TraceFormatError(
                "states no arrivals; say how requests arrive: --rate N "
                "[--arrival poisson|gamma|uniform] [--seed N] "
                "(`vtsim trace convert IN OUT.json` has these options)",
                path=self.source.path,
            )
        for row, time in zip(untimed, times, strict=True):
            self.where.line = self._lines[row] or None
            self._set_reach(time)
            self.arrivals[row] = time

    def finish(self) -> Trace:
        """The trace. Raises TraceFormatError when no row is left or times do not fit 64 bits."""
        rows = len(self.prompts)
        report = self.report
        report.rows_kept = rows
        if rows == 0:
            gone = ", ".join(f"{n} {reason}" for reason, n in sorted(report.dropped.items()))
            said = f"no requests left: {gone}" if gone else "no requests"
            raise TraceFormatError(said, path=self.source.path)
        if self._unknown_keys:
            names = sorted(map(one_line, self._unknown_keys))
            shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
            self.warn(f"keys that this format does not define are kept in extra: {shown}")
        try:
            timing = in_time_order(self.arrivals, self._after, self.quantum)
        except WaitsForItself as error:
            raise TraceFormatError(
                f"request {self._name(error.row)!r} waits for itself",
                path=self.source.path,
                line=self._lines[error.row] or None,
                field=self.times.after,
            ) from None
        except ValueError as error:
            raise TraceFormatError(str(error), path=self.source.path) from None
        report.rows_moved, report.removed_offset_s = timing.moved, timing.offset_s
        return self._columns(timing.arrival, timing.order)

    def _name(self, row: int) -> object:
        named = self._ids[row] if row < len(self._ids) else None
        return row if named is None else named

    def _columns(self, arrival: IntArray, order: IntArray | None) -> Trace:
        rows = len(arrival)
        prompts = np.frombuffer(self.prompts, dtype=np.int64)
        outputs = np.frombuffer(self.outputs, dtype=np.int64)
        lines = np.frombuffer(self._lines, dtype=np.uint32)
        places = Places(rows, order)
        if order is not None:
            prompts, outputs, lines = prompts[order], outputs[order], lines[order]
        run_rows, run_first, run_count = self._hash_ids.numbered(places.place)
        offsets = np.zeros(rows + 1, dtype=np.int64)
        np.cumsum(np.bincount(run_rows, minlength=rows), out=offsets[1:])
        session, turn = places.column(self._sessions), places.column(self._turns)
        if self._by_clock:
            told = np.flatnonzero(np.isin(session, list(self._by_clock)) & (turn >= 0))
            in_order = told[np.lexsort((told, session[told]))]
            turn[in_order] = turn[told[np.lexsort((turn[told], session[told]))]]
        after = {row: places.moved(parents) for row, parents in places.keyed(self._after).items()}
        return Trace(
            name=self.source.name,
            sha256=self.source.sha256(),
            arrival=arrival,
            prompt_tokens=prompts,
            output_tokens=outputs,
            priority=places.column(self._priorities),
            session=session,
            turn=turn,
            run_offsets=offsets,
            run_first=np.array(run_first),
            run_count=np.array(run_count),
            block_size=self.block_size if len(run_first) else 0,
            tail_rule=self.tail_rule,
            hash_scope=self.hash_scope,
            ids=places.names(self._ids),
            session_names=tuple(self._session_index),
            after=after,
            wait=places.keyed(self._wait),
            recorded=places.keyed(self._recorded),
            extra=places.keyed(self._extra),
            lines=lines,
            files=places.keyed(self._files),
            source=self._plain_items(self.about, "source"),
            report=self.report,
        )


_MOST_LINES = 2**32 - 1
_NESTED = frozenset((Decimal, dict, list))
