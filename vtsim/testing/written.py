"""What sequences have written to chunks, by the names of tokens: a match can be looked up.

A model beside the device, which has no bytes. Chunks of the first arena stand for all.
"""

from __future__ import annotations

from collections.abc import Callable

from vtsim.memory.radix import clip, join
from vtsim.request import Run
from vtsim.spec import KVLayout
from vtsim.testing.books import Member
from vtsim.testing.contracts import demand


class Written:
    """`chunk_at(slot, index)`: the chunk that is mapped there, -1 for none."""

    def __init__(self, kv: KVLayout, chunk_at: Callable[[int, int], int]) -> None:
        self._kv = kv
        self._chunk_at = chunk_at
        self._tokens: dict[int, tuple[Run, ...]] = {}
        """Chunk -> names of the tokens that lie in it whole; only of chunks that are full."""

    def begin(self, member: Member) -> None:
        """A sequence has been created with a match: its full chunks hold what it names."""
        member.noted = self._kv.full_units(member.matched)
        for index in self._kv.chunk_starts(0, member.noted):
            chunk = self._chunk_at(member.slot, index)
            wanted = self._names(member, index)
            demand(
                not wanted or self._tokens.get(chunk) == wanted,
                "match-in-memory",
                f"sequence {member.seq.index} begins with {wanted}, chunk {chunk} at {index} has "
                f"{self._tokens.get(chunk, 'nothing known')}",
                "create",
            )
        self.grow(member)

    def grow(self, member: Member) -> None:
        """A sequence has more tokens: it writes behind those that were noted."""
        full = self._kv.full_units(member.tokens)
        kv = self._kv
        for index in kv.chunk_starts(member.noted, kv.units(member.tokens)):
            chunk = self._chunk_at(member.slot, index)
            if index < full:
                self._tokens[chunk] = self._names(member, index)
                member.noted = index + kv.chunk_bytes_at(index) // kv.chunk_bytes
            else:
                self._tokens.pop(chunk, None)

    def _names(self, member: Member, index: int) -> tuple[Run, ...]:
        """Of the tokens of a full chunk; those that are cut by its ends are left out."""
        kv = self._kv
        first = -(-index * kv.chunk_bytes // kv.row_bytes)
        behind = (index * kv.chunk_bytes + kv.chunk_bytes_at(index)) // kv.row_bytes
        return clip(join(member.seq.content, member.seq.output_content), first, behind)
