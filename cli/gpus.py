"""`vtsim gpus`: the GPU profiles there are, and what in them is assumed."""

from __future__ import annotations

from typing import Annotated

import typer

from vtsim.backends.gpus import gpus as known_gpus
from vtsim.cli.state import Debug
from vtsim.quantities import format_bytes


def gpus(
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show the source of every number.")
    ] = False,
    debug: Debug = False,
) -> None:
    """List the GPU profiles; any profile in TOML works too."""
    for name, gpu in known_gpus().items():
        assumed = gpu.assumed()
        print(
            f"{name}: {gpu.title}, {format_bytes(gpu.capacity_bytes)}, "
            f"{gpu.dram_bytes_per_s / 1e12:.2f} TB/s, {gpu.bf16_flops_per_s / 1e12:.0f} TFLOP/s"
        )
        if verbose:
            for key, source in gpu.sources().items():
                mark = "assumed: " if key in assumed else ""
                print(f"  {key}: {mark}{source}")
        elif assumed:
            print(f"  {len(assumed)} of {len(gpu.provenance)} numbers are assumed (-v says which)")
