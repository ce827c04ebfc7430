"""`vtsim policies`: the policies there are, with their parameters and kernels."""

from __future__ import annotations

from vtsim.cli.state import Debug
from vtsim.parameters import parameters_of
from vtsim.registry import POLICIES


def policies(debug: Debug = False) -> None:
    """List the memory policies, their parameters and defaults."""
    for name in POLICIES.names():
        policy = POLICIES.load(name)
        print(f"{name}: {policy.summary}")
        print(f"  kernels: {', '.join(policy.kernels)}")
        for parameter in parameters_of(policy.parameters_type):
            default = parameter.show(parameter.default)
            doc = f"  {parameter.doc}" if parameter.doc else ""
            print(f"  --set {name}.{parameter.name}={default}  ({parameter.describe()}){doc}")
