"""How many tokens a text has, by a declared rule that is said in the output.

A Hugging Face tokenizer if one is given, else a number of tokens a word (1 unless told). Chat
templates are not counted: tools add different ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from vtsim.errors import ConfigError
from vtsim.traces.builder import TraceBuilder
from vtsim.traces.number import Where
from vtsim.traces.registry import ReadOptions

OPTIONS = {
    "tokens_per_word": "tokens a word of text (default 1), where no tokenizer is given",
    "tokenizer": "a tokenizer.json or a folder with one, to count text with (needs tokenizers)",
    "output_tokens": "output length where a file states none",
}
TEXT_PARTS = ("text", "input_text", "output_text")


class TokenRule:
    """Counts tokens of texts and messages."""

    def __init__(self, options: ReadOptions) -> None:
        given = ("tokenizer", "tokens_per_word")
        self._given = next((name for name in given if options.named.get(name) is not None), "")
        tokenizer = options.named.get("tokenizer")
        per_word = options.named.get("tokens_per_word")
        self._output: int | None = None
        if options.named.get("output_tokens") is not None:
            self._output = _whole(options.named["output_tokens"], "output_tokens")
        self.other_parts = 0
        """Parts of messages that are no text (images, audio), which count nothing."""
        self.defaulted = 0
        self.counted = False
        """Whether any text has been."""
        self._encode: Callable[[str], list[object]] | None = None
        if tokenizer is not None:
            if per_word is not None:
                raise ConfigError("tokenizer and tokens_per_word: give one of them")
            self._encode = _load_tokenizer(Path(str(tokenizer)))
            self.said = f"tokenizer {Path(str(tokenizer)).name}"
            self._per_word = 1.0
            return
        try:
            self._per_word = float(1 if per_word is None else str(per_word))
        except ValueError:
            raise ConfigError(f"tokens_per_word {per_word!r} is not a number") from None
        if not (math.isfinite(self._per_word) and 0 < self._per_word <= 1000):
            raise ConfigError(f"tokens_per_word {per_word} is not a positive number up to 1000")
        self.said = f"{self._per_word:g} token(s) a word"

    def text(self, text: str) -> int:
        """Tokens of a text; words are what blanks separate, and their tokens are rounded up."""
        self.counted = True
        if self._encode is not None:
            return len(self._encode(text))
        return math.ceil(len(text.split()) * self._per_word)

    def spelled(self, text: str) -> list[str]:
        """The tokens that `text` counts: a tokenizer's ids, else each with the words it covers."""
        self.counted = True
        if self._encode is not None:
            return list(map(str, self._encode(text)))
        words, rate = text.split(), self._per_word
        if rate == 1:
            return words
        tokens = []
        for token in range(math.ceil(len(words) * rate)):
            first = min(int(token / rate), len(words) - 1)
            tokens.append(" ".join(words[first : max(int((token + 1) / rate), first + 1)]))
        return tokens

    def content(self, where: Where, content: object, field: str) -> int:
        """Tokens of a message's content: a text, or parts of which only texts count."""
        if content is None:
            return 0
        if isinstance(content, str):
            return self.text(content)
        if isinstance(content, list):
            total = 0
            for part in content:
                if isinstance(part, str):
                    total += self.text(part)
                elif isinstance(part, dict) and part.get("type") in TEXT_PARTS:
                    total += self.content(where, part.get("text", part.get("content")), field)
                else:
                    self.other_parts += 1
            return total
        raise where.error("is not a text", field, content)

    def messages(self, where: Where, messages: object, field: str) -> int:
        """Tokens of a list of messages, their contents only."""
        return sum(
            self.content(where, message.get("content"), f"{field}[{index}].content")
            for index, message in enumerate(self.listed(where, messages, field))
        )

    @staticmethod
    def listed(where: Where, messages: object, field: str) -> list[dict[str, Any]]:
        """`messages`, which are a list of objects; TraceFormatError if not."""
        if type(messages) is not list or not messages:
            raise where.error("is not a list of messages", field, messages)
        for index, message in enumerate(messages):
            if type(message) is not dict:
                raise where.error("is not an object", f"{field}[{index}]", message)
        return messages

    def output(self, where: Where, row: dict[str, Any], names: tuple[str, ...]) -> int:
        """The output length that one of `names` states, else the option's."""
        for name in names:
            if row.get(name) is not None:
                return where.count(row[name], name)
        if self._output is None:
            raise where.error("states no output length: --output-tokens N gives one", names[0])
        self.defaulted += 1
        return self._output

    def tell(self, builder: TraceBuilder) -> None:
        """Puts the rule into the trace's source and a warning, if it was needed; else says what was
        given for nothing."""
        if self.counted:
            builder.about["token_rule"] = self.said
            said = f"token counts of texts are by a rule: {self.said}, without a chat template"
            builder.warn(said)
        elif self._given:
            builder.warn(f"no text had to be counted: {self._given} does nothing")
        if self._output is not None and not self.defaulted:
            builder.warn("every request states its output length: output_tokens does nothing")
        if self.other_parts:
            builder.warn(f"{self.other_parts} parts of messages that are no text count 0 tokens")
        if self.defaulted:
            builder.warn(f"{self.defaulted} requests state no output length: {self._output} taken")


def _whole(value: object, name: str) -> int:
    try:
        number = int(str(value))
    except ValueError:
        number = 0
    if number < 1:
        raise ConfigError(f"{name} {value!r} is not a whole number from 1 on")
    return number


def _load_tokenizer(path: Path) -> Callable[[str], list[object]]:
    try:
        tokenizers = import_module("tokenizers")
    except ImportError:
        raise ConfigError(
            "a tokenizer needs the package tokenizers: pip install tokenizers"
        ) from None
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(f"tokenizer {path}: no such file")
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:
        raise ConfigError(f"tokenizer {path}: cannot be loaded: {error}") from None
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids
