"""elastic-paged: paged blocks over pages that come and go, as kvcached runs them.

The pool is addresses; pages of several blocks are mapped when blocks are needed and given back when
all their blocks are free, but for a small reserve. So where a block is placed decides what can be
given back: one live block holds its whole page. Decides by block numbers, hence slower to replay.
Blocks are reusable once their last reader has ended, as their pages may be unmapped by then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vtsim.errors import ConfigError, InvariantError
from vtsim.memory.blocks import CachedRun
from vtsim.memory.eviction import EvictionRule, make_order
from vtsim.memory.growth import Growth
from vtsim.memory.numbered import NumberedStore
from vtsim.memory.pages import PlaceRule, make_pages
from vtsim.memory.radix import join
from vtsim.plan import (
    NO_MATCH,
    NOTHING,
    Bounds,
    Keep,
    Match,
    MemoryUsage,
    Operation,
    OpKind,
    Phase,
    Plan,
    Shortage,
)
from vtsim.policies.base import Policy
from vtsim.ports import Batch, DeviceInfo, Headroom
from vtsim.request import Run, Sequence
from vtsim.spec import KVLayout, ModelSpec, check_chunk_bytes


@dataclass(frozen=True, slots=True)
class ElasticParameters:
    """`chunk`: bytes of a page in each arena. `block`: tokens a block. `place`: which page a new
    block goes to. `reserve_low`, `reserve_high`: empty pages that are kept mapped, at least (if
    there is room) and at most. `prefix_cache`, `evict`: as of paged."""

    chunk: int = 2 << 20
    layout: Literal["token_major", "kv_split", "per_layer"] = "token_major"
    block: int = 16
    place: PlaceRule = "newest"
    reserve_low: int = 5
    reserve_high: int = 10
    lookahead: int = 1
    prefix_cache: bool = True
    evict: EvictionRule = "lru"

    def __post_init__(self) -> None:
        for name, least in (("block", 1), ("reserve_low", 0), ("lookahead", 0)):
            if getattr(self, name) < least:
                raise ConfigError(
                    f"elastic-paged.{name}: must be >= {least}, got {getattr(self, name)}"
                )
        if self.reserve_high < self.reserve_low:
            raise ConfigError(
                f"elastic-paged.reserve_high: {self.reserve_high} is less than reserve_low"
            )


@dataclass(slots=True)
class Table:
    """A sequence's blocks: those of its cached path, then its own."""

    leaf: CachedRun
    cached: int
    """Blocks on the path from the root to `leaf`."""
    own: list[int]
    tokens: int
    """While its prompt is incomplete and when it has left; else `Growth` counts."""
    sure: int = 0
    """Tokens before the prompt chunk granted last."""

    @property
    def blocks(self) -> int:
        return self.cached + len(self.own)


@dataclass(slots=True)
class Leaving:
    """A table that kernels up to `step` may still read."""

    step: int
    table: Table
    content: tuple[Run, ...]
    """What to cache of it; () for nothing more than is."""
    sure: int
    """Tokens of it that are sure to have been computed."""


