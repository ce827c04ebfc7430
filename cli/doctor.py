"""`vtsim doctor`: what this machine can do with real GPU memory, and what its calls cost."""

from __future__ import annotations

from typing import Annotated

import typer

from vtsim.cli.state import Debug


def doctor(
    device: Annotated[int, typer.Option(help="The card's number.")] = 0,
    gpu: Annotated[
        str | None,
        typer.Option(help="Compare with this profile. [default: the one the card's name says]"),
    ] = None,
    chunks: Annotated[int, typer.Option(help="Handles to time each call on.", min=8)] = 256,
    debug: Debug = False,
) -> None:
    """Say whether real memory works here: driver, card, kernels, measured call costs.

    Exits with 1 where it does not.
    """
    from rich.table import Table

    from vtsim.backends.cuda.doctor import diagnose, profile_costs, profile_for
    from vtsim.backends.gpus import gpus, load_gpu
    from vtsim.cli.console import console
    from vtsim.quantities import format_bytes

    chosen = None if gpu is None else load_gpu(gpu)
    found = diagnose(device, chunks=chunks)
    for package, version in found.packages.items():
        print(f"{package}: {version or 'not installed'}")
    card = found.card
    if card is None:
        print(f"real memory: no ({found.trouble})")
        raise typer.Exit(1)
    print(f"card {device}: {card.name}, CUDA {card.driver}")
    print(f"virtual memory management: yes, chunks of {format_bytes(card.granularity_bytes)}")
    print(f"memory: {format_bytes(card.free_bytes)} free of {format_bytes(card.total_bytes)}")
    profile = chosen or profile_for(card.name, gpus())
    costs = {} if profile is None else profile_costs(profile, card.granularity_bytes)
    table = Table(title=f"driver calls on {format_bytes(card.granularity_bytes)}, microseconds")
    for heading in ("call", "p50", "p99", *((profile.name, "its p99") if profile else ())):
        table.add_column(heading, justify="left" if heading == "call" else "right")
    for call, spread in card.calls.items():
        known = [f"{us:.1f}" if us else "-" for us in costs.get(call, ())]
        table.add_row(call.replace("_", " "), f"{spread.p50:.1f}", f"{spread.p99:.1f}", *known)
    console().print(table)
