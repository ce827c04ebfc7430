"""Writes a trace for other tools, and says what they cannot hold.

Mooncake JSONL (Mooncake, vLLM timed_trace, Dynamo, SGLang) and AIPerf's `mooncake_trace` input, so
that the trace that was simulated can be fired at a real server.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from vtsim.errors import ConfigError, TraceFormatError
from vtsim.request import NO_ARRIVAL, Trace
from vtsim.traces.agentic import MARKS
from vtsim.traces.mooncake import KNOWN, READER, TEXTS
from vtsim.traces.number import one_line
from vtsim.traces.output import bare_name, writing
from vtsim.traces.registry import detect
from vtsim.traces.source import Source
from vtsim.traces.writer import native_text, to_json

_OWN = KNOWN | MARKS | frozenset(TEXTS)
"""Keys of `extra` that would be read back as times, lengths, texts, or whom a row waits for."""


def export(trace: Trace, path: str | Path, target: str = "native") -> list[str]:
    """Writes `trace` at `path` as `target` (see `TARGETS`), whole or not at all.

    Returns what the target cannot hold, one line each; empty if everything survives.
    """
    text, losses = TARGETS[check_target(target, path)]
    lost = losses(trace)
    with writing(path) as stream:
        for piece in text(trace):
            stream.write(piece)
    return [*lost, *_misleading(path, target)]


def _misleading(path: str | Path, target: str) -> list[str]:
    """Says so if keys of `extra` make what was written look like another format."""
    if target == "native" or not Path(path).is_file():
        return []
    source = Source(path)
    try:
        found = detect(source).name
    except TraceFormatError:
        found = "no known one"
    finally:
        source.close()
    if found == READER.name:
        return []
    return [f"its format, which is detected as {found}: read it with --from {READER.name}"]


def check_target(target: str | None, path: str | Path) -> str:
    """The target asked for, else by the ending of `path` (before .gz or .zst); ConfigError if there
    is none such."""
    if target is None:
        return "mooncake" if bare_name(path).lower().endswith(".jsonl") else "native"
    if target not in TARGETS:
        raise ConfigError(f"unknown target {target!r}; known: {', '.join(TARGETS)}")
    return target


def _mooncake_text(trace: Trace) -> Iterator[str]:
    yield from _rows(trace, _whole_ids(trace), extras=True)


def _aiperf_text(trace: Trace) -> Iterator[str]:
    yield from _rows(trace, _whole_ids(trace), extras=False)


def _rows(trace: Trace, ids_of: Callable[[int], list[int]], *, extras: bool) -> Iterator[str]:
    """One object a line: times in milliseconds, exact. With `extras`, where `timestamp` and `delay`
    cannot tell whom a row waits for, all rows say by names whom they wait for."""
    loose = _by_name_only(trace)
    if loose is not None and not extras:
        raise ConfigError(f"{trace.name}: {loose}, which only the native and the mooncake form say")
    names = [] if loose is None else _names(trace)
    sessions = _session_names(trace)
    arrival = trace.arrival.tolist()
    for row in range(len(trace)):
        item: dict[str, str] = {}
        if names:
            item["request_id"] = json.dumps(names[row])
            item["wait_for"] = json.dumps([names[parent] for parent in trace.after.get(row, ())])
        if arrival[row] != NO_ARRIVAL:
            item["timestamp"] = _milliseconds(arrival[row])
        else:
            item["delay"] = _milliseconds(trace.wait.get(row, 0))
        item["input_length"] = str(int(trace.prompt_tokens[row]))
        item["output_length"] = str(int(trace.output_tokens[row]))
        if ids := ids_of(row):
            item["hash_ids"] = json.dumps(ids)
        session = int(trace.session[row])
        if session >= 0:
            item["session_id"] = json.dumps(sessions[session])
        if extras:
            if trace.priority[row] > 0:
                item["priority"] = str(int(trace.priority[row]))
            for key, value in (trace.extra.get(row) or {}).items():
                if _holds(key, value, bool(names)):
                    item[key] = to_json(value)
        yield "{" + ", ".join(f"{json.dumps(k)}: {v}" for k, v in item.items()) + "}\n"


def _holds(key: str, value: object, named: bool) -> bool:
    """True if the Mooncake form has room for this of `extra`."""
    if key == "request_id":  # a name, and the form's own where rows wait by names
        return not named and type(value) in (str, int)
    return key not in _OWN


def _whole_ids(trace: Trace) -> Callable[[int], list[int]]:
    """Hash ids that cover whole prompts, as Mooncake's rule asks: where the end of a prompt is
    unhashed, and where a prompt has none in a session that has some, it gets ids that nothing else
    has."""
    if trace.tail_rule != "prefix_only" or not trace.has_hashes:
        return trace.hash_ids
    ids = np.zeros(len(trace), dtype=np.int64)
    of_run = np.repeat(np.arange(len(trace)), np.diff(trace.run_offsets))
    np.add.at(ids, of_run, trace.run_count)
    hashed = np.zeros(len(trace.session_names) + 1, dtype=bool)
    hashed[trace.session[ids > 0]] = True
    hashed[-1] = False  # the place of no session
    missing = -(-trace.prompt_tokens // trace.block_size) - ids
    missing[(ids == 0) & ~hashed[trace.session]] = 0
    unused = int((trace.run_first + trace.run_count).max()) + np.cumsum(missing) - missing

    def ids_of(row: int) -> list[int]:
        first = int(unused[row])
        return [*trace.hash_ids(row), *range(first, first + int(missing[row]))]

    return ids_of


def _session_names(trace: Trace) -> tuple[str, ...]:
    """The sessions' names; one that is empty, which readers refuse, gets another."""
    taken = set(trace.session_names)
    unnamed = "(no name)"
    while unnamed in taken:
        unnamed += "'"
    return tuple(name or unnamed for name in trace.session_names)


