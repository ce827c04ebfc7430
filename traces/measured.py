"""Results of runs that were measured, with their latencies under `recorded`.

LLMServingSim's bench (`requests.jsonl`), AIPerf's `profile_export.jsonl`, vLLM's
`--save-result --save-detailed` JSON. What failed, was cancelled or belongs to a warm-up is dropped
and counted. Absent is unknown, never 0. No sharing is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from vtsim.errors import TraceFormatError
from vtsim.request import TICKS_PER_S, Tick, Trace
from vtsim.traces.builder import Times, TraceBuilder
from vtsim.traces.jsondoc import JsonDocument
from vtsim.traces.number import Where, one_line
from vtsim.traces.registry import Head, ReadOptions
from vtsim.traces.rows import json_rows, request_name
from vtsim.traces.source import Source


class ServingSimBenchReader:
    """Arrivals are `arrival_time`, the client's clock. The other stamps are the engine's clock, and
    latencies are differences of these alone: they count from `queued_ts`, when the request reached
    the engine. What lies between the two clocks is not known."""

    name = "llmservingsim-bench"
    summary = "LLMServingSim bench results JSONL"
    options: dict[str, str] = {}

    def detects(self, head: Head) -> bool:
        return head.has("input_toks", "output_toks", "arrival_time")

    def read(self, source: Source, options: ReadOptions) -> Trace:
        lengths, times = ("input_toks", "output_toks"), Times("arrival_time")
        builder = TraceBuilder(source, self.name, fields=lengths, times=times)
        where = builder.where
        known = frozenset(
            (
                *("request_id", "input_toks", "output_toks", "arrival_time", "queued_ts"),
                *("scheduled_ts", "first_token_ts", "last_token_ts"),
            )
        )
        names: set[object] = set()
        for row in json_rows(source, where):
            arrival = where.ticks(row.get("arrival_time"), "arrival_time", "s")
            prompt = where.count(row.get("input_toks"), "input_toks")
            output = where.count(row.get("output_toks"), "output_toks")
            if builder.drop_if_empty(prompt, output):
                continue
            at = {
                key: where.ticks(row[key], key, "s")
                for key in ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
                if row.get(key) is not None
            }
            stamps = list(at.items())  # in the order in which they happen
            for (before, low), (behind, high) in zip(stamps, stamps[1:], strict=False):
                if high < low:
                    raise where.error(f"stands before {before}", behind, row[behind])
            extra = builder.unknown(row, known)
            request_id = request_name(where, row.get("request_id"), names)
            builder.add(
                arrival,
                prompt,
                output,
                request_id=request_id,
                recorded=_latencies(output, at),
                extra=extra,
            )
        return builder.finish()


def _latencies(output: int, at: dict[str, Tick]) -> dict[str, object]:
    """What the engine's stamps tell, in seconds; nothing is known from the arrival on without
    `queued_ts`."""
    recorded: dict[str, object] = {}
    queued, first, last = (at.get(f"{key}_ts") for key in ("queued", "first_token", "last_token"))
    if queued is not None:
        if first is not None:
            recorded["ttft_s"] = _seconds(first - queued)
        if last is not None:
            recorded["duration_s"] = _seconds(last - queued)
        if "scheduled_ts" in at:
            recorded["queue_s"] = _seconds(at["scheduled_ts"] - queued)
    if first is not None and last is not None and output > 1:
        recorded["tpot_s"] = _seconds((last - first) / (output - 1))
    return recorded


def _seconds(ticks: float) -> float:
    return ticks / TICKS_PER_S


class AiperfResultsReader:
    """AIPerf's per-request records; metrics carry their unit."""

    name = "aiperf-results"
    summary = "AIPerf profile_export.jsonl"
    options: dict[str, str] = {}
    _KNOWN = frozenset(("metadata", "metrics", "error"))
    _METADATA = frozenset(
        (
            *("session_num", "conversation_id", "turn_index", "benchmark_phase", "was_cancelled"),
            *("request_start_ns", "request_ack_ns", "request_end_ns", "cancellation_time_ns"),
            *("worker_id", "record_processor_id", "x_request_id", "x_correlation_id"),
            *("credit_issued_ns", "agent_depth", "parent_correlation_id", "trace_data"),
        )
    )
    """What AIPerf defines, kept or not: the rest goes to `extra`."""
    _UNITS = {"ns": "ns", "us": "us", "ms": "ms", "s": "s", "sec": "s", "seconds": "s"}
    _TIMES = {
        "time_to_first_token": "ttft_s",
        "request_latency": "duration_s",
        "inter_token_latency": "tpot_s",
    }

    def detects(self, head: Head) -> bool:
        return head.has("metadata", "metrics")

    def read(self, source: Source, options: ReadOptions) -> Trace:
        lengths = "input_sequence_length", "output_sequence_length"
        times = Times("metadata.request_start_ns", unit="ns")
        builder = TraceBuilder(source, self.name, fields=lengths, times=times)
        where = builder.where
        for row in json_rows(source, where):
            about, metrics = row.get("metadata"), row.get("metrics")
            if type(about) is not dict or type(metrics) is not dict:
                raise where.error("is not an object", "metadata" if metrics else "metrics")
            reason = self._why_not(row, about, metrics)
            if reason:
                builder.drop(reason)
                continue
            start = where.ticks(about.get("request_start_ns"), "metadata.request_start_ns", "ns")
            prompt = self._count(where, metrics, "input_sequence_length")
            output = self._count(where, metrics, "output_sequence_length", "output_token_count")
            if builder.drop_if_empty(prompt, output):
                continue
            recorded: dict[str, object] = {}
            for tag, name in self._TIMES.items():
                if tag in metrics:
                    recorded[name] = self._time(where, metrics, tag)
            end = about.get("request_end_ns")
            if end is not None and "duration_s" not in recorded:
                ticks = where.ticks(end, "metadata.request_end_ns", "ns") - start
                if ticks < 0:
                    raise where.error(
                        "stands before request_start_ns", "metadata.request_end_ns", end
                    )
                recorded["duration_s"] = _seconds(ticks)
            session = about.get("conversation_id")
            turn = about.get("turn_index")
            extra = builder.unknown(row, self._KNOWN) | builder.unknown(about, self._METADATA)
            builder.add(
                start,
                prompt,
                output,
                session=None if session is None else str(session),
                recorded=recorded,
                extra=extra if turn is None else {"turn_index": turn, **extra},
            )
        return builder.finish()

    @staticmethod
    def _why_not(row: dict[str, Any], about: dict[str, Any], metrics: dict[str, Any]) -> str:
        if about.get("benchmark_phase", "profiling") != "profiling":
            return "warm_up"
        if about.get("was_cancelled"):
            return "cancelled"
        if row.get("error") is not None:
            return "failed"
        if "input_sequence_length" not in metrics:
            return "unknown_prompt_length"
        if not {"output_sequence_length", "output_token_count"} & metrics.keys():
            return "unknown_output_length"
        return ""

    @staticmethod
    def _value(where: Where, metrics: dict[str, Any], tag: str) -> tuple[object, object]:
        metric = metrics[tag]
        if type(metric) is not dict:
            raise where.error("is not an object", f"metrics.{tag}", metric)
        return metric.get("value"), metric.get("unit")

    def _count(self, where: Where, metrics: dict[str, Any], *tags: str) -> int:
        tag = next(tag for tag in tags if tag in metrics)
        return where.count(self._value(where, metrics, tag)[0], f"metrics.{tag}.value")

    def _time(self, where: Where, metrics: dict[str, Any], tag: str) -> float:
        value, unit = self._value(where, metrics, tag)
        if type(unit) is not str or unit not in self._UNITS:
            raise where.error("is no known unit of time", f"metrics.{tag}.unit", unit)
        return _seconds(where.ticks(value, f"metrics.{tag}.value", self._UNITS[unit]))


