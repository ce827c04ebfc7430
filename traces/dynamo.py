"""Dynamo's request trace (`dynamo.request.trace.v1`): JSON lines, one event a line.

A `request_end` event is a request: it arrives at `request.request_received_ms`, with the length
and the hashes of its blocks in `request.replay` and `request.output_tokens`. Hashes name a block
and all before it; the last one covers the rest of the prompt. Sessions are those of
`agent_context`. Other events (tools) are counted as dropped: requests arrive when they did, whom
they waited for is not worked out. Source of the schema: Dynamo's documentation of request tracing.
"""

from __future__ import annotations

from typing import Any

from vtsim.request import Trace
from vtsim.traces.builder import Times, TraceBuilder
from vtsim.traces.ids import MAX_BLOCK, check_blocks, check_ids
from vtsim.traces.number import Where
from vtsim.traces.registry import Head, ReadOptions
from vtsim.traces.rows import json_rows
from vtsim.traces.source import Source

SCHEMA = "dynamo.request.trace.v1"
_TIMES = {"ttft_ms": "ttft_s", "total_time_ms": "duration_s"}
_RECORD = frozenset(
    ("schema", "event_type", "event_time_unix_ms", "event_source", "agent_context", "request")
)
_CONTEXT = frozenset(
    ("session_id", "parent_session_id", "session_final", "agent_headers", "session_type_id")
)
_REPLAY = frozenset(("trace_block_size", "input_length", "input_sequence_hashes"))
_REQUEST = frozenset(
    (
        *("request_id", "x_request_id", "model", "input_tokens", "output_tokens", "cached_tokens"),
        *("request_received_ms", "ttft_ms", "total_time_ms", "avg_itl_ms", "prefill_time_ms"),
        *("prefill_wait_time_ms", "kv_hit_rate", "kv_transfer_estimated_latency_ms"),
        *("queue_depth", "worker", "finish_reason", "finish_metadata", "replay"),
    )
)
"""What the schema defines, kept or not: the rest goes to `extra`."""
_KEPT = ("model", "cached_tokens", "kv_hit_rate")


class DynamoReader:
    """See the module."""

    name = "dynamo"
    summary = "Dynamo request trace, dynamo.request.trace.v1 (JSONL)"
    options: dict[str, str] = {}

    def detects(self, head: Head) -> bool:
        if head.has("schema", "event_type", "request"):  # the schema may stand behind its hashes
            return True
        return f'"{SCHEMA}"' in head.text and head.has_any("schema", "event")

    def read(self, source: Source, options: ReadOptions) -> Trace:
        lengths = "request.replay.input_length", "request.output_tokens"
        times = Times("request.request_received_ms", unit="ms")
        builder = TraceBuilder(
            source, self.name, tail_rule="partial_tail", fields=lengths, times=times
        )
        where = builder.where
        names: set[str] = set()
        agents = 0
        for row in json_rows(source, where):
            event = row.get("event")
            if type(event) is dict:  # as a log of events wraps it
                row = event
            if row.get("schema") != SCHEMA:
                raise where.error(f"is not {SCHEMA!r}", "schema", row.get("schema"))
            if row.get("event_type") != "request_end":
                builder.drop("not_a_request")
                continue
            agents += _add(builder, where, row, names)
        if agents:
            builder.warn(
                f"{agents} requests are of agents' sessions: they arrive when they did, whom they "
                "waited for is not worked out"
            )
        return builder.finish()


def _add(builder: TraceBuilder, where: Where, row: dict[str, Any], names: set[str]) -> bool:
    """Adds or drops the request; True if it has a session."""
    request = _object(where, row, "request")
    where.prefix = "request."
    replay = _object(where, request, "replay")
    block = where.count(replay.get("trace_block_size"), "replay.trace_block_size", 1)
    if block > MAX_BLOCK:
        raise where.error(f"is larger than {MAX_BLOCK}", "replay.trace_block_size", block)
    if builder.block_size not in (0, block):
        raise where.error(f"differs from {builder.block_size} before", "replay.trace_block_size")
    builder.block_size = block
    prompt = where.count(replay.get("input_length"), "replay.input_length")
    output = where.count(request.get("output_tokens"), "output_tokens")
    hashes = replay.get("input_sequence_hashes")
    if hashes:
        check_ids(where, hashes, "replay.input_sequence_hashes")
        check_blocks(
            where, prompt, len(hashes), block, "partial_tail", "replay.input_sequence_hashes"
        )
    arrival = where.ticks(request.get("request_received_ms"), "request_received_ms", "ms")
    name = request.get("request_id")
    if type(name) is not str:
        raise where.error("is not a string", "request_id", name)
    if name in names:
        raise where.error("stands twice", "request_id", name)
    names.add(name)
    recorded: dict[str, object] = {}
    for key, kept in _TIMES.items():
        if request.get(key) is not None:
            recorded[kept] = where.ticks(request[key], key, "ms") / 10**12
    where.prefix = ""
    context = row.get("agent_context")
    session = parent = None
    if context is not None:
        if type(context) is not dict:
            raise where.error("is not an object", "agent_context", context)
        session, parent = context.get("session_id"), context.get("parent_session_id")
    if builder.drop_if_empty(prompt, output):
        return False
    extra = {key: request[key] for key in _KEPT if request.get(key) is not None}
    extra |= builder.unknown(row, _RECORD) | builder.unknown(request, _REQUEST)
    extra |= builder.unknown(replay, _REPLAY) | builder.unknown(context or {}, _CONTEXT)
    builder.add(
        arrival,
        prompt,
        output,
        hash_ids=hashes or (),
        session=None if session is None else str(session),
        request_id=name,
        recorded=recorded,
        extra=extra if parent is None else {**extra, "parent_session_id": parent},
    )
    return session is not None


def _object(where: Where, row: dict[str, Any], key: str) -> dict[str, Any]:
    value = row.get(key)
    if type(value) is not dict:
        raise where.error("is missing" if value is None else "is not an object", key, value)
    return value


READER = DynamoReader()
