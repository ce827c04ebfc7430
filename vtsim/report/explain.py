"""Why a request waited, was preempted or missed its prefix: a saved run's decisions, in words.

Reads the tables of `RunResult.save`; decides nothing and computes no metric.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vtsim.errors import ConfigError
from vtsim.metrics.result import GPU_TABLE
from vtsim.quantities import format_bytes, format_seconds

if TYPE_CHECKING:
    import pandas as pd

WAITS = {
    "max_num_seqs": "as many sequences ran as --max-num-seqs allows",
    "max_batched_tokens": "the step was full (--max-batched-tokens)",
    "memory": "memory was short",
    "slots": "no slot of virtual addresses was free",
    "shortage": "memory was short",
}
MISSES = {
    "evicted": "they had been computed, but were not kept, or evicted since",
    "computing": "only sequences that still run hold them",
    "rounding": "less than the policy shares at once",
}
_COLUMNS = {
    "requests": (
        *("policy", "request", "arrival_s", "prompt_tokens", "output_tokens", "outcome", "reason"),
        *("preemptions", "hit_tokens", "ideal_hit_tokens", "queue_s", "ttft_s", "tpot_s", "e2e_s"),
    ),
    "decisions": ("policy", "request", "step", "time_s", "decision", "reason", "bytes_short"),
    "timeline": ("policy", "time_s", "free"),
}
REJECTIONS = {
    "max_model_len": "prompt + output exceed max_model_len",
    "capacity": "it cannot fit even alone",
}


def explain(folder: Path, request: str, policy: str | None = None) -> Iterator[str]:
    """Lines about one request, for each policy of the run or for one.

    Raises `ConfigError`: no saved run, no such policy or request.
    """
    requests, decisions = read_table(folder, "requests"), read_table(folder, "decisions")
    policies = list(dict.fromkeys(requests["policy"]))
    if policy is not None:
        if policy not in policies:
            raise ConfigError(f"{folder}: no policy {policy!r} (there are: {', '.join(policies)})")
        policies = [policy]
    rows = requests[requests["request"].astype(str) == request]
    if not len(rows):
        first = str(requests["request"].iloc[0])
        raise ConfigError(f"{folder}: no request {request!r} (the first is {first!r})")
    for number, label in enumerate(policies):
        if number:
            yield ""
        row = rows[rows["policy"] == label].iloc[0].to_dict()
        made = decisions[
            (decisions["policy"] == label) & (decisions["request"].astype(str) == request)
        ]
        yield from _story(label, row, made.sort_values("time_s", kind="stable"))


def read_table(folder: Path, table: str) -> pd.DataFrame:
    """A table of a saved run. Raises `ConfigError`: it is not there, or no such table."""
    import pandas as pd

    path = folder / f"{table}.parquet"
    if not path.is_file():
        if (folder / f"{GPU_TABLE}.parquet").is_file():
            raise ConfigError(f"{folder}: a run of tenants; name the folder of one in it")
        raise ConfigError(
            f"{folder}: not a saved run, {path.name} is missing (replay --out makes it)"
        )
    try:
        read = pd.read_parquet(path)
    except Exception as error:  # pyarrow has errors of many kinds for what is no Parquet
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    missing = [name for name in _COLUMNS[table] if name not in read.columns]
    if missing or (table == "requests" and not len(read)):
        why = f"no column {missing[0]!r}" if missing else "it is empty"
        raise ConfigError(f"{path}: not a saved run's table: {why}")
    return read


def _story(label: str, row: dict[str, Any], decisions: pd.DataFrame) -> Iterator[str]:
    yield (
        f"{label}: request {row['request']}, {row['prompt_tokens']:,} prompt + "
        f"{row['output_tokens']:,} output tokens: {_ending(row)}"
    )
    yield _line(row["arrival_s"], None, "arrived")
    made: list[Any] = list(decisions.itertuples(index=False))
    if made and made[0].time_s > row["arrival_s"] and made[0].decision in ("wait", "admit"):
        queued = format_seconds(made[0].time_s - row["arrival_s"])
        yield _line(row["arrival_s"], None, f"waited for {queued}: a step ran or others came first")
    for position, decision in enumerate(made):
        following = made[position + 1].time_s if position + 1 < len(made) else None
        yield _line(decision.time_s, decision.step, _words(decision, following, row))
    if row["outcome"] == "completed":
        parts = [
            f"{name} {format_seconds(row[column])}"
            for name, column in (
                ("queue", "queue_s"),
                ("TTFT", "ttft_s"),
                ("TPOT", "tpot_s"),
                ("E2E", "e2e_s"),
            )
            if row[column] == row[column]
        ]
        yield "  " + ", ".join(parts)


def _ending(row: dict[str, Any]) -> str:
    if row["outcome"] == "rejected":
        return f"rejected ({row['reason']}: {REJECTIONS.get(row['reason'], 'see the policy')})"
    times = row["preemptions"]
    suffix = f", preempted {times} time{'s' if times > 1 else ''}" if times else ""
    return f"{row['outcome']}{suffix}"


def _line(time_s: float, step: int | None, words: str) -> str:
    where = "" if step is None or step < 0 else f"step {step}"
    return f"  {time_s:>14.6f} s  {where:<12} {words}"


def _missed(row: dict[str, Any]) -> str:
    """What of the prompt had come before in the trace and was not in memory."""
    ideal = row["ideal_hit_tokens"]
    if ideal != ideal or ideal is None:
        return "; the trace does not say what it shares"
    ideal = min(int(ideal), row["prompt_tokens"] - 1)  # one token is always computed
    return f"; {ideal:,} was the most possible"


def _words(decision: Any, following: float | None, row: dict[str, Any]) -> str:
    kind, reason, short = decision.decision, decision.reason, decision.bytes_short
    missing = f", {format_bytes(short)} short" if short > 0 else ""
    if kind == "wait":
        until = "" if following is None else f" for {format_seconds(following - decision.time_s)}"
        return f"waited{until}: {WAITS.get(reason, reason)}{missing}"
    if kind == "admit":
        hit, prompt = int(row["hit_tokens"]), row["prompt_tokens"]
        return f"admitted: prefix hit {hit:,} of {prompt:,} tokens{_missed(row)}"
    if kind == "miss":
        word, tokens = reason.split()
        return f"missed {int(tokens):,} more tokens of its prefix: {MISSES[word]}"
    if kind == "readmit":
        return f"admitted again, to compute anew what it lost: {reason}"
    if kind == "preempt":
        return f"preempted, its memory went to others: {WAITS.get(reason, reason)}{missing}"
    if kind == "reject":
        return f"rejected: {REJECTIONS.get(reason, reason)}{missing}"
    if kind == "short":
        return f"refused: {REJECTIONS.get(reason, reason)}{missing}"
    if kind == "finish":
        return "finished"
    return f"{kind}: {reason}{missing}"
