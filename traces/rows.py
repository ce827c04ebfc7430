"""JSON objects out of a file, whether it is JSON lines, one array, or one object."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from vtsim.traces.jsondoc import JsonDocument
from vtsim.traces.jsonl import objects
from vtsim.traces.number import Where
from vtsim.traces.source import Source


def json_rows(source: Source, where: Where) -> Iterator[dict[str, Any]]:
    """The objects in file order; `where.line` and (in an array) `where.prefix` follow."""
    document = JsonDocument(source)
    if document.kind() == "[":
        for index, line, element in document.elements():
            where.line, where.prefix = line, f"[{index}]."
            if not isinstance(element, dict):
                raise where.error("is not an object", value=element)
            yield element
        where.prefix = ""
    elif one_object(source):
        where.line = 1
        yield {key: value for key, _, value in document.members()}
    else:
        yield from objects(source, where)


def request_name(where: Where, name: object, names: set[object]) -> object:
    """A request's own name, which is not among `names` and then is; None if it has none."""
    if name is None:
        return None
    if type(name) not in (int, str):
        raise where.error("is neither an integer nor a string", "request_id", name)
    if name in names:
        raise where.error("stands twice", "request_id", name)
    names.add(name)
    return name


def one_object(source: Source) -> bool:
    """True if the file is one JSON object over several lines, not an object a line.

    Its first line is then no object, and ends where a document is broken: behind `{`, `[`, `,`.
    """
    lines = source.lines()
    first = next(lines, (0, b""))[1]
    if next(lines, None) is None or not first.endswith((b"{", b"[", b",", b":")):
        return False
    try:
        json.JSONDecoder().raw_decode(first.decode())
    except (ValueError, RecursionError):
        return True
    return False
