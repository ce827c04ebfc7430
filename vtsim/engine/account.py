"""One tenant's memory, as the others see it: what it holds, is sure of, claims, and gives up.

Bytes and times only; who may take what is `vtsim.engine.grants`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from vtsim.engine.shares import Share
from vtsim.ports import MemoryBackend
from vtsim.request import Tick
from vtsim.spec import KVLayout


class SharedBackend(MemoryBackend, Protocol):
    """A backend on a device that others use too."""

    def set_reserved(self, reserved_bytes: int) -> None:
        """So much of the capacity is somebody else's from now on."""
        ...


@dataclass(slots=True)
class Account:
    """One tenant's memory, in bytes."""

    share: Share
    unit_bytes: int
    """What its policy takes and gives is a multiple of this."""
    gives: bool
    """False: its policy took its memory at set-up, and keeps it."""
    fixed_bytes: int
    """Weights, workspace and context."""
    kv: KVLayout
    held: int = 0
    granted: int = 0
    """The limit that its policy was given last."""
    short: bool = False
    """When it decided last, somebody was not admitted for want of memory, and none is coming."""
    claim: int = 0
    """It is to be able to hold so much: nobody else takes of it."""
    leaving: list[tuple[Tick, int]] = field(default_factory=list)
    """(when, how much): given up, and free for others when the driver has done it."""

    def book(self, taken: int, done: Tick) -> None:
        """A plan has taken (or, negative, given up) so much; its driver calls end at `done`."""
        self.held += taken
        if taken < 0:
            self.leaving.append((done, -taken))
        leaving = self.leaving
        while taken > 0 and leaving:  # in the driver's order: what left last is taken up first
            when, nbytes = leaving.pop()
            if nbytes > taken:
                leaving.append((when, nbytes - taken))
            taken -= nbytes

    def bytes_of(self, tokens: int) -> int:
        """Memory of so many tokens of one sequence, in whole chunks."""
        return self.kv.units(tokens) * self.kv.unit_bytes

    def kept(self, at: Tick) -> int:
        """What it holds, has not quite given up, or is sure of, at `at`."""
        leaving = sum(nbytes for when, nbytes in self.leaving if when > at)
        return max(self.held + leaving, self.share.floor_bytes)
