"""Qwen-Bailian: JSON lines, seconds, hash ids of 16-token blocks, chats as chains of parents.

Every turn is self-contained: its prompt holds the conversation so far. `chat_id` and
`parent_chat_id` make sessions; a row whose parent is not in the file begins a session of its own,
counted in a warning. Source of the schema: the dataset's README.
"""

from __future__ import annotations

from array import array

from vtsim.request import Trace
from vtsim.traces.builder import Times, TraceBuilder
from vtsim.traces.ids import check_blocks, check_ids
from vtsim.traces.registry import BLOCK_SIZE, Head, ReadOptions
from vtsim.traces.rows import json_rows
from vtsim.traces.source import Source

_LENGTHS = ("input_length", "output_length")
_KNOWN = frozenset(
    (
        *("chat_id", "parent_chat_id", "timestamp", "input_length", "output_length", "type"),
        *("turn", "hash_ids"),
    )
)


class BailianReader:
    """See the module."""

    name = "bailian"
    summary = "Qwen-Bailian JSONL"
    options = BLOCK_SIZE

    def detects(self, head: Head) -> bool:
        return head.has("chat_id", "parent_chat_id")

    def read(self, source: Source, options: ReadOptions) -> Trace:
        block = options.block_size or 16
        builder = TraceBuilder(
            source,
            self.name,
            block_size=block,
            tail_rule="partial_tail",
            fields=_LENGTHS,
            times=Times("timestamp"),
        )
        where = builder.where
        parent_of: dict[int, int] = {}
        lines = array("Q")
        """Of all rows, in the order of `parent_of`."""
        numbers, chats = array("q"), []
        """Rows, and their chats."""
        kinds: dict[str, dict[str, object]] = {}
        for row in json_rows(source, where):
            arrival = where.ticks(row.get("timestamp"), "timestamp", "s")
            prompt = where.count(row.get("input_length"), "input_length")
            output = where.count(row.get("output_length"), "output_length")
            ids = row.get("hash_ids") or ()
            if ids:
                check_ids(where, ids)
                check_blocks(where, prompt, len(ids), block, "partial_tail")
            chat, parent = row.get("chat_id"), row.get("parent_chat_id")
            if type(chat) is not int:
                raise where.error("is not an integer", "chat_id", chat)
            if type(parent) is not int:
                raise where.error("is not an integer", "parent_chat_id", parent)
            if chat in parent_of:
                raise where.error("stands twice", "chat_id", chat)
            parent_of[chat] = parent
            lines.append(where.line or 0)
            if builder.drop_if_empty(prompt, output):
                continue
            extra = {key: row[key] for key in row if key not in _KNOWN}
            builder.note_unknown(extra)
            number = builder.add(
                arrival,
                prompt,
                output,
                hash_ids=ids,
                request_id=chat,
                extra=_with_kind(kinds, row.get("type"), extra),
            )
            numbers.append(number)
            chats.append(chat)
        place = _sessions(parent_of)
        if type(place) is int:
            where.line, where.prefix = lines[list(parent_of).index(place)], ""
            said = f"chat {place} is its own parent, directly or through others"
            raise where.error(said, "parent_chat_id", parent_of[place])
        assert type(place) is dict
        for number, chat in zip(numbers, chats, strict=True):
            first, turn = place[chat]
            builder.set_session(number, str(first), turn)
        orphans = sum(p != -1 and p not in parent_of for p in parent_of.values())
        if orphans:
            builder.warn(
                f"{orphans} rows whose parent chat is not in the file: each begins a session of "
                "its own"
            )
        return builder.finish()


def _with_kind(
    kinds: dict[str, dict[str, object]], kind: object, extra: dict[str, object]
) -> dict[str, object]:
    """`extra` with the row's type; rows that have nothing else share one."""
    if kind is None:
        return extra
    if extra or type(kind) is not str:
        return {"type": kind, **extra}
    return kinds.setdefault(kind, {"type": kind})


def _sessions(parent_of: dict[int, int]) -> dict[int, tuple[int, int]] | int:
    """Chat -> (first chat of its chain, how far behind it); or a chat of a chain that is a
    circle."""
    place: dict[int, tuple[int, int]] = {}
    for chat in parent_of:
        chain: list[int] = []
        seen: set[int] = set()
        while chat not in place and parent_of[chat] in parent_of:
            if chat in seen:
                return chat
            seen.add(chat)
            chain.append(chat)
            chat = parent_of[chat]
        first, depth = place.setdefault(chat, (chat, 0))
        for later in reversed(chain):
            depth += 1
            place[later] = first, depth
    return place


READER = BailianReader()
