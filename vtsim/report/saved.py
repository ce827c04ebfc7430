"""One policy's part of a saved run, ready to be laid beside another's.

Reads what `RunResult.save` has written; computes no metric.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vtsim.errors import ConfigError
from vtsim.metrics.result import RESULT_FILE
from vtsim.report.explain import read_table

if TYPE_CHECKING:
    import pandas as pd


class Decision(NamedTuple):
    """One row of decisions.parquet."""

    request: str
    step: int
    time_s: float
    decision: str
    reason: str
    bytes_short: int

    @property
    def what(self) -> tuple[str, str, str, int]:
        """What was decided, whenever it was."""
        return self.request, self.decision, self.reason, self.bytes_short


@dataclass(frozen=True, eq=False)
class Saved:
    """`label` of the run in `folder`. `requests` and `timeline` are this policy's rows."""

    folder: Path
    label: str
    document: Mapping[str, Any]
    decisions: list[Decision]
    requests: pd.DataFrame
    timeline: pd.DataFrame

    @property
    def run(self) -> Mapping[str, Any]:
        """Its object in the JSON document."""
        found: Mapping[str, Any] = next(
            run for run in self.document["runs"] if run["label"] == self.label
        )
        return found

    def inputs(self) -> dict[str, object]:
        """What the run depended on, flat: `trace`, `options.speed`, `parameters.lookahead`, ..."""
        document, run = self.document, self.run
        trace = document["trace"]
        given = {f"trace.{key}": trace.get(key) for key in ("path", "sha256", "requests")}
        for key in ("model", "gpu", "profile_sha256", "tp", "seed", "max_model_len"):
            given[key] = document.get(key)
        given.update(_flat("options", document["options"]))
        for key in ("policy", "kernel", "layout", "chunk_bytes", "limit_bytes"):
            given[key] = run.get(key)
        given.update(_flat("parameters", run.get("parameters", {})))
        return given


def labels_of(folder: Path) -> list[str]:
    """The policies of a saved run. Raises `ConfigError`: none is there."""
    return [run["label"] for run in _document(folder)["runs"]]


def read_saved(folder: Path, label: str) -> Saved:
    """Raises `ConfigError`: no saved run, no such policy in it."""
    document = _document(folder)
    labels = [run["label"] for run in document["runs"]]
    if label not in labels:
        raise ConfigError(f"{folder}: no policy {label!r} (there are: {', '.join(labels)})")
    tables = {name: read_table(folder, name) for name in ("decisions", "requests", "timeline")}
    own = {name: table[table["policy"] == label] for name, table in tables.items()}
    rows = own["decisions"]
    columns = [rows[name].tolist() for name in Decision._fields]
    decisions = [
        Decision(str(request), step, time_s, decision, reason or "", short)
        for request, step, time_s, decision, reason, short in zip(*columns, strict=True)
    ]
    return Saved(folder, label, document, decisions, own["requests"], own["timeline"])


def _document(folder: Path) -> Mapping[str, Any]:
    path = folder / RESULT_FILE
    if not path.is_file():
        raise ConfigError(
            f"{folder}: not a saved run, {path.name} is missing (replay --out makes it)"
        )
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(document, dict) and "tenants" in document:
            names = ", ".join(str(folder / each["tenant"]) for each in document["tenants"])
            raise ConfigError(f"{folder}: a run of tenants; name the folder of one ({names})")
        for key, kind in (("trace", dict), ("options", dict), ("runs", list)):
            if not isinstance(document[key], kind):
                raise ValueError(f"{key!r} is not what a run says")
        if not all(isinstance(run["label"], str) for run in document["runs"]):
            raise ValueError("'label' is not a name")
    except RecursionError:
        raise ConfigError(f"{path}: not a saved run's document: nested too deep") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: not a saved run's document: {error}") from None
    found: Mapping[str, Any] = document
    return found


def _flat(name: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat(f"{name}.{key}", item)
    else:
        yield name, value
