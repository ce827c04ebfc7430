"""A policy and its own simulated device, with placement or without: half of a `PolicyDriver`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vtsim.backends.sim import SimBackend
from vtsim.memory.journal import Journal
from vtsim.plan import Plan, Shortage
from vtsim.ports import Batch
from vtsim.request import Sequence
from vtsim.testing.cases import Case
from vtsim.testing.contracts import demand
from vtsim.testing.state import fingerprint
from vtsim.testing.toys import toy_device

MakePolicy = Callable[[bool], Any]
"""A fresh policy, made with placement or without."""


class ReadingJournal(Journal):
    """A journal that sees to it that arguments are only read."""

    def _call(self, name: str, *arguments: Any) -> Plan | Shortage:
        read = [a for a in arguments if isinstance(a, Sequence | Batch)]
        before = [fingerprint(argument) for argument in read]
        answer = super()._call(name, *arguments)
        same = [fingerprint(argument) for argument in read] == before
        demand(same, "arguments-unchanged", f"{name} changed what it was given", name)
        return answer


class Side:
    """The policy and its backend, with placement or without."""

    def __init__(self, make: MakePolicy, case: Case, placement: bool) -> None:
        self.served = ReadingJournal(make(placement))
        self.kv = case.kv_layout(self.served)
        self.limit_bytes = case.limit_bytes(self.kv)
        self.device = toy_device(self.limit_bytes, self.kv.slot_bytes * case.slots)
        self.backend = SimBackend(self.device, self.kv, placement=placement, keep_log=False)

    @property
    def policy(self) -> Any:
        return self.served.policy

    def state(self) -> object:
        return fingerprint(self.policy)
