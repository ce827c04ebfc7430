"""OTLP's JSON encoding of spans: `resourceSpans`, in them `scopeSpans`, in them `spans`.

What a collector's file exporter and the OTLP/HTTP exporters write. Values are tagged
(`stringValue`, `intValue`: 64-bit integers as strings), attributes are lists of key and value,
times nanoseconds since 1970. Here they become plain objects; what they mean is the business of
`vtsim.traces.otel`.
Source: the OpenTelemetry protocol's specification (OTLP 1.x, JSON Protobuf encoding).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vtsim.traces.jsondoc import JsonDocument
from vtsim.traces.number import MOST_NESTED, Where
from vtsim.traces.rows import json_rows, one_object
from vtsim.traces.source import Source

RESOURCES = "resourceSpans"
_PLAIN = ("stringValue", "intValue", "doubleValue", "boolValue", "bytesValue")


def documents(source: Source, where: Where) -> Iterator[dict[str, Any]]:
    """The objects of the file; of a single one that has `resourceSpans` each of these in an object
    of its own, so that the file is not held as a whole. `where` follows."""
    if JsonDocument(source).kind() != "{" or not one_object(source):
        yield from json_rows(source, where)
        return
    others: dict[str, Any] = {}
    for key, line, value in JsonDocument(source).members(stream=RESOURCES):
        where.line = line
        if not isinstance(value, Iterator):
            others[key] = value
            continue
        for index, at, resource in value:
            where.line, where.prefix = at, f"{RESOURCES}[{index}]."
            if type(resource) is not dict:
                raise where.error("is not an object", value=resource)
            yield {RESOURCES: resource}
        where.prefix = ""
    where.line = 1
    if others:
        yield others


def spans(where: Where, resources: object) -> Iterator[dict[str, Any]]:
    """The spans in a value of `resourceSpans`, or in one of its elements, as they are but for
    `attributes`, an object. `where.prefix` follows."""
    outer = where.prefix
    if type(resources) is dict:
        yield from _of_resource(where, resources)
    else:
        for resource in _each(where, resources, RESOURCES):
            yield from _of_resource(where, resource)
    where.prefix = outer


def _of_resource(where: Where, resource: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for scope in _each(where, resource.get("scopeSpans", []), "scopeSpans"):
        for span in _each(where, scope.get("spans", []), "spans"):
            yield {**span, "attributes": attributes(where, span.get("attributes"))}


def _each(where: Where, items: object, field: str) -> Iterator[dict[str, Any]]:
    """The objects of a list; `where.prefix` says which."""
    if type(items) is not list:
        raise where.error("is not a list", field, items)
    outer = where.prefix
    for index, item in enumerate(items):
        where.prefix = f"{outer}{field}[{index}]."
        if type(item) is not dict:
            raise where.error("is not an object", value=item)
        yield item
    where.prefix = outer


def attributes(where: Where, listed: object) -> dict[str, Any]:
    """Key and value of a list of attributes; {} where there is none."""
    if listed is None:
        return {}
    if type(listed) is not list or not all(type(item) is dict for item in listed):
        raise where.error("is not a list of keys and values", "attributes", listed)
    found: dict[str, Any] = {}
    for item in listed:
        key = item.get("key")
        if type(key) is not str:
            raise where.error("is not a string", "attributes.key", key)
        found[key] = _plain(where, item.get("value"), f"attributes.{key}", MOST_NESTED)
    return found


def _plain(where: Where, value: object, field: str, levels: int) -> Any:
    """A tagged value without its tag; None if it is empty."""
    if value is None or value == {}:
        return None
    if type(value) is not dict or not levels:
        raise where.error("is no tagged value of OTLP", field, value)
    for tag in _PLAIN:
        if tag in value:
            return value[tag]
    inner = next((value[tag] for tag in ("arrayValue", "kvlistValue") if tag in value), None)
    if type(inner) is not dict or type(inner.get("values", [])) is not list:
        raise where.error("is no tagged value of OTLP", field, value)
    listed = inner.get("values", [])
    if "arrayValue" in value:
        return [_plain(where, item, field, levels - 1) for item in listed]
    if not all(type(item) is dict and type(item.get("key")) is str for item in listed):
        raise where.error("is not a list of keys and values", field)
    return {
        item["key"]: _plain(where, item.get("value"), f"{field}.{item['key']}", levels - 1)
        for item in listed
    }
