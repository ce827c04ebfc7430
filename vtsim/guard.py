"""Holds a plug-in policy to its contract: what breaks it is named by file, class and method.

For policies that are not vtsim's own. Checks the types of answers and that none ends the process;
it decides nothing and changes no answer.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from vtsim.errors import ConfigError
from vtsim.plan import Match, MemoryUsage, Plan, Shortage
from vtsim.ports import Headroom
from vtsim.spec import KVLayout

_ANSWERS: dict[str, tuple[type, ...]] = {
    "kv_layout": (KVLayout,),
    "setup": (Plan,),
    "match": (Match,),
    "create": (Plan, Shortage),
    "extend_prompt": (Plan, Shortage),
    "extend": (Plan, Shortage),
    "headroom": (Headroom,),
    "release": (Plan,),
    "retire": (Plan,),
    "usage": (MemoryUsage,),
}
_NEEDED = ("kernels", "parameters_type", *_ANSWERS)


def check_policy(text: str, policy: Any) -> None:
    """Raises `ConfigError` if what `text` names is no policy's class, saying what it lacks."""
    lacking = [name for name in _NEEDED if not hasattr(policy, name)]
    if not isinstance(policy, type) or lacking:
        why = f"it lacks {', '.join(lacking)}" if isinstance(policy, type) else "it is no class"
        raise ConfigError(f"policy {text!r} is no memory policy: {why}")


def guarded(policy: Any) -> Any:
    """`policy`, its answers checked if it is a plug-in's. Changes the instance it is given."""
    kind = type(policy)
    if kind.__module__.startswith("vtsim."):
        return policy
    for name, kinds in _ANSWERS.items():
        try:
            setattr(policy, name, partial(_ask, getattr(policy, name), kinds, place_of(kind, name)))
        except AttributeError:  # __slots__ leave no room: it runs unchecked
            break
    return policy


def place_of(kind: type, method: str) -> str:
    """`file.py, Class.method`, for a message."""
    try:
        file = os.path.basename(inspect.getfile(kind))
    except (TypeError, OSError):
        file = kind.__module__
    return f"{file}, {kind.__name__}.{method}"


def _ask(
    method: Callable[..., object], kinds: tuple[type, ...], where: str, *given: Any, **named: Any
) -> object:
    answer = method(*given, **named)
    if not isinstance(answer, kinds):
        wanted = " or a ".join(kind.__name__ for kind in kinds)
        shown = "None" if answer is None else f"a {type(answer).__name__}"
        raise ConfigError(f"{where} returned {shown}, not a {wanted}")
    return answer
