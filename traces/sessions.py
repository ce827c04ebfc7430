"""The rows of sessions as a file of requests states them one by one: which turn a row is, whom it
waits for, and what it adds to. For readers whose rows name a session and nothing else."""

from __future__ import annotations

from typing import NamedTuple

from vtsim.request import Tick
from vtsim.traces.builder import TraceBuilder
from vtsim.traces.number import Where


class Placed(NamedTuple):
    """A row in its session."""

    arrival: Tick | None
    after: tuple[int, ...]
    """Rows that it waits for."""
    wait: Tick
    turn: int
    prompt: int


class Sessions:
    """The rows of each session so far: whom a delayed row waits for, and what `delta` adds to."""

    def __init__(self, turns: str) -> None:
        self._turns = turns
        self._state: dict[str, _Session] = {}
        self._untimed = 0
        self._unknown = False
        self.told = False
        """Whether it matters to any row what a session's rows hold."""

    def place(
        self,
        where: Where,
        session: str,
        arrival: Tick | None,
        wait: Tick | None,
        prompt: int,
        hashed: bool,
    ) -> Placed:
        """The session's next row."""
        state = self._state.get(session)
        if state is None:
            if arrival is None:
                raise where.error(
                    f"is missing: the first row of session {session!r} has no row before it "
                    "that a delay could count from",
                    "timestamp",
                )
            state = self._state[session] = _Session()
        elif arrival is None:
            state.check(where, session, "delay")
            self._untimed += wait is None
        else:
            state.check(where, session, "timestamp")
            if self._turns == "delta" and arrival < state.arrival:
                raise where.error(
                    f"lies before that of session {session!r} on line {state.line}: rows that "
                    "hold only what is new must stand in the order in which they were said",
                    "timestamp",
                )
            state.mixed |= arrival < state.arrival
        if arrival is not None:
            state.arrival, state.line = arrival, where.line
        after: tuple[int, ...] = ()
        if arrival is None:
            if state.last_row is None:
                arrival = state.dropped_arrival + (wait or 0)
            else:
                after = (state.last_row,)
                wait = (wait or 0) + state.dropped_wait
        if self._turns == "delta":
            prompt += state.tokens
        self.told |= not hashed or self._turns == "delta"
        known = hashed or self._turns != "unknown"
        self._unknown |= not known
        state.rows += 1
        return Placed(arrival, after, wait or 0, state.rows - 1 if known else -1, prompt)

    def next_turn(self, session: str, hashed: bool) -> int:
        """The turn of a row of which something else says when it comes and what it holds."""
        state = self._state.setdefault(session, _Session())
        state.named = True
        self.told |= not hashed
        known = hashed or self._turns != "unknown"
        self._unknown |= not known
        state.rows += 1
        return state.rows - 1 if known else -1

    def added(self, session: str, row: int, arrival: Tick | None, turn: int, tokens: int) -> None:
        state = self._state[session]
        state.last_row = row
        state.dropped_wait = 0
        state.tokens = tokens
        if arrival is not None and turn >= 0:
            state.timed.append((arrival, row))

    def dropped(self, session: str | None, arrival: Tick | None, wait: Tick) -> None:
        """A failed row took no time: what waits for it counts from its arrival."""
        if session is None:
            return
        if arrival is None:
            self._state[session].dropped_wait = wait
        else:
            self._state[session].dropped_arrival = arrival

    def finish(self, builder: TraceBuilder) -> None:
        """Turns follow the clock, whatever the order of the file; what is not known is said."""
        for session, state in self._state.items():
            if state.mixed:
                for turn, (_, row) in enumerate(sorted(state.timed)):
                    builder.set_session(row, session, turn)
            if state.named and state.last_row is not None:
                builder.turns_by_clock(session)
        if self._untimed:
            builder.warn(
                f"{self._untimed} rows state neither timestamp nor delay: they follow their "
                "session's row before at once"
            )
        if self._unknown:
            builder.warn(
                "sessions without hash ids: what their rows share is taken as unknown; "
                "--turns whole|delta says what a row holds"
            )


class _Session:
    __slots__ = (
        *("arrival", "dropped_arrival", "dropped_wait", "last_row", "line", "mixed", "mode"),
        *("mode_line", "named", "rows", "timed", "tokens"),
    )

    def __init__(self) -> None:
        self.arrival: Tick = -1  # of the row before, on this line
        self.line: int | None = None
        self.mixed = False
        """Its rows stand out of time order."""
        self.timed: list[tuple[Tick, int]] = []
        """(arrival, row) of those that are turns."""
        self.named = False
        """Rows of it say by names whom they wait for, and may stand before these."""
        self.rows = 0
        self.tokens = 0
        self.last_row: int | None = None
        self.dropped_arrival: Tick = 0
        self.dropped_wait: Tick = 0
        """From the end of the last row to when the one dropped behind it would have come."""
        self.mode = ""
        self.mode_line: int | None = None

    def check(self, where: Where, session: str, mode: str) -> None:
        """All rows behind a session's first are timed the same way."""
        if self.mode and mode != self.mode:
            raise where.error(
                f"session {session!r} has {self.mode} on line {self.mode_line} and {mode} here: "
                "its rows behind the first have one or the other",
                mode,
            )
        if not self.mode:
            self.mode, self.mode_line = mode, where.line
