"""OTLP's own JSON of spans, as collectors and exporters write it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vtsim.errors import TraceFormatError
from vtsim.traces import load

NS = 1_000
START = 1_544_712_660_000_000_000


def tagged(value: object) -> dict[str, Any]:
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}  # 64-bit integers are strings in JSON
    if isinstance(value, list):
        return {"arrayValue": {"values": [tagged(item) for item in value]}}
    assert isinstance(value, dict)
    return {"kvlistValue": {"values": pairs(value)}}


def pairs(values: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": tagged(value)} for key, value in values.items()]


def span(offset_ns: int, name: str = "a", trace: str = "t1", **attributes: Any) -> dict[str, Any]:
    said = {f"gen_ai.{key.replace('__', '.')}": value for key, value in attributes.items()}
    return {
        "traceId": trace,
        "spanId": name,
        "parentSpanId": "",
        "startTimeUnixNano": str(START + offset_ns),
        "endTimeUnixNano": str(START + offset_ns + 500_000_000),
        "attributes": pairs(said),
    }


CALL: dict[str, Any] = {
    "operation__name": "chat",
    "usage__input_tokens": 50,
    "usage__output_tokens": 7,
}


def export(*spans: dict[str, Any]) -> dict[str, Any]:
    """Every span in a scope of its own; the first resource has none."""
    resource = {"attributes": pairs({"service.name": "x"})}
    scopes = [{"scope": {"name": "s"}, "spans": [each]} for each in spans]
    return {"resourceSpans": [{"resource": resource}, {"scopeSpans": scopes}]}


FORMS = {
    "one line": lambda document: json.dumps(document),
    "one object": lambda document: json.dumps(document, indent=1),
    "lines": lambda document: json.dumps(document) + "\n\n" + json.dumps(export(span(9, "z"))),
    "an array": lambda document: json.dumps([document, export()], indent=1),
}


@pytest.mark.parametrize("form", FORMS)
def test_calls_become_requests(tmp_path: Path, form: str) -> None:
    path = tmp_path / "t.json"
    text = [{"role": "user", "parts": [{"type": "text", "content": "a b c"}]}]
    answer = [{"role": "assistant", "parts": [{"type": "text", "content": "d e"}]}]
    document = export(
        span(100, "a", request__model="m", **CALL),
        {**span(350, "b", "t2", **CALL), "parentSpanId": "a", "status": {"code": "OK"}},
        span(600, "c", operation__name="chat", input__messages=text, output__messages=answer),
        span(700, "d", operation__name="execute_tool"),
        {**span(800, "e", **CALL), "status": {"code": 2, "message": "no"}},
    )
    path.write_text(FORMS[form](document))
    trace = load(path)
    assert trace.report.format == "otel"
    assert trace.arrival.tolist() == [0, 250 * NS, 500 * NS]
    assert trace.prompt_tokens.tolist() == [50, 50, 3]
    assert trace.output_tokens.tolist() == [7, 7, 2]
    assert trace.report.dropped == {"not_a_model_call": 1 + (form == "lines"), "failed": 1}
    assert trace.session_names == ("t1", "t2") and trace.session.tolist() == [0, 1, 0]
    assert trace.recorded[0] == {"duration_s": 0.5}
    assert trace.extra == {
        0: {"span_id": "a", "model": "m"},
        1: {"span_id": "b", "parent_span_id": "a"},
        2: {"span_id": "c"},
    }


def test_numbers_may_be_numbers(tmp_path: Path) -> None:
    """Some exporters write 64-bit integers bare."""
    path = tmp_path / "t.json"
    one = span(0, **CALL)
    one["startTimeUnixNano"] = START
    one["attributes"][1]["value"] = {"intValue": 50}
    path.write_text(json.dumps(export(one, span(3, "b", **CALL))))
    assert load(path).arrival.tolist() == [0, 3 * NS]


@pytest.mark.parametrize(
    "change, said",
    [
        ({"startTimeUnixNano": None}, "spans[0].startTimeUnixNano: is missing"),
        ({"startTimeUnixNano": "soon"}, "spans[0].startTimeUnixNano: is not a number"),
        ({"endTimeUnixNano": "5"}, "spans[0].endTimeUnixNano: stands before startTimeUnixNano"),
        ({"attributes": {"a": 1}}, "spans[0].attributes: is not a list of keys and values"),
        ({"attributes": [{"key": 1}]}, "spans[0].attributes.key: is not a string"),
        ({"attributes": [{"key": "k", "value": 5}]}, "attributes.k: is no tagged value of OTLP"),
        ({"attributes": [{"key": "k", "value": {"x": 5}}]}, "is no tagged value of OTLP"),
        (
            {"attributes": pairs({"gen_ai.usage.input_tokens": "many"})},
            "attributes.gen_ai.usage.input_tokens: is not a number",
        ),
        (
            {"attributes": pairs({"gen_ai.operation.name": "chat"})},
            "attributes: states neither token counts nor messages",
        ),
    ],
)
def test_bad_spans_are_told(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    path = tmp_path / "t.json"
    bad = {**span(0, **CALL), **change}
    path.write_text(json.dumps(export(span(5, **CALL), bad), indent=1))
    with pytest.raises(TraceFormatError) as caught:
        load(path)
    where = "resourceSpans[1].scopeSpans[1]."
    assert where in str(caught.value) and said in str(caught.value)
    lines = path.read_text().splitlines()
    assert caught.value.line is not None and lines[caught.value.line - 1] == "  {"


def test_lists_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    for text, said in (
        ('{"resourceSpans": 5}', "t.json:1: resourceSpans: is not a list"),
        ('{"resourceSpans": [5]}', "t.json:1: is not an object"),
        ('{"resourceSpans": [{"scopeSpans": 5}]}', "resourceSpans[0].scopeSpans: is not a list"),
        ('{"resourceSpans": [{"scopeSpans": [{"spans": {}}]}]}', "scopeSpans[0].spans: is not a"),
        ('{"resourceSpans": []}', "t.json: no requests"),
        ('{\n"resourceSpans": [\n5]}', "t.json:3: is not an object"),
    ):
        path.write_text(text)
        with pytest.raises(TraceFormatError) as caught:
            load(path)
        assert said in str(caught.value)
