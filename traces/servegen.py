"""ServeGen offline requests: JSON lines without arrivals, hash ids of 16-token blocks.

`duration` (milliseconds) is kept as `recorded.duration_s`. A row without output length is dropped
and counted unless `output_tokens` gives one. Source of the schema: the dataset's README.
"""

from __future__ import annotations

from vtsim.request import Trace
from vtsim.traces.builder import TraceBuilder
from vtsim.traces.ids import check_blocks, check_ids
from vtsim.traces.registry import BLOCK_SIZE, Head, ReadOptions
from vtsim.traces.rows import json_rows
from vtsim.traces.source import Source
from vtsim.traces.words import OPTIONS, TokenRule

_LENGTHS = ("input_length", "output_length")
_KNOWN = frozenset(("request_id", "input_length", "output_length", "hash_ids", "duration"))
_USUAL = frozenset(("type", "img_ids"))


class ServeGenReader:
    """See the module."""

    name = "servegen"
    summary = "ServeGen offline requests JSONL (no arrivals)"
    options = {**BLOCK_SIZE, "output_tokens": OPTIONS["output_tokens"]}

    def detects(self, head: Head) -> bool:
        return head.has("request_id", "type", "input_length") and not head.has_any("timestamp")

    def read(self, source: Source, options: ReadOptions) -> Trace:
        block = options.block_size or 16
        rule = TokenRule(options)
        builder = TraceBuilder(
            source, self.name, block_size=block, tail_rule="partial_tail", fields=_LENGTHS
        )
        where = builder.where
        seen: set[int | str] = set()
        for row in json_rows(source, where):
            prompt = where.count(row.get("input_length"), "input_length")
            ids = row.get("hash_ids") or ()
            if ids:
                check_ids(where, ids)
                check_blocks(where, prompt, len(ids), block, "partial_tail")
            name = row.get("request_id")
            if name is not None:
                if type(name) not in (int, str):
                    raise where.error("is neither an integer nor a string", "request_id", name)
                if name in seen:
                    raise where.error("stands twice", "request_id", name)
                seen.add(name)
            if row.get("output_length") is None and "output_tokens" not in options.named:
                builder.drop("unknown_output_length")
                continue
            output = rule.output(where, row, ("output_length",))
            recorded: dict[str, object] = {}
            if row.get("duration") is not None:
                where.ticks(row["duration"], "duration", "ms")
                recorded["duration_s"] = float(row["duration"]) / 1000
            if builder.drop_if_empty(prompt, output):
                continue
            extra = {key: row[key] for key in row if key not in _KNOWN}
            builder.note_unknown(key for key in extra if key not in _USUAL)
            builder.add(
                None,
                prompt,
                output,
                hash_ids=ids,
                request_id=name,
                recorded=recorded,
                extra=extra,
            )
        if rule.defaulted:
            builder.warn(f"{rule.defaulted} requests state no output length: the option's is taken")
        elif "output_tokens" in options.named:
            builder.warn("every request states its output length: output_tokens does nothing")
        builder.schedule_untimed(options.schedule)
        return builder.finish()


READER = ServeGenReader()
