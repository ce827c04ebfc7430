"""Who shares a GPU, and what cannot be asked of tenants."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vtsim.errors import ConfigError
from vtsim.quantities import parse_bytes
from vtsim.request import Trace
from vtsim.spec import ModelSpec, load_model

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_LIKE_A_SIZE = re.compile(r"[-+]?[\d.]+(e[-+]?\d+)?\s*([a-z]?i?b?)?|[-+]?(inf|nan)", re.IGNORECASE)
"""A limit that was meant, not a model: `-1GiB`, `0.5`, `20G`."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who shares a GPU: a name of letters, digits, - and _, a trace, a model, and the most bytes of
    KV memory it may hold (None: what the others' floors leave)."""

    name: str
    trace: str | Path | Trace
    model: str | Path | ModelSpec
    limit_bytes: int | None = None

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and _NAME.fullmatch(self.name)):
            raise ConfigError(
                f"tenant {self.name!r}: a name is letters, digits, - and _, and begins with a "
                "letter or a digit"
            )
        limit = self.limit_bytes
        if limit is not None and (type(limit) is not int or limit < 1):
            raise ConfigError(f"tenant {self.name}: limit {limit!r} is not a size of at least 1 B")


def parse_tenant(text: str) -> Tenant:
    """`NAME:TRACE:MODEL[:LIMIT]`. NAME ends at the first colon. A last part of four or more that is
    a size is the LIMIT; the part before it is MODEL. So TRACE may hold colons, the others not."""
    name, *rest = text.split(":")
    limit = None
    if len(rest) > 2:
        try:
            limit = parse_bytes(rest[-1])
            rest.pop()
        except ConfigError as error:  # then it is the model, behind a trace with a colon
            if _LIKE_A_SIZE.fullmatch(rest[-1]):
                raise ConfigError(f"--tenant {text}: {error}") from error
    if len(rest) < 2 or not all((name, rest[-1], ":".join(rest[:-1]))):
        raise ConfigError(f"--tenant {text}: wanted is NAME:TRACE:MODEL or NAME:TRACE:MODEL:LIMIT")
    return Tenant(name, ":".join(rest[:-1]), rest[-1], limit)


def checked(tenants: Iterable[Tenant]) -> list[Tenant]:
    """Two or more, with different names; else `ConfigError`."""
    sharing = list(tenants)
    for tenant in sharing:
        if not isinstance(tenant, Tenant):
            raise ConfigError(f"tenants: {tenant!r} is not a Tenant")
    if len(sharing) < 2:
        raise ConfigError("tenants: two or more share a GPU; for one, replay its trace")
    names: dict[str, str] = {}
    for tenant in sharing:  # folders are named after them, also where case does not count
        if names.setdefault(tenant.name.casefold(), tenant.name) != tenant.name or (
            sum(other.name == tenant.name for other in sharing) > 1
        ):
            raise ConfigError(f"tenant {tenant.name!r} is named twice")
    return sharing


def refuse(options: Mapping[str, Any]) -> None:
    """Raises `ConfigError` for options that cannot be had with tenants."""
    if options.get("memory", "sim") != "sim":
        raise ConfigError(f"memory: tenants share a simulated GPU only, not {options['memory']!r}")
    if options.get("kv_memory") == "unlimited":
        raise ConfigError("kv_memory: unlimited memory is nothing to share")
    if options.get("fail_at") is not None:
        raise ConfigError("fail_at: whose operation is to fail? Not to be had with tenants")
    if options.get("num_gpu_blocks") is not None:
        raise ConfigError("num_gpu_blocks: a tenant's pool is given by its limit, in bytes")


def model_of(tenant: Tenant, options: Mapping[str, Any]) -> ModelSpec:
    """Its model, with the KV type that is asked for. `ConfigError` names the tenant."""
    if isinstance(tenant.model, ModelSpec):
        return tenant.model
    if not isinstance(tenant.model, str | Path):
        raise ConfigError(f"tenant {tenant.name}: model {tenant.model!r} is no name nor path")
    try:
        return load_model(tenant.model, str(options.get("kv_dtype", "auto")))
    except ConfigError as error:
        raise ConfigError(f"tenant {tenant.name}: {error}") from error
