"""vtsim.testing: what tests of policies are made of, and the suite that every policy is held to.

A plug-in author calls `check_policy(MyPolicy)` in a test; it needs no test framework. Hypothesis
strategies are in `vtsim.testing.strategies`, which is not imported here.
"""

from vtsim.testing.cases import Case, Ran, random_case, random_trace, run_case
from vtsim.testing.toys import (
    Ask,
    ToyExecutor,
    ToyTimes,
    make_trace,
    toy_device,
    toy_model,
)

__all__ = [
    "Ask",
    "Case",
    "Ran",
    "ToyExecutor",
    "ToyTimes",
    "make_trace",
    "random_case",
    "random_trace",
    "run_case",
    "toy_device",
    "toy_model",
]
