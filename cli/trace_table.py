"""Prints what `vtsim trace info` found as rich tables."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from vtsim.cli.console import console
from vtsim.traces.origin import origin_lines

LABEL_WIDTH, NUMBER_WIDTH = 48, 12


def print_facts(facts: dict[str, Any]) -> None:
    """`facts` as `vtsim.traces.stats.describe` gives them."""
    out = console()
    trace = facts["trace"]
    out.print(f"{trace['path']}: {trace['format']}, sha256 {trace['sha256'][:16]}", markup=False)
    out.print(facts["rows_text"], markup=False)
    if trace["format"] == "native":  # of another file this is what the lines above say
        for line in origin_lines(facts["source"]):
            out.print(line, markup=False)
    for show in (_lengths, _arrivals, _sharing):
        out.print()
        show(out, facts)
    for line in facts["warnings"]:
        out.print(f"warning: {line}", markup=False, style="yellow")


def _plain(title: str, *columns: str) -> Table:
    """As `replay` prints: a rule below the head, and one row a fact, so that no number is cut."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column(title, header_style="dim", min_width=LABEL_WIDTH)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True, min_width=NUMBER_WIDTH)
    return table


def _lengths(out: Console, facts: dict[str, Any]) -> None:
    table = _plain("tokens", "prompt", "output")
    prompt, output = facts["prompt_tokens"], facts["output_tokens"]
    for name in ("total", "mean", "min", "p25", "p50", "p75", "p90", "p95", "p99", "max"):
        table.add_row(name, f"{prompt[name]:,.0f}", f"{output[name]:,.0f}")
    out.print(table)


def _arrivals(out: Console, facts: dict[str, Any]) -> None:
    arrivals, sessions = facts["arrivals"], facts["sessions"]
    table = _plain("arrivals and conversations", "")
    table.add_row("requests", f"{facts['requests']:,}")
    table.add_row("span", f"{arrivals['span_s']:,.3f} s")
    if facts["source"].get("time_unit"):
        table.add_row("times in the file count", str(facts["source"]["time_unit"]))
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
    table = _plain("sharing, infinite cache", "")
    if sharing is None:
        table.add_row("ideal prefix hit, of prompt tokens", "-")
        out.print(table)
        out.print("sharing: unknown (no hash ids, no turn that continues the one before)")
        return
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
