"""`replay_tenants`: several traces, each with its model, on one GPU under the same policies.

Each tenant is prepared as a single replay is (`vtsim.api.prepare`); then the GPU's memory is
divided between all. What sharing means is in docs/tenants.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from vtsim.api import DEFAULT_GPU, prepare
from vtsim.engine.shares import shared_bytes
from vtsim.errors import CapacityError, ConfigError
from vtsim.metrics.progress import Progress
from vtsim.metrics.tenants import TenantsResult
from vtsim.registry import PolicyChoice
from vtsim.spec import GpuSpec
from vtsim.tenants.asked import Tenant, checked, model_of, parse_tenant, refuse
from vtsim.tenants.run import TenantsReplay

__all__ = [
    "DEFAULT_POLICIES",
    "Tenant",
    "TenantsReplay",
    "parse_tenant",
    "prepare_tenants",
    "replay_tenants",
]

DEFAULT_POLICIES = ("paged", "vtensor")


def replay_tenants(
    tenants: Iterable[Tenant],
    policies: Iterable[str | PolicyChoice] = DEFAULT_POLICIES,
    *,
    gpu: str | Path | GpuSpec = DEFAULT_GPU,
    tp: int = 1,
    settings: Mapping[str, Mapping[str, object]] | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> TenantsResult:
    """Replay `tenants` together on one GPU, under each of `policies`.

    Arguments are those of `vtsim.replay`; options hold for every tenant. `max_model_len` is cut to
    each model's positions, `kv_memory` is for all together. Raises `VtsimError` as `replay` does,
    and `CapacityError` where the models, or the limits, do not fit together.
    """
    return prepare_tenants(tenants, policies, gpu=gpu, tp=tp, settings=settings, **options).run(
        progress
    )


def prepare_tenants(
    tenants: Iterable[Tenant],
    policies: Iterable[str | PolicyChoice] = DEFAULT_POLICIES,
    *,
    gpu: str | Path | GpuSpec = DEFAULT_GPU,
    tp: int = 1,
    settings: Mapping[str, Mapping[str, object]] | None = None,
    **options: Any,
) -> TenantsReplay:
    """Everything that `replay_tenants` does before the first step; takes and raises the same."""
    sharing = checked(tenants)
    refuse(options)
    given = policies if isinstance(policies, str) else list(policies)
    models = [model_of(tenant, options) for tenant in sharing]
    longest = options.pop("max_model_len", None)
    most = max(model.max_positions for model in models)
    if type(longest) is int and longest > most:
        raise ConfigError(f"max_model_len: {longest} is more than the positions of any tenant")
    replays = []
    for tenant, model in zip(sharing, models, strict=True):
        own = min(longest, model.max_positions) if type(longest) is int else longest
        try:
            replays.append(
                prepare(
                    tenant.trace,
                    given,
                    model=model,
                    gpu=gpu,
                    tp=tp,
                    settings=settings,
                    max_model_len=own,
                    **options,
                )
            )
        except CapacityError as error:  # others name what they mean
            raise CapacityError(f"tenant {tenant.name}: {error}") from error
    shared = shared_bytes([replay.budget for replay in replays], replays[0].options)
    return TenantsReplay(tuple(sharing), tuple(replays), shared)
