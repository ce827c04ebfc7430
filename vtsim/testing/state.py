"""Fingerprints: the whole state of an object as plain values, equal for equal states.

For "a refusal changed nothing", "undoing is exact" and "asking is pure". Objects are numbered as
they are met, so two copies of one state look alike and aliasing is part of it.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Hashable, Iterator, Set
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import numpy as np
from sortedcontainers import SortedDict, SortedList

DERIVED = frozenset(
    {
        *("Growth._wakes", "Growth.changes", "VTensorPolicy._foreseen"),
        *("Crossings.changes", "GrowingLayout.schedule"),
        *("VTensorPolicy._creates", "VTensorPolicy._extends", "VTensorPolicy._retires"),
        *("VTensorPolicy._bounds", "VAttentionPolicy._bounds", "ElasticPagedPolicy._bounds"),
    }
)
"""Attributes, as `Class.name`, that are no state: they follow from others, or remember an answer.
A pure call may write to them."""

_ATOMS = (int, float, complex, str, bytes, bool, type(None), Enum, range)
_NAMED = (type, FunctionType, BuiltinFunctionType)
_END = object()


def fingerprint(thing: Any, derived: Set[str] = DERIVED) -> Hashable:
    """The state of `thing` and of all that it refers to, without attributes that are `derived`.

    Dictionaries count in their order; sets, which must hold sortable things, without one.
    """
    return tuple(_walk(thing, derived))


def _walk(thing: Any, derived: Set[str]) -> Iterator[Hashable]:
    seen: dict[int, int] = {}
    alive: list[Any] = []  # what is seen must live on, or its id could be another's
    # Depth first with a stack of iterators: trees of a thousand levels are fine.
    stack: list[Iterator[Any]] = [iter((thing,))]
    while stack:
        value = next(stack[-1], _END)
        if value is _END:
            stack.pop()
            yield ")"
        elif isinstance(value, _ATOMS):
            yield (type(value).__name__, value)
        elif isinstance(value, _NAMED):
            yield value.__qualname__
        elif id(value) in seen:
            yield ("seen", seen[id(value)])
        else:
            if not isinstance(value, tuple):  # equal tuples are as good as one
                seen[id(value)] = len(seen)
                alive.append(value)
            yield "(" + type(value).__qualname__
            stack.append(_parts(value, derived))


def _parts(value: Any, derived: Set[str]) -> Iterator[Any]:
    if isinstance(value, MethodType):
        yield value.__func__
        yield value.__self__
        return
    if isinstance(value, array | bytearray | np.ndarray):
        yield bytes(value)
        return
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield item
    elif isinstance(value, set | frozenset):
        yield from sorted(value)
    elif isinstance(value, list | tuple | deque | SortedList):
        yield from value
    if isinstance(value, SortedDict | SortedList):
        return  # what else they hold is an index
    owners = [kind.__name__ for kind in type(value).__mro__]
    for name, item in sorted(_attributes(value), key=lambda pair: pair[0]):
        if not any(f"{owner}.{name}" in derived for owner in owners):
            yield name
            yield item


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name.startswith("__") and not name.endswith("__"):
                name = f"_{kind.__name__.lstrip('_')}{name}"
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield name, getattr(value, name)
    yield from getattr(value, "__dict__", {}).items()
