"""The memory worker: one FIFO of plans beside compute, and the time that compute waits for it.

It knows costs and phases, not sequences. A plan's driver calls are made in order; the step that
needs them is launched when they are done, and what compute did not hide is *exposed*, by the phase
that was running meanwhile.
"""

from __future__ import annotations

from vtsim.metrics.recorder import Recorder
from vtsim.plan import OpKind, Phase, Plan
from vtsim.ports import MemoryTimes
from vtsim.request import Tick

_DESTROY = int(OpKind.DESTROY)


class MemoryWorker:
    """Busy until `free_at`; `_spans` are plans that may still run at the next launch."""

    __slots__ = (
        "_count",
        "_larger",
        "_random",
        "_recorder",
        "_shared",
        "_spans",
        "free_at",
        "needed_at",
    )

    def __init__(self, times: MemoryTimes, recorder: Recorder) -> None:
        self._count = times.counts
        self._larger = times.larger
        self._random = times.random
        self._recorder = recorder
        self.free_at: Tick = 0
        self.needed_at: Tick = 0
        """When the plans that the next launch needs are done."""
        self._spans: list[tuple[Tick, Tick, Phase]] = []
        self._shared: dict[Plan, int] = {}
        """Shared plans -> how often each was carried out: told to the recorder by `close`."""

    def cost(self, plan: Plan) -> Tick:
        """Ticks of a plan's operations. Drawn ones differ each time."""
        busy = plan.busy
        if busy < 0:
            busy = self._count(
                plan.counts, plan.allocation_bytes, plan.copied_bytes, plan.swapped_bytes
            )
            if plan.destroyed_bytes:
                least = plan.counts[_DESTROY] * plan.chunk_bytes
                busy += self._larger(plan.destroyed_bytes - least)
            if not self._random:
                plan.busy = busy
        return busy

    def submit(self, plan: Plan, now: Tick, needed: bool = True) -> None:
        """Queue `plan` at `now`. `needed`: the next launch waits for it."""
        busy = plan.busy
        if busy < 0:
            busy = self.cost(plan)
        start = self.free_at
        if start <= now:
            start = now
            self._spans.clear()
        self.free_at = free_at = start + busy
        self.record(plan, busy)
        self._spans.append((start, free_at, plan.phase))
        if needed:
            self.needed_at = free_at

    def record(self, plan: Plan, busy: Tick) -> None:
        """A plan was carried out, in `busy` ticks."""
        if plan.shared and not self._random:
            shared = self._shared
            shared[plan] = shared.get(plan, 0) + 1
        else:
            self._recorder.work(plan.phase, plan.counts, busy)

    def close(self) -> None:
        """Tell the recorder what it has not been told yet."""
        for plan, times in self._shared.items():
            counts = [count * times for count in plan.counts]
            self._recorder.work(plan.phase, counts, plan.busy * times)
        self._shared.clear()

    def hide(self, plan: Plan) -> None:
        """Account for a plan that is done before anything asks for it."""
        self.record(plan, self.cost(plan))

    def leap(self, plan: Plan, last: Plan, last_submit: Tick) -> None:
        """Account for a plan over steps all of whose memory work compute hides; what its last step
        needs, `last`, was submitted at `last_submit`, when all the rest was done."""
        busy = plan.busy
        self.record(plan, busy if busy >= 0 else self.cost(plan))
        busy = last.busy
        if busy < 0:
            busy = self.cost(last)
        if busy:
            self.free_at = self.needed_at = free_at = last_submit + busy
            self._spans = [(last_submit, free_at, plan.phase)]

    def wait(self, end: Tick) -> Tick:
        """The launch that was to be at `end`: when it can be. Exposed time is recorded."""
        launch = self.needed_at
        if launch <= end:
            return end
        for start, stop, phase in self._spans:
            overlap = min(stop, launch) - max(start, end)
            if overlap > 0:
                self._recorder.expose(phase, overlap)
        self._spans = [span for span in self._spans if span[1] > launch]
        return launch
