"""The Mooncake family of JSON lines: `timestamp`, `input_length`, `output_length`, `hash_ids`.

Mooncake (FAST'25), AIPerf and GenAI-Perf, vLLM timed_trace, SGLang and Dynamo write it, with other
names for the same keys. `timestamp` counts milliseconds (`time_unit` says otherwise, never a
guess); hash ids stand for blocks of 512 tokens unless `block_size` says otherwise, the last one
covering the rest of the prompt. A row of a session with `delay` instead of `timestamp` arrives that
long after the session's row before it has finished; one with `wait_for` (Dynamo's agentic_mooncake)
after all that it names.
"""

from __future__ import annotations

from typing import Any

from vtsim.request import Tick, Trace
from vtsim.traces.agentic import MAPPED, MARKS, Workflow
from vtsim.traces.builder import Times, TraceBuilder
from vtsim.traces.ids import check_blocks, check_ids
from vtsim.traces.number import UNITS, Where
from vtsim.traces.registry import BLOCK_SIZE, Head, ReadOptions
from vtsim.traces.rows import json_rows
from vtsim.traces.sessions import Sessions
from vtsim.traces.source import Source
from vtsim.traces.words import OPTIONS, TokenRule

_STAMP = ("timestamp", "created_time")
_DELAY = ("delay", "delay_ms")
_PROMPT = ("input_length", "input_tokens")
_OUTPUT = ("output_length", "output_tokens")
KNOWN = frozenset((*_STAMP, *_DELAY, *_PROMPT, *_OUTPUT, "hash_ids", "session_id", "priority"))
_ALIASES = frozenset(("created_time", "input_tokens", "output_tokens"))
TEXTS = ("text_input", "messages")
"""Counted where no length is stated; never kept."""


class MooncakeReader:
    """See the module."""

    name = "mooncake"
    summary = "Mooncake family JSONL (Mooncake, AIPerf, GenAI-Perf, vLLM timed_trace, Dynamo)"
    options = {
        **BLOCK_SIZE,
        "time_unit": "what timestamps and delays count: s, ms (default), us, ns",
        "tail_rule": "partial_tail (default): the last hash id covers the rest of the prompt; "
        "prefix_only: the rest is unhashed; exact",
        "turns": "what a session's row holds where no hash ids tell: unknown (default), whole (the "
        "prompt repeats the conversation so far) or delta (only what is new)",
        **{name: OPTIONS[name] for name in ("tokens_per_word", "tokenizer")},
    }

    def detects(self, head: Head) -> bool:
        if "requests" in head.keys or "conversations" in head.keys:
            return False
        return head.has_any(*_PROMPT) and head.has_any(*_OUTPUT, *_STAMP, *_DELAY)

    def read(self, source: Source, options: ReadOptions) -> Trace:
        unit = options.text("time_unit", "ms", tuple(UNITS))
        tail_rule = options.text(
            "tail_rule", "partial_tail", ("partial_tail", "prefix_only", "exact")
        )
        turns = options.text("turns", "unknown", ("unknown", "whole", "delta"))
        block = options.block_size or 512
        builder = TraceBuilder(
            source,
            self.name,
            block_size=block,
            tail_rule=tail_rule,
            fields=("input_length", "output_length"),
            times=Times("timestamp", "delay", "wait_for", unit),
        )
        where = builder.where
        sessions, flow = Sessions(turns), Workflow(builder)
        rule = TokenRule(options)
        fractions = hashed = False
        scale = 10 ** UNITS[unit]
        builder.about["time_unit"] = unit
        for row in json_rows(source, where):
            tied = False
            if not row.keys() <= KNOWN:
                tied = _is_tied(row)
                extra: dict[str, object] | None = {
                    k: row[k] for k in row if k not in KNOWN and k not in TEXTS
                }
                builder.note_unknown(
                    k for k in extra or () if not (k in MARKS or (tied and k == "request_id"))
                )
            else:
                extra = None
            aliased = not _ALIASES.isdisjoint(row)
            prompt = None if aliased else row.get("input_length")
            output = None if aliased else row.get("output_length")
            if type(prompt) is not int or not 0 < prompt < 2**31:
                value, key = _one(where, row, _PROMPT)
                texts = [name for name in TEXTS if row.get(name) is not None]
                if value is None and texts:
                    prompt = _text_tokens(where, rule, row, texts[0])
                else:
                    prompt = where.count(value, key)
            if type(output) is not int or not 0 < output < 2**31:
                output = where.count(*_one(where, row, _OUTPUT))
            session = _session(where, row)
            stamp = None if aliased else row.get("timestamp")
            waits = row.get("delay") is not None or row.get("delay_ms") is not None
            arrival: Tick | None = None
            wait: Tick | None = None
            if tied:
                extra = {k: v for k, v in (extra or {}).items() if k not in MAPPED}
            if tied and flow.waits_for(row):
                extra |= _measured(row)  # type: ignore[operator]
                row = {key: value for key, value in row.items() if key not in _STAMP}
                stamp = None
            if type(stamp) is int and 0 <= stamp < 2**63 and not waits:
                arrival = stamp * scale
            else:
                arrival, wait = _times(where, row, unit)
                fractions |= arrival is not None and arrival % scale != 0
            hash_ids = row.get("hash_ids")
            if hash_ids:
                hashed = True
                check_ids(where, hash_ids)
                check_blocks(where, prompt, len(hash_ids), block, tail_rule)
            elif hash_ids is not None and hash_ids != []:
                raise where.error("is not a list", "hash_ids", hash_ids)
            after: tuple[int, ...] = ()
            turn = -1
            if tied:
                if arrival is None and not flow.waits_for(row):
                    raise where.error("is missing: the row waits for nobody", "timestamp")
                wait = (wait or 0) + (flow.tool_wait(row) if arrival is None else 0)
                if session is not None:
                    turn = sessions.next_turn(session, bool(hash_ids))
            elif session is not None:
                arrival, after, wait, turn, prompt = sessions.place(
                    where, session, arrival, wait, prompt, bool(hash_ids)
                )
            elif arrival is None:
                raise where.error(
                    "is missing"
                    if wait is None
                    else "is missing: a delay needs a session_id and a row of that session before",
                    "timestamp",
                )
            if prompt == 0 or output == 0:
                builder.drop_if_empty(prompt, output)
                if tied or "request_id" in row:
                    flow.dropped(row, arrival, wait or 0)
                sessions.dropped(session, arrival, wait or 0)
                continue
            row_number = builder.add(
                arrival,
                prompt,
                output,
                hash_ids=hash_ids or (),
                session=session,
                turn=turn,
                priority=where.count(row["priority"], "priority") if row.get("priority") else 0,
                request_id=flow.name(row) if tied else None,
                after=after,
                wait=wait or 0,
                extra=extra,
            )
            if tied or "request_id" in row:
                flow.added(row, row_number, wait or 0)
            if session is not None:
                sessions.added(session, row_number, arrival, turn, prompt + output)
        if options.named.get("turns") is not None and not sessions.told:
            builder.warn(f"no session has rows without hash ids: turns {turns} does nothing")
        if options.named.get("tail_rule") is not None and not hashed:
            builder.warn(f"no request has hash ids: tail_rule {tail_rule} does nothing")
        sessions.finish(builder)
        flow.finish()
        rule.tell(builder)
        if fractions and options.named.get("time_unit") is None:
            builder.warn(
                "timestamps have fractions and are taken as milliseconds, as the format says; "
                "--time-unit s if they count seconds (guidellm, vLLM timed_trace)"
            )
        return builder.finish()


