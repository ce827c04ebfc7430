"""The recorder of a tenant: what others hold on the same GPU is a category of its own."""

from __future__ import annotations

from array import array
from typing import Any

from vtsim.metrics.progress import Progress, ReportingRecorder
from vtsim.plan import MemoryUsage
from vtsim.request import Tick


def _nobody(label: str, done: int, total: int) -> None:
    """Nobody watches."""


class TenantRecorder(ReportingRecorder):
    """Records as any recorder does; in each sample the categories and `others` make the capacity.

    `capacity_bytes` is the GPU's; weights, workspace and context are the tenant's own.
    """

    __slots__ = ("_whole", "others")

    def __init__(self, label: str, report: Progress | None, **columns: Any) -> None:
        super().__init__(label, _nobody if report is None else report, **columns)
        self._whole = self._available
        self.others = array("q")
        """Bytes of other tenants, one entry a sample: their weights, workspace, context and KV."""

    def sample_beside(self, others: int, now: Tick, usage: MemoryUsage, free_bytes: int) -> None:
        """As `sample`, while other tenants hold `others` bytes of the GPU."""
        self._available = self._whole - others
        self.sample(now, usage, free_bytes)
        self.others.append(others)
