"""`check_integrity` of each policy: it says nothing of a policy at work, and names the invariant
when one of its books is off, whichever it is. (`--check` and every other test rely on it.)"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from vtsim.errors import InvariantError
from vtsim.plan import Keep, Plan
from vtsim.policies.elastic import ElasticPagedPolicy, ElasticParameters
from vtsim.policies.native import NativePolicy
from vtsim.policies.paged import PagedParameters, PagedPolicy
from vtsim.policies.radix import RadixPolicy
from vtsim.policies.vattention import VAttentionParameters, VAttentionPolicy
from vtsim.policies.vtensor import VTensorParameters, VTensorPolicy
from vtsim.spec import KVLayout
from vtsim.testing.hand import Hand

KIB = 1 << 10
POLICIES: dict[str, Callable[[], Any]] = {
    "native": lambda: NativePolicy(placement=True),
    "paged": lambda: PagedPolicy(PagedParameters(block=4), placement=True),
    "radix": lambda: RadixPolicy(placement=True),
    "elastic-paged": lambda: ElasticPagedPolicy(
        ElasticParameters(block=4, chunk=64 * KIB, reserve_low=1), placement=True
    ),
    "vattention": lambda: VAttentionPolicy(
        VAttentionParameters(page=64 * KIB, eager_slots=2), placement=True
    ),
    "vtensor": lambda: VTensorPolicy(
        VTensorParameters(chunk=64 * KIB, inplace=True), placement=True
    ),
    "vtensor, parking": lambda: VTensorPolicy(
        VTensorParameters(chunk=64 * KIB, release="park", prefix_cache=False), placement=True
    ),
}


def at_work(name: str) -> Any:
    """A policy with sequences that decode, share, prefill and leave, and content kept."""
    kv = KVLayout("toy", 1, 4 * KIB, 64 * KIB, 640)  # 16 tokens a chunk
    hand = Hand(POLICIES[name](), kv, 1000 * kv.unit_bytes)
    first = hand.admit(70, (0, 70), output=((70, 40),))
    other = hand.admit(90)
    hand.grow(3)
    for seq in (first, other):
        hand.end(seq, Keep.RECORD)
    hand.admit(100, (0, 100))
    hand.admit(50, (0, 32), (500, 18))
    waits = hand.ask(200)
    assert isinstance(hand.create(waits, tokens=40, whole=200), Plan)
    gone = hand.admit(30)
    hand.release(gone, Keep.NONE)
    hand.grow(2)
    return hand.policy


@pytest.mark.parametrize("name", POLICIES)
def test_nothing_is_said_of_a_policy_at_work(name: str) -> None:
    at_work(name).check_integrity()


@dataclass(frozen=True)
class Damage:
    """`path` names a number, through attributes, `[i]` for the i-th value of a dictionary or list
    and `()` for the last of what is iterated over; it is changed by `by`."""

    policy: str
    path: str
    invariant: str
    by: int = 1


def change(policy: Any, path: str, by: int) -> None:
    *way, last = path.split(".")
    thing = policy
    for name in way:
        if name.startswith("["):
            values = list(thing.values() if isinstance(thing, dict) else thing)
            thing = values[int(name[1:-1])]
        else:
            thing = getattr(thing, name)
    setattr(thing, last, getattr(thing, last) + by)


_STORE = [
    ("_store.live", "held-count"),
    ("_store.idle", "idle-count"),
    ("_store.cached_idle", "cached-count"),
    ("_store._tree.[0].live", "live-count"),
    ("_store._tree.[0].blocks", "table-covers-its-path|node-holds-its-blocks"),
    ("_table_blocks", "table"),
]
_SLOTS = [
    ("_own_units", "own-units"),
    ("_still_tokens", "still-tokens"),
    ("_slots.parked_units", "parked-units"),
    ("_slots.used", "each-slot-is-free-or-held"),
    ("_pool.created", "each-chunk-is-free-or-mapped"),
    ("_pool.pooled", "each-chunk-is-free-or-mapped"),
]
DAMAGES = [
    Damage("native", "_tokens", "token-count"),
    *(
        Damage(name, path, invariant)
        for name in ("paged", "radix", "elastic-paged")
        for path, invariant in _STORE
    ),
    *(
        Damage(name, path, invariant)
        for name in ("paged", "radix")
        for path, invariant in (
            ("_prefill_tokens", "table-count"),
            ("_store.fresh", "each-block-is-free-or-held"),
        )
    ),
    Damage("elastic-paged", "_still_tokens", "still-tokens"),
    Damage("elastic-paged", "_own_blocks", "own-blocks"),
    Damage("elastic-paged", "_leaving_blocks", "leaving-blocks"),
    Damage("elastic-paged", "_pages.free_blocks", "each-block-is-free-or-held"),
    Damage("elastic-paged", "_pages.mapped", "each-block-is-free-or-held"),
    Damage("elastic-paged", "_limit_pages", "within-the-limit", -1000),
    *(
        Damage(name, path, invariant)
        for name in ("vattention", "vtensor", "vtensor, parking")
        for path, invariant in _SLOTS
    ),
    *(
        Damage(name, path, invariant, by)
        for name, held in (
            ("vattention", "_held.[2]"),
            ("vtensor", "_vset.[2]"),
            ("vtensor, parking", "_vset.[2]"),
        )
        for path, invariant, by in (
            ("_pool.limit", "within-the-limit", -1000),
            (f"{held}.tokens", "mapped-covers-used", 100),
        )
    ),
    Damage("vattention", "_leaving_units", "leaving-units"),
    Damage("vattention", "_pool.available", "available-units"),
    Damage("vtensor", "_shared_units", "shared-units"),
    Damage("vtensor", "_extents.live_units", "live-units"),
    Damage("vtensor", "_extents.record_units", "record-units"),
    Damage("vtensor", "_vset.[0].leaf.live", "extent-holders"),
    Damage("vtensor", "_vset.[0].leaf.records", "extent-holders"),
    Damage("vtensor", "_vset.[0].leaf.start", "tables-are-contiguous"),
    Damage("vtensor", "_prefixes.records.[0].payload.units", "record-table-length"),
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda d: f"{d.policy} {d.path}")
def test_a_book_that_is_off_is_named(damage: Damage) -> None:
    policy = at_work(damage.policy)
    change(policy, damage.path, damage.by)
    with pytest.raises(InvariantError, match=damage.invariant):
        policy.check_integrity()


def beyond_its_slot(policy: Any, tables: str) -> None:
    held = list(getattr(policy, tables).values())[2]
    held.tokens += 10_000
    held.mapped += 10_000


def longer_than_its_slot(policy: Any) -> None:
    policy._lengths[next(iter(policy._lengths))] += 10_000


OTHERS: list[tuple[str, Callable[[Any], object], str]] = [
    ("native", longer_than_its_slot, "mapped-covers-used"),
    ("native", lambda policy: policy._held.popitem(), "one-allocation-a-sequence"),
    ("vattention", lambda policy: beyond_its_slot(policy, "_held"), "inside-its-slot"),
    ("vtensor", lambda policy: beyond_its_slot(policy, "_vset"), "inside-its-slot"),
    ("elastic-paged", lambda policy: policy._tables[2].own.pop(), "table-covers-its-tokens"),
    ("elastic-paged", lambda policy: policy._store.freed.append(0), "freed-are-claimed"),
]


@pytest.mark.parametrize(("name", "damage", "invariant"), OTHERS)
def test_what_is_not_a_number_is_looked_at_too(
    name: str, damage: Callable[[Any], object], invariant: str
) -> None:
    policy = at_work(name)
    damage(policy)
    with pytest.raises(InvariantError, match=invariant):
        policy.check_integrity()
