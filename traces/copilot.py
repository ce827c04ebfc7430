"""GitHub Copilot coding agents 2026 (Azure public dataset): JSON lines, one session a line.

Every model call is a request of its session. The provider's count of cached prompt tokens is kept
as `recorded.cached_tokens`; what calls share is not stated otherwise, so no turns are set. Failed
calls are dropped and counted. Source of the schema: the dataset's schema.json.
"""

from __future__ import annotations

from typing import Any

from vtsim.request import Trace
from vtsim.traces.builder import Times, TraceBuilder
from vtsim.traces.number import Where
from vtsim.traces.registry import Head, ReadOptions
from vtsim.traces.rows import json_rows
from vtsim.traces.source import Source

_SESSION = frozenset(("session_id", "date", "turns"))
_TURN = frozenset(("turn_id", "llm_calls", "tool_batches"))
_CALL = frozenset(
    (
        *("message_id", "timestamp", "duration_ms", "initiator_type", "model", "result"),
        *("status_code", "tokens", "message_metadata"),
    )
)
_TOKENS = frozenset(("total", "prompt", "completion", "cached", "cached_pct"))
"""What the schema defines, kept or not: the rest goes to `extra`."""


class CopilotReader:
    """See the module."""

    name = "copilot"
    summary = "GitHub Copilot coding agents JSONL (Azure, 2026)"
    options: dict[str, str] = {}

    def detects(self, head: Head) -> bool:
        return head.has("session_id", "turns") and (
            head.has_any("date", "llm_calls") or '"llm_calls"' in head.text
        )

    def read(self, source: Source, options: ReadOptions) -> Trace:
        lengths = "tokens.prompt", "tokens.completion"
        builder = TraceBuilder(source, self.name, fields=lengths, times=Times("timestamp", unit=""))
        where = builder.where
        empty = 0
        for session in json_rows(source, where):
            name = session.get("session_id")
            if type(name) is not str:
                raise where.error("is not a string", "session_id", name)
            calls = 0
            for turn, item in _listed(where, session, "turns"):
                prefix = f"turns[{turn}]."
                where.prefix = prefix
                around = builder.unknown(session, _SESSION) | builder.unknown(item, _TURN)
                for index, call in _listed(where, item, "llm_calls"):
                    where.prefix = f"{prefix}llm_calls[{index}]."
                    _add(builder, where, name, call, around)
                    calls += 1
                where.prefix = ""
            empty += calls == 0
        if empty:
            builder.warn(f"{empty} sessions without a model call")
        return builder.finish()


def _listed(where: Where, row: dict[str, Any], key: str) -> list[tuple[int, dict[str, Any]]]:
    items = row.get(key)
    if items is None:
        return []
    if type(items) is not list or not all(type(item) is dict for item in items):
        raise where.error("is not a list of objects", key, items)
    return list(enumerate(items))


def _add(
    builder: TraceBuilder,
    where: Where,
    session: str,
    call: dict[str, Any],
    around: dict[str, object],
) -> None:
    """Adds or drops the call. `around`: what its session and turn say that is not known."""
    arrival = where.date_time(call.get("timestamp"), "timestamp")
    if call.get("result") not in (None, "Success"):
        builder.drop("failed")
        return
    tokens = call.get("tokens")
    if type(tokens) is not dict:
        raise where.error("is not an object" if tokens is not None else "is missing", "tokens")
    prompt = where.count(tokens.get("prompt"), "tokens.prompt")
    output = where.count(tokens.get("completion"), "tokens.completion")
    recorded: dict[str, object] = {}
    if call.get("duration_ms") is not None:
        where.ticks(call["duration_ms"], "duration_ms", "ms")
        recorded["duration_s"] = float(call["duration_ms"]) / 1000
    if tokens.get("cached") is not None:
        recorded["cached_tokens"] = where.count(tokens["cached"], "tokens.cached")
    if builder.drop_if_empty(prompt, output):
        return
    kept = ("message_id", "model", "initiator_type")
    extra = {key: call[key] for key in kept if call.get(key) is not None}
    extra |= around | builder.unknown(call, _CALL) | builder.unknown(tokens, _TOKENS)
    builder.add(arrival, prompt, output, session=session, recorded=recorded, extra=extra)


READER = CopilotReader()
