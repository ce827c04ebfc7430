"""The options of every command that reads a trace and reshapes it, declared once.

`reading` gives a command whose first argument is a `Trace` the file argument and all these options.
No logic: they are handed to `vtsim.traces.load` as they are.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vtsim.errors import ConfigError

if TYPE_CHECKING:
    from vtsim.request import Trace


def _option(kind: Any, help: str, *names: str, metavar: str | None = None) -> Any:
    return Annotated[kind, typer.Option(*names, help=help, metavar=metavar)]


_Text, _Int, _Float = str | None, int | None, float | None

OPTIONS: dict[str, tuple[Any, object]] = {
    "from_format": (_option(_Text, "Format, instead of detection by content.", "--from"), None),
    "block_size": (_option(_Int, "Tokens that a hash id stands for."), None),
    "time_unit": (_option(_Text, "What times count: s, ms, us, ns."), None),
    "tail_rule": (_option(_Text, "exact, partial_tail or prefix_only: what hash ids cover."), None),
    "turns": (
        _option(_Text, "Rows of sessions without hash ids: unknown, whole or delta prompts."),
        None,
    ),
    "tokens_per_word": (_option(_Float, "Tokens a word, where a file has texts only."), None),
    "tokenizer": (
        _option(_Text, "tokenizer.json or a folder with one, for texts (needs tokenizers)."),
        None,
    ),
    "output_tokens": (_option(_Int, "Output length where a file states none."), None),
    "option": (
        _option(
            list[str] | None,
            "Another option of the format's reader; a bare NAME is a flag.",
            "--option",
            "-o",
            metavar="NAME=VALUE",
        ),
        None,
    ),
    "window": (
        _option(_Text, "Conversations that start in [A, B) s of the trace's clock.", metavar="A:B"),
        None,
    ),
    "limit": (
        _option(_Int, "The first requests in order of arrival (no clock), in whole conversations."),
        None,
    ),
    "limit_by": (_option(str, "session: whole conversations; row: may cut them."), "session"),
    "max_context": (_option(_Int, "Most tokens of prompt and output together."), None),
    "on_overflow": (_option(str, "What exceeds it: reject (kept, marked), drop, error."), "reject"),
    "idle_cap": (
        _option(_Float, "Longest gap between arrivals and longest wait, s of the trace's clock."),
        None,
    ),
    "rate": (
        _option(
            _Float,
            "Requests a second of the trace's clock: scales arrivals; with --arrival draws starts, "
            "conversations a second. In loops only of requests that arrive by themselves.",
        ),
        None,
    ),
    "arrival": (
        _option(_Text, "poisson, gamma or uniform starts of conversations, on the trace's clock."),
        None,
    ),
    "cv": (_option(float, "Coefficient of variation of gamma."), 2.0),
    "seed": (_option(int, "Seed of what is drawn."), 0),
    "speed": (
        _option(str, "Divides arrivals, the trace's clock (2: twice as fast); waits stay."),
        "1",
    ),
    "repeat": (
        _option(int, "Copies, one behind the other on the trace's clock, that share nothing."),
        1,
    ),
}
_READER = ("time_unit", "tail_rule", "turns", "tokens_per_word", "tokenizer", "output_tokens")


def reading(command: Callable[..., None]) -> Callable[..., None]:
    """Turns `command(trace, ...)` into a command that takes FILE and the options above."""

    @functools.wraps(command)
    def run(**given: Any) -> None:
        mine = {name: given.pop(name) for name in ("file", *OPTIONS)}
        for option, name in (("--json", "json_path"), ("--plot", "plot"), ("OUT", "out")):
            keep(mine["file"], option, given.get(name))
        command(functools.partial(load_trace, mine), **given)

    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    said = "A trace of any known format (.gz, .zst too)."  # a `Path` of "" would be the folder
    argument = Annotated[str, typer.Argument(help=said)]
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter("file", keyword, annotation=argument),
        *(p.replace(kind=keyword) for p in own),
        *(
            inspect.Parameter(name, keyword, annotation=kind, default=default)
            for name, (kind, default) in OPTIONS.items()
        ),
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def keep(file: Path | str, option: str, target: Path | str | None) -> None:
    """Raises `ConfigError` if `target` is the trace, or a file of the folder that is: what is made
    of a trace would be written over it."""
    if not target or not os.path.isfile(target):
        return
    if os.path.isfile(file) and os.path.samefile(file, target):
        raise ConfigError(f"{option} {target}: that is the trace itself")
    if os.path.isdir(file):
        from vtsim.traces.source import Source

        if any(os.path.samefile(part, target) for part in Source(file).files()):
            raise ConfigError(f"{option} {target}: that is a part of the trace itself")


def load_trace(given: dict[str, Any]) -> Trace:
    """`vtsim.traces.load` with what the command line said."""
    from vtsim.traces import load

    if given["seed"] and given["rate"] is None:
        raise ConfigError(f"seed {given['seed']} needs rate: without it nothing is drawn")
    named: dict[str, Any] = {name: given[name] for name in _READER if given[name] is not None}
    for name, value in options_of(given["option"]).items():
        if name in named:
            raise ConfigError(f"--option {name}: it is given as --{name.replace('_', '-')} too")
        named[name] = value
    clash = sorted((inspect.signature(load).parameters.keys() - {"options"}) & named.keys())
    if clash:
        raise ConfigError(f"option {clash[0]!r} is no option of a reader")
    return load(
        given["file"],
        from_format=given["from_format"],
        block_size=given["block_size"],
        window_s=window_of(given["window"]),
        limit=given["limit"],
        limit_by=given["limit_by"],
        max_context=given["max_context"],
        on_overflow=given["on_overflow"],
        idle_cap_s=given["idle_cap"],
        rate=given["rate"],
        arrival=given["arrival"],
        cv=given["cv"],
        seed=given["seed"],
        speed=given["speed"],
        repeats=given["repeat"],
        **named,
    )


def options_of(items: list[str] | None) -> dict[str, Any]:
    """The NAME=VALUE of `--option`, as arguments; ConfigError for a name that stands twice."""
    named: dict[str, Any] = {}
    for item in items or ():
        name, equals, value = item.partition("=")
        name = name.strip().replace("-", "_")
        if name in named:
            raise ConfigError(f"--option {name} is given twice")
        named[name] = value if equals else True
    return named


def window_of(text: str | None) -> tuple[float, float] | None:
    """`A:B` in seconds; either may be left out."""
    if text is None:
        return None
    start, colon, end = text.partition(":")
    try:
        if not colon:
            raise ValueError
        return float(start or 0), float(end or "inf")
    except ValueError:
        raise ConfigError(f"window {text!r}: wanted is START:END in seconds") from None
