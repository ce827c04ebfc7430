"""kv-cache-tester ("weka") conversations of coding agents: a JSON file, a folder of them, or JSONL.

`t` counts seconds from the conversation's start; a sub-agent's requests count from its spawn or
from the same start, one way in the whole file: from the spawn if any of them would otherwise come
before it (`subagent_time` overrides). Hash ids of 64-token blocks are local to a conversation and
leave the end of the prompt unhashed. Requests arrive when they did; with `closed_loop` they wait
for those before them, sub-agents for their spawn and the next main request for them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from vtsim.errors import TraceFormatError
from vtsim.request import Tick, Trace
from vtsim.traces.builder import Times, TraceBuilder
from vtsim.traces.ids import check_blocks, check_ids
from vtsim.traces.jsondoc import JsonDocument
from vtsim.traces.jsonl import objects
from vtsim.traces.number import Where
from vtsim.traces.registry import BLOCK_SIZE, Head, ReadOptions
from vtsim.traces.rows import one_object
from vtsim.traces.source import Source

MAIN = "main"
"""`extra.agent_id` of requests that no sub-agent made."""
_RECORDED = {"api_time": "duration_s", "think_time": "think_s", "ttft": "ttft_s"}
_MAPPED = frozenset(("t", "in", "out", "hash_ids", *_RECORDED))
_HEAD = frozenset(
    (
        *("id", "models", "block_size", "hash_id_scope", "requests", "totals"),
        *("tool_tokens", "system_tokens"),
    )
)
_AGENT = frozenset(
    (
        *("t", "type", "agent_id", "requests", "subagent_type", "status", "models"),
        *("tool_use_count", "duration_ms", "total_tokens", "tool_tokens", "system_tokens"),
    )
)
"""What the format defines of a conversation and of a sub-agent, kept or not."""
_USUAL = frozenset(("type", "model", "input_types", "output_types", "stop"))


class WekaReader:
    """See the module."""

    name = "weka"
    summary = "kv-cache-tester conversations (JSON, JSONL or a folder)"
    options = {
        **BLOCK_SIZE,
        "subagent_time": "auto (default), relative (to the spawn) or absolute",
        "closed_loop": "flag: requests wait for those before them instead of arriving on time",
    }

    def detects(self, head: Head) -> bool:
        if head.is_dir:
            return any(self.detects(part) for part in head.parts())
        return head.has("requests") and head.has_any("hash_id_scope", "models", "t")

    def read(self, source: Source, options: ReadOptions) -> Trace:
        basis = options.text("subagent_time", "auto", ("auto", "relative", "absolute"))
        closed_loop = options.flag("closed_loop")
        builder: TraceBuilder | None = None
        kept = agents = 0
        names: set[str] = set()
        for part, where, head, requests in _conversations(source):
            block = options.block_size or where.count(head.get("block_size"), "block_size", 1)
            if builder is None:
                builder = TraceBuilder(
                    source,
                    self.name,
                    block_size=block,
                    tail_rule="prefix_only",
                    hash_scope="local",
                    fields=("in", "out"),
                    times=Times("t", "think_time"),
                )
            elif block != builder.block_size:
                raise where.error(f"differs from {builder.block_size} before", "block_size", block)
            scope = head.get("hash_id_scope", "local")
            if scope not in ("local", "global"):
                raise where.error("is neither local nor global", "hash_id_scope", scope)
            if scope != builder.hash_scope:
                builder.hash_scope = "global"  # of some ids: the others have names of their own
            builder.where = where
            name = str(head.get("id") or part)
            if name in names:
                name = f"{name} ({part})"
            while name in names:
                name += "'"
            names.add(name)
            others = builder.unknown(head, _HEAD)
            conversation = _Conversation(builder, where, name, basis, scope == "local", others)
            conversation.taken = names
            if requests:
                kept += 1
            else:
                where.prefix = ""
                builder.drop("conversation_without_requests")
            conversation.read(requests, closed_loop)
            agents += conversation.agents
        if builder is None:
            raise TraceFormatError("no conversations", path=source.path)
        if basis != "auto" and not agents:
            builder.warn("no conversation has sub-agents: subagent_time does nothing")
        if closed_loop and not builder.waits:
            builder.warn("no request waits for another: closed_loop does nothing")
        if kept > 1:
            builder.warn(
                f"{kept} conversations each begin at 0, as their files say; "
                "--rate with --arrival spreads them"
            )
        return builder.finish()


def _conversations(
    source: Source,
) -> Iterator[tuple[str, Where, dict[str, Any], list[tuple[int, int, Any]]]]:
    """(name of the part, place, head, [(index, line, request)]) of each conversation."""
    if source.is_dir:
        paths = source.files()
        if not paths:
            raise TraceFormatError("a folder without .json or .jsonl files", path=source.path)
        for path in paths:
            yield from _conversations(Source(path))
        return
    where = source.where()
    if one_object(source):
        head: dict[str, Any] = {}
        requests: list[tuple[int, int, Any]] | None = None
        for key, line, value in JsonDocument(source).members(stream="requests"):
            where.line = line
            if key == "requests":
                if not isinstance(value, Iterator):
                    raise where.error("is not a list", key, value)
                requests = [(index, at, _packed(request)) for index, at, request in value]
            else:
                head[key] = value
        where.line = 1
        if requests is None:
            raise where.error("is missing: no kv-cache-tester (weka) conversation", "requests")
        yield source.name, where, head, requests
        return
    for head in objects(source, where):
        listed = head.get("requests")
        if type(listed) is not list:
            missing = "is missing: no kv-cache-tester (weka) conversation"
            raise where.error("is not a list" if listed is not None else missing, "requests")
        line = where.line or 0
        yield f"{source.name}:{line}", where, head, [(i, line, r) for i, r in enumerate(listed)]


def _packed(request: Any) -> Any:
    """The request with hash ids, its own and those of its sub-agents, as 8 bytes each where they
    are 64-bit numbers. A whole conversation is held, since what is read of it may stand last."""
    if type(request) is dict:
        ids = request.get("hash_ids")
        if type(ids) is list and set(map(type, ids)) == {int}:
            try:
                request["hash_ids"] = array("Q", ids)
            except OverflowError:
                pass
        inner = request.get("requests")
        for each in inner if type(inner) is list else ():
            _packed(each)
    return request


@dataclass(slots=True, eq=False)
class _Row:
    """One request of a conversation, with its place in the file."""

    line: int
    prefix: str
    values: dict[str, Any]
    agent: str
    spawn: Tick
    """When its agent was spawned, as in the file."""
    base: Tick
    """The same where every spawn counts from the one around it."""
    t: Tick
    """As in the file."""
    before: list[_Row] = field(default_factory=list)
    """Whom it waits for in a closed loop."""
    agents: list[_Row] = field(default_factory=list)
    """The last requests of sub-agents that were spawned since its agent's request before."""
    others: dict[str, object] = field(default_factory=dict)
    """What the entry of its sub-agent says that is not known."""
    number: int | None = None
    arrival: Tick = 0


