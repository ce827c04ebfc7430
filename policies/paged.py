"""paged: PagedAttention's static pool of fixed blocks, as vLLM v1 runs it.

The pool is one ordinary allocation taken at start. Full blocks of hashed prompts stay cached after
their request until the least recently used free block is needed again; within a request the tail
goes first. One difference from vLLM, which keeps every copy of a block under its hash: a block
computed while another copy is cached serves no later hit here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from vtsim.errors import ConfigError, InvariantError
from vtsim.memory.blocks import BlockStore, CachedRun
from vtsim.memory.eviction import EvictionRule, make_order
from vtsim.memory.growth import Growth
from vtsim.memory.radix import join
from vtsim.plan import (
    NO_MATCH,
    NOTHING,
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
from vtsim.request import Sequence
from vtsim.spec import KVLayout


@dataclass(frozen=True, slots=True)
class PagedParameters:
    """`block`: tokens a block. `num_gpu_blocks`: a measured pool size; 0 derives it from the limit.
    `prefix_cache`: keep full blocks of hashed prompts for later requests. `evict`: which go first
    (vLLM: lru); `belady` is an oracle."""

    block: int = 16
    num_gpu_blocks: int = 0
    prefix_cache: bool = True
    evict: EvictionRule = "lru"

    def __post_init__(self) -> None:
        if self.block < 1:
            raise ConfigError(f"paged.block: must be >= 1, got {self.block}")
        if self.num_gpu_blocks < 0:
            raise ConfigError(f"paged.num_gpu_blocks: must be >= 0, got {self.num_gpu_blocks}")


@dataclass(slots=True)
class Table:
    """A running sequence's blocks: those of its cached path, then private ones."""

    leaf: CachedRun
    cached: int
    """Blocks on the path from the root to `leaf`."""
    private: int
    tokens: int
    """While its prompt is incomplete; then `Growth` counts."""
    sure: int = 0
    """Tokens before the prompt chunk granted last."""