def _is_tied(row: dict[str, Any]) -> bool:
    """True if the row states by names whom it waits for, or that it waits for nobody."""
    if MARKS.isdisjoint(row):
        return False
    return bool(row.get("wait_for")) or all(row.get(key) is None for key in _DELAY)


def _measured(row: dict[str, Any]) -> dict[str, object]:
    """The time stamp of a row that waits for others."""
    stamp = next((row[key] for key in _STAMP if row.get(key) is not None), None)
    return {} if stamp is None else {"timestamp": stamp}


def _one(where: Where, row: dict[str, Any], names: tuple[str, ...]) -> tuple[object, str]:
    """(value, key) of the one of `names` that the row has; (None, first name) if it has none."""
    found = [name for name in names if row.get(name) is not None]
    if len(found) > 1 and row[found[0]] != row[found[1]]:
        raise where.error(f"differs from {found[0]} {row[found[0]]}", found[1], row[found[1]])
    return (row[found[0]], found[0]) if found else (None, names[0])


def _text_tokens(where: Where, rule: TokenRule, row: dict[str, Any], key: str) -> int:
    if key == "messages":
        return rule.messages(where, row[key], key)
    return rule.content(where, row[key], key)


def _session(where: Where, row: dict[str, Any]) -> str | None:
    name = row.get("session_id")
    if name is None:
        return None
    if type(name) is not str and type(name) is not int:
        raise where.error("is not a string", "session_id", name)
    if name == "":
        raise where.error("is empty", "session_id", name)
    return str(name)


def _times(where: Where, row: dict[str, Any], unit: str) -> tuple[Tick | None, Tick | None]:
    """(arrival, delay) of a row in ticks: at most one of them."""
    stamp, name = _one(where, row, _STAMP)
    if row.get("delay") is not None and row.get("delay_ms") is not None:
        raise where.error("stands beside delay", "delay_ms", row["delay_ms"])
    delay, delay_name = _one(where, row, _DELAY)
    if stamp is not None and delay is not None:
        session = row.get("session_id")
        raise where.error(
            f"stands beside {delay_name} in session {session!r}: a row has one or the other",
            name,
            stamp,
        )
    return (
        None if stamp is None else where.ticks(stamp, name, unit),
        None
        if delay is None
        else where.ticks(delay, delay_name, "ms" if delay_name == "delay_ms" else unit),
    )


READER = MooncakeReader()