class _Conversation:
    def __init__(
        self,
        builder: TraceBuilder,
        where: Where,
        name: str,
        basis: str,
        local: bool,
        others: dict[str, object],
    ) -> None:
        self._builder = builder
        self._where = where
        self._name = name
        self._basis = basis
        self._others = others
        """What its head says that is not known."""
        self._sessions = {MAIN: name}
        self.taken: set[str] = set()
        """Names of all sessions so far."""
        self._local = local
        """Its hash ids mean nothing to other conversations."""
        self._rows: list[_Row] = []
        self._early = False
        """Something stands before its agent's spawn, if both count from the same start."""
        self.agents = 0

    def read(self, requests: list[tuple[int, int, Any]], closed_loop: bool) -> None:
        self._collect(requests, "requests", MAIN, (0, 0), [], self._others)
        relative = self._basis == "relative" or (self._basis == "auto" and self._early)
        if self.agents:
            word = (
                "relative to their spawn" if relative else "counted from the conversation's start"
            )
            said = self._builder.about.setdefault("subagent_time", word)
            if said != word:
                self._builder.about["subagent_time"] = "differs between files"
        turns: dict[str, tuple[int, Tick]] = {}
        for row in self._rows:
            row.arrival = row.t + (row.base if relative else 0)
        if closed_loop:
            self._join()
        for row in self._rows:
            self._add(row, turns, closed_loop)

    def _collect(
        self,
        requests: list[tuple[int, int, Any]],
        path: str,
        agent: str,
        spawn: tuple[Tick, Tick],
        before: list[_Row],
        others: dict[str, object],
    ) -> list[_Row]:
        """Flattens sub-agents; returns the rows that what follows would wait for. `spawn` is when
        the agent was spawned: as in the file, and with all spawns around it added."""
        where = self._where
        open_agents: list[_Row] = []
        for index, line, values in requests:
            where.line, where.prefix = line, f"{path}[{index}]."
            if not isinstance(values, dict):
                raise where.error("is not an object", value=values)
            t = where.ticks(values.get("t"), "t", "s")
            self._early |= t < spawn[0]
            if values.get("type") == "subagent" or "requests" in values:
                inner = values.get("requests")
                if type(inner) is not list:
                    raise where.error("is not a list", "requests", inner)
                name = values.get("agent_id")
                if type(name) is not str:
                    raise where.error("is not a string", "agent_id", name)
                self.agents += 1
                if not inner:
                    self._builder.drop("sub_agent_without_requests")
                    continue
                listed = [(i, line, request) for i, request in enumerate(inner)]
                inside, base = f"{path}[{index}].requests", spawn[1] + t
                mine = others | self._builder.unknown(values, _AGENT)
                open_agents += self._collect(listed, inside, name, (t, base), before, mine)
                continue
            row = _Row(line, where.prefix, values, agent, *spawn, t, before, open_agents, others)
            self._rows.append(row)
            before, open_agents = [row], []
        return [*before[-1:], *open_agents]

    def _add(self, row: _Row, turns: dict[str, tuple[int, Tick]], closed_loop: bool) -> None:
        """`turns`: how many the agent has had, and when the last one came."""
        where, builder, values = self._where, self._builder, row.values
        where.line, where.prefix = row.line, row.prefix
        prompt, output = where.count(values.get("in"), "in"), where.count(values.get("out"), "out")
        ids = values.pop("hash_ids", None)
        if ids is not None:
            if type(ids) is not array:
                check_ids(where, ids)
            check_blocks(where, prompt, len(ids), builder.block_size, "prefix_only")
        recorded: dict[str, object] = {}
        for key, name in _RECORDED.items():
            if values.get(key) is not None:
                where.ticks(values[key], key, "s")
                recorded[name] = float(values[key])
        extra = {key: values[key] for key in values if key not in _MAPPED}
        builder.note_unknown(key for key in values if key not in _USUAL | _MAPPED)
        extra |= row.others
        session = self._session(row.agent)
        turn, latest = turns.get(row.agent, (0, 0))
        turns[row.agent] = turn + 1, max(latest, row.arrival)
        if builder.drop_if_empty(prompt, output):
            return
        parents = tuple(dict.fromkeys(n for p in row.before for n in _kept(p)))
        waits = closed_loop and bool(parents)
        row.number = builder.add(
            None if waits else row.arrival,
            prompt,
            output,
            hash_ids=ids or (),
            scope=self._name if self._local else None,
            session=session,
            turn=turn,
            after=parents if waits else (),
            wait=self._wait(row) if waits else 0,
            recorded=recorded,
            extra={"agent_id": row.agent, **extra},
        )
        if row.arrival < latest:
            builder.turns_by_clock(session)

    def _session(self, agent: str) -> str:
        """The agent's session, which no other conversation has."""
        if agent not in self._sessions:
            name = f"{self._name}/{agent}"
            while name in self.taken:
                name += "'"
            self.taken.add(name)
            self._sessions[agent] = name
        return self._sessions[agent]

    def _join(self) -> None:
        """A request waits for the sub-agents of its agent that had ended when it came; the others
        stay open for the agent's next one."""
        still_open: dict[str, list[_Row]] = {}
        for row in self._rows:
            agents = still_open.get(row.agent, []) + row.agents
            if row.agent == MAIN:  # also for those that no agent between waits for any more
                agents = [p for left in still_open.values() for p in left] + row.agents
                still_open.clear()
            ended = [p for p in agents if self._end(p) <= row.arrival]
            still_open[row.agent] = [p for p in agents if p not in ended]
            row.before = row.before + ended

    def _end(self, row: _Row) -> Tick:
        """When the request ended; an unknown duration is taken as 0."""
        duration = row.values.get("api_time")
        self._where.line, self._where.prefix = row.line, row.prefix
        taken = 0 if duration is None else self._where.ticks(duration, "api_time", "s")
        return row.arrival + taken

    def _wait(self, row: _Row) -> Tick:
        """From the last end of those before to the arrival; an unknown end is taken as its start,
        if no think time tells."""
        think = row.values.get("think_time")
        ends = []
        for parent in row.before:
            if parent.values.get("api_time") is None and think is not None:
                return self._where.ticks(think, "think_time", "s")
            ends.append(self._end(parent))
        return max(row.arrival - max(ends), 0)


def _kept(row: _Row) -> list[int]:
    """The row, or if it was dropped those that it waited for."""
    if row.number is not None:
        return [row.number]
    return [number for parent in row.before for number in _kept(parent)]


READER = WekaReader()
