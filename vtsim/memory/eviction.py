"""Which idle entry of a prefix cache goes first: lru, lfu, cost, or the clairvoyant belady.

An order holds entries that nobody uses now; whoever owns them adds them when they fall idle, takes
them out when they are used again, and asks for the first. Ranks are integers and ties go by age, so
an order is the same everywhere. It must not know memory, plans or devices. `belady` is an oracle:
it is told what the rest of the trace will ask for (`vtsim.memory.foresight`), as no server can be.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from sortedcontainers import SortedDict

from vtsim.errors import ConfigError
from vtsim.memory.foresight import NOTHING_KNOWN, Foresight
from vtsim.spec import ModelSpec

EvictionRule = Literal["lru", "lfu", "cost", "belady"]
"""lru: least recently used. lfu: least often used. cost: whose recomputing is cheapest for the
bytes it holds, aged. belady: whose next use is farthest in the trace (an oracle)."""

ORACLES = frozenset({"belady"})
"""Rules that know the future."""


class Entry(Protocol):
    """What an order may ask an entry of."""

    uses: int
    """How often it has been used."""

    @property
    def begins(self) -> int:
        """Tokens before the entry's first."""
        ...

    @property
    def ends(self) -> int:
        """Tokens up to its last."""
        ...

    @property
    def address(self) -> int:
        """The token whose next use counts as the entry's."""
        ...


T = TypeVar("T", bound=Any)


class EvictionOrder(Protocol[T]):
    """Idle entries, the first to go first."""

    leaves_only: bool
    """True: ranks do not put what hangs at an entry before it, so only leaves may be added."""

    def __len__(self) -> int: ...

    def __contains__(self, entry: object) -> bool: ...

    def __iter__(self) -> Iterator[T]: ...

    def add(self, entry: T) -> None:
        """`entry` has fallen idle: of equal rank, it goes last."""
        ...

    def discard(self, entry: T) -> None:
        """It is used again, or gone; nothing happens if it is not there."""
        ...

    def first(self, but: T | None = None) -> T | None:
        """The first to go that is not `but`; None if there is none. Pure."""
        ...

    def changed(self, entry: T) -> None:
        """`entry`, if it is there, has been cut: it may rank otherwise."""
        ...

    def alike(self, first: int, last: int) -> int:
        """How many of the token addresses [first, last], counted from the last, rank alike."""
        ...

    def evicted(self, entry: T) -> None:
        """`entry` has been chosen and is gone, and not because it is used."""
        ...

    def seen(self, row: int) -> None:
        """The trace's request `row` has been admitted."""
        ...


class Steady:
    """What an order does not mind whose ranks stay as they are."""

    __slots__ = ()

    def changed(self, entry: Any) -> None:
        pass

    def alike(self, first: int, last: int) -> int:
        return last + 1 - first

    def seen(self, row: int) -> None:
        pass


class LeastRecent(Steady):
    """lru: in the order of falling idle. Everything in constant time."""

    __slots__ = ("_entries",)
    leaves_only = False

    def __init__(self) -> None:
        self._entries: OrderedDict[Any, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, entry: object) -> bool:
        return entry in self._entries

    def __iter__(self) -> Iterator[Any]:
        return iter(self._entries)

    def add(self, entry: Any) -> None:
        self._entries[entry] = None

    def discard(self, entry: Any) -> None:
        self._entries.pop(entry, None)

    def first(self, but: Any = None) -> Any:
        entries = iter(self._entries)
        entry = next(entries, None)
        return entry if entry is not but or entry is None else next(entries, None)

    def evicted(self, entry: Any) -> None:
        self._entries.pop(entry, None)


