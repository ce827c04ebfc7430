"""What a replay says before it runs: the trace, the card, every default, every assumed value."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from vtsim.api import Replay
from vtsim.parameters import parameters_of
from vtsim.quantities import format_bytes

INDENT = " " * 9


def lines(
    replay: Replay, width: int, verbose: bool = False, model: str = "", gpu: str = ""
) -> Iterator[str]:
    """The heading, wrapped to `width` columns. `verbose` lists the assumed numbers; `model` and
    `gpu` as they were asked for: a file is shown beside the name that it states."""
    for line in _facts(replay, verbose, model, gpu):
        yield from wrapped(line, width)


def wrapped(line: str, width: int) -> list[str]:
    """A fact in lines of at most `width` columns."""
    return textwrap.wrap(
        line, width, subsequent_indent=INDENT, break_long_words=False, break_on_hyphens=False
    )


def _facts(replay: Replay, verbose: bool, model_asked: str, gpu_asked: str) -> Iterator[str]:
    trace, report = replay.trace, replay.trace.report
    prompt, output = int(trace.prompt_tokens.sum()), int(trace.output_tokens.sum())
    yield (
        f"trace    {trace.name} ({report.format}): {len(trace):,} requests, "
        f"{prompt:,} prompt + {output:,} output tokens, "
        + (
            "sharing unknown"
            if replay.ideal_hits is None
            else f"ideal prefix hit {int(replay.ideal_hits.sum()) / prompt:.2%}".replace("%", " %")
        )
    )
    dropped = sum(report.dropped.values())
    reasons = ", ".join(f"{name} {count:,}" for name, count in sorted(report.dropped.items()))
    yield (
        f"         rows read {report.rows_read:,} = kept {report.rows_kept:,} + "
        f"dropped {dropped:,}" + (f" ({reasons})" if reasons else "")
    )
    if report.rows_moved:
        yield f"         {report.rows_moved:,} rows were out of time order and were sorted"
    for warning in report.warnings:
        # A replay's own options say how long is too long.
        shown = warning.replace(" (extra.overflow)", "; see --max-model-len and --on-overflow")
        yield f"         warning: {shown}"
    model, gpu, budget, options = replay.model, replay.gpu, replay.budget, replay.options
    yield (
        f"model    {model.name}{_file(model_asked, model.name)}, "
        f"tp {replay.tp}, KV {options.kv_dtype}: "
        f"{format_bytes(model.token_bytes(replay.tp))} a token, "
        f"max_model_len {replay.max_model_len:,}"
    )
    yield (
        f"gpu      {gpu.name}{_file(gpu_asked, gpu.name)}: "
        f"{format_bytes(budget.capacity_bytes)}; weights "
        f"{format_bytes(budget.weights_bytes)}, workspace {format_bytes(budget.workspace_bytes)}, "
        f"KV limit {format_bytes(budget.limit_bytes)}"
    )
    yield from settings(replay, verbose)


def settings(replay: Replay, verbose: bool = False) -> Iterator[str]:
    """The profile's assumed numbers, the options, each policy's parameters."""
    gpu, options = replay.gpu, replay.options
    assumed = gpu.assumed()
    if assumed:
        yield (
            f"assumed  {len(assumed)} of {len(gpu.provenance)} numbers of the profile have no "
            + (f"source: {grouped(assumed)}" if verbose else "source (-v lists them)")
        )
    yield (
        f"options  max_num_seqs {options.max_num_seqs}, max_batched_tokens "
        f"{options.max_batched_tokens}, gpu_memory_utilization {options.gpu_memory_utilization}, "
        f"speed {options.speed}, on_overflow {options.on_overflow}, admit {options.admit}, "
        f"victim {options.victim}, preemption {options.preemption}"
        + (f" ({format_bytes(options.swap_memory)})" if options.preemption == "swap" else "")
        + f", seed {options.seed}"
    )
    for number, choice in enumerate(replay.choices):
        shown_parameters = ", ".join(
            f"{parameter.name} {parameter.show(getattr(choice.parameters, parameter.name))}"
            for parameter in parameters_of(choice.policy.parameters_type)
        )
        yield (
            ("policies " if number == 0 else "         ")
            + f"{choice.label}: kernel {replay.kernels[choice.label]}"
            + (f", {shown_parameters}" if shown_parameters else "")
        )


def _file(asked: str, name: str) -> str:
    return f" ({asked})" if asked not in ("", name) else ""


def grouped(keys: list[str]) -> str:
    """Dotted names, those of one table together: `links: a b; decode.flash: c`."""
    tables: dict[str, list[str]] = {}
    for key in keys:
        table, _, name = key.rpartition(".")
        tables.setdefault(table, []).append(name)
    return "; ".join(f"{table}: {' '.join(names)}" for table, names in tables.items())
