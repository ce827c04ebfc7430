"""The compute of a GPU that several engines share: one step at a time, in the order of asking.

Processes on one GPU take turns; nothing of theirs overlaps here (no SM partitions, no MPS). It
knows times and whose turn it is, not steps, sequences or memory.
"""

from __future__ import annotations

import heapq

import simpy
from simpy.events import EventPriority

from vtsim.errors import InvariantError
from vtsim.request import Tick

_LATE = EventPriority(2)
"""After everything else of an instant: who asks in it is heard before anybody is served."""


class _Late(simpy.Event):
    """An event at `at` (not before now) that comes last in its instant."""

    def __init__(self, env: simpy.Environment, at: Tick) -> None:
        super().__init__(env)
        self._ok, self._value = True, None
        env.schedule(self, _LATE, at - env.now)


class Compute:
    """Free from `free_at` on. Who asked first is served first; in one instant, the lowest order."""

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self._asking: list[tuple[Tick, int, simpy.Event]] = []
        self._expected = False
        self.free_at: Tick = 0

    def turn(self, order: int) -> simpy.Event:
        """Happens when compute is free and `order`, who asks once at a time, is next: `hold` it in
        that instant."""
        event = self._env.event()
        now: Tick = self._env.now  # type: ignore[assignment]
        heapq.heappush(self._asking, (now, order, event))
        self._look_out()
        return event

    def hold(self, until: Tick) -> None:
        """Kernels run from now to `until`. Raises `InvariantError` if others run."""
        now: Tick = self._env.now  # type: ignore[assignment]
        if now < self.free_at:
            raise InvariantError(
                "compute-is-one", f"a step is launched at {now}, another one ends at {self.free_at}"
            )
        self.free_at = until
        self._look_out()

    def _look_out(self) -> None:
        """Serve somebody once compute is free, if anybody asks."""
        if self._asking and not self._expected:
            self._expected = True
            now: Tick = self._env.now  # type: ignore[assignment]
            _Late(self._env, max(now, self.free_at)).callbacks.append(self._serve)

    def _serve(self, _: simpy.Event) -> None:
        self._expected = False
        now: Tick = self._env.now  # type: ignore[assignment]
        if now < self.free_at:
            self._look_out()
        elif self._asking:
            heapq.heappop(self._asking)[2].succeed()
