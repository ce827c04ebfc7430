"""The simulated GPU: memory that checks its callers, and costs that come from a profile."""

from vtsim.backends.sim.backend import SimBackend, device_info
from vtsim.backends.sim.costs import CostModel
from vtsim.backends.sim.kernels import KERNELS, kernel_names
from vtsim.backends.sim.times import VmmTimes

__all__ = ["KERNELS", "CostModel", "SimBackend", "VmmTimes", "device_info", "kernel_names"]
