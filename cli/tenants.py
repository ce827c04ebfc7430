"""`vtsim replay --tenant ... --tenant ...`: several traces on one GPU, printed and written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from vtsim.cli import heading
from vtsim.errors import ConfigError
from vtsim.metrics.progress import Progress
from vtsim.quantities import format_bytes
from vtsim.report import tenants as report
from vtsim.tenants import (
    DEFAULT_POLICIES,
    Tenant,
    TenantsReplay,
    parse_tenant,
    prepare_tenants,
)

if TYPE_CHECKING:
    from rich.console import Console

    from vtsim.metrics.tenants import TenantsResult


def parse(texts: list[str] | None, trace: str | None, model: str | None) -> list[Tenant] | None:
    """The tenants, None where a single trace is replayed. `ConfigError` for both or neither."""
    if not texts:
        if trace is None:
            raise ConfigError(
                "Missing argument 'TRACE', or --tenant twice or more (see 'vtsim replay --help')"
            )
        return None
    if trace is not None:
        raise ConfigError(f"{trace} and --tenant: each tenant has its own trace")
    if model is not None:
        raise ConfigError(f"--model {model} and --tenant: each tenant has its own model")
    return [parse_tenant(text) for text in texts]


def run(
    tenants: list[Tenant],
    policies: list[str] | None,
    options: dict[str, Any],
    screen: Console | None,
    progress: Progress | None,
    verbose: bool,
) -> TenantsResult:
    """Replay the tenants; says before what runs, if there is a screen."""
    replay = prepare_tenants(tenants, policies or DEFAULT_POLICIES, **options)
    if screen is not None:
        for fact in list(_facts(replay, verbose)):  # nothing is said of what cannot run
            for line in heading.wrapped(fact, screen.width):
                screen.print(line, markup=False)
    return replay.run(progress)


def write(
    result: TenantsResult, json: str | None, out: str | None, screen: Console | None, verbose: bool
) -> None:
    """To the files that are asked for, then to the screen."""
    if out is not None:
        result.save(out)
    if json is not None:
        result.save_json(json)
    if screen is not None:
        for part in report.comparison(result, screen.width, verbose):
            screen.print(part, markup=not isinstance(part, str))


def _facts(replay: TenantsReplay, verbose: bool) -> Iterator[str]:
    """The GPU, each tenant, the options, and how each policy's memory is divided."""
    first = replay.replays[0]
    budgets = [each.budget for each in replay.replays]
    yield (
        f"gpu      {first.gpu.name}: {format_bytes(first.budget.capacity_bytes)}; weights, "
        f"workspaces and contexts {format_bytes(sum(b.fixed_bytes for b in budgets))}, KV memory "
        f"for all {format_bytes(replay.shared_bytes)}"
    )
    for tenant, each in zip(replay.tenants, replay.replays, strict=True):
        trace = each.trace
        yield (
            f"tenant   {tenant.name}: {trace.name}, {len(trace):,} requests, "
            f"{int(trace.prompt_tokens.sum()):,} prompt + {int(trace.output_tokens.sum()):,} "
            f"output tokens; {each.model.name}, max_model_len {each.max_model_len:,}, "
            f"{format_bytes(each.model.token_bytes(each.tp))} a token"
        )
        for warning in trace.report.warnings:
            yield f"         warning: {warning}"
    yield from heading.settings(first, verbose)
    for number, choice in enumerate(first.choices):
        shares, gives = replay.divide(number)
        parts = "; ".join(
            f"{tenant.name} {format_bytes(share.floor_bytes)}"
            + (f" to {format_bytes(share.ceiling_bytes)}" if gives else "")
            for tenant, share in zip(replay.tenants, shares, strict=True)
        )
        yield f"shares   {choice.label} ({'elastic' if gives else 'static'}): {parts}"
