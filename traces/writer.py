"""Writes the native format: one request a line, what is not known left out, whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path

from vtsim.request import NO_ARRIVAL, Trace
from vtsim.traces.number import seconds_text
from vtsim.traces.output import writing

FORMAT, VERSION = "vtsim-trace", 1


def write_native(trace: Trace, path: str | Path) -> None:
    """Writes `trace` as a native document, whole or not at all. Every field survives, except that
    arrivals are relative to the first request; unknown things are left out, not written as 0."""
    with writing(path) as stream:
        for piece in native_text(trace):
            stream.write(piece)


def native_text(trace: Trace) -> Iterator[str]:
    """The document in pieces, one request a line."""
    head = {
        "format": FORMAT,
        "version": VERSION,
        "source": trace.source,
        "block_size": trace.block_size,
        "tail_rule": trace.tail_rule,
        "hash_scope": "global",  # ids are numbered across the whole trace once they are read
    }
    text = ",\n".join(f"{json.dumps(key)}: {to_json(value)}" for key, value in head.items())
    yield "{" + text + ',\n"requests": ['
    arrival, prompts = trace.arrival.tolist(), trace.prompt_tokens.tolist()
    outputs, priorities = trace.output_tokens.tolist(), trace.priority.tolist()
    sessions, turns = trace.session.tolist(), trace.turn.tolist()
    for row in range(len(trace)):
        parts = [f'"id": {json.dumps(trace.id_of(row))}']
        if arrival[row] != NO_ARRIVAL:
            parts.append(f'"arrival_s": {seconds_text(arrival[row])}')
        parts.append(f'"prompt_tokens": {prompts[row]}, "output_tokens": {outputs[row]}')
        if trace.run_offsets[row] < trace.run_offsets[row + 1]:
            parts.append(f'"hash_ids": {json.dumps(trace.hash_ids(row))}')
        if sessions[row] >= 0:
            parts.append(f'"session": {json.dumps(trace.session_names[sessions[row]])}')
        if turns[row] >= 0:
            parts.append(f'"turn": {turns[row]}')
        if priorities[row]:
            parts.append(f'"priority": {priorities[row]}')
        if row in trace.after:
            names = [trace.id_of(parent) for parent in trace.after[row]]
            parts.append(f'"after": {json.dumps(names)}')
            parts.append(f'"wait_s": {seconds_text(trace.wait.get(row, 0))}')
        if trace.recorded.get(row):
            parts.append(f'"recorded": {to_json(trace.recorded[row])}')
        if trace.extra.get(row):
            parts.append(f'"extra": {to_json(trace.extra[row])}')
        yield ("," if row else "") + "\n{" + ", ".join(parts) + "}"
    yield "\n]}\n"


def to_json(value: object) -> str:
    """JSON text; Decimals as the numbers they are."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, Mapping):
        inner = (f"{json.dumps(str(key))}: {to_json(item)}" for key, item in value.items())
        return "{" + ", ".join(inner) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(to_json(item) for item in value) + "]"
    return json.dumps(value)
