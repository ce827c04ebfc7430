"""A recorder that says how far the run is. It records the same; only who watches pays for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vtsim.metrics.recorder import Recorder
from vtsim.request import Tick

Progress = Callable[[str, int, int], None]
"""Called now and then with a policy's label, the requests it has answered, and all of them."""

EVERY = 256
"""Answers between two calls."""


class ReportingRecorder(Recorder):
    """Calls `report(label, answered, requests)` as requests are answered, and at the end."""

    __slots__ = ("_answered", "_label", "_report")

    def __init__(self, label: str, report: Progress, **columns: Any) -> None:
        super().__init__(**columns)
        self._label = label
        self._report = report
        self._answered = 0

    def finish(self, index: int, now: Tick) -> None:
        super().finish(index, now)
        self._count()

    def reject(self, index: int, now: Tick, reason: str, step: int = -1) -> None:
        super().reject(index, now, reason, step)
        self._count()

    def finish_run(self, now: Tick) -> None:
        super().finish_run(now)
        self._report(self._label, self._answered, len(self.outcome))

    def _count(self) -> None:
        self._answered += 1
        if self._answered % EVERY == 0:
            self._report(self._label, self._answered, len(self.outcome))
