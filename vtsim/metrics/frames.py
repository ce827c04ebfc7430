"""The tables of a result: requests, timeline, calls, decisions, as pandas frames and as files.

pandas is imported when a frame is asked for. Times are seconds, sizes bytes; a column holds the
same unit everywhere (docs/metrics.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vtsim.metrics.definitions import CATEGORIES
from vtsim.metrics.recorder import SAMPLE_COLUMNS, UNSET, Outcome, Recorder
from vtsim.metrics.summary import arrivals, samples_of
from vtsim.plan import OpKind, Phase
from vtsim.ports import DriverCall
from vtsim.request import TICKS_PER_S, IntArray, Trace

if TYPE_CHECKING:
    import pandas as pd


def _seconds(ticks: IntArray) -> Any:
    """Ticks as float seconds, NaN where unset."""
    return np.where(ticks == UNSET, np.nan, ticks / TICKS_PER_S)


def request_frame(
    trace: Trace, recorder: Recorder, ideal_hits: IntArray | None = None
) -> pd.DataFrame:
    """One row a request, in trace order. Times are NaN where they never came, `ideal_hit_tokens`
    is missing where the trace tells nothing of sharing."""
    import pandas as pd

    count = len(trace)
    arrival = arrivals(trace, recorder)
    admitted, first, last = (
        np.array(column, dtype=np.int64)
        for column in (recorder.admitted_at, recorder.first_token_at, recorder.finished_at)
    )
    outcome = np.frombuffer(bytes(recorder.outcome), dtype=np.uint8)
    answered = outcome == Outcome.COMPLETED
    between = np.asarray(trace.output_tokens) - 1

    def span(later: IntArray, earlier: IntArray, where: Any) -> Any:
        return np.where(where, (later - earlier) / TICKS_PER_S, np.nan)

    paced = answered & (between > 0)
    names = [str(o.name).lower() for o in Outcome]
    sessions = trace.session_names
    return pd.DataFrame(
        {
            "request": [trace.id_of(row) for row in range(count)],
            "arrival_s": _seconds(arrival),
            "prompt_tokens": trace.prompt_tokens,
            "output_tokens": trace.output_tokens,
            "priority": trace.priority,
            "session": [sessions[s] if s >= 0 else None for s in trace.session.tolist()],
            "turn": trace.turn,
            "outcome": [names[code] for code in outcome.tolist()],
            "reason": [recorder.reasons.get(row) for row in range(count)],
            "admitted_s": _seconds(admitted),
            "first_token_s": _seconds(first),
            "finished_s": _seconds(last),
            "queue_s": span(admitted, arrival, admitted != UNSET),
            "ttft_s": span(first, arrival, first != UNSET),
            "tpot_s": np.where(paced, (last - first) / np.maximum(between, 1), np.nan)
            / TICKS_PER_S,
            "e2e_s": span(last, arrival, answered),
            "hit_tokens": np.array(recorder.hit_tokens, dtype=np.int64),
            "ideal_hit_tokens": pd.array(
                [None] * count if ideal_hits is None else ideal_hits, dtype="Int64"
            ),
            "rehit_tokens": np.array(recorder.rehit_tokens, dtype=np.int64),
            "preemptions": np.array(recorder.preemptions, dtype=np.int64),
        }
    )


def timeline_frame(recorder: Recorder) -> pd.DataFrame:
    """One row a memory sample: its time and the bytes of every category held until then."""
    import pandas as pd

    samples = samples_of(recorder)
    constant = {
        "weights": recorder.weights_bytes,
        "workspace": recorder.workspace_bytes,
        "context": recorder.context_bytes,
    }
    columns: dict[str, Any] = {"time_s": samples[:, 0] / TICKS_PER_S}
    for category in CATEGORIES:
        columns[category] = (
            np.full(len(samples), constant[category], dtype=np.int64)
            if category in constant
            else samples[:, SAMPLE_COLUMNS.index(category)]
        )
    return pd.DataFrame(columns)


def call_frame(calls: Iterable[DriverCall]) -> pd.DataFrame:
    """One row a memory operation, in the order in which the backend carried them out."""
    import pandas as pd

    kinds = [kind.name.lower() for kind in OpKind]
    phases = [phase.name.lower() for phase in Phase]
    rows = [
        (
            call.step,
            phases[call.phase],
            kinds[call.operation.kind],
            call.operation.chunk,
            call.operation.arena,
            call.operation.slot,
            call.operation.index,
            call.operation.nbytes,
            call.operation.offset,
            call.operation.source,
        )
        for call in calls
    ]
    names = "step phase kind chunk arena slot index nbytes offset source".split()
    return pd.DataFrame(rows, columns=names)


def decision_frame(trace: Trace, recorder: Recorder) -> pd.DataFrame:
    """One row a decision about a request, in the order in which they were made."""
    import pandas as pd

    rows = [
        (trace.id_of(row), step, time / TICKS_PER_S, decision, reason, short)
        for row, step, time, decision, reason, short in recorder.decision_rows
    ]
    names = ["request", "step", "time_s", "decision", "reason", "bytes_short"]
    return pd.DataFrame(rows, columns=names)


def write_csv(frame: pd.DataFrame, path: Path) -> None:
    """CSV with unix line ends whatever the system, shortest floats, empty cells for missing."""
    frame.to_csv(path, index=False, lineterminator="\n")


def write_parquet(frame: pd.DataFrame, path: Path) -> None:
    """Parquet; ids of mixed type are written as text."""
    for name in ("request", "session"):
        if name in frame and frame[name].dtype == object:
            frame = frame.assign(**{name: frame[name].map(_text, na_action="ignore")})
    frame.to_parquet(path, engine="pyarrow", index=False)


def _text(value: object) -> str:
    return str(value)
