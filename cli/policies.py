"""`vtsim policies`: the policies there are, with their parameters and kernels."""

from __future__ import annotations

from typing import Annotated

import typer

from vtsim.cli.state import Debug
from vtsim.parameters import parameters_of
from vtsim.registry import POLICIES, choose_policies


def policies(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="These only; also FILE.py:Class. [default: all]"),
    ] = None,
    debug: Debug = False,
) -> None:
    """List the memory policies, their parameters and defaults.

    `vtsim policy` writes a new one and holds one to its contract.
    """
    if names:
        chosen = {choice.label: choice.policy for choice in choose_policies(names, {})}
    else:
        chosen = {name: POLICIES.load(name) for name in POLICIES.names()}
    for name, policy in chosen.items():
        print(f"{name}: {policy.summary}")
        print(f"  kernels: {', '.join(policy.kernels)}")
        for parameter in parameters_of(policy.parameters_type):
            default = parameter.show(parameter.default)
            doc = f"  {parameter.doc}" if parameter.doc else ""
            print(f"  --set {name}.{parameter.name}={default}  ({parameter.describe()}){doc}")
