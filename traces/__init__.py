"""Request traces: readers of what people really have, the native writer, statistics, generator.

`load` reads any known format into a `vtsim.request.Trace`. This package must not know engines or
policies, and imports no reader before it is needed.
"""

from __future__ import annotations

if __name__ != "vtsim.traces":
    raise ImportError("this package is vtsim.traces; the bare name 'traces' is not importable")

from vtsim.traces.loading import load
from vtsim.traces.registry import reader_names
from vtsim.traces.writer import write_native

__all__ = ["load", "reader_names", "write_native"]
