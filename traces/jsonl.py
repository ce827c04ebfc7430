"""JSON lines, one object a line, with exact numbers and physical line numbers in errors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import msgspec

from vtsim.errors import TraceFormatError
from vtsim.traces.jsondoc import HALF_A_CHARACTER, members_once
from vtsim.traces.number import Where
from vtsim.traces.source import Source

_NO_NUMBER = re.compile(rb"[\s:,\[]?(-?(?:NaN|Infinity))\b")
_KEY = re.compile(rb'"((?:[^"\\]|\\.)*)"\s*:')
_BYTE = re.compile(r"\(byte (\d+)\)")
_keys = json.JSONDecoder(object_pairs_hook=members_once, parse_int=str, parse_float=str)
_decoder = msgspec.json.Decoder(float_hook=Decimal)


def objects(source: Source, where: Where) -> Iterator[dict[str, Any]]:
    """The objects of the non-blank lines; `where.line` follows.

    Numbers come as int (of any size) or Decimal. TraceFormatError for a line that is not exactly
    one object.
    """
    decode = _decoder.decode
    for line, text in source.lines():
        where.line = line
        try:
            value = decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ArithmeticError) as error:
            raise _malformed(where, text, error) from None
        if type(value) is not dict:
            raise where.error(f"one JSON object a line is wanted, not a {_kind(value)}")
        if text.count(b":") > len(value):  # nested, in a string, or of a key that stands twice
            try:
                _keys.decode(text.decode())
            except (ValueError, RecursionError) as error:
                raise where.error(f"malformed JSON: {error}") from None
        yield value


def _malformed(where: Where, text: bytes, error: Exception) -> TraceFormatError:
    if isinstance(error, RecursionError):
        return where.error("malformed JSON: nested too deeply")
    if isinstance(error, UnicodeDecodeError):
        return where.error("malformed JSON: not UTF-8 text")
    message = str(error)
    if "truncated" in message and _is_json(text) or "surrogate" in message:
        return where.error(f"malformed JSON: {HALF_A_CHARACTER}")
    found = _BYTE.search(message)
    if found is None:
        if "truncated" in message:
            return where.error("malformed JSON: the line ends inside an object (cut off?)")
        return where.error(f"malformed JSON: {message.partition(' - at ')[0]}")
    offset = int(found[1])
    trailing = "trailing characters" in message
    if trailing:  # msgspec counts one more here
        offset -= 1
    column = len(text[:offset].decode(errors="replace")) + 1
    no_number = _NO_NUMBER.match(text, max(0, offset - 1))
    if no_number is not None:
        keys = _KEY.findall(text, 0, offset)
        named = f"{keys[-1].decode()}: " if keys else ""
        said = f"{named}{no_number[1].decode()} is no JSON number"
        return where.error(f"malformed JSON: {said}", column=column)
    if trailing:
        rest = text[offset:].lstrip()
        if rest.startswith(b","):
            what = "a comma stands between objects; JSON lines have one object a line, no commas"
        else:
            what = "something follows the object; JSON lines have one object a line"
        return where.error(f"malformed JSON: {what}", column=column)
    said = _BYTE.sub("", message.removeprefix("JSON is malformed: ")).strip()
    return where.error(f"malformed JSON: {said}", column=column)


def _is_json(text: bytes) -> bool:
    try:
        _keys.decode(text.decode())
    except (ValueError, RecursionError):
        return False
    return True


def _kind(value: object) -> str:
    names = {list: "list", str: "string", int: "number", Decimal: "number", bool: "boolean"}
    return names.get(type(value), "null")
