"""Prompts as texts, messages or token ids, one request or one conversation a line.

vLLM custom (`prompt`), trtllm-bench (`input_ids`), AIPerf single_turn and multi_turn (`text`,
`turns`), OpenAI messages and batch (`messages`, `body`), evalscope workload_trace (`body` with
`timestamp` in seconds). AIPerf's `timestamp` and `delay` are milliseconds. What states no time is
sent at the start, as these files are, unless the options say otherwise. Token counts of texts are
by the rule of `vtsim.traces.words`, and what prompts share is what their texts share. `max_tokens`
is taken as the output length, but where the conversation's next request repeats the answer.
"""

from __future__ import annotations

from typing import Any

from vtsim.request import Tick, Trace
from vtsim.traces.builder import Times, TraceBuilder
from vtsim.traces.number import Where
from vtsim.traces.registry import BLOCK_SIZE, Head, ReadOptions
from vtsim.traces.rows import json_rows
from vtsim.traces.servingsim import BlockNames, check_tokens
from vtsim.traces.source import Source
from vtsim.traces.texts import TextNames
from vtsim.traces.words import OPTIONS, TokenRule

TEXT_KEYS = ("text", "text_input", "prompt", "input", "query")
OUTPUT_KEYS = (
    *("output_length", "output_tokens", "max_completion_tokens", "max_tokens"),
    "max_output_tokens",
)
_LIMITS = frozenset(("max_completion_tokens", "max_tokens", "max_output_tokens"))
NAME_KEYS = ("custom_id", "request_id", "task_id")
PROMPT_KEYS = (*TEXT_KEYS, "texts", "messages", "input_ids", "payload", "body", "turns", "payloads")


_KNOWN = frozenset(
    (
        *NAME_KEYS, *PROMPT_KEYS, *OUTPUT_KEYS, "input_length", "input_tokens", "prompt_tokens",
        "session_id", "timestamp", "delay", "data", "method", "url", "headers", "role", "image",
        "images", "audio", "audios", "video", "videos", "multi_modal_data", "model", "extra",
        "tools", "tool_choice", "parallel_tool_calls", "functions", "function_call", "n", "best_of",
        "stream", "stream_options", "temperature", "top_p", "top_k", "min_p", "stop", "seed",
        "frequency_penalty", "presence_penalty", "repetition_penalty", "length_penalty", "suffix",
        "logit_bias", "logprobs", "top_logprobs", "prompt_logprobs", "echo", "user", "metadata",
        "store", "response_format", "reasoning_effort", "reasoning", "modalities", "service_tier",
        "ignore_eos", "min_tokens", "stop_token_ids", "skip_special_tokens", "instructions",
        "include_stop_str_in_output", "add_generation_prompt", "chat_template_kwargs",
        "guided_json", "truncate_prompt_tokens", "extra_body", "nvext", "priority", "cache_salt",
    )
)  # fmt: skip
"""What the formats and OpenAI's interface define, kept or not: the rest goes to `extra`."""
_EMPTY = "conversation_without_requests"
_LENGTHS = ("input_length", "input_tokens", "prompt_tokens")


def prompt_tokens(
    where: Where, row: dict[str, Any], rule: TokenRule, texts: TextNames, tokens: BlockNames
) -> tuple[int, list[bytes]]:
    """(tokens, names of their blocks) of the one prompt that `row` states. A recorded length goes
    before what the text counts, but does not say which token is which: it has no names."""
    found = [key for key in PROMPT_KEYS if row.get(key) is not None]
    stated = next((key for key in _LENGTHS if row.get(key) is not None), None)
    if stated is not None and "input_ids" not in found:
        return where.count(row[stated], stated), []
    if not found:
        raise where.error(f"no prompt: none of {', '.join(PROMPT_KEYS)}", "prompt")
    key = found[0]
    value = row[key]
    if key == "messages":
        return texts.messages(where, value, key, row.get("tools"))
    if key == "texts":
        if type(value) is not list:
            raise where.error("is not a list", key, value)
        return sum(rule.content(where, text, key) for text in value), []
    if key == "input_ids" or (
        key == "prompt" and isinstance(value, list) and value and type(value[0]) is int
    ):
        ids = check_tokens(where, value, key)
        return len(ids), tokens.of(ids)
    if key in ("payload", "body"):
        if type(value) is not dict:
            raise where.error("is not an object", key, value)
        return prompt_tokens(where, value, rule, texts, tokens)
    if key == "input" and isinstance(value, list):
        return texts.messages(where, value, key, row.get("tools"))
    return texts.text(where, value, key)


