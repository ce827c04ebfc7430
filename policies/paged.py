"""paged: PagedAttention's static pool of fixed blocks, as vLLM v1 runs it.

The pool is one ordinary allocation taken at start. Full blocks of hashed prompts stay cached after
their request until the least recently used free block is needed again; within a request the tail
goes first. One difference from vLLM, which keeps every copy of a block under its hash: a block
computed while another copy is cached serves no later hit here.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from vtsim.errors import ConfigError, InvariantError
from vtsim.memory.growth import Growth
from vtsim.memory.radix import Node, RadixTree, clip, join, tokens_of
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
from vtsim.request import Run, Sequence
from vtsim.spec import KVLayout


@dataclass(frozen=True, slots=True)
class PagedParameters:
    """`block`: tokens a block. `num_gpu_blocks`: a measured pool size; 0 derives it from the limit.
    `prefix_cache`: keep full blocks of hashed prompts for later requests."""

    block: int = 16
    num_gpu_blocks: int = 0
    prefix_cache: bool = True

    def __post_init__(self) -> None:
        if self.block < 1:
            raise ConfigError(f"paged.block: must be >= 1, got {self.block}")
        if self.num_gpu_blocks < 0:
            raise ConfigError(f"paged.num_gpu_blocks: must be >= 0, got {self.num_gpu_blocks}")


class CachedRun(Node):
    """A run of cached content and the full blocks that end in it: blocks [start//b, end//b)."""

    __slots__ = ("blocks", "live")

    def __init__(self, first: int, length: int, start: int, parent: Node | None) -> None:
        super().__init__(first, length, start, parent)
        self.blocks = 0
        self.live = 0  # running sequences whose table leads through here


class FreeRun:
    """Free blocks with no cached content, in their place in the eviction order."""

    __slots__ = ("blocks",)

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks


@dataclass(slots=True)
class Table:
    """A running sequence's blocks: those of its cached path, then private ones."""

    leaf: CachedRun
    cached: int
    """Blocks on the path from the root to `leaf`."""
    private: int
    tokens: int
    """While its prompt is incomplete; then `Growth` counts."""


class PagedPolicy(Policy):
    """Blocks are counted, not numbered: which id a block has decides nothing here."""

    name = "paged"
    summary = "PagedAttention: a static pool of 16-token blocks, hash prefix cache (vLLM v1)"
    parameters_type = PagedParameters
    kernels = ("flash_paged", "paged_v2")
    fenced = False
    options: PagedParameters

    def setup(self, device: DeviceInfo, kv: KVLayout, limit_bytes: int) -> Plan:
        self.kv = kv
        self.limit_bytes = limit_bytes
        block = self._block = self.grain_tokens = self.options.block
        self._token_bytes = kv.token_bytes
        self._block_bytes = block * kv.token_bytes
        self.derived_blocks = limit_bytes // self._block_bytes
        self.blocks = self.options.num_gpu_blocks or self.derived_blocks
        self._details = {"derived_blocks": self.derived_blocks, "blocks": self.blocks}
        self._fresh = self.blocks  # never used
        self._free: OrderedDict[CachedRun | FreeRun, None] = OrderedDict()
        self._free_blocks = 0  # in `_free`
        self._cached_free = 0  # of these, with content
        self._tree: RadixTree[CachedRun] = RadixTree(CachedRun)
        self._tables: dict[int, Table] = {}
        self._table_blocks = 0  # of all tables, shared blocks counted by each
        self._prefill_tokens = 0
        self._growth = Growth(block, ((0, 1),), self._units)
        plan = Plan(Phase.SETUP, allocation_bytes=self.blocks * self._block_bytes)
        if self.blocks:
            plan.counts[OpKind.ALLOCATE] = 1
            if self.placement:
                plan.operations = (
                    Operation(OpKind.ALLOCATE, chunk=0, nbytes=plan.allocation_bytes),
                )
        return plan

    def details(self) -> dict[str, object]:
        """The pool's size as derived from the limit, and as it was; they differ where measured."""
        return dict(self._details)

    def _units(self, tokens: int) -> int:
        return -(-tokens // self._block)

    # -- the five instructions --------------------------------------------------------------------

    def match(self, seq: Sequence) -> Match:
        content = seq.content
        if not content or not self.options.prefix_cache:
            return NO_MATCH
        path, depth = self._tree.walk(content)
        depth = min(depth, seq.prompt_tokens - 1)
        tokens = depth - depth % self._block
        return Match(tokens, path) if tokens else NO_MATCH

    def create(
        self, seq: Sequence, match: Match, tokens: int, whole_tokens: int
    ) -> Plan | Shortage:
        cached = match.tokens // self._block
        path: list[CachedRun] = match.handle if cached else []
        revived = 0
        for node in path:
            if node.live == 0:
                revived += min(node.blocks, cached - node.start // self._block)
            if node.end >= match.tokens:
                break
        available = self._fresh + self._free_blocks - revived
        missing = self._units(whole_tokens) - cached - available
        if missing > 0:
            return Shortage(missing * self._block_bytes)
        leaf = self._pin(path, match.tokens) if cached else self._tree.root
        need = self._units(match.tokens + tokens) - cached
        self._take(need)
        self._table_blocks += cached + need
        self._tables[seq.index] = Table(leaf, cached, need, match.tokens)
        self._prefill_tokens += match.tokens
        self._fill(seq, tokens)
        return NOTHING

    def extend_prompt(self, seq: Sequence, tokens: int) -> Plan | Shortage:
        table = self._tables[seq.index]
        need = self._units(table.tokens + tokens) - table.cached - table.private
        missing = need - self._fresh - self._free_blocks
        if missing > 0:
            return Shortage(missing * self._block_bytes)
        self._take(need)
        table.private += need
        self._table_blocks += need
        self._fill(seq, tokens)
        return NOTHING

    def _fill(self, seq: Sequence, tokens: int) -> None:
        """`tokens` more of the prompt will be computed; a complete one is cached and decodes."""
        table = self._tables[seq.index]
        table.tokens += tokens
        self._prefill_tokens += tokens
        if table.tokens >= seq.prompt_tokens:
            self._cache(table, seq.content, table.tokens)
            blocks = table.cached + table.private
            self._prefill_tokens -= table.tokens
            self._growth.join(seq.index, table.tokens, blocks, blocks * self._block, seq.order)

    def extend(self, batch: Batch, steps: int = 1) -> Plan | Shortage:
        need = self._growth.demand(steps)
        missing = need - self._fresh - self._free_blocks
        if missing > 0:
            return Shortage(missing * self._block_bytes)
        if need:
            self._take(need)
            self._table_blocks += need
        self._growth.advance(steps)
        return NOTHING

    def headroom(self, batch: Batch, at_most: int) -> Headroom:
        """Taking a free block is no driver's work, evicted content or not."""
        return Headroom(self._growth.within(self._fresh + self._free_blocks, at_most)[0])

    def release(self, seq: Sequence, keep: Keep, step: int) -> Plan:
        """Blocks are reused in stream order, so they are free at once: its tail first."""
        table = self._tables.pop(seq.index)
        if seq.index in self._growth:
            tokens, blocks = self._growth.leave(seq.index)
            table.private = blocks - table.cached
        else:
            tokens = table.tokens
            blocks = table.cached + table.private
            self._prefill_tokens -= tokens
        self._table_blocks -= blocks
        if keep is Keep.RECORD:
            self._cache(table, join(seq.content, seq.output_content), tokens)
        if table.private:
            self._free[FreeRun(table.private)] = None
            self._free_blocks += table.private
        node = table.leaf
        root = self._tree.root
        while node is not root:
            parent: CachedRun = node.parent  # type: ignore[assignment]
            node.live -= 1
            if node.live == 0:
                if node.blocks:
                    self._free[node] = None
                    self._free_blocks += node.blocks
                    self._cached_free += node.blocks
                else:
                    self._prune(node)
            node = parent
        return NOTHING

    # -- cached content ---------------------------------------------------------------------------

    def _pin(self, path: list[CachedRun], tokens: int) -> CachedRun:
        """Hold the first `tokens` tokens of a path that `match` found; returns its last node."""
        leaf = self._tree.root
        for node in path:
            if node.end > tokens:
                node = self._split(node, tokens - node.start)
            if node.live == 0 and node.blocks:
                self._free.pop(node, None)  # a head just cut off is not in there
                self._free_blocks -= node.blocks
                self._cached_free -= node.blocks
            node.live += 1
            leaf = node
            if node.end == tokens:
                break
        return leaf

    def _split(self, node: CachedRun, at: int) -> CachedRun:
        head = self._tree.split(node, at)
        block = self._block
        head.blocks = head.end // block - head.start // block
        head.live = node.live
        node.blocks -= head.blocks
        if node.blocks == 0 and node.live == 0:
            self._free.pop(node, None)
            self._prune(node)
        return head

    def _cache(self, table: Table, content: tuple[Run, ...], tokens: int) -> None:
        """Put the full blocks of known content under their names; what is there already stays."""
        block = self._block
        if not content or not self.options.prefix_cache:
            return
        end = min(tokens_of(content), tokens)
        end -= end % block
        if end <= table.cached * block:
            return
        path, depth = self._tree.walk(content)
        if depth >= end or depth // block > table.cached:
            return  # another copy is cached: this one stays private
        parent = path[-1] if path else self._tree.root
        if path and depth < parent.end:
            parent = self._split(parent, depth - parent.start)
        node = parent
        while node is not table.leaf:  # parts of a block, shared by content that parts in it
            node.live += 1
            node = node.parent  # type: ignore[assignment]
        leaf = self._tree.add(parent, clip(content, depth, end))
        node = leaf
        while node is not parent:
            node.blocks = node.end // block - node.start // block
            node.live = 1
            node = node.parent  # type: ignore[assignment]
        moved = end // block - table.cached
        table.leaf = leaf
        table.cached += moved
        table.private -= moved

    def _take(self, blocks: int) -> None:
        """Use `blocks` free ones: never used first, then in the order they were freed."""
        fresh = min(blocks, self._fresh)
        self._fresh -= fresh
        blocks -= fresh
        self._free_blocks -= blocks
        free = self._free
        while blocks:
            entry = next(iter(free))
            taken = min(blocks, entry.blocks)
            entry.blocks -= taken
            blocks -= taken
            if isinstance(entry, CachedRun):
                self._cached_free -= taken
                if entry.blocks:
                    end = (entry.start // self._block + entry.blocks) * self._block
                    entry.length = end - entry.start
            if not entry.blocks:
                del free[entry]
                if isinstance(entry, CachedRun):
                    self._prune(entry)

    def _prune(self, node: CachedRun) -> None:
        """Drop nodes that hold no block and lead nowhere."""
        root = self._tree.root
        while node is not root and not (node.blocks or node.live or node.children):
            parent: CachedRun = node.parent  # type: ignore[assignment]
            self._tree.remove(node)
            node = parent

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
        live_blocks = self.blocks - self._fresh - self._free_blocks
        slack_tokens = (
            self._table_blocks * self._block - self._growth.total_tokens - self._prefill_tokens
        )
        return MemoryUsage(
            kv_live=live_blocks * block_bytes - slack_tokens * token_bytes,
            kv_slack=slack_tokens * token_bytes,
            kv_prefix=self._cached_free * block_bytes,
            pool_unused=(self._fresh + self._free_blocks - self._cached_free) * block_bytes,
        )

    def check_integrity(self) -> None:
        def demand(invariant: str, seen: object, counted: object) -> None:
            if seen != counted:
                raise InvariantError(invariant, f"{seen} found, {counted} counted")

        live = sum(table.private for table in self._tables.values())
        for index in self._tables:
            if index in self._growth:
                table = self._tables[index]
                live += self._growth.mapped(index) - table.cached - table.private
        lives: dict[CachedRun, int] = {}
        for table in self._tables.values():
            node, blocks = table.leaf, 0
            while node is not self._tree.root:
                lives[node] = lives.get(node, 0) + 1
                blocks += node.blocks
                node = node.parent  # type: ignore[assignment]
            demand("table-covers-its-path", blocks, table.cached)
        for node in self._tree:
            demand("live-count", lives.get(node, 0), node.live)
            full = node.end // self._block - node.start // self._block
            demand("node-holds-its-blocks", node.blocks, full)
            demand("idle-content-is-free", node in self._free, not node.live and node.blocks > 0)
            live += node.blocks if node.live else 0
        free = sum(entry.blocks for entry in self._free)
        cached = sum(entry.blocks for entry in self._free if isinstance(entry, CachedRun))
        demand("free-count", free, self._free_blocks)
        demand("cached-count", cached, self._cached_free)
        demand("each-block-is-free-or-held", live + free + self._fresh, self.blocks)

    def teardown(self) -> Plan:
        plan = Plan(Phase.TEARDOWN, allocation_bytes=self.blocks * self._block_bytes)
        if not self.blocks:
            return NOTHING
        plan.counts[OpKind.DEALLOCATE] = 1
        if self.placement:
            plan.operations = (Operation(OpKind.DEALLOCATE, chunk=0, nbytes=plan.allocation_bytes),)
        self.blocks = self._fresh = self._free_blocks = self._cached_free = 0
        self._free.clear()
        self._tables.clear()
        self._tree = RadixTree(CachedRun)
        return plan
