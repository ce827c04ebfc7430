"""Why a prefix was not in memory: what has been computed so far, kept for `vtsim explain` only.

It remembers content for good, as no real cache could, and must not influence a decision.
"""

from __future__ import annotations

from vtsim.memory.radix import Node, RadixTree, clip, tokens_of
from vtsim.request import Run


class PrefixHistory:
    """All content that was ever admitted, and all that has left the batch to be kept."""

    def __init__(self, grain_tokens: int) -> None:
        self._grain = grain_tokens
        """The policy serves prefixes in multiples of so many tokens."""
        self._admitted: RadixTree[Node] = RadixTree(Node)
        self._kept: RadixTree[Node] = RadixTree(Node)

    def why_missed(self, content: tuple[Run, ...], prompt: int, hit: int) -> tuple[str, int] | None:
        """(reason, tokens) where memory served less than had come before; None where it did not.

        rounding: less than a grain; evicted: it had been kept, or offered to be; computing: only
        sequences that still run hold it.
        """
        kept = min(self._kept.walk(content)[1], prompt - 1)
        admitted = min(self._admitted.walk(content)[1], prompt - 1)
        if kept > hit:
            return ("rounding" if kept - hit < self._grain else "evicted"), kept - hit
        if admitted > hit:
            return ("rounding" if admitted - hit < self._grain else "computing"), admitted - hit
        return None

    def admit(self, content: tuple[Run, ...]) -> None:
        """`content` is being computed."""
        _remember(self._admitted, content)

    def keep(self, content: tuple[Run, ...], tokens: int) -> None:
        """The first `tokens` tokens were offered to the policy to keep."""
        _remember(self._kept, clip(content, 0, tokens))


def _remember(tree: RadixTree[Node], content: tuple[Run, ...]) -> None:
    path, depth = tree.walk(content)
    total = tokens_of(content)
    if depth == total:
        return
    parent = path[-1] if path else tree.root
    if path and depth < parent.end:
        parent = tree.split(parent, depth - parent.start)
    tree.add(parent, clip(content, depth, total))
