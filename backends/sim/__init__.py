"""The simulated GPU: memory that checks its callers, and costs that come from a profile."""

from vtsim.backends.sim.costs import CostModel
from vtsim.backends.sim.times import VmmTimes

__all__ = ["CostModel", "VmmTimes"]
