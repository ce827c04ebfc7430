"""What a replay of tenants gives back: each tenant's results as ever, and the GPU's.

Everything is derived from recorders; nothing here runs anything. A tenant's results are a
`RunResult`, with one more category of memory: `others`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from vtsim.metrics import exact, frames, output
from vtsim.metrics.beside import TenantRecorder
from vtsim.metrics.definitions import Definition
from vtsim.metrics.recorder import Outcome, Recorder
from vtsim.metrics.result import (
    GPU_TABLE,
    KNOWN_FILES,
    RESULT_FILE,
    SCHEMA,
    PolicyRun,
    RunResult,
)
from vtsim.metrics.summary import completed, memory_numbers, samples_of, summarize
from vtsim.request import TICKS_PER_S

if TYPE_CHECKING:
    import pandas as pd

DEFINITIONS: dict[str, Definition] = {
    "memory.others": Definition(
        "bytes", "what other tenants hold of the GPU: weights, workspace, context and KV"
    ),
    "limit_bytes": Definition("bytes", "the most KV memory that the tenant may hold"),
    "shared.floor_bytes": Definition("bytes", "KV memory that nobody takes from the tenant"),
    "shared.gave_bytes": Definition("bytes", "idle memory given back because others asked"),
    "shared.got_bytes": Definition("bytes", "memory that others gave back for the tenant"),
    "shared.memory_waits": Definition(
        "", "times it had nothing to launch until others' memory had come"
    ),
}
"""Of a tenant's run, beside those of any run."""

GPU_DEFINITIONS: dict[str, Definition] = {
    "gpu.duration_s": Definition("s", "from the first kept arrival to the last tenant's end"),
    "gpu.requests": Definition("", "of all tenants together"),
    "gpu.throughput": Definition("", "of all tenants together, over gpu.duration_s"),
    "gpu.memory": Definition(
        "bytes", "as of a run; each category is the sum over tenants, sampled whenever one is"
    ),
    "gpu.compute_s": Definition("s", "time in which a step of any tenant ran"),
    "gpu.compute_share": Definition("1", "gpu.compute_s / gpu.duration_s"),
    "gpu.reclaimed": Definition(
        "bytes", "what each tenant gave back for each other, and in how many times"
    ),
    "shared_bytes": Definition("bytes", "KV memory of all tenants together"),
    "elastic": Definition("", "whether the policy gives back what it took at set-up"),
}


def _as_json(definitions: Mapping[str, Definition]) -> dict[str, dict[str, str]]:
    return {
        name: {"unit": definition.unit, "definition": definition.text}
        for name, definition in definitions.items()
    }


@dataclass(frozen=True, eq=False, kw_only=True)
class TenantRun(PolicyRun):
    """One tenant under one policy."""

    floor_bytes: int
    gave_bytes: int
    got_bytes: int
    memory_waits: int

    @cached_property
    def summary(self) -> dict[str, Any]:
        """As of any run, with `others` among the categories, and what it gave and got."""
        assert isinstance(self.recorder, TenantRecorder)
        summary = summarize(self.trace, self.recorder)
        times = samples_of(self.recorder)[:, 0]
        others = np.array(self.recorder.others, dtype=np.int64)
        held, span = np.diff(times, prepend=0), int(times[-1]) if len(times) else 0
        memory = summary["memory"]
        memory["peak_bytes"]["others"] = int(others.max(initial=0))
        memory["mean_bytes"]["others"] = (
            exact.ratio(exact.dot(others, held), span, digits=3) if span else 0.0
        )
        summary["shared"] = {
            "floor_bytes": self.floor_bytes,
            "gave_bytes": self.gave_bytes,
            "got_bytes": self.got_bytes,
            "memory_waits": self.memory_waits,
        }
        return summary

    @cached_property
    def timeline(self) -> pd.DataFrame:
        """As of any run, with a column `others` before `free`."""
        assert isinstance(self.recorder, TenantRecorder)
        frame = frames.timeline_frame(self.recorder)
        frame.insert(len(frame.columns) - 1, "others", list(self.recorder.others))
        return frame


@dataclass(frozen=True, eq=False)
class TenantResult(RunResult):
    """One tenant under every policy: a `RunResult` whose runs are `TenantRun`s."""

    def as_json(self) -> dict[str, Any]:
        whole = super().as_json()
        whole["definitions"] |= _as_json(DEFINITIONS)
        return whole


class Reclaimed(NamedTuple):
    """What one tenant gave back for another."""

    giver: str
    taker: str
    nbytes: int
    times: int