def _milliseconds(ticks: int) -> str:
    whole, part = divmod(ticks, 10**9)
    return f"{whole}.{f'{part:09d}'.rstrip('0')}" if part else str(whole)


def _chained(trace: Trace, row: int) -> bool:
    """True if the row waits for the row before it of its own session: what `delay` can say."""
    parents = trace.after[row]
    session = trace.session[row]
    if len(parents) != 1 or session < 0 or trace.session[parents[0]] != session:
        return False
    return not bool((trace.session[parents[0] + 1 : row] == session).any()) and parents[0] < row


def _by_name_only(trace: Trace) -> str | None:
    """Why `timestamp` and `delay` cannot tell whom rows wait for; None if they can."""
    loose = next((row for row in trace.after if not _chained(trace, row)), None)
    if loose is not None:
        return (
            f"request {trace.id_of(loose)!r} waits for others than the row before it of its session"
        )
    if not trace.after:
        return None
    first: set[int] = set()
    waits: dict[int, bool] = {}
    for row, session in enumerate(trace.session.tolist()):
        if session in first:
            if waits.setdefault(session, row in trace.after) != (row in trace.after):
                name = trace.session_names[session]
                return f"some requests of session {name!r} wait for the one before, others do not"
        elif session >= 0:
            first.add(session)
    return None


def _names(trace: Trace) -> list[str]:
    """The requests' names as strings; ConfigError if two become equal."""
    names = [str(trace.id_of(row)) for row in range(len(trace))]
    if len(set(names)) < len(names):
        raise ConfigError(
            f"{trace.name}: two requests have the same id as text, which only the native format "
            "tells apart"
        )
    return names


def _shared_losses(trace: Trace) -> list[str]:
    lost = []
    named = _by_name_only(trace) is not None
    if trace.has_hashes and trace.tail_rule == "prefix_only":
        lost.append(
            "tail_rule: unhashed ends of prompts, and unhashed prompts of sessions that have hash "
            "ids, got hash ids that nothing else has"
        )
    if trace.has_hashes and trace.block_size != 512:
        lost.append(
            f"block_size {trace.block_size}: not stated in the file; read it with "
            f"--block-size {trace.block_size}"
        )
    if named and not all(type(trace.id_of(row)) is str for row in range(len(trace))):
        lost.append("id: kept as text, in request_id")
    elif trace.ids and not named:
        lost.append("id")
    if "" in trace.session_names:
        lost.append("session '': readers refuse an empty name; it is called otherwise")
    if (trace.turn >= 0).any():
        lost.append("turn: only implied by the order of a session's rows")
    if _shares_by_turns(trace):
        lost.append(
            "what turns share: not stated in the file where sessions have no hash ids; read it "
            "with --turns whole"
        )
    if trace.recorded:
        lost.append(f"recorded of {len(trace.recorded)} requests")
    if (trace.output_tokens == 0).any():
        lost.append("requests without output: readers drop them")
    if trace.source:
        lost.append("source")
    return lost


def _mooncake_losses(trace: Trace) -> list[str]:
    lost = _shared_losses(trace)
    negative = int((trace.priority < 0).sum())
    if negative:
        lost.append(f"priority of {negative} requests: it is below 0")
    named = _by_name_only(trace) is not None
    own = {k for extra in trace.extra.values() for k, v in extra.items() if not _holds(k, v, named)}
    if own:
        names = ", ".join(map(one_line, sorted(own)))
        lost.append(f"{names} in extra: they mean something else in the format")
    return lost


def _shares_by_turns(trace: Trace) -> bool:
    """True if turns alone tell what some session's prompts share."""
    names = trace.naming
    return any(names.stream_of(row) >= 0 and names.next_of(row) >= 0 for row in range(len(trace)))


def _aiperf_losses(trace: Trace) -> list[str]:
    lost = _shared_losses(trace)
    if trace.priority.any():
        lost.append("priority")
    if trace.extra:
        lost.append(f"extra of {len(trace.extra)} requests")
    return lost


def _nothing(trace: Trace) -> list[str]:
    return []


TARGETS: dict[str, tuple[Callable[[Trace], Iterator[str]], Callable[[Trace], list[str]]]] = {
    "native": (native_text, _nothing),
    "mooncake": (_mooncake_text, _mooncake_losses),
    "aiperf": (_aiperf_text, _aiperf_losses),
}
