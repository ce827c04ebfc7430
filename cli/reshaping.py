"""Gives `vtsim replay` the options of `vtsim trace`'s commands that it does not have itself.

They are declared in `vtsim.cli.reading`; here they become the `reader` of `ReplayOptions`, named as
`vtsim.traces.load` names them, and only where they were given: results list what was said.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from vtsim.cli.reading import _READER, OPTIONS, options_of, window_of
from vtsim.errors import ConfigError

_CALLED = {"window": "window_s", "idle_cap": "idle_cap_s", "repeat": "repeats"}
_REPLAYS_OWN = frozenset({"max_context"})
"""What a replay has under another name: --max-model-len."""


def with_reader_options(command: Callable[..., None]) -> Callable[..., None]:
    """`command(..., reader={...})` as one that takes the options themselves."""
    own = inspect.signature(command, eval_str=True).parameters
    added = {n: o for n, o in OPTIONS.items() if n not in own and n not in _REPLAYS_OWN}

    @functools.wraps(command)
    def run(**given: Any) -> None:
        said = {n: given.pop(n) for n in added}
        command(**given, reader=_reader(said, {n: default for n, (_, default) in added.items()}))

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        *(p.replace(kind=keyword) for name, p in own.items() if name != "reader"),
        *(
            inspect.Parameter(name, keyword, annotation=kind, default=default)
            for name, (kind, default) in added.items()
        ),
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def _reader(said: dict[str, Any], defaults: dict[str, object]) -> dict[str, Any]:
    reader: dict[str, Any] = {}
    for name, value in options_of(said.pop("option")).items():
        if name in {*OPTIONS, *_CALLED.values()} - set(_READER):
            raise ConfigError(f"--option {name}: that is no option of a reader")
        reader[name] = value
    for name, value in said.items():
        if value == defaults[name]:
            continue
        called = _CALLED.get(name, name)
        if called in reader:
            raise ConfigError(f"--option {called}: it is given as --{name.replace('_', '-')} too")
        reader[called] = window_of(value) if name == "window" else value
    return reader
