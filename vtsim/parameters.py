"""A policy's parameters: a frozen dataclass whose field types say how text is read.

Fields may be bool, int, float, str, a `Literal` of choices, or a union of these with None. An int
field that is called `chunk` or whose name ends in `_bytes`, or whose metadata say
`{"unit": "bytes"}`, takes sizes such as 2MiB; `{"doc": "..."}` is shown in lists. Nothing here
knows a policy.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from typing import Any, Literal

from vtsim.errors import ConfigError
from vtsim.quantities import MOST_BYTES, exact_bytes, parse_bytes

_BOOLEANS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a policy, for `--set` and for lists."""

    name: str
    type: Any
    default: object
    unit: str = ""
    doc: str = ""

    def parse(self, text: str) -> object:
        """The value that `text` stands for; `ValueError` if none."""
        kinds = _alternatives(self.type)
        if type(None) in kinds and text.casefold() == "none":
            return None
        for choice in _choices(kinds):
            if str(choice) == text:
                return choice
        if bool in kinds and text.casefold() in _BOOLEANS:
            return _BOOLEANS[text.casefold()]
        if int in kinds and self.unit == "bytes":
            return parse_bytes(text, self.name)
        for kind in (int, float, str):
            if kind in kinds:
                try:
                    value = kind(text)
                except ValueError:
                    continue
                if not isinstance(value, float) or math.isfinite(value):
                    return value
        raise ValueError(text)

    def accepts(self, value: object) -> bool:
        """Whether `value`, which is no text, is of the parameter's type. A bool is no number."""
        for kind in _alternatives(self.type):
            if typing.get_origin(kind) is Literal:
                if any(type(value) is type(c) and value == c for c in kind.__args__):
                    return True
            elif kind is float:
                if type(value) in (int, float) and math.isfinite(typing.cast(float, value)):
                    return True
            elif kind is int:
                if type(value) is int:
                    return True
            elif not isinstance(kind, type) or isinstance(value, kind):
                return True
        return False

    def show(self, value: object) -> str:
        """`value` as `parse` reads it back."""
        if value is None:
            return "none"
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, int) and self.unit == "bytes":
            return exact_bytes(value)
        return str(value)

    def describe(self) -> str:
        """What may be written: `int`, `size`, `unmap | park`."""
        words: list[str] = []
        for kind in _alternatives(self.type):
            if typing.get_origin(kind) is Literal:
                words += map(str, kind.__args__)
            elif kind is type(None):
                words.append("none")
            elif kind is int and self.unit == "bytes":
                words.append("size")
            else:
                words.append(getattr(kind, "__name__", str(kind)))
        return " | ".join(words)


def parameters_of(parameters_type: type) -> list[Parameter]:
    """The parameters that a dataclass declares, in its order."""
    hints = typing.get_type_hints(parameters_type)
    found = []
    for field in fields(parameters_type):
        unit = str(field.metadata.get("unit", ""))
        if not unit and (field.name == "chunk" or field.name.endswith("_bytes")):
            unit = "bytes"
        default = field.default
        if default is MISSING:
            made = field.default_factory
            default = None if made is MISSING else made()
        doc = str(field.metadata.get("doc", ""))
        found.append(Parameter(field.name, hints[field.name], default, unit, doc))
    return found


def make_parameters(label: str, parameters_type: type, values: Mapping[str, object]) -> Any:
    """An instance of a dataclass of parameters. Text is read by the types of the fields, other
    values must be of these types. `ConfigError` names `label` and the parameter."""
    known = {parameter.name: parameter for parameter in parameters_of(parameters_type)}
    parsed: dict[str, object] = {}
    for name, value in values.items():
        if name not in known:
            close = get_close_matches(name, known, 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            listed = ", ".join(known) or "none"
            raise ConfigError(f"{label} has no parameter {name!r} (known: {listed}){hint}")
        if isinstance(value, str):
            try:
                value = known[name].parse(value)
            except ConfigError as error:  # of a size, and it names the parameter
                raise ConfigError(f"{label}.{error}") from None
            except ValueError:
                raise ConfigError(
                    f"{label}.{name}: {value!r} is not {known[name].describe()}"
                ) from None
        elif not known[name].accepts(value):
            raise ConfigError(f"{label}.{name}: {value!r} is not {known[name].describe()}")
        if type(value) is int and abs(value) > MOST_BYTES:
            raise ConfigError(f"{label}.{name}: {value} does not fit 62 bits")
        parsed[name] = value
    try:
        return parameters_type(**parsed)
    except ConfigError as error:
        # It names the parameter as of the policy's own name: with a label that is another's.
        of, dot, rest = str(error).partition(".")
        named = dot and rest.split(":")[0] in known
        raise ConfigError(f"{label}.{rest}" if named else str(error)) from None
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{label}: {error}") from error


def _alternatives(kind: Any) -> tuple[Any, ...]:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return tuple(typing.get_args(kind))
    return (kind,)


def _choices(kinds: tuple[Any, ...]) -> list[Any]:
    return [c for kind in kinds if typing.get_origin(kind) is Literal for c in kind.__args__]
