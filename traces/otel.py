"""OpenTelemetry GenAI spans: `{"trace_id": ..., "spans": [...]}` or OTLP's own JSON
(`resourceSpans`), one, an array or JSON lines.

A span of a model call is a request: it arrives when it started, with the token counts of
`gen_ai.usage.*`, or those of its texts by the rule of `vtsim.traces.words`. Its trace is its
session; what calls share is not known. Other spans are counted as dropped.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from vtsim.request import TICKS_PER_S, Tick, Trace
from vtsim.traces.builder import Times, TraceBuilder
from vtsim.traces.number import Where
from vtsim.traces.otlp import RESOURCES, documents
from vtsim.traces.otlp import spans as otlp_spans
from vtsim.traces.registry import Head, ReadOptions
from vtsim.traces.source import Source
from vtsim.traces.words import OPTIONS, TokenRule

_CALLS = frozenset(("chat", "text_completion", "generate_content", "completion"))
_PROMPT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_INPUT, _ANSWER = "gen_ai.input.messages", "gen_ai.output.messages"
_SPAN = frozenset(
    (
        *("trace_id", "span_id", "parent_span_id", "parent_id", "start_time", "end_time"),
        *("traceId", "spanId", "parentSpanId", "startTimeUnixNano", "endTimeUnixNano"),
        *("name", "kind", "attributes", "status", "events", "links", "context", "resource"),
        *("scope", "flags", "trace_state", "traceState", "instrumentation_scope"),
        *("droppedAttributesCount", "droppedEventsCount", "droppedLinksCount"),
    )
)
"""What OpenTelemetry defines of a span, kept or not: the rest goes to `extra`, and so do attributes
outside the GenAI conventions."""
_EMPTY = "trace_without_spans"
_STATUS: dict[object, bool] = {"OK": False, "UNSET": False, "": False, "ERROR": True}
_STATUS |= {0: False, 1: False, 2: True, "0": False, "1": False, "2": True}
"""Codes of OpenTelemetry's status, by name and by number; true is a failure."""
_OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")


class OtelReader:
    """See the module."""

    name = "otel"
    summary = "OpenTelemetry GenAI spans (JSON or JSONL)"
    options = OPTIONS

    def detects(self, head: Head) -> bool:
        return head.has("spans") or head.has(RESOURCES)

    def read(self, source: Source, options: ReadOptions) -> Trace:
        rule = TokenRule(options)
        builder = TraceBuilder(source, self.name, fields=(_PROMPT[0], _OUTPUT[0]))
        where = builder.where
        seen = _Seen()
        for document in documents(source, where):
            builder.times = Times(_PLAIN.start, unit="")
            if RESOURCES in document:
                builder.times = Times(_OTLP.start, unit="ns")
                for span in otlp_spans(where, document[RESOURCES]):
                    _add(builder, where, rule, span, span.get("traceId"), _OTLP, seen)
                continue
            spans = document.get("spans")
            if type(spans) is not list:
                raise where.error("is not a list" if spans is not None else "is missing", "spans")
            if not spans:
                builder.drop(_EMPTY)
            outer = where.prefix
            for index, span in enumerate(spans):
                where.prefix = f"{outer}spans[{index}]."
                if type(span) is not dict:
                    raise where.error("is not an object", value=span)
                _add(builder, where, rule, span, document.get("trace_id"), _PLAIN, seen)
            where.prefix = outer
        rule.tell(builder)
        return builder.finish()


class _Form(NamedTuple):
    """What a form of spans calls them."""

    start: str
    end: str
    span: str
    parent: str

    def ticks(self, where: Where, span: dict[str, Any], field: str) -> Tick:
        if field.endswith("Nano"):
            return where.ticks(span.get(field), field, "ns")
        return where.date_time(span.get(field), field)


_PLAIN = _Form("start_time", "end_time", "span_id", "parent_span_id")
_OTLP = _Form("startTimeUnixNano", "endTimeUnixNano", "spanId", "parentSpanId")