class ElasticPagedPolicy(Policy):
    """Blocks have numbers; block b lies in page b // (blocks a page)."""

    name = "elastic-paged"
    summary = "kvcached: paged blocks over pages that are mapped and given back"
    parameters_type = ElasticParameters
    kernels = ("flash_paged", "paged_v2")
    contiguous = False
    options: ElasticParameters

    def kv_layout(self, model: ModelSpec, tp: int, max_model_len: int) -> KVLayout:
        return KVLayout.build(model, tp, self.options.layout, self.options.chunk, max_model_len)

    def setup(self, device: DeviceInfo, kv: KVLayout, limit_bytes: int) -> Plan:
        check_chunk_bytes(kv.chunk_bytes, device.granularity_bytes)
        options = self.options
        block = self._block = self.grain_tokens = options.block
        self.kv = kv
        self.lookahead = options.lookahead
        self._token_bytes = kv.token_bytes
        self._block_bytes = block * kv.token_bytes
        # A block that is larger than a chunk gets a page of several; what is left over is waste.
        self._page_units = -(-block * kv.row_bytes // kv.chunk_bytes)
        self._page_bytes = self._page_units * kv.unit_bytes
        per_page = self._page_bytes // self._block_bytes
        self._waste_bytes = self._page_bytes - per_page * self._block_bytes
        # Pages must have addresses: as many slots as there are, end to end.
        addressed = kv.slots(device.va_bytes) * kv.slot_units // self._page_units
        self._addressed = min(addressed, device.capacity_bytes // self._page_bytes)
        self._reserved_slots = -(-self._addressed * self._page_units // kv.slot_units)
        self._limit_pages = self._pages_under(limit_bytes)
        self._bounds = Bounds(kv.arenas, kv.chunk_bytes)
        self.limit_bytes = limit_bytes
        self._pages = make_pages(per_page, options.place)
        self._store = NumberedStore(block, make_order(options.evict, self.known))
        self._tables: dict[int, Table] = {}
        self._leaving: list[Leaving] = []
        self._leaving_blocks = 0  # their own
        self._table_blocks = 0  # of all tables, shared blocks counted by each
        self._own_blocks = 0
        self._still_tokens = 0  # of prompts in progress and leaving sequences
        self._lead = max(0, options.lookahead - 1)
        self._growth = Growth(block, ((0, 1),), self._units, self._lead, ordered=True)
        self._operations: list[Operation] = []
        plan = Plan(Phase.SETUP, chunk_bytes=kv.chunk_bytes)
        self._reserve(plan, OpKind.RESERVE)
        while self._refill_due():
            self._map_pages(plan, 1, 0)
        return self._close(plan)

    def _pages_under(self, limit_bytes: int) -> int:
        return min(self._addressed, limit_bytes // self._page_bytes)

    def _units(self, tokens: int) -> int:
        return -(-tokens // self._block)

    def _reserve(self, plan: Plan, kind: OpKind) -> None:
        if not self._reserved_slots:
            return
        plan.counts[kind] = self.kv.arenas
        if self.placement:
            nbytes = self._reserved_slots * self.kv.slot_stride_bytes
            self._operations += [
                Operation(kind, arena=arena, nbytes=nbytes) for arena in range(self.kv.arenas)
            ]

    def _close(self, plan: Plan) -> Plan:
        if not any(plan.counts):
            return NOTHING
        if self.placement:
            plan.operations = tuple(self._operations)
            self._operations.clear()
        return plan

    # -- match, create, prefill -------------------------------------------------------------------

    def match(self, seq: Sequence) -> Match:
        if not seq.content or not self.options.prefix_cache:
            return NO_MATCH
        tokens, path = self._store.find(seq.content, seq.prompt_tokens - 1)
        return Match(tokens, path) if tokens else NO_MATCH

    def create(
        self, seq: Sequence, match: Match, tokens: int, whole_tokens: int
    ) -> Plan | Shortage:
        store = self._store
        held = match.tokens + tokens
        cached = match.tokens // self._block
        path: list[CachedRun] = match.handle if cached else []
        reach = self._reach() - store.revived(path, match.tokens)
        units = self._units(held + self._ahead(seq, held))
        missing = max(units, self._units(whole_tokens)) - cached - reach
        if missing > 0:
            return self._shortage(missing)
        plan = Plan(Phase.CREATE, chunk_bytes=self.kv.chunk_bytes)
        leaf = store.pin(path, match.tokens) if cached else store.root
        self._claim()
        store.order.seen(seq.index)
        table = self._tables[seq.index] = Table(leaf, cached, [], match.tokens)
        self._table_blocks += cached
        self._still_tokens += match.tokens
        self._fill(plan, seq, table, units, tokens)
        return self._close(plan)

    def extend_prompt(self, seq: Sequence, tokens: int) -> Plan | Shortage:
        table = self._tables[seq.index]
        held = table.tokens + tokens
        units = self._units(held + self._ahead(seq, held))
        missing = units - table.blocks - self._reach()
        if missing > 0:
            return self._shortage(missing)
        plan = Plan(Phase.PREFILL, chunk_bytes=self.kv.chunk_bytes)
        self._fill(plan, seq, table, units, tokens)
        return self._close(plan)

    def _ahead(self, seq: Sequence, held: int) -> int:
        return self._lead if held >= seq.prompt_tokens else 0

    def _fill(self, plan: Plan, seq: Sequence, table: Table, units: int, tokens: int) -> None:
        """`tokens` more of the prompt will be computed; a complete one is cached and decodes."""
        self._grow(plan, table, units - table.blocks, 0)
        table.sure = table.tokens
        table.tokens += tokens
        self._still_tokens += tokens
        if table.tokens < seq.prompt_tokens:
            return
        self._keep(table, seq.content, table.tokens)
        self._still_tokens -= table.tokens
        blocks = table.blocks
        self._growth.join(seq.index, table.tokens, blocks, blocks * self._block, seq.order)

    def _keep(self, table: Table, content: tuple[Run, ...], tokens: int) -> None:
        if content and self.options.prefix_cache:
            table.leaf, moved = self._store.keep_numbers(
                table.leaf, table.cached, content, tokens, table.own
            )
            table.cached += moved
            self._own_blocks -= moved

    def _grow(self, plan: Plan, table: Table, blocks: int, due: int) -> None:
        """Give a table `blocks` more: from pages in use, then empty and new ones, then evicted."""
        self._table_blocks += blocks
        self._own_blocks += blocks
        pages, own = self._pages, table.own
        while blocks > 0:
            if pages.free_blocks:
                taken = pages.take(blocks)
            else:
                # Whole pages, or one of which the rest stays free.
                wanted = max(1, blocks // pages.per_page)
                new = min(wanted - len(pages.empty), self._limit_pages - pages.mapped)
                if new > 0:
                    self._map_pages(plan, new, due)
                found = min(wanted, len(pages.empty))
                if not found:
                    self._store.evict(blocks)
                    freed = self._store.freed
                    if len(freed) == 1:  # the only one that is free
                        own += freed
                        freed.clear()
                        blocks -= 1
                    else:
                        self._claim()
                    continue
                if blocks < pages.per_page:
                    pages.open()
                    continue
                taken = pages.take_pages(found)
            own += taken
            blocks -= len(taken)

    def _claim(self) -> None:
        """Blocks that no content needs are free."""
        freed = self._store.freed
        if freed:
            self._pages.put(freed)
            freed.clear()

    # -- pages ------------------------------------------------------------------------------------

    def _refill_due(self) -> bool:
        """The reserve is low, and there is room for another page."""
        pages = self._pages
        return len(pages.empty) < self.options.reserve_low and pages.mapped < self._limit_pages

    def _map_pages(self, plan: Plan, pages: int, due: int) -> None:
        chosen = self._pages.map(pages)
        for kind in (OpKind.CREATE, OpKind.MAP):
            self._page_calls(plan, kind, chosen, due)

    def _unmap_pages(self, plan: Plan, pages: int) -> None:
        if pages > 0:
            chosen = self._pages.unmap(pages)
            for kind in (OpKind.UNMAP, OpKind.DESTROY):
                self._page_calls(plan, kind, chosen, 0)

    def _page_calls(self, plan: Plan, kind: OpKind, pages: list[int], due: int) -> None:
        plan.counts[kind] += len(pages) * self._page_units * self.kv.arenas
        if self.placement:
            for page in pages:
                self._place(kind, page, due)

    def _place(self, kind: OpKind, page: int, due: int) -> None:
        """One call for each chunk of a page; pages lie end to end in the arenas."""
        kv = self.kv
        placed = kind is OpKind.MAP or kind is OpKind.UNMAP
        for unit in range(page * self._page_units, (page + 1) * self._page_units):
            slot, index = divmod(unit, kv.slot_units) if placed else (-1, -1)
            for arena in range(kv.arenas):
                self._operations.append(
                    Operation(
                        kind,
                        chunk=unit * kv.arenas + arena,
                        slot=slot,
                        arena=arena,
                        index=index,
                        nbytes=kv.chunk_bytes,
                        due=due,
                    )
                )

    # -- extend -----------------------------------------------------------------------------------

    def extend(self, batch: Batch, steps: int = 1) -> Plan | Shortage:
        growth = self._growth
        need = growth.demand(steps)
        if not need and not self._refill_due():
            growth.advance(steps)
            return NOTHING
        missing = need - self._reach()
        if missing > 0:
            return self._shortage(missing)
        plan = Plan(Phase.EXTEND, chunk_bytes=self.kv.chunk_bytes)
        before: list[int] = plan.counts
        for due in range(steps):
            if due == steps - 1:
                before = plan.counts.copy()
            for _, member, blocks in growth.crossing():
                self._grow(plan, self._tables[member], blocks, due)
            growth.advance(1)
            if self._refill_due():
                self._map_pages(plan, 1, due)
        if steps > 1:
            last = [after - b for after, b in zip(plan.counts, before, strict=True)]
            plan.last = Plan(Phase.EXTEND, last)
        return self._close(plan)

    def headroom(self, batch: Batch, at_most: int) -> Headroom:
        """Evicting content is no driver's work; where blocks lie depends on what retires."""
        growth, pages = self._growth, self._pages
        steps, need = growth.within(self._reach(), min(at_most, growth.until_wake()))
        opened = growth.peak(steps) if need > pages.free_blocks else 0
        if steps and (opened or self._refill_due()):
            opened += self.options.reserve_low > 0
            units = opened * self._page_units
            return Headroom(steps, self._bounds[units, units, 0])
        return Headroom(steps)

    # -- release and retire -----------------------------------------------------------------------

    def release(self, seq: Sequence, keep: Keep, step: int) -> Plan:
        table = self._tables.pop(seq.index)
        if seq.index in self._growth:
            table.tokens, _ = self._growth.leave(seq.index)
            self._still_tokens += table.tokens
        content: tuple[Run, ...] = ()
        if keep is Keep.RECORD:
            content = join(seq.content, seq.output_content)
        vain = keep is Keep.NONE and table.tokens <= seq.prompt_tokens
        self._leaving.append(Leaving(step, table, content, table.sure if vain else 1 << 60))
        self._leaving_blocks += len(table.own)
        return NOTHING

    def retire(self, step: int) -> Plan:
        ended = [leaving for leaving in self._leaving if leaving.step <= step]
        if not ended:
            return NOTHING
        self._leaving = [leaving for leaving in self._leaving if leaving.step > step]
        for leaving in ended:
            self._let_go(leaving)
        plan = Plan(Phase.RETIRE, chunk_bytes=self.kv.chunk_bytes)
        self._unmap_pages(plan, len(self._pages.empty) - self.options.reserve_high)
        return self._close(plan)

    def _let_go(self, leaving: Leaving) -> None:
        table = leaving.table
        self._leaving_blocks -= len(table.own)
        self._table_blocks -= table.blocks
        self._still_tokens -= table.tokens
        self._keep(table, leaving.content, table.tokens)
        self._own_blocks -= len(table.own)
        self._pages.put(table.own[::-1])
        self._store.unpin(table.leaf, leaving.sure)
        self._claim()

    # -- the rest ---------------------------------------------------------------------------------

    def _reach(self) -> int:
        """Blocks that can be had: free, in empty pages, in pages that can be mapped, and idle."""
        pages = self._pages
        unmapped = max(0, self._limit_pages - pages.mapped)
        whole = (len(pages.empty) + unmapped) * pages.per_page
        return pages.free_blocks + whole + self._store.idle

    def _shortage(self, missing: int) -> Shortage:
        return Shortage(
            missing * self._block_bytes, pending_bytes=self._leaving_blocks * self._block_bytes
        )

    def set_limit(self, limit_bytes: int) -> Plan | Shortage:
        """Gives back empty pages, and evicts content if that empties enough of the others."""
        limit = self._pages_under(limit_bytes)
        pages = self._pages
        excess = pages.mapped - limit
        if excess > len(pages.empty):
            held = {block // pages.per_page for block in self._held_blocks()}
            if pages.mapped - len(held) < excess:
                return self._shortage((excess + len(held) - pages.mapped) * pages.per_page)
        plan = Plan(Phase.LIMIT, chunk_bytes=self.kv.chunk_bytes)
        while excess > len(pages.empty):
            self._store.evict(1)
            self._claim()
        self._unmap_pages(plan, excess)
        self._limit_pages = limit
        self.limit_bytes = limit_bytes
        return self._close(plan)

    def usage(self) -> MemoryUsage:
        token_bytes, block_bytes = self._token_bytes, self._block_bytes
        pages, store = self._pages, self._store
        live_blocks = self._own_blocks + store.live
        tokens = self._growth.total_tokens + self._still_tokens
        slack_tokens = self._table_blocks * self._block - tokens
        return MemoryUsage(
            kv_live=live_blocks * block_bytes - slack_tokens * token_bytes,
            kv_slack=slack_tokens * token_bytes,
            kv_prefix=store.cached_idle * block_bytes,
            pool_unused=(pages.free_blocks + len(pages.empty) * pages.per_page) * block_bytes
            + pages.mapped * self._waste_bytes,
        )

    def _held_blocks(self) -> list[int]:
        """Every block that a sequence holds, shared ones once."""
        tables = [*self._tables.values(), *(leaving.table for leaving in self._leaving)]
        shared = {block for table in tables for block in self._store.numbers(table.leaf)}
        return [*shared, *(block for table in tables for block in table.own)]

    def check_integrity(self) -> None:
        def demand(invariant: str, seen: object, counted: object) -> None:
            if seen != counted:
                raise InvariantError(invariant, f"{seen} found, {counted} counted")

        leaving = [entry.table for entry in self._leaving]
        tables = [*self._tables.values(), *leaving]
        for index, table in self._tables.items():
            if index in self._growth:
                demand("table-covers-its-tokens", self._growth.mapped(index), table.blocks)
        still = [t.tokens for i, t in self._tables.items() if i not in self._growth]
        demand("still-tokens", sum(still) + sum(t.tokens for t in leaving), self._still_tokens)
        demand("table-blocks", sum(table.blocks for table in tables), self._table_blocks)
        demand("own-blocks", sum(len(table.own) for table in tables), self._own_blocks)
        demand("leaving-blocks", sum(len(t.own) for t in leaving), self._leaving_blocks)
        demand("freed-are-claimed", self._store.freed, [])
        self._store.check([(table.leaf, table.cached) for table in tables], None)
        self._pages.check([*self._held_blocks(), *self._store.idle_numbers()])
        if self._pages.mapped > self._limit_pages:
            raise InvariantError("within-the-limit", f"{self._pages.mapped} pages are mapped")

    def teardown(self) -> Plan:
        for index in sorted(self._tables):
            table = self._tables[index]
            if index in self._growth:
                table.tokens, _ = self._growth.leave(index)
                self._still_tokens += table.tokens
            self._leaving.append(Leaving(0, table, (), 1 << 60))
            self._leaving_blocks += len(table.own)
        self._tables.clear()
        for leaving in self._leaving:
            self._let_go(leaving)
        self._leaving.clear()
        self._store.evict(self._store.idle)
        self._claim()
        plan = Plan(Phase.TEARDOWN, chunk_bytes=self.kv.chunk_bytes)
        self._unmap_pages(plan, len(self._pages.empty))
        self._reserve(plan, OpKind.FREE)
        return self._close(plan)
