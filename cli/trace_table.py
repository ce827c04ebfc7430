"""Prints what `vtsim trace info` found as rich tables."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from vtsim.cli.console import console


def print_facts(facts: dict[str, Any]) -> None:
    """`facts` as `vtsim.traces.stats.describe` gives them."""
    out = console()
    trace = facts["trace"]
    out.print(f"{trace['path']}: {trace['format']}, sha256 {trace['sha256'][:16]}", markup=False)
    out.print(facts["rows_text"], markup=False)
    _lengths(out, facts)
    _arrivals(out, facts)
    _sharing(out, facts)
    for line in facts["warnings"]:
        out.print(f"warning: {line}", markup=False, style="yellow")


def _lengths(out: Console, facts: dict[str, Any]) -> None:
    table = Table(title="tokens", title_justify="left")
    columns = ("total", "mean", "min", "p25", "p50", "p75", "p90", "p95", "p99", "max")
    table.add_column("")
    for name in columns:
        table.add_column(name, justify="right")
    for label, key in (("prompt", "prompt_tokens"), ("output", "output_tokens")):
        values = facts[key]
        table.add_row(label, *(f"{values[name]:,.0f}" for name in columns))
    out.print(table)


def _arrivals(out: Console, facts: dict[str, Any]) -> None:
    arrivals, sessions = facts["arrivals"], facts["sessions"]
    table = Table(title="arrivals and conversations", title_justify="left", show_header=False)
    table.add_column("what")
    table.add_column("value", justify="right")
    table.add_row("requests", f"{facts['requests']:,}")
    table.add_row("span", f"{arrivals['span_s']:,.3f} s")
    if arrivals["made"]:
        table.add_row("arrivals made", arrivals["made"])
    for key, label, form in (
        ("rate_per_s", "rate", "{:,.3f} /s"),
        ("interval_cv", "intervals' coefficient of variation (Poisson: 1)", "{:.2f}"),
        ("peak_to_mean", "busiest hundredth of the span, of the mean", "{:.2f} x"),
        ("resolution_s", "resolution", "{:g} s"),
    ):
        if arrivals[key] is not None:
            table.add_row(label, form.format(arrivals[key]))
    table.add_row("requests that wait for others", f"{arrivals['waiting']:,}")
    table.add_row("conversations", f"{sessions['conversations']:,}")
    table.add_row("requests of the longest conversation", f"{sessions['requests_max']:,}")
    out.print(table)


def _sharing(out: Console, facts: dict[str, Any]) -> None:
    sharing = facts["sharing"]
    if sharing is None:
        out.print("sharing: unknown (no hash ids, no turns of sessions)")
        return
    table = Table(title="sharing, infinite cache", title_justify="left", show_header=False)
    table.add_column("what")
    table.add_column("value", justify="right")
    total = facts["prompt_tokens"]["total"]
    table.add_row("ideal prefix hit, of prompt tokens", f"{100 * sharing['hit_rate']:.2f} %")
    table.add_row("ideal prefix hit", f"{sharing['hit_tokens']:,} tokens")
    if sharing["hit_tokens_prompts_only"] != sharing["hit_tokens"]:
        share = sharing["hit_tokens_prompts_only"] / total
        table.add_row("the same without outputs in the cache", f"{100 * share:.2f} %")
    table.add_row(
        "prompt tokens of known content", f"{100 * sharing['known_tokens'] / total:.2f} %"
    )
    if sharing["block_size"]:
        table.add_row("tokens a hash id", f"{sharing['block_size']:,}")
        table.add_row("distinct hash ids", f"{sharing['distinct_blocks']:,}")
    out.print(table)
