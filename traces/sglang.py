"""SGLang's agentic_trace: `{"conversations": [[{"messages": [...], "prompt_tokens": n}, ...]]}`.

A conversation is a list of turns; a turn holds what is new to the model, without the answers, and
how long the whole prompt was when it was recorded. SGLang sends the turns one after the other, each
with the real answers before it, and asks for a fixed number of output tokens. Answers are not in
the file: `output_tokens` says how long they are. Source of the form: `sglang.bench_serving`'s
dataset `agentic-trace`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from vtsim.errors import TraceFormatError
from vtsim.request import Trace
from vtsim.traces.builder import TraceBuilder
from vtsim.traces.jsondoc import JsonDocument
from vtsim.traces.number import Where
from vtsim.traces.registry import Head, ReadOptions
from vtsim.traces.source import Source
from vtsim.traces.words import OPTIONS, TokenRule

_LISTS = re.compile(r'"conversations"\s*:\s*\[\s*\[')
_TURN = frozenset(("messages", "prompt_tokens"))
_DEFAULT = 220
"""Output tokens that SGLang asks for if nothing else is said."""


class AgenticTraceReader:
    """See the module."""

    name = "sglang-agentic"
    summary = "SGLang agentic_trace conversations (JSON)"
    options = OPTIONS

    def detects(self, head: Head) -> bool:
        return head.is_json and _LISTS.search(head.text) is not None

    def read(self, source: Source, options: ReadOptions) -> Trace:
        if options.named.get("output_tokens") is None:
            raise TraceFormatError(
                f"states no output lengths: --output-tokens N gives one ({_DEFAULT} is what SGLang "
                "takes)",
                path=source.path,
            )
        reading = _Reading(source, TokenRule(options))
        document = JsonDocument(source)
        if document.kind() != "{":
            raise TraceFormatError("an agentic trace is one JSON object", path=source.path, line=1)
        seen = False
        for key, line, value in document.members(stream="conversations"):
            reading.where.line = line
            if key != "conversations":
                continue  # metadata: about the recording
            if not isinstance(value, Iterator):
                raise reading.where.error("is not a list", key, value)
            seen = True
            for index, at, turns in value:
                reading.where.line = at
                reading.conversation(index, turns)
        if not seen:
            reading.where.line = 1
            raise reading.where.error("is missing", "conversations")
        return reading.trace(options)


class _Reading:
    def __init__(self, source: Source, rule: TokenRule) -> None:
        self._rule = rule
        self._builder = TraceBuilder(
            source, AgenticTraceReader.name, fields=("prompt_tokens", "output")
        )
        self.where: Where = self._builder.where
        self._shorter = 0

    def conversation(self, index: int, turns: Any) -> None:
        """Adds the turns of one conversation, each behind the one before."""
        where, builder, rule = self.where, self._builder, self._rule
        if type(turns) is not list:
            raise where.error("is not a list of turns", f"conversations[{index}]", turns)
        if not turns:
            builder.drop("conversation_without_turns")
        last: int | None = None
        held = 0
        turn = 0
        for at, item in enumerate(turns):
            where.prefix = ""
            if type(item) is not dict:
                raise where.error("is not an object", f"conversations[{index}][{at}]", item)
            where.prefix = f"conversations[{index}][{at}]."
            builder.note_unknown(item.keys() - _TURN)
            if item.get("messages") == []:
                builder.drop("turn_without_messages")
                continue
            stated = item.get("prompt_tokens")
            if stated is None:
                prompt = held + rule.messages(where, item.get("messages"), "messages")
            else:
                rule.listed(where, item.get("messages"), "messages")
                prompt = where.count(stated, "prompt_tokens")
            output = rule.output(where, {}, ("output",))
            self._shorter += last is not None and prompt < held
            if builder.drop_if_empty(prompt, output):
                continue
            last = builder.add(
                None,
                prompt,
                output,
                session=f"conversation {index}",
                turn=turn,
                after=() if last is None else (last,),
                extra={key: item[key] for key in item if key not in _TURN},
            )
            held = prompt + output
            turn += 1
        where.prefix = ""

    def trace(self, options: ReadOptions) -> Trace:
        builder = self._builder
        builder.schedule_untimed(options.schedule, else_at_start=True)
        self._rule.tell(builder)
        if self._shorter:
            builder.warn(
                f"{self._shorter} turns are recorded with a shorter prompt than the turn before "
                "with its output: they are taken to share nothing with it; a smaller "
                "--output-tokens may be nearer to what was answered"
            )
        if builder.waits:
            builder.warn("times between turns are unknown: a next turn follows at once")
        return builder.finish()


READER = AgenticTraceReader()
