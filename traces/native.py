"""Reads the native format: one JSON document, streamed.

Schema (version 1): `{"format": "vtsim-trace", "version": 1, "source": {...}, "block_size": 512,
"tail_rule": "exact|partial_tail|prefix_only", "hash_scope": "global|local", "requests": [...]}`; a
request has `prompt_tokens`, `output_tokens`, and `arrival_s` or `after` + `wait_s`; `id`,
`hash_ids`, `session`, `turn`, `priority`, `recorded`, `extra` are optional. `vtsim.traces.writer`
writes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from vtsim.errors import TraceFormatError
from vtsim.request import Trace
from vtsim.traces.builder import Times, TraceBuilder
from vtsim.traces.ids import MAX_BLOCK, check_blocks, check_ids
from vtsim.traces.jsondoc import JsonDocument
from vtsim.traces.number import MAX_TICK, Where
from vtsim.traces.registry import BLOCK_SIZE, Head, ReadOptions
from vtsim.traces.source import Source
from vtsim.traces.writer import FORMAT, VERSION

TAIL_RULES = ("exact", "partial_tail", "prefix_only")
SCOPES = ("global", "local")
_HEADER = frozenset(
    ("format", "version", "source", "block_size", "tail_rule", "hash_scope", "requests")
)
_KNOWN = frozenset(
    (
        *("id", "arrival_s", "prompt_tokens", "output_tokens", "hash_ids", "session", "turn"),
        *("priority", "after", "wait_s", "recorded", "extra"),
    )
)


class NativeReader:
    """See the module."""

    name = "native"
    summary = "vtsim's own trace.json"
    options = BLOCK_SIZE

    def detects(self, head: Head) -> bool:
        if not head.is_json or head.text.startswith("["):
            return False
        if head.first is not None and "requests" not in head.keys and "format" not in head.keys:
            return False
        return (
            f'"{FORMAT}"' in head.text
            or head.has("format", "version", "requests")
            or head.has("requests", "prompt_tokens", "output_tokens")
        )

    def read(self, source: Source, options: ReadOptions) -> Trace:
        document = JsonDocument(source)
        if document.kind() != "{":
            raise TraceFormatError("a native trace is one JSON object", path=source.path, line=1)
        where = source.where()
        header: dict[str, Any] = {}
        rows: _Rows | None = None
        seen = False
        for key, line, value in document.members(stream="requests"):
            where.line = line
            if key in header or (key == "requests" and seen):
                raise where.error("stands twice", key)
            if key != "requests":
                header[key] = _checked(where, key, value)
                continue
            seen = True
            if not isinstance(value, Iterator):
                raise where.error("is not a list", key, value)
            if _NEEDED <= header.keys():
                _check_format(where, header)
                rows = _Rows(source, header, options)
                rows.add_all(value)
        where.line = 1
        for key in ("format", "version"):
            if key not in header:
                raise where.error("is missing", key)
        _check_format(where, header)
        if not seen:
            raise where.error("is missing", "requests")
        if rows is None:  # the header is known now, wherever it stands: read again
            rows = _Rows(source, header, options)
            for key, _, value in document.members(stream="requests"):
                if key == "requests":
                    rows.add_all(value)
        return rows.finish(header)


_NEEDED = frozenset(("format", "version", "block_size", "tail_rule", "hash_scope"))


def _check_format(where: Where, header: dict[str, Any]) -> None:
    """Asked when the version is known: a future version may call itself something else."""
    if header["format"] != FORMAT:
        raise where.error(f"is not {FORMAT!r}", "format", header["format"])


def _checked(where: Where, key: str, value: object) -> object:
    """A value of the head, as it is kept."""
    if key == "version" and (type(value) is not int or value != VERSION):
        said = value if isinstance(value, Decimal) else repr(value)
        raise where.error(f"version {said} is unknown; this vtsim reads version {VERSION}", key)
    if key == "block_size" and value is not None:
        size = where.count(value, key)
        if size > MAX_BLOCK:
            raise where.error(f"is larger than {MAX_BLOCK}", key, value)
        return size
    if key == "tail_rule" and value not in TAIL_RULES:
        raise where.error(f"is not one of {', '.join(TAIL_RULES)}", key, value)
    if key == "hash_scope" and value not in SCOPES:
        raise where.error(f"is not one of {', '.join(SCOPES)}", key, value)
    if key == "source" and not isinstance(value, dict):
        raise where.error("is not an object", key, value)
    return value


class _Rows:
    """The requests of one document on their way into the builder."""

    def __init__(self, source: Source, header: dict[str, Any], options: ReadOptions) -> None:
        self.block = options.block_size or header.get("block_size") or 0
        self.local = header.get("hash_scope") == "local"
        self.builder = TraceBuilder(
            source,
            "native",
            block_size=self.block,
            tail_rule=header.get("tail_rule", "exact"),
            hash_scope=header.get("hash_scope", "global"),
            times=Times("arrival_s", "wait_s"),
        )
        self.where = self.builder.where
        self._row_of: dict[object, int] = {}
        self._after: list[tuple[int, int, int | None, list[object]]] = []

    def add_all(self, elements: Iterator[tuple[int, int, Any]]) -> None:
        for index, line, element in elements:
            self.where.line = line
            self.where.prefix = f"requests[{index}]."
            if not isinstance(element, dict):
                self.where.prefix = ""
                raise self.where.error("is not an object", f"requests[{index}]", element)
            self._add(index, element)

    def _add(self, index: int, row: dict[str, Any]) -> None:
        where = self.where
        prompt = where.count(row.get("prompt_tokens"), "prompt_tokens", 1)
        recorded, extra = _mapping(where, row, "recorded"), _mapping(where, row, "extra")
        failed = recorded is not None and recorded.get("failed") is True
        output = where.count(row.get("output_tokens"), "output_tokens", 0 if failed else 1)
        session = row.get("session")
        if session is not None and type(session) is not str:
            raise where.error("is not a string", "session", session)
        turn = row.get("turn")
        turn = -1 if turn is None else where.count(turn, "turn")
        ids = row.get("hash_ids")
        if ids is not None:
            check_ids(where, ids)
            if self.block == 0 and ids:
                raise where.error("needs block_size in the head of the document", "hash_ids")
            if ids or (self.block and self.builder.tail_rule == "prefix_only"):
                check_blocks(where, prompt, len(ids), self.block, self.builder.tail_rule)
            if self.local:
                if session is None and ids:
                    raise where.error("is local, but the request has no session", "hash_ids")
        name = row.get("id", index)
        if type(name) not in (int, str):
            raise where.error("is neither an integer nor a string", "id", name)
        if name in self._row_of:
            raise where.error("is the id of an earlier request too", "id", name)
        if not row.keys() <= _KNOWN:
            unknown = {key: row[key] for key in row if key not in _KNOWN}
            self.builder.note_unknown(unknown)
            extra = {**unknown, **(extra or {})}
        arrival, after, wait = self._times(row)
        number = self.builder.add(
            arrival,
            prompt,
            output,
            hash_ids=ids or (),
            scope=session if self.local and ids else None,
            session=session,
            turn=turn,
            priority=where.integer(row.get("priority", 0), "priority"),
            request_id=name,
            recorded=recorded,
            extra=extra,
        )
        self._row_of[name] = number
        if after:
            self._after.append((number, index, where.line, after))
            self.builder.set_after(number, (), wait)

    def _times(self, row: dict[str, Any]) -> tuple[int | None, list[object], int]:
        where = self.where
        after = row.get("after") or []
        if type(after) is not list:
            raise where.error("is not a list of ids", "after", after)
        arrival, wait = row.get("arrival_s"), row.get("wait_s")
        if after and arrival is not None:
            raise where.error("stands beside after: a request has one or the other", "arrival_s")
        if not after and wait not in (None, 0):
            raise where.error("needs after: whom the request waits for", "wait_s", wait)
        waiting = 0 if wait is None else where.ticks(wait, "wait_s", "s")
        if waiting > MAX_TICK:
            raise where.error("is out of range", "wait_s", wait)
        if after:
            return None, after, waiting
        return where.ticks(arrival, "arrival_s", "s"), [], 0

    def finish(self, header: dict[str, Any]) -> Trace:
        for number, index, line, names in self._after:
            self.where.line, self.where.prefix = line, f"requests[{index}]."
            parents = []
            for name in names:
                if type(name) not in (int, str) or name not in self._row_of:
                    raise self.where.error("names no request of this file", "after", name)
                parents.append(self._row_of[name])
            self.builder.set_parents(number, tuple(parents))
        self.builder.about.update(header.get("source") or {})
        unknown = sorted(key for key in header if key not in _HEADER)
        if unknown:
            self.builder.warn(f"unknown keys in the head of the document: {', '.join(unknown)}")
        return self.builder.finish()


def _mapping(where: Where, row: dict[str, Any], key: str) -> dict[str, Any] | None:
    value = row.get(key)
    if value is None or value == {}:
        return None
    if type(value) is not dict:
        raise where.error("is not an object", key, value)
    return value


READER = NativeReader()
