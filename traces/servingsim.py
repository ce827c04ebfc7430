"""LLMServingSim workloads: JSON lines with `arrival_time_ns` and, often, the token ids themselves.

Token ids (`input_tok_ids`) say what prompts share: they are cut into blocks of `block_size` (16)
tokens, and blocks with equal content behind equal content get the same hash id.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b

from vtsim.request import Trace
from vtsim.traces.builder import Times, TraceBuilder
from vtsim.traces.number import Where
from vtsim.traces.registry import BLOCK_SIZE, Head, ReadOptions
from vtsim.traces.rows import json_rows, request_name
from vtsim.traces.source import Source

_KNOWN = frozenset(
    (
        *("request_id", "session_id", "input_toks", "output_toks", "arrival_time_ns"),
        *("input_tok_ids", "output_tok_ids"),
    )
)


class BlockNames:
    """Names blocks of token ids by a digest of their content and all content before it: nothing is
    held of what was named."""

    def __init__(self, block: int) -> None:
        self._block = block

    def of(self, tokens: list[int]) -> list[bytes]:
        """One name, of 16 bytes, a whole block; the rest of the tokens has none."""
        block = self._block
        before = b""
        found = []
        for at in range(0, len(tokens) - block + 1, block):
            part = tokens[at : at + block]
            try:
                text = array("q", part).tobytes()
            except OverflowError:
                text = repr(part).encode()
            before = blake2b(text, digest_size=16, key=before).digest()
            found.append(before)
        return found


def check_tokens(where: Where, tokens: object, field: str) -> list[int]:
    """A list of token ids; TraceFormatError if it is none."""
    if type(tokens) is not list or not set(map(type, tokens)) <= {int}:
        raise where.error("is not a list of token ids", field)
    return tokens


class ServingSimReader:
    """See the module."""

    name = "llmservingsim"
    summary = "LLMServingSim workload JSONL (nanoseconds)"
    options = BLOCK_SIZE

    def detects(self, head: Head) -> bool:
        return head.has("input_toks", "output_toks", "arrival_time_ns")

    def read(self, source: Source, options: ReadOptions) -> Trace:
        block = options.block_size or 16
        builder = TraceBuilder(
            source,
            self.name,
            block_size=block,
            tail_rule="prefix_only",
            fields=("input_toks", "output_toks"),
            times=Times("arrival_time_ns", unit="ns"),
        )
        where = builder.where
        names = BlockNames(block)
        requests: set[object] = set()
        for row in json_rows(source, where):
            arrival = where.ticks(row.get("arrival_time_ns"), "arrival_time_ns", "ns")
            prompt = where.count(row.get("input_toks"), "input_toks")
            output = where.count(row.get("output_toks"), "output_toks")
            ids: list[bytes] = []
            if row.get("input_tok_ids"):
                tokens = check_tokens(where, row["input_tok_ids"], "input_tok_ids")
                if len(tokens) != prompt:
                    raise where.error(
                        f"{len(tokens)} token ids, but a prompt of {prompt} tokens", "input_tok_ids"
                    )
                ids = names.of(tokens)
            if builder.drop_if_empty(prompt, output):
                continue
            extra = builder.unknown(row, _KNOWN)
            session = row.get("session_id")
            builder.add(
                arrival,
                prompt,
                output,
                hash_ids=ids,
                session=None if session is None else str(session),
                request_id=request_name(where, row.get("request_id"), requests),
                extra=extra,
            )
        return builder.finish()


READER = ServingSimReader()
