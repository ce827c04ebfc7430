"""Qwen-Bailian: JSON lines, seconds, hash ids of 16-token blocks, chats as chains of parents.

Every turn is self-contained: its prompt holds the conversation so far. `chat_id` and
`parent_chat_id` make sessions; a row whose parent is not in the file before it begins a session of
its own, counted in a warning. Source of the schema: the dataset's README.
"""

from __future__ import annotations

from vtsim.request import Trace
from vtsim.traces.builder import TraceBuilder
from vtsim.traces.ids import check_blocks, check_ids
from vtsim.traces.jsonl import objects
from vtsim.traces.registry import Head, ReadOptions
from vtsim.traces.source import Source

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
    options: dict[str, str] = {}

    def detects(self, head: Head) -> bool:
        return head.has("chat_id", "parent_chat_id")

    def read(self, source: Source, options: ReadOptions) -> Trace:
        block = options.block_size or 16
        builder = TraceBuilder(source, self.name, block_size=block, tail_rule="partial_tail")
        where = builder.where
        place: dict[int, tuple[str, int]] = {}
        """chat id -> its session and turn"""
        orphans = 0
        for row in objects(source, where):
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
            if chat in place:
                raise where.error("stands twice", "chat_id", chat)
            if parent in place:
                session, turn = place[parent][0], place[parent][1] + 1
            else:
                orphans += parent != -1
                session, turn = str(chat), 0
            place[chat] = session, turn
            if builder.drop_if_empty(prompt, output):
                continue
            extra = {key: row[key] for key in row if key not in _KNOWN}
            builder.note_unknown(extra)
            kept = {"type": row["type"]} if row.get("type") is not None else {}
            builder.add(
                arrival,
                prompt,
                output,
                hash_ids=ids,
                session=session,
                turn=turn,
                request_id=chat,
                extra={**kept, **extra},
            )
        if orphans:
            builder.warn(
                f"{orphans} rows whose parent chat is not in the file before them: each begins a "
                "session of its own"
            )
        return builder.finish()


READER = BailianReader()
