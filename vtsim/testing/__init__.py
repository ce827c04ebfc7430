"""vtsim.testing: what tests of policies are made of, and the suite that every policy is held to.

A plug-in author calls `check_policy(MyPolicy)` in a test; it needs no test framework. `Hand` is for
tests worked out by hand, `run_case` for whole small runs. Hypothesis strategies and the machine
over all calls of a policy are in `vtsim.testing.strategies`, which is not imported here.
"""

from vtsim.testing.cases import Case, Ran, random_case, random_trace, run_case
from vtsim.testing.conformance import check_policy, maker
from vtsim.testing.driver import MakePolicy, PolicyDriver
from vtsim.testing.hand import Hand, counts
from vtsim.testing.state import fingerprint
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
    "Hand",
    "MakePolicy",
    "PolicyDriver",
    "Ran",
    "ToyExecutor",
    "ToyTimes",
    "check_policy",
    "counts",
    "fingerprint",
    "make_trace",
    "maker",
    "random_case",
    "random_trace",
    "run_case",
    "toy_device",
    "toy_model",
]
