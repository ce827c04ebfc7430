"""vtsim replays LLM request traces against KV-cache memory policies.

`vtsim.replay(...)` is the whole Python API in one call; see `vtsim.api`. Importing vtsim loads
neither torch, cuda, rich nor pandas, and names of the API are resolved at first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vtsim.api import ReplayOptions, replay
    from vtsim.errors import (
        BackendError,
        CapacityError,
        ConfigError,
        CudaDriverError,
        InvariantError,
        TraceFormatError,
        VtsimError,
    )
    from vtsim.metrics.result import PolicyRun, RunResult
    from vtsim.metrics.tenants import TenantsResult
    from vtsim.tenants import Tenant, replay_tenants

__version__ = "0.1.0"

_HOME = {
    "replay": "vtsim.api",
    "replay_tenants": "vtsim.tenants",
    "Tenant": "vtsim.tenants",
    "TenantsResult": "vtsim.metrics.tenants",
    "ReplayOptions": "vtsim.api",
    "RunResult": "vtsim.metrics.result",
    "PolicyRun": "vtsim.metrics.result",
    "VtsimError": "vtsim.errors",
    "ConfigError": "vtsim.errors",
    "TraceFormatError": "vtsim.errors",
    "CapacityError": "vtsim.errors",
    "BackendError": "vtsim.errors",
    "CudaDriverError": "vtsim.errors",
    "InvariantError": "vtsim.errors",
}

__all__ = [
    "BackendError",
    "CapacityError",
    "ConfigError",
    "CudaDriverError",
    "InvariantError",
    "PolicyRun",
    "ReplayOptions",
    "RunResult",
    "Tenant",
    "TenantsResult",
    "TraceFormatError",
    "VtsimError",
    "__version__",
    "replay",
    "replay_tenants",
]


def __getattr__(name: str) -> Any:
    """Resolve a public name at first use, and keep it."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'vtsim' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