@dataclass(frozen=True, eq=False)
class GpuRun:
    """All tenants under one policy, on one GPU."""

    label: str
    policy: str
    elastic: bool
    """False: the policy takes its memory at set-up, and each tenant has a fixed part."""
    shared_bytes: int
    """KV memory of all tenants together."""
    recorder: Recorder
    runs: tuple[TenantRun, ...]
    reclaimed: tuple[Reclaimed, ...]

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The GPU's numbers, as in the JSON."""
        prompt = output_tokens = answered = 0
        for run in self.runs:
            rows = completed(run.trace, run.recorder).rows
            prompt += exact.total(run.trace.prompt_tokens[rows])
            output_tokens += exact.total(run.trace.output_tokens[rows])
            answered += len(rows)
        end = self.recorder.end

        def rate(count: int) -> float:
            return exact.ratio(count * TICKS_PER_S, end) if end else 0.0

        recorders = [run.recorder for run in self.runs]
        busy = sum(recorder.compute_ticks for recorder in recorders)
        return {
            "duration_s": exact.seconds(end),
            "requests": {
                "completed": answered,
                "rejected": sum(r.outcome.count(Outcome.REJECTED) for r in recorders),
                "preemptions": sum(sum(r.preemptions) for r in recorders),
            },
            "throughput": {
                "output_tokens_per_s": rate(output_tokens),
                "total_tokens_per_s": rate(prompt + output_tokens),
                "requests_per_s": rate(answered),
            },
            "memory": memory_numbers(self.recorder),
            "compute_s": exact.seconds(busy),
            "compute_share": exact.ratio(busy, end) if end else 0.0,
            "reclaimed": [
                {"from": r.giver, "to": r.taker, "bytes": r.nbytes, "times": r.times}
                for r in self.reclaimed
            ],
        }

    @cached_property
    def timeline(self) -> pd.DataFrame:
        """One row a memory sample of any tenant: time_s and the GPU's bytes by category."""
        return frames.timeline_frame(self.recorder)


@dataclass(frozen=True, eq=False)
class TenantsResult:
    """The outcome of one replay of tenants: the same tenants under several policies."""

    tenants: Mapping[str, TenantResult]
    """Each tenant's results under every policy, by its name."""
    runs: tuple[GpuRun, ...]
    limits: Mapping[str, int | None]
    """As they were asked for."""

    def __repr__(self) -> str:
        labels = ", ".join(run.label for run in self.runs)
        return f"<TenantsResult: {', '.join(self.tenants)} under {labels}>"

    def __getitem__(self, label: str) -> GpuRun:
        """The GPU's run under a policy, by its label."""
        for run in self.runs:
            if run.label == label:
                return run
        raise KeyError(f"no run {label!r}; there are {', '.join(run.label for run in self.runs)}")

    def as_json(self) -> dict[str, Any]:
        """The JSON document as Python values, keys in their fixed order."""
        first = next(iter(self.tenants.values())).as_json()
        return {
            "schema": SCHEMA,
            **{name: first[name] for name in ("vtsim", "gpu", "profile_sha256", "tp", "seed")},
            "options": first["options"],
            "tenants": [
                {
                    "tenant": name,
                    "asked_limit_bytes": self.limits[name],
                    **{part: whole[part] for part in ("trace", "model", "max_model_len")},
                }
                for name, whole in (
                    (name, result.as_json()) for name, result in self.tenants.items()
                )
            ],
            "runs": [
                {
                    "policy": run.policy,
                    "label": run.label,
                    "elastic": run.elastic,
                    "shared_bytes": run.shared_bytes,
                    "gpu": run.summary,
                    "tenants": [
                        {"tenant": name, **own.as_json()}
                        for name, own in zip(self.tenants, run.runs, strict=True)
                    ],
                }
                for run in self.runs
            ],
            "definitions": first["definitions"] | _as_json(GPU_DEFINITIONS),
        }

    def to_json(self) -> str:
        """The JSON document: byte-identical for the same traces, options and seed."""
        return json.dumps(self.as_json(), indent=1, allow_nan=False) + "\n"

    def save_json(self, path: str | Path) -> None:
        """Write the JSON document; a regular file appears whole or not at all."""
        output.write_text(path, self.to_json())

    @property
    def timeline(self) -> pd.DataFrame:
        """The GPU's memory samples under every policy, a `policy` column first."""
        import pandas as pd

        parts = [run.timeline for run in self.runs]
        whole: pd.DataFrame = pd.concat(parts, ignore_index=True)
        labels = [run.label for run in self.runs for _ in range(len(run.timeline))]
        whole.insert(0, "policy", labels)
        return whole

    def save(self, folder: str | Path) -> None:
        """Write the JSON document and the GPU's samples into `folder`, and each tenant's tables
        into a folder of its name there, as `RunResult.save` does: `vtsim explain` reads those.

        A folder that holds files but no earlier run is refused (`ConfigError`).
        """
        output.check_folder(folder, RESULT_FILE)
        frame = self.timeline
        writers: dict[str, Callable[[Path], None]] = {
            RESULT_FILE: lambda path: output.write_plain(path, self.to_json()),
            f"{GPU_TABLE}.csv": partial(frames.write_csv, frame),
            f"{GPU_TABLE}.parquet": partial(frames.write_parquet, frame),
        }
        known = set(KNOWN_FILES)
        for name, result in self.tenants.items():
            output.check_folder(Path(folder) / name, RESULT_FILE)
            writers |= {f"{name}/{file}": write for file, write in result.writers().items()}
            known |= {f"{name}/{file}" for file in KNOWN_FILES}
        output.write_folder(folder, writers, frozenset(known))  # all tenants' or nothing