def _states_ids(row: dict[str, Any]) -> bool:
    return "input_ids" in row or type(row.get("prompt")) is list


class PromptsReader:
    """See the module."""

    name = "prompts"
    summary = "prompts as texts, messages, token ids: OpenAI, vLLM, AIPerf, evalscope (JSON, JSONL)"
    options = {**BLOCK_SIZE, **OPTIONS}

    def detects(self, head: Head) -> bool:
        return head.has_any(*PROMPT_KEYS) or head.has("data")

    def read(self, source: Source, options: ReadOptions) -> Trace:
        return _Reading(source, options).trace()


class _Talk:
    """A conversation so far, and when what comes next comes. A request that is dropped took no
    time: what follows it counts from when it would have come."""

    def __init__(self) -> None:
        self._last: int | None = None
        self._start: Tick | None = None
        """When the one before came, if that was dropped and is known."""
        self._behind: Tick = 0
        """Delays since then, or since the last one has ended."""

    def place(
        self, arrival: Tick | None, delay: Tick | None
    ) -> tuple[Tick | None, tuple[int, ...], Tick]:
        """(arrival, rows that it waits for, wait) of the next."""
        if arrival is not None:
            self._start, self._behind = arrival, 0
        self._behind += delay or 0
        if self._start is not None:
            return self._start + self._behind, (), 0
        return (None, (), 0) if self._last is None else (None, (self._last,), self._behind)

    def added(self, row: int) -> None:
        self._last, self._start, self._behind = row, None, 0


