"""`vtsim models`: the models known by name."""

from __future__ import annotations

from vtsim.cli.state import Debug
from vtsim.quantities import format_bytes
from vtsim.spec import models as known_models


def models(debug: Debug = False) -> None:
    """List the models known by name; any Llama-family config.json works too."""
    head = f"{'name':<12} {'layers':>6} {'KV heads':>8} {'positions':>9} "
    print(head + f"{'weights':>10} {'KV/token':>10}  source")
    for name, model in known_models().items():
        print(
            f"{name:<12} {model.layers:>6} {model.kv_heads:>8} {model.max_positions:>9,} "
            f"{format_bytes(model.weight_bytes(1)):>10} {format_bytes(model.token_bytes(1)):>10}"
            f"  {model.source}"
        )
