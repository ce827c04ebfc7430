"""What texts share: names of blocks of their tokens, so that equal beginnings have equal names.

Tokens are those that the rule of `vtsim.traces.words` counts: a tokenizer's ids, else words. What
counts no token but makes a prompt another one - roles, tools, tool calls, images - is part of the
name of the token behind it. Nothing of a text is kept.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

from vtsim.traces.number import Where
from vtsim.traces.words import TEXT_PARTS, TokenRule


class TextNames:
    """Names prompts by their content."""

    def __init__(self, rule: TokenRule, block: int) -> None:
        self._rule = rule
        self._block = block

    def text(self, where: Where, content: object, field: str) -> tuple[int, list[bytes]]:
        """(tokens, a name of 16 bytes for each whole block of them) of a text or parts of one."""
        spelling = _Spelling(self._rule, where)
        spelling.content(content, field)
        return self._named(spelling)

    def messages(
        self, where: Where, messages: object, field: str, tools: object = None
    ) -> tuple[int, list[bytes]]:
        """The same of messages; `tools` stand before them in every chat template."""
        spelling = _Spelling(self._rule, where)
        if tools is not None:
            spelling.mark(tools)
        for index, message in enumerate(self._rule.listed(where, messages, field)):
            others = {key: value for key, value in message.items() if key != "content"}
            spelling.mark(others)
            spelling.content(message.get("content"), f"{field}[{index}].content")
        return self._named(spelling)

    def _named(self, spelling: _Spelling) -> tuple[int, list[bytes]]:
        tokens, block = spelling.tokens, self._block
        names: list[bytes] = []
        before = b""
        for at in range(0, len(tokens) - block + 1, block):
            text = "\0".join(tokens[at : at + block]).encode()
            before = blake2b(text, digest_size=16, key=before).digest()
            names.append(before)
        return len(tokens), names


class _Spelling:
    """The tokens of a prompt so far."""

    def __init__(self, rule: TokenRule, where: Where) -> None:
        self._rule = rule
        self._where = where
        self._pending = ""
        """What makes the next token another one."""
        self.tokens: list[str] = []

    def mark(self, what: Any) -> None:
        """Something that counts no token."""
        said = repr(sorted(what.items())) if type(what) is dict else repr(what)
        self._pending += f"\1{blake2b(said.encode(), digest_size=16).hexdigest()}\1"

    def content(self, content: object, field: str) -> None:
        """Texts, in the order in which `TokenRule.content` counts them."""
        if isinstance(content, str):
            tokens = self._rule.spelled(content)
            if tokens:
                tokens[0] = self._pending + tokens[0]
                self._pending = ""
                self.tokens += tokens
        elif isinstance(content, list):
            for part in content:
                if isinstance(part, dict) and part.get("type") in TEXT_PARTS:
                    self.content(part.get("text", part.get("content")), field)
                elif isinstance(part, str):
                    self.content(part, field)
                else:
                    self._rule.other_parts += 1
                    self.mark(part)
        elif content is not None:
            raise self._where.error("is not a text", field, content)
