"""What a trace's `source` says of where it is from: the file, the options, what was left out.

No time and no folder, so that the same command on the same file gives the same bytes anywhere. A
native file's `source` is its own: it is kept as it is, and what was done to it since is added.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

from vtsim.request import Trace

ORIGIN, RESHAPED = "origin", "reshaped"


def with_origin(trace: Trace, options: Mapping[str, object]) -> Trace:
    """`trace` with `source.origin`: format, file's name, SHA-256, `options` and rows read and kept;
    said twice, the options are added. Of a native file `source.reshaped` gets a step instead, if
    there are options."""
    report = trace.report
    said = {name: _plain(name, value) for name, value in options.items()}
    rows: dict[str, object] = {"read": report.rows_read, "kept": report.rows_kept}
    if report.dropped:
        rows["dropped"] = dict(sorted(report.dropped.items()))
    source: dict[str, Any] = dict(trace.source)
    if report.format == "native":
        said.pop("from", None)  # which changes nothing
        if not said:
            return trace
        earlier = source.get(RESHAPED)
        steps = list(earlier) if isinstance(earlier, list | tuple) else []
        source[RESHAPED] = [*steps, {"options": said, "rows": rows}]
    else:
        earlier = source.get(ORIGIN)
        before = earlier.get("options", {}) if isinstance(earlier, Mapping) else {}
        source[ORIGIN] = {
            "format": report.format,
            "file": trace.name,
            "sha256": trace.sha256,
            "options": {**before, **said},
            "rows": rows,
        }
    return dataclasses.replace(trace, source=source)


def _plain(name: str, value: object) -> object:
    """For JSON; of a path its last part."""
    if name == "tokenizer" or isinstance(value, Path):
        return Path(str(value)).name
    if isinstance(value, Decimal | Fraction):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, list | tuple):
        return [_plain(name, item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def origin_lines(source: Mapping[str, Any]) -> list[str]:
    """`source` as a reader of a terminal sees it, a line for each thing it tells."""
    lines = []
    for key, value in source.items():
        if key == ORIGIN and isinstance(value, Mapping):
            what = f"{value.get('format', '?')} {value.get('file', '?')}"
            lines.append(
                f"origin: {what}, sha256 {str(value.get('sha256', '?'))[:16]}{_step(value)}"
            )
        elif key == RESHAPED and isinstance(value, list | tuple):
            steps = [step for step in value if isinstance(step, Mapping)]
            lines += [f"reshaped{_step(step).replace(';', ':', 1)}" for step in steps]
    rest = {key: value for key, value in source.items() if key not in (ORIGIN, RESHAPED)}
    if rest:
        lines.append("source: " + ", ".join(f"{key} {value}" for key, value in rest.items()))
    return lines


def _step(said: Mapping[str, Any]) -> str:
    """Rows and options of one reading."""
    text = ""
    rows, options = said.get("rows"), said.get("options")
    if isinstance(rows, Mapping):
        dropped = rows.get("dropped")
        dropped = dropped if isinstance(dropped, Mapping) else {}
        gone = ", ".join(f"{count} {reason}" for reason, count in dropped.items())
        text += f"; {rows.get('read')} rows read, {rows.get('kept')} kept"
        text += f" ({gone})" if gone else ""
    if isinstance(options, Mapping) and options:
        text += "; options " + ", ".join(f"{name} {value}" for name, value in options.items())
    return text
