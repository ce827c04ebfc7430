"""ShareGPT, LMSYS-Chat and WildChat conversations: JSON array or JSON lines of messages.

Every answer is a request: its prompt is all that was said before, its output the answer. Turns of a
conversation follow one another at once, since their times are unknown. Token counts are by the rule
of `vtsim.traces.words`. Spellings: `conversations` or `conversation`, `from` or `role`, `value` or
`content`; human or user, gpt, chatgpt, bing, bard or assistant.
"""

from __future__ import annotations

from typing import Any

from vtsim.request import Trace
from vtsim.traces.builder import TraceBuilder
from vtsim.traces.number import Where
from vtsim.traces.registry import Head, ReadOptions
from vtsim.traces.rows import json_rows
from vtsim.traces.source import Source
from vtsim.traces.words import OPTIONS, TokenRule

_ANSWERS = frozenset(("gpt", "chatgpt", "bing", "bard", "assistant", "model"))
_ASKS = frozenset(("human", "user", "system", "tool", "function", "developer"))
_KNOWN = frozenset(
    (
        *("id", "conversation_id", "conversation_hash", "conversations", "conversation", "model"),
        *("turn", "language", "openai_moderation", "detoxify_moderation", "redacted", "toxic"),
        *("timestamp", "hashed_ip", "header", "country", "state"),
    )
)
"""What ShareGPT, LMSYS-Chat and WildChat define, kept or not: the rest goes to `extra`."""
_NAMES = ("id", "conversation_id", "conversation_hash")


class ShareGptReader:
    """See the module."""

    name = "sharegpt"
    summary = "ShareGPT, LMSYS-Chat, WildChat conversations (JSON or JSONL)"
    options = {name: OPTIONS[name] for name in ("tokens_per_word", "tokenizer")}

    def detects(self, head: Head) -> bool:
        return head.has_any("conversations", "conversation")

    def read(self, source: Source, options: ReadOptions) -> Trace:
        rule = TokenRule(options)
        builder = TraceBuilder(source, self.name, fields=("prompt", "answer"))
        where = builder.where
        names: dict[str, int] = {}
        unasked = 0
        for row in json_rows(source, where):
            key = "conversations" if "conversations" in row else "conversation"
            messages = row.get(key)
            if type(messages) is not list:
                raise where.error(
                    "is missing" if messages is None else "is not a list", key, messages
                )
            given = next((row[n] for n in _NAMES if row.get(n) is not None), len(names))
            name = str(given)
            names[name] = names.get(name, 0) + 1
            if names[name] > 1:  # ids that occur twice are two conversations
                name = f"{name}#{names[name]}"
                while name in names:
                    name += "#"
                names[name] = 1
            extra = builder.unknown(row, _KNOWN)
            exchanges, alone = self._conversation(builder, where, rule, key, messages, name, extra)
            unasked += alone
            if not exchanges:
                builder.drop("conversation_without_exchange")
        builder.schedule_untimed(options.schedule, else_at_start=True)
        rule.tell(builder)
        if unasked:
            builder.warn(
                f"{unasked} answers follow no question: they are part of later prompts only"
            )
        if builder.waits:
            builder.warn("times between turns are unknown: a next turn follows at once")
        return builder.finish()

    def _conversation(
        self,
        builder: TraceBuilder,
        where: Where,
        rule: TokenRule,
        key: str,
        messages: list[Any],
        name: str,
        extra: dict[str, object],
    ) -> tuple[int, int]:
        """Adds the conversation's requests; returns how many there were, dropped ones included,
        and how many answers follow no question."""
        said = 0
        asked = False
        seen = turn = unasked = 0
        last: int | None = None
        for index, message in enumerate(messages):
            field = f"{key}[{index}]"
            if type(message) is not dict:
                raise where.error("is not an object", field, message)
            role = message.get("from", message.get("role"))
            text = message.get("value", message.get("content"))
            if not isinstance(role, str) or role.lower() not in _ANSWERS | _ASKS:
                raise where.error("is no known role", f"{field}.from", role)
            tokens = rule.content(where, text, f"{field}.value")
            if role.lower() in _ANSWERS and asked:
                seen += 1
                asked = False
                if not builder.drop_if_empty(said, tokens):
                    last = builder.add(
                        None,
                        said,
                        tokens,
                        session=name,
                        turn=turn,
                        after=() if last is None else (last,),
                        extra=extra,
                    )
                    turn += 1
            elif role.lower() in _ANSWERS:
                unasked += 1
            else:
                asked = True
            said += tokens
        return seen, unasked


READER = ShareGptReader()
