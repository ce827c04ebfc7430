"""The memory worker: one FIFO of plans beside compute, and the time that compute waits for it.

It knows costs and phases, not sequences. A plan's driver calls are made in order; the step that
needs them is launched when they are done, and what compute did not hide is *exposed*, by the phase
that was running meanwhile.
"""

from __future__ import annotations

from vtsim.metrics.recorder import Recorder
from vtsim.plan import Phase, Plan
from vtsim.ports import MemoryTimes
from vtsim.request import Tick


class MemoryWorker:
    """Busy until `free_at`; `_spans` are plans that may still run at the next launch."""

    __slots__ = ("_count", "_random", "_recorder", "_spans", "free_at", "needed_at")

    def __init__(self, times: MemoryTimes, recorder: Recorder) -> None:
        self._count = times.counts
        self._random = times.random
        self._recorder = recorder
        self.free_at: Tick = 0
        self.needed_at: Tick = 0
        """When the plans that the next launch needs are done."""
        self._spans: list[tuple[Tick, Tick, Phase]] = []

    def cost(self, counts: list[int]) -> Tick:
        """Ticks of so many operations that move no bytes and allocate nothing."""
        return self._count(counts, 0, 0, 0)

    def submit(self, plan: Plan, now: Tick, needed: bool = True) -> None:
        """Queue `plan` at `now`. `needed`: the next launch waits for it."""
        phase, busy = plan.phase, plan.busy
        if busy < 0:
            busy = self._time(plan)
        start = self.free_at
        if start <= now:
            start = now
            self._spans.clear()
        self.free_at = free_at = start + busy
        self._recorder.work(phase, plan.counts, busy)
        self._spans.append((start, free_at, phase))
        if needed:
            self.needed_at = free_at

    def hide(self, plan: Plan) -> None:
        """Account for a plan that is done before anything asks for it."""
        busy = plan.busy if plan.busy >= 0 else self._time(plan)
        self._recorder.work(plan.phase, plan.counts, busy)

    def _time(self, plan: Plan) -> Tick:
        """Ticks of a plan's operations. Drawn ones differ each time."""
        busy = self._count(
            plan.counts, plan.allocation_bytes, plan.copied_bytes, plan.swapped_bytes
        )
        if not self._random:
            plan.busy = busy
        return busy

    def leap(self, plan: Plan, last_submit: Tick) -> None:
        """Account for a plan over steps all of whose memory work compute hides; what its last step
        needs was submitted at `last_submit`, when all the rest was done."""
        counts, last = plan.counts, plan.last
        busy = self._count(counts, 0, 0, 0)
        self._recorder.work(plan.phase, counts, busy)
        if last is not None:
            busy = self._count(last, 0, 0, 0) if last else 0
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
