"""What a replay gives back: one `PolicyRun` a policy, and the `RunResult` that holds them.

Everything is derived from a recorder and a trace; nothing here runs anything. The JSON document
(docs/metrics.md) depends on the trace, the options and the seed only: no wall clock, no folder.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vtsim.errors import ConfigError
from vtsim.metrics import exact, frames, output
from vtsim.metrics.definitions import as_json
from vtsim.metrics.recorder import Recorder
from vtsim.metrics.summary import longest_free, samples_of, summarize
from vtsim.ports import DriverCall
from vtsim.request import IntArray, Trace

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1
RESULT_FILE = "result.json"
TABLES = ("requests", "timeline", "decisions", "calls")
GPU_TABLE = "gpu"
"""Of a run of tenants, instead of `TABLES`, which are in the tenants' folders."""
KNOWN_FILES = frozenset(
    {RESULT_FILE}
    | {f"{table}.{kind}" for table in (*TABLES, GPU_TABLE) for kind in ("csv", "parquet")}
)
"""Those that are not written tell of an earlier run, be it of one trace or of tenants."""


@dataclass(frozen=True, eq=False)
class PolicyRun:
    """One policy's outcome. `label` tells apart runs of one policy with other parameters."""

    label: str
    policy: str
    parameters: Mapping[str, object]
    trace: Trace
    """The trace as it was replayed."""
    recorder: Recorder
    limit_bytes: int
    kernel: str
    layout: str
    chunk_bytes: int
    compute: str = "model"
    memory_backend: str = "sim"
    clock: str = "virtual"
    ideal_hits: IntArray | None = None
    """Tokens of each prompt that an infinite prefix cache would hold; None where the trace
    tells nothing of sharing."""
    details: Mapping[str, object] = field(default_factory=dict)
    """Facts of this policy only, such as a pool's blocks: JSON values."""
    driver_calls: tuple[DriverCall, ...] | None = None
    """With `log` on: every memory operation in order."""

    def __repr__(self) -> str:
        return f"<PolicyRun {self.label}: {self.trace.name}, {len(self.trace):,} requests>"

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The measured numbers, as in the JSON."""
        return summarize(self.trace, self.recorder)

    def as_json(self) -> dict[str, Any]:
        """This run's object in the JSON document."""
        return {
            "policy": self.policy,
            "label": self.label,
            "parameters": dict(self.parameters),
            "compute": self.compute,
            "memory_backend": self.memory_backend,
            "clock": self.clock,
            "kernel": self.kernel,
            "layout": self.layout,
            "chunk_bytes": self.chunk_bytes,
            "limit_bytes": self.limit_bytes,
            **self.summary,
            "details": dict(self.details),
        }

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row a request; see `vtsim.metrics.frames.request_frame`."""
        return frames.request_frame(self.trace, self.recorder, self.ideal_hits)

    @cached_property
    def timeline(self) -> pd.DataFrame:
        """One row a memory sample: time_s and bytes by category."""
        return frames.timeline_frame(self.recorder)

    @cached_property
    def calls(self) -> pd.DataFrame:
        """One row a memory operation. `ConfigError` unless the replay kept a log."""
        if self.driver_calls is None:
            raise ConfigError("calls: no memory operation was kept; replay with log=True")
        return frames.call_frame(self.driver_calls)

    @cached_property
    def decisions(self) -> pd.DataFrame:
        """One row a decision about a request; empty unless the replay kept decisions."""
        return frames.decision_frame(self.trace, self.recorder)

    def longest_free_s(self, nbytes: int) -> float:
        """Longest unbroken time, in seconds, during which at least `nbytes` were free."""
        return exact.seconds(longest_free(samples_of(self.recorder), nbytes))


@dataclass(frozen=True, eq=False)
class RunResult:
    """The outcome of one replay: the same trace through several policies."""

    trace: Trace
    """The trace as it was read and replayed."""
    model: str
    gpu: str
    profile_sha256: str
    tp: int
    seed: int
    max_model_len: int
    options: Mapping[str, object]
    """The options that change results: JSON values."""
    runs: tuple[PolicyRun, ...]
    version: str
    ideal_hits: IntArray | None = None
    """As `PolicyRun.ideal_hits`: it depends on the trace only."""

    def __repr__(self) -> str:
        labels = ", ".join(run.label for run in self.runs)
        return (
            f"<RunResult: {self.trace.name}, {len(self.trace):,} requests, "
            f"{self.model} on {self.gpu}: {labels}>"
        )

    def __getitem__(self, label: str) -> PolicyRun:
        """The run of a policy, by its label (its name, unless it was given another)."""
        for run in self.runs:
            if run.label == label:
                return run
        raise KeyError(f"no run {label!r}; there are {', '.join(run.label for run in self.runs)}")

    @property
    def requests(self) -> pd.DataFrame:
        """All runs' requests, a `policy` column first."""
        return self._joined("requests")

    @property
    def timeline(self) -> pd.DataFrame:
        """All runs' memory samples, a `policy` column first."""
        return self._joined("timeline")

    @property
    def calls(self) -> pd.DataFrame:
        """All runs' memory operations, a `policy` column first. `ConfigError` without a log."""
        return self._joined("calls")

    @property
    def decisions(self) -> pd.DataFrame:
        """All runs' decisions, a `policy` column first."""
        return self._joined("decisions")

    def _joined(self, table: str) -> pd.DataFrame:
        import pandas as pd

        parts = [(run.label, getattr(run, table)) for run in self.runs]
        # Empty frames have no useful dtypes and would turn the others' columns into objects.
        filled = [(label, part) for label, part in parts if len(part)] or parts[:1]
        whole: pd.DataFrame = pd.concat([part for _, part in filled], ignore_index=True)
        labels = [label for label, part in filled for _ in range(len(part))]
        whole.insert(0, "policy", labels)
        return whole

    def as_json(self) -> dict[str, Any]:
        """The JSON document as Python values, keys in their fixed order."""
        trace, report = self.trace, self.trace.report
        return {
            "schema": SCHEMA,
            "vtsim": self.version,
            "trace": {
                "path": trace.name,
                "sha256": trace.sha256,
                "requests": len(trace),
                "prompt_tokens": exact.total(trace.prompt_tokens),
                "output_tokens": exact.total(trace.output_tokens),
                "ideal_hit_tokens": None
                if self.ideal_hits is None
                else exact.total(self.ideal_hits),
                "format": report.format,
                "rows_read": report.rows_read,
                "rows_kept": report.rows_kept,
                "dropped": dict(sorted(report.dropped.items())),
            },
            "model": self.model,
            "gpu": self.gpu,
            "profile_sha256": self.profile_sha256,
            "tp": self.tp,
            "seed": self.seed,
            "max_model_len": self.max_model_len,
            "options": dict(self.options),
            "runs": [run.as_json() for run in self.runs],
            "definitions": as_json(),
        }

    def to_json(self) -> str:
        """The JSON document: byte-identical for the same trace, options and seed."""
        return json.dumps(self.as_json(), indent=1, allow_nan=False) + "\n"

    def save_json(self, path: str | Path) -> None:
        """Write the JSON document; a regular file appears whole or not at all."""
        output.write_text(path, self.to_json())

    def save(self, folder: str | Path) -> None:
        """Write the JSON document and the tables, each as CSV and Parquet, into `folder`.

        Tables of an earlier run there are replaced or removed; other files stay. A folder that
        holds files but no earlier run is refused (`ConfigError`).
        """
        output.check_folder(folder, RESULT_FILE)
        output.write_folder(folder, self.writers(), KNOWN_FILES)

    def writers(self) -> dict[str, Callable[[Path], None]]:
        """What `save` writes: each file's name, and what writes it at a path."""
        writers: dict[str, Callable[[Path], None]] = {
            RESULT_FILE: lambda path: output.write_plain(path, self.to_json())
        }
        for table in self._tables():
            frame = getattr(self, table)
            writers[f"{table}.csv"] = partial(frames.write_csv, frame)
            writers[f"{table}.parquet"] = partial(frames.write_parquet, frame)
        return writers

    def _tables(self) -> Iterable[str]:
        for table in TABLES:
            if table != "calls" or any(run.driver_calls is not None for run in self.runs):
                yield table