class _Reading:
    def __init__(self, source: Source, options: ReadOptions) -> None:
        block = options.block_size or 16
        self._source, self._options = source, options
        self._rule = TokenRule(options)
        self._names = TextNames(self._rule, block), BlockNames(block)
        self._builder = TraceBuilder(
            source,
            PromptsReader.name,
            block_size=block,
            tail_rule="prefix_only",
            fields=("prompt", "output"),
            times=Times("timestamp", "delay", unit="ms"),
        )
        self._where = self._builder.where
        self._talks: dict[str, _Talk] = {}
        self._seen: dict[str, int] = {}
        self._limits = self._repeated = 0

    def trace(self) -> Trace:
        where, builder = self._where, self._builder
        for row in json_rows(self._source, where):
            if type(row.get("data")) is list and not set(PROMPT_KEYS) & row.keys():
                if not row["data"]:
                    builder.drop(_EMPTY)
                for index, item in enumerate(row["data"]):
                    if type(item) is not dict:
                        raise where.error("is not an object", f"data[{index}]", item)
                    self._row(item)
            else:
                self._row(row)
        builder.schedule_untimed(self._options.schedule, else_at_start=True)
        self._rule.tell(builder)
        if self._limits:
            builder.warn(
                f"{self._limits} requests state a limit (max_tokens): taken as their output"
            )
        if self._repeated:
            builder.warn(
                f"{self._repeated} outputs are as long as the answer that the conversation's next "
                "request repeats"
            )
        return builder.finish()

    def _row(self, row: dict[str, Any]) -> None:
        where, builder = self._where, self._builder
        key = "turns" if "turns" in row else "payloads"
        turns = row.get(key)
        if turns is None:
            self._request(row, self._times(row))
            return
        if type(turns) is not list or not all(type(turn) is dict for turn in turns):
            raise where.error("is not a list of objects", key, turns)
        name = str(row.get("session_id", f"line {where.line}"))
        if name in self._seen:
            raise where.error("stands twice", "session_id", name)
        if not turns:
            builder.drop(_EMPTY)
        whole = "payloads" in row  # request bodies repeat the conversation, turns do not
        history = 0
        talk = _Talk()
        outer, latest = where.prefix, -1
        around = self._others(row)
        for turn, item in enumerate(turns):
            where.prefix = f"{outer}{key}[{turn}]."
            stamp, delay = self._times(item if turn else {**row, **item})
            if not turn and delay is not None:
                raise where.error("needs a turn before it", "delay")
            if stamp is not None and stamp < latest:
                raise where.error(
                    "lies before that of a turn before", "timestamp", item["timestamp"]
                )
            latest = latest if stamp is None else stamp
            arrival, after, wait = talk.place(stamp, delay)
            tokens, names = prompt_tokens(where, item, self._rule, *self._names)
            answer = self._answer(item, turns[turn + 1]) if whole and turns[turn + 1 :] else 0
            self._repeated += answer > 0
            output = answer or self._output(item)
            prompt = tokens if whole else history + tokens
            history = prompt + output
            if builder.drop_if_empty(prompt, output):
                continue
            number = builder.add(
                arrival,
                prompt,
                output,
                hash_ids=names if whole else (),  # of `turns` the answers between are not known
                session=name,
                turn=turn,
                after=after,
                wait=wait,
                extra=around | self._others(item),
            )
            talk.added(number)
        where.prefix = outer
        self._seen[name] = len(turns)

    def _request(self, row: dict[str, Any], times: tuple[Tick | None, Tick | None]) -> None:
        where, builder = self._where, self._builder
        tokens, names = prompt_tokens(where, row, self._rule, *self._names)
        output = self._output(row.get("body") or row.get("payload") or row)
        session = row.get("session_id")
        name = None if session is None else str(session)
        if times[1] is not None and name not in self._talks:
            raise where.error("needs a row of the same session_id before it", "delay")
        talk = _Talk() if name is None else self._talks.setdefault(name, _Talk())
        arrival, after, wait = talk.place(*times)
        if builder.drop_if_empty(tokens, output):
            return
        called = next((key for key in NAME_KEYS if row.get(key) is not None), None)
        request_id = None if called is None else str(row[called])
        if called is not None and request_id is not None:
            if request_id in self._seen:
                raise where.error("stands twice", called, request_id)
            self._seen[request_id] = 1
        number = builder.add(
            arrival,
            tokens,
            output,
            # of a session's rows it is not known whether they hold all that was said
            hash_ids=names if name is None or _states_ids(row) else (),
            session=name,
            request_id=request_id,
            after=after,
            wait=wait,
            extra=self._others(row),
        )
        talk.added(number)

    def _others(self, row: dict[str, Any]) -> dict[str, object]:
        """What a row and the request in it say that no format of these defines."""
        found = self._builder.unknown(row, _KNOWN)
        for inner in (row.get("body"), row.get("payload")):
            found |= self._builder.unknown(inner, _KNOWN) if type(inner) is dict else {}
        return found

    def _times(self, row: dict[str, Any]) -> tuple[Tick | None, Tick | None]:
        where = self._where
        stamp, delay = row.get("timestamp"), row.get("delay")
        if stamp is not None and delay is not None:
            raise where.error("stands beside delay: a row has one or the other", "timestamp", stamp)
        unit = "s" if "body" in row else "ms"
        return (
            None if stamp is None else where.ticks(stamp, "timestamp", unit),
            None if delay is None else where.ticks(delay, "delay", unit),
        )

    def _answer(self, payload: dict[str, Any], following: dict[str, Any]) -> int:
        """Tokens of the answer to `payload`, if the request that follows repeats all its messages
        and the answer; 0 if it does not, or if its lengths are recorded and not counted."""
        mine, theirs = payload.get("messages"), following.get("messages")
        if type(mine) is not list or type(theirs) is not list or theirs[: len(mine)] != mine:
            return 0
        if any(row.get(key) is not None for row in (payload, following) for key in _LENGTHS):
            return 0
        answer = theirs[len(mine)] if len(theirs) > len(mine) else None
        if type(answer) is not dict or answer.get("role") != "assistant":
            return 0
        field = f"messages[{len(mine)}].content"
        return self._rule.content(self._where, answer.get("content"), field)

    def _output(self, row: dict[str, Any]) -> int:
        if type(row) is not dict:
            raise self._where.error("is not an object", "body", row)
        stated = next((key for key in OUTPUT_KEYS if row.get(key) is not None), "")
        self._limits += stated in _LIMITS
        return self._rule.output(self._where, row, OUTPUT_KEYS)


READER = PromptsReader()