class Ranked(Steady):
    """By a rank that is fixed when an entry falls idle, then by age. Subclasses say which."""

    __slots__ = ("_places", "_serial", "_sorted")
    leaves_only = True

    def __init__(self) -> None:
        self._serial = 0
        self._places: dict[Any, tuple[int, int]] = {}
        self._sorted: SortedDict[tuple[int, int], Any] = SortedDict()

    def rank(self, entry: Any) -> int:
        """The smaller, the sooner it goes."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, entry: object) -> bool:
        return entry in self._places

    def __iter__(self) -> Iterator[Any]:
        return iter(self._sorted.values())

    def add(self, entry: Any) -> None:
        self.discard(entry)
        self._serial += 1
        self._put(entry, self._serial)

    def _put(self, entry: Any, serial: int) -> None:
        place = self._places[entry] = (self.rank(entry), serial)
        self._sorted[place] = entry

    def discard(self, entry: Any) -> None:
        place = self._places.pop(entry, None)
        if place is not None:
            del self._sorted[place]

    def first(self, but: Any = None) -> Any:
        for entry in self._sorted.values():
            if entry is not but:
                return entry
        return None

    def evicted(self, entry: Any) -> None:
        self.discard(entry)


class LeastUsed(Ranked):
    """lfu: by the number of uses."""

    __slots__ = ()

    def rank(self, entry: Any) -> int:
        return int(entry.uses)


@dataclass(frozen=True, slots=True)
class Work:
    """Floating-point operations that recomputing a token costs: `fixed` in the weights, `attended`
    for each token before it. Work, not time: a policy knows no clock; prefill is bound by it."""

    fixed: int = 1
    attended: int = 0

    @classmethod
    def of(cls, model: ModelSpec, tp: int) -> Work:
        """Linear layers by two operations a weight, attention by two a product of q, k and v."""
        attended = 4 * model.layers * model.q_heads * model.head_dim // tp
        return cls(model.layer_flops(tp), attended)

    def per_token(self, begins: int, ends: int) -> int:
        """Mean over the tokens [begins, ends); bytes being the same for all, also that per byte."""
        return self.fixed + self.attended * (begins + ends) // 2


class Cheapest(Ranked):
    """cost: by the work that a kept byte saves, aged as GreedyDual does it: ranks start from that
    of the last entry evicted, so what is never asked for falls behind what is."""

    __slots__ = ("_age", "_work")

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work = work
        self._age = 0

    def rank(self, entry: Any) -> int:
        return self._age + self._work.per_token(entry.begins, entry.ends)

    def evicted(self, entry: Any) -> None:
        place = self._places.get(entry)
        if place is not None:
            self._age = max(self._age, place[0])
        self.discard(entry)


class Clairvoyant(Ranked):
    """belady: the entry that the rest of the trace asks for last, or never, goes first."""

    __slots__ = ("_admitted", "_due", "_foresight")

    def __init__(self, foresight: Foresight) -> None:
        super().__init__()
        self._foresight = foresight
        self._admitted = foresight.nobody()
        self._due: dict[int, dict[Any, None]] = {}
        """Row of the next use -> entries that wait for it."""

    def rank(self, entry: Any) -> int:
        return -self._foresight.next_use(entry.address, self._admitted)

    def _put(self, entry: Any, serial: int) -> None:
        super()._put(entry, serial)
        self._due.setdefault(-self._places[entry][0], {})[entry] = None

    def discard(self, entry: Any) -> None:
        place = self._places.get(entry)
        if place is None:
            return
        waiting = self._due[-place[0]]
        del waiting[entry]
        if not waiting:
            del self._due[-place[0]]
        super().discard(entry)

    def changed(self, entry: Any) -> None:
        place = self._places.get(entry)
        if place is not None and place[0] != self.rank(entry):
            self.discard(entry)
            self._put(entry, place[1])

    def alike(self, first: int, last: int) -> int:
        return self._foresight.alike(first, last)

    def seen(self, row: int) -> None:
        """What waited for `row` and was not served by it waits for the next."""
        self._admitted.add(row)
        for entry in list(self._due.get(row, ())):
            self.changed(entry)


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What rules other than lru need to know."""

    work: Work = Work()
    foresight: Foresight = NOTHING_KNOWN


def make_order(rule: EvictionRule, known: Knowledge) -> EvictionOrder[Any]:
    """An empty order. Raises ConfigError for an unknown rule."""
    if rule == "lru":
        return LeastRecent()
    if rule == "lfu":
        return LeastUsed()
    if rule == "cost":
        return Cheapest(known.work)
    if rule == "belady":
        return Clairvoyant(known.foresight)
    raise ConfigError(f"unknown eviction rule {rule!r} (known: lru, lfu, cost, belady)")