class VllmBenchReader:
    """One JSON document with a list for each quantity."""

    name = "vllm-bench"
    summary = "vLLM bench result JSON (--save-result --save-detailed)"
    options: dict[str, str] = {}
    _KNOWN = frozenset(
        (
            *("date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id"),
            *("num_prompts", "request_rate", "burstiness", "max_concurrency", "duration"),
            *("completed", "failed", "input_lens", "output_lens", "ttfts", "itls", "start_times"),
            *("errors", "generated_texts", "request_throughput", "request_goodput", "best_of"),
            *("output_throughput", "rtfx", "ramp_up_strategy", "ramp_up_start_rps"),
            *("ramp_up_end_rps", "request_goodput:", "input_token_ids"),
        )
    )
    _METRIC = re.compile(r"(total|mean|median|std|max|min|spec_decode|p[0-9.]+)_")
    """What vLLM defines, by name or, as a measure of the whole run, by how it begins."""
    _LISTS = ("input_lens", "output_lens", "ttfts", "itls", "start_times", "errors")

    def detects(self, head: Head) -> bool:
        return head.has("input_lens", "output_lens") or head.has("num_prompts", "completed")

    def read(self, source: Source, options: ReadOptions) -> Trace:
        where = source.where()
        where.line = 1
        lists: dict[str, list[Any]] = {}
        lines: dict[str, int] = {}
        about: dict[str, object] = {}
        others: dict[str, object] = {}
        for key, line, value in JsonDocument(source).members():
            where.line = lines[key] = line
            if key not in self._KNOWN and not self._METRIC.match(key):
                others[key] = value
            elif key in self._LISTS and value is not None:
                if type(value) is not list:
                    raise where.error("is not a list", key, value)
                lists[key] = value
            elif type(value) in (int, str, Decimal) and key in (
                "model_id",
                "backend",
                "request_rate",
            ):
                about[key] = value
        for key in ("input_lens", "output_lens"):
            if key not in lists:
                raise TraceFormatError(
                    "is missing: only a run with --save-detailed has each request",
                    path=source.path,
                    line=1,
                    field=key,
                )
        count = len(lists["input_lens"])
        each = {k: v for k, v in others.items() if type(v) is list and len(v) == count}
        if rest := {key: value for key, value in others.items() if key not in each}:
            about["others"] = rest
        for key, values in lists.items():
            if len(values) != count and not (key in ("itls", "ttfts", "errors") and not values):
                where.line = lines[key]
                raise where.error(f"has {len(values)} values where input_lens has {count}", key)
        lengths = "input_lens", "output_lens"
        times = Times("start_times")
        builder = TraceBuilder(source, self.name, fields=lengths, times=times, where=where)
        builder.about.update(about)
        builder.note_unknown(each)
        if rest:
            builder.warn(
                "keys of the run that this format does not define are kept in source.others: "
                + ", ".join(sorted(map(one_line, rest)))
            )
        for index in range(count):
            extra = {key: values[index] for key, values in each.items()}
            self._add(builder, where, lists, lines, index, extra)
        builder.schedule_untimed(options.schedule, field="start_times")
        return builder.finish()

    def _add(
        self,
        builder: TraceBuilder,
        where: Where,
        lists: dict[str, list[Any]],
        lines: dict[str, int],
        index: int,
        extra: dict[str, object],
    ) -> None:
        def at(key: str) -> Any:
            where.line = lines.get(key)
            return lists[key][index] if lists.get(key) else None

        prompt = where.count(at("input_lens"), f"input_lens[{index}]")
        output = where.count(at("output_lens"), f"output_lens[{index}]")
        if at("errors"):
            builder.drop("failed")
            return
        if builder.drop_if_empty(prompt, output):
            return
        recorded: dict[str, object] = {}
        start, ttft, gaps = at("start_times"), at("ttfts"), at("itls")
        arrival = None
        if start is not None:
            arrival = where.ticks(start, f"start_times[{index}]", "s", minimum=None)
        if ttft is not None:
            first = where.ticks(ttft, f"ttfts[{index}]", "s")
            recorded["ttft_s"] = _seconds(first)
            if gaps is not None:
                rest = sum(self._gaps(where, gaps, f"itls[{index}]"))
                recorded["duration_s"] = _seconds(first + rest)
                if output > 1:
                    recorded["tpot_s"] = _seconds(rest / (output - 1))
        where.line = lines["input_lens"]
        builder.add(arrival, prompt, output, recorded=recorded, extra=extra)

    @staticmethod
    def _gaps(where: Where, gaps: object, field: str) -> Iterator[Tick]:
        if type(gaps) is not list:
            raise where.error("is not a list", field, gaps)
        for k, gap in enumerate(gaps):
            yield where.ticks(gap, f"{field}[{k}]", "s")


SERVINGSIM_BENCH = ServingSimBenchReader()
AIPERF_RESULTS = AiperfResultsReader()
VLLM_BENCH = VllmBenchReader()