class PagedPolicy(Policy):
    """Blocks are counted, not numbered: which id a block has decides nothing here."""

    name = "paged"
    summary = "PagedAttention: a static pool of 16-token blocks, hash prefix cache (vLLM v1)"
    parameters_type: ClassVar[type] = PagedParameters
    kernels: ClassVar[tuple[str, ...]] = ("flash_paged", "paged_v2")
    fenced = False
    contiguous = False
    caches_chunks: ClassVar[bool] = False
    """True: what a chunk of a prompt computes is found by others at once, not when all is done."""
    options: Any

    def _sizes(self) -> tuple[int, int]:
        """Tokens a block, and a measured number of blocks (0: derive it from the limit)."""
        return self.options.block, self.options.num_gpu_blocks

    def _open_store(self, blocks: int, block: int) -> BlockStore:
        order = make_order(self.options.evict, self.known)
        return BlockStore(blocks, block, order, in_line=not order.leaves_only)

    def setup(self, device: DeviceInfo, kv: KVLayout, limit_bytes: int) -> Plan:
        self.kv = kv
        self.limit_bytes = limit_bytes
        block, measured = self._sizes()
        self._block = self.grain_tokens = block
        self._token_bytes = kv.token_bytes
        self._block_bytes = block * kv.token_bytes
        self.derived_blocks = limit_bytes // self._block_bytes
        self.blocks = measured or self.derived_blocks
        self._details = {"derived_blocks": self.derived_blocks, "blocks": self.blocks}
        self._store = self._open_store(self.blocks, block)
        self._clairvoyant = self.options.evict == "belady"
        self._tables: dict[int, Table] = {}
        self._table_blocks = 0  # of all tables, shared blocks counted by each
        self._prefill_tokens = 0
        self._growth = Growth(block, ((0, 1),), self._units)
        return self._pool_plan(Phase.SETUP, OpKind.ALLOCATE)

    def details(self) -> dict[str, object]:
        """The pool's size as derived from the limit, and as it was; they differ where measured."""
        return dict(self._details)

    def _pool_plan(self, phase: Phase, kind: OpKind) -> Plan:
        plan = Plan(phase, allocation_bytes=self.blocks * self._block_bytes)
        if self.blocks:
            plan.counts[kind] = 1
            if self.placement:
                plan.operations = (Operation(kind, chunk=0, nbytes=plan.allocation_bytes),)
        return plan

    def _units(self, tokens: int) -> int:
        return -(-tokens // self._block)

    # -- the five instructions --------------------------------------------------------------------

    def match(self, seq: Sequence) -> Match:
        content = seq.content
        if not content or not self.options.prefix_cache:
            return NO_MATCH
        tokens, path = self._store.find(content, seq.prompt_tokens - 1)
        return Match(tokens, path) if tokens else NO_MATCH

    def create(
        self, seq: Sequence, match: Match, tokens: int, whole_tokens: int
    ) -> Plan | Shortage:
        store = self._store
        cached = match.tokens // self._block
        path: list[CachedRun] = match.handle if cached else []
        available = store.fresh + store.idle
        if path:
            available -= store.revived(path, match.tokens)
        missing = self._units(whole_tokens) - cached - available
        if missing > 0:
            return Shortage(missing * self._block_bytes)
        leaf = store.pin(path, match.tokens) if cached else store.root
        need = self._units(match.tokens + tokens) - cached
        store.take(need)
        if self._clairvoyant:
            store.order.seen(seq.index)
        self._table_blocks += cached + need
        self._tables[seq.index] = Table(leaf, cached, need, match.tokens)
        self._prefill_tokens += match.tokens
        self._fill(seq, tokens)
        return NOTHING

    def extend_prompt(self, seq: Sequence, tokens: int) -> Plan | Shortage:
        table, store = self._tables[seq.index], self._store
        need = self._units(table.tokens + tokens) - table.cached - table.private
        missing = need - store.available
        if missing > 0:
            return Shortage(missing * self._block_bytes)
        store.take(need)
        table.private += need
        self._table_blocks += need
        self._fill(seq, tokens)
        return NOTHING

    def _fill(self, seq: Sequence, tokens: int) -> None:
        """`tokens` more of the prompt will be computed; a complete one is cached and decodes."""
        table = self._tables[seq.index]
        table.sure = table.tokens
        table.tokens += tokens
        self._prefill_tokens += tokens
        complete = table.tokens >= seq.prompt_tokens
        if seq.content and self.options.prefix_cache and (complete or self.caches_chunks):
            table.leaf, moved = self._store.keep(
                table.leaf, table.cached, seq.content, table.tokens
            )
            table.cached += moved
            table.private -= moved
        if complete:
            blocks = table.cached + table.private
            self._prefill_tokens -= table.tokens
            self._growth.join(seq.index, table.tokens, blocks, blocks * self._block, seq.order)

    def extend(self, batch: Batch, steps: int = 1) -> Plan | Shortage:
        store = self._store
        need = self._growth.demand(steps)
        missing = need - store.fresh - store.idle
        if missing > 0:
            return Shortage(missing * self._block_bytes)
        if need:
            store.take(need)
            self._table_blocks += need
        self._growth.advance(steps)
        return NOTHING

    def headroom(self, batch: Batch, at_most: int) -> Headroom:
        """Taking a free block is no driver's work, evicted content or not."""
        return Headroom(self._growth.within(self._store.available, at_most)[0])

    def release(self, seq: Sequence, keep: Keep, step: int) -> Plan:
        """Blocks are reused in stream order, so they are free at once: its tail first."""
        table = self._tables.pop(seq.index)
        leaf, private = table.leaf, table.private
        if seq.index in self._growth:
            tokens, blocks = self._growth.leave(seq.index)
            private = blocks - table.cached
        else:
            tokens = table.tokens
            blocks = table.cached + private
            self._prefill_tokens -= tokens
        self._table_blocks -= blocks
        if keep is Keep.RECORD and seq.content and self.options.prefix_cache:
            content = join(seq.content, seq.output_content)
            leaf, moved = self._store.keep(leaf, table.cached, content, tokens)
            private -= moved
        self._store.give(private)
        if leaf.parent is None:
            return NOTHING
        if keep is Keep.NONE and tokens <= seq.prompt_tokens:
            self._store.unpin(leaf, table.sure)  # its last chunk may have been granted in vain
        else:
            self._store.unpin(leaf)
        return NOTHING

    # -- the rest ---------------------------------------------------------------------------------

    def set_limit(self, limit_bytes: int) -> Plan | Shortage:
        """The pool was taken whole at start and stays: a lower limit cannot be met."""
        missing = self.blocks * self._block_bytes - limit_bytes
        if missing > 0:
            return Shortage(missing)
        self.limit_bytes = limit_bytes
        return NOTHING

    def usage(self) -> MemoryUsage:
        token_bytes, block_bytes = self._token_bytes, self._block_bytes
        store = self._store
        live_blocks = self.blocks - store.fresh - store.idle
        slack_tokens = (
            self._table_blocks * self._block - self._growth.total_tokens - self._prefill_tokens
        )
        return MemoryUsage(
            kv_live=live_blocks * block_bytes - slack_tokens * token_bytes,
            kv_slack=slack_tokens * token_bytes,
            kv_prefix=store.cached_idle * block_bytes,
            pool_unused=(store.fresh + store.idle - store.cached_idle) * block_bytes,
        )

    def check_integrity(self) -> None:
        own = blocks = prefill = 0
        for index, table in self._tables.items():
            growing = index in self._growth
            mapped = self._growth.mapped(index) if growing else table.cached + table.private
            own += mapped - table.cached
            blocks += mapped
            prefill += 0 if growing else table.tokens
        self._store.check([(t.leaf, t.cached) for t in self._tables.values()], own)
        if (blocks, prefill) != (self._table_blocks, self._prefill_tokens):
            raise InvariantError(
                "table-count",
                f"{blocks} blocks and {prefill} prompt tokens found, "
                f"{self._table_blocks} and {self._prefill_tokens} counted",
            )

    def teardown(self) -> Plan:
        plan = self._pool_plan(Phase.TEARDOWN, OpKind.DEALLOCATE) if self.blocks else NOTHING
        self.blocks = 0
        self._store = BlockStore(0, self._block, make_order("lru", self.known))
        self._tables.clear()
        self._table_blocks = self._prefill_tokens = 0
        return plan