def _add(
    builder: TraceBuilder,
    where: Where,
    rule: TokenRule,
    span: dict[str, Any],
    trace_id: object,
    form: _Form,
    seen: _Seen,
) -> None:
    """Adds or drops the span."""
    said = span.get("attributes") or {}
    if type(said) is not dict:
        raise where.error("is not an object", "attributes", said)
    usage = [key for key in (*_PROMPT, *_OUTPUT) if said.get(key) is not None]
    operation = said.get("gen_ai.operation.name", "chat" if usage else "")
    if type(operation) is not str or operation not in _CALLS:
        builder.drop("not_a_model_call")
        return
    if _failed(where, span.get("status")):
        builder.drop("failed")
        return
    start = form.ticks(where, span, form.start)
    recorded: dict[str, object] = {}
    if span.get(form.end) is not None:
        end = form.ticks(where, span, form.end)
        if end < start:
            raise where.error(f"stands before {form.start}", form.end, span[form.end])
        recorded["duration_s"] = (end - start) / TICKS_PER_S
    prompt = _usage(where, said, _PROMPT)
    if prompt is None:
        messages = said.get(_INPUT)
        if messages is None:
            raise where.error("states neither token counts nor messages", "attributes")
        prompt = _messages(where, rule, messages, _INPUT)
    output = _usage(where, said, _OUTPUT)
    if output is None and isinstance(said.get("gen_ai.output.text"), str):
        output = rule.text(said["gen_ai.output.text"])
    if output is None and said.get(_ANSWER) is not None:
        output = _messages(where, rule, said[_ANSWER], _ANSWER)
    if output is None:
        limit = {"gen_ai.request.max_tokens": said.get("gen_ai.request.max_tokens")}
        output = rule.output(where, limit, ("gen_ai.request.max_tokens",))
    if seen.before(where, (trace_id, span.get(form.span)), (start, prompt, output), form.span):
        builder.drop("span_twice")
        return
    if not builder.drop_if_empty(prompt, output):
        names = {"span_id": span.get(form.span), "parent_span_id": span.get(form.parent)}
        extra: dict[str, object] = {k: v for k, v in names.items() if v not in (None, "")}
        extra |= builder.unknown(span, _SPAN)
        own = frozenset(key for key in said if key.startswith("gen_ai."))
        extra |= builder.unknown(said, own)
        model = said.get("gen_ai.request.model")
        builder.add(
            start,
            prompt,
            output,
            session=None if trace_id is None else str(trace_id),
            recorded=recorded,
            extra=extra if model is None else {**extra, "model": model},
        )


def _failed(where: Where, status: object) -> bool:
    """Whether the span's status, an object with a code or the code itself, is an error."""
    code = status
    if type(status) is dict:
        code = status.get("code", status.get("status_code"))
    if code is None:
        return False
    if isinstance(code, str):  # "ERROR", "STATUS_CODE_ERROR", "StatusCode.ERROR"
        code = code.upper().rpartition(".")[2].removeprefix("STATUS_CODE_")
    if type(code) in (str, int) and code in _STATUS:
        return _STATUS[code]
    raise where.error("is no status: OK, UNSET or ERROR", "status", code)


class _Seen:
    """Spans so far: exporters that try again send some twice."""

    def __init__(self) -> None:
        self._calls: dict[tuple[str, str], tuple[int, ...]] = {}

    def before(
        self, where: Where, name: tuple[object, object], call: tuple[int, ...], field: str
    ) -> bool:
        """True for a span that was there before; TraceFormatError if it was another call then."""
        trace, span = name
        if type(span) is not str or not span:
            return False
        known = self._calls.setdefault((str(trace), span), call)
        if known is call:
            return False
        if known != call:
            raise where.error("stands twice in its trace, with other times or lengths", field, span)
        return True


def _usage(where: Where, said: dict[str, Any], names: tuple[str, ...]) -> int | None:
    for name in names:
        if said.get(name) is not None:
            return where.count(said[name], f"attributes.{name}")
    return None


def _messages(where: Where, rule: TokenRule, messages: object, attribute: str) -> int:
    """Tokens of messages, as a list or as JSON in a string."""
    field = f"attributes.{attribute}"
    if isinstance(messages, str):
        try:
            messages = json.loads(messages)
        except (ValueError, RecursionError):
            raise where.error("is not JSON", field) from None
    if type(messages) is list:
        flat = [
            {"content": m["parts"]} if type(m) is dict and "parts" in m else m for m in messages
        ]
        return rule.messages(where, flat, field)
    raise where.error("is not a list of messages", field)


READER = OtelReader()
