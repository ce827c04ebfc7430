"""Parsing of GPU profiles: strict, so that a misspelt key is an error and not a default.

A number is written bare, then the `source = "..."` or `assumed = true` of its table holds for it,
or as `{ value = 1.0, source = "..." }` / `{ value = 1.0, assumed = true }` (a `source` beside
`assumed` says what the assumption rests on). VMM calls may add `p99`.
"""

from __future__ import annotations

import hashlib
import math
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

from vtsim._gpu import (
    AllocationCosts,
    CallCost,
    DecodeKernel,
    ElementwiseCosts,
    GpuSpec,
    HostCosts,
    LinearCosts,
    LinkCosts,
    PrefillKernel,
    Provenance,
    VmmCosts,
)
from vtsim.errors import ConfigError
from vtsim.request import TICKS_PER_US, Tick

_VMM_CALLS = ("reserve", "create", "map", "set_access", "unmap", "release", "address_free")
_REMARKS = ("source", "assumed")
MOST_BYTES = 1 << 60
LEAST_RATE, MOST_RATE = 1e6, 1e21
"""Per second. Outside, integer ticks of a step overflow or vanish."""
MOST_US = 1e9
LEAST_SHARE = 1e-6
_KERNEL = ("kernel_us", "bytes_per_s")
_NEEDED: dict[str, tuple[str, ...]] = {
    "": ("name", "title"),
    "memory": ("nominal_bytes", "capacity_bytes", "context_bytes", "granularity_bytes", "va_bytes"),
    "compute": ("bf16_flops_per_s", "fp32_flops_per_s", "dram_bytes_per_s", "copy_bytes_per_s"),
    "linear": ("kernel_us", "weight_bytes_per_s", "tokens", "efficiency"),
    "elementwise": _KERNEL,
    "decode.*": (*_KERNEL, "flops_per_s"),
    "prefill.*": (*_KERNEL, "prefix_flops_per_s", "causal_flops_per_s"),
    "links": ("peer_bytes_per_s", "peer_latency_us", "host_bytes_per_s"),
    "host": ("per_step_us", "per_sequence_us"),
    "vmm.*": ("page_bytes", *(f"{name}_us" for name in _VMM_CALLS)),
    "allocation": ("sizes_bytes", "allocate_us", "free_us"),
}
"""Table -> its keys; `*` is every table in it."""


def _missing(data: dict[str, Any]) -> list[str]:
    """All keys and tables that the profile lacks, so that one look mends it."""
    found: list[str] = []
    for table, keys in _NEEDED.items():
        name, dot, _ = table.partition(".")
        inner = data if not name else data.get(name)
        if inner is None:
            found.append(name)
            continue
        if not isinstance(inner, dict):
            continue  # said when it is read
        places = {f"{name}.{key}": value for key, value in inner.items()} if dot else {name: inner}
        for place, values in places.items():
            if isinstance(values, dict):
                prefix = f"{place}." if place else ""
                found += [prefix + key for key in keys if key not in values]
    return found


class _Table:
    """One table of the file: hands out checked values, remembers which keys nobody asked for."""

    def __init__(self, path: Path, key: str, data: object, found: list[Provenance]) -> None:
        self.path, self.key, self.found = path, key, found
        if not isinstance(data, dict):
            raise self.error("", f"must be a table, got {data!r}")
        self.data: dict[str, Any] = data
        self.unread = set(data) - set(_REMARKS)

    def error(self, key: str, message: str) -> ConfigError:
        where = ".".join(part for part in (self.key, key) if part)
        return ConfigError(f"{self.path}: {where}: {message}")

    def take(self, key: str) -> Any:
        if key not in self.data:
            raise self.error(key, "missing")
        self.unread.discard(key)
        return self.data[key]

    def table(self, key: str) -> _Table:
        return _Table(self.path, f"{self.key}.{key}" if self.key else key, self.take(key),
                      self.found)  # fmt: skip

    def tables(self) -> Iterator[tuple[str, _Table]]:
        for key in list(self.data):
            yield key, self.table(key)

    def close(self) -> None:
        for key in sorted(self.unread):
            raise self.error(key, "unknown key")

    def text(self, key: str) -> str:
        value = self.take(key)
        if not isinstance(value, str) or not value:
            raise self.error(key, f"must be a text, got {value!r}")
        return value

    def _entry(self, key: str, extra: tuple[str, ...] = ()) -> dict[str, Any]:
        """The value as {"value": ..., extras}, its source noted."""
        raw = self.take(key)
        entry = raw if isinstance(raw, dict) else {"value": raw}
        for name in entry:
            if name not in ("value", *_REMARKS, *extra):
                raise self.error(f"{key}.{name}", "unknown key")
        if "value" not in entry:
            raise self.error(f"{key}.value", "missing")
        own = any(name in entry for name in _REMARKS)
        remarks = entry if own else self.data
        source, assumed = remarks.get("source", ""), remarks.get("assumed", False)
        if not isinstance(source, str) or not isinstance(assumed, bool):
            raise self.error(key, "source must be a text, assumed true or false")
        if not source and not assumed:
            raise self.error(key, "has neither a source nor assumed = true")
        self.found.append(Provenance(f"{self.key}.{key}", source, assumed))
        return entry

    def checked(self, key: str, value: object, *, low: float = 0.0, high: float) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(key, f"must be a number, got {value!r}")
        if not low <= value < math.inf:
            said = f"must be finite and not below {low:g}, got {_short(value)}"
            raise self.error(key, said)
        if value > high:
            raise self.error(key, f"must be at most {high:g}, got {_short(value)}")
        return float(value)

    def size(self, key: str, *, low: int = 1) -> int:
        return self.as_size(key, self._entry(key)["value"], low)

    def as_size(self, key: str, value: object, low: int) -> int:
        self.checked(key, value, low=low, high=MOST_BYTES)
        if type(value) is not int:
            raise self.error(key, f"must be whole bytes, got {value!r}")
        return value

    def rate(self, key: str) -> float:
        return self.as_rate(key, self._entry(key)["value"])

    def as_rate(self, key: str, value: object) -> float:
        number = self.checked(key, value, high=MOST_RATE)
        if number <= 0:
            raise self.error(key, f"must be positive, got {value!r}")
        if number < LEAST_RATE:
            raise self.error(key, f"must be at least {LEAST_RATE:g} a second, got {value!r}")
        return number

    def as_share(self, key: str, value: object) -> float:
        number = self.checked(key, value, high=math.inf)
        if number > 1:
            raise self.error(key, f"is a share of the peak, got {value!r}")
        if number < LEAST_SHARE:
            raise self.error(key, f"must be at least {LEAST_SHARE:g}, got {value!r}")
        return number

    def ticks(self, key: str) -> Tick:
        return self.as_ticks(key, self._entry(key)["value"])

    def as_ticks(self, key: str, value: object) -> Tick:
        return round(self.checked(key, value, high=MOST_US) * TICKS_PER_US)

    def call(self, key: str) -> CallCost:
        entry = self._entry(key, ("p99",))
        median = self.as_ticks(key, entry["value"])
        p99 = self.as_ticks(f"{key}.p99", entry.get("p99", 0))
        if "p99" in entry and not 0 < median <= p99:
            raise self.error(f"{key}.p99", "needs a positive median at or below it")
        return CallCost(median, p99)

    def column(self, key: str) -> list[Any]:
        values = self._entry(key)["value"]
        if not isinstance(values, list) or not values:
            raise self.error(key, f"must be a list of numbers, got {values!r}")
        return values

    def sizes(self, key: str) -> tuple[int, ...]:
        """A rising column of whole numbers: the points of a table."""
        values = tuple(self.as_size(key, value, 1) for value in self.column(key))
        if list(values) != sorted(set(values)):
            raise self.error(key, f"must rise, got {list(values)}")
        return values

    def points(self, key: str, count: int) -> list[Any]:
        """A column beside a rising one of `count` values."""
        values = self.column(key)
        if len(values) != count:
            raise self.error(key, f"must have {count} values, one a point, got {len(values)}")
        return values


def _linear(table: _Table) -> LinearCosts:
    tokens = table.sizes("tokens")
    efficiency = tuple(
        table.as_share("efficiency", value) for value in table.points("efficiency", len(tokens))
    )
    costs = LinearCosts(
        table.ticks("kernel_us"), table.rate("weight_bytes_per_s"), tokens, efficiency
    )
    table.close()
    return costs


def _decode(table: _Table) -> DecodeKernel:
    kernel = DecodeKernel(
        table.ticks("kernel_us"), table.rate("bytes_per_s"), table.rate("flops_per_s")
    )
    table.close()
    return kernel


def _prefill(table: _Table) -> PrefillKernel:
    kernel = PrefillKernel(
        table.ticks("kernel_us"),
        table.rate("bytes_per_s"),
        table.rate("prefix_flops_per_s"),
        table.rate("causal_flops_per_s"),
    )
    table.close()
    return kernel


def _allocation(table: _Table) -> AllocationCosts:
    sizes = table.sizes("sizes_bytes")
    allocate, free = (
        tuple(table.as_ticks(key, value) for value in table.points(key, len(sizes)))
        for key in ("allocate_us", "free_us")
    )
    table.close()
    return AllocationCosts(sizes, allocate, free)


def _vmm(root: _Table) -> tuple[VmmCosts, ...]:
    costs: list[VmmCosts] = []
    for key, table in root.table("vmm").tables():
        page_bytes = table.size("page_bytes")
        calls = {name: table.call(f"{name}_us") for name in _VMM_CALLS}
        table.close()
        if costs and page_bytes <= costs[-1].page_bytes:
            raise root.error(f"vmm.{key}.page_bytes", "must rise from table to table")
        costs.append(VmmCosts(page_bytes, **calls))
    if not costs:
        raise root.error("vmm", "must hold at least one table of call costs")
    return tuple(costs)


def parse_gpu(path: Path) -> GpuSpec:
    """The profile in `path`. Raises ConfigError naming file and key for anything amiss."""
    try:
        content = path.read_bytes()
        data = tomllib.loads(content.decode("utf-8"))
    except RecursionError:
        raise ConfigError(f"{path}: not a readable TOML file: nested too deeply") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: not a readable TOML file: {error}") from None
    if missing := _missing(data):
        raise ConfigError(f"{path}: {', '.join(missing)}: missing")
    found: list[Provenance] = []
    root = _Table(path, "", data, found)
    memory, compute = root.table("memory"), root.table("compute")
    elementwise, links, host = (root.table(key) for key in ("elementwise", "links", "host"))
    decode = {name: _decode(table) for name, table in root.table("decode").tables()}
    prefill = {name: _prefill(table) for name, table in root.table("prefill").tables()}
    granularity = memory.size("granularity_bytes")
    patched = granularity
    if "patched_granularity_bytes" in memory.data:
        patched = memory.size("patched_granularity_bytes")
        if granularity % patched:
            raise memory.error("patched_granularity_bytes", f"must divide {granularity}")
    spec = GpuSpec(
        name=root.text("name"),
        title=root.text("title"),
        memory_bytes=memory.size("nominal_bytes"),
        capacity_bytes=memory.size("capacity_bytes"),
        context_bytes=memory.size("context_bytes", low=0),
        granularity_bytes=granularity,
        patched_granularity_bytes=patched,
        va_bytes=memory.size("va_bytes"),
        bf16_flops_per_s=compute.rate("bf16_flops_per_s"),
        fp32_flops_per_s=compute.rate("fp32_flops_per_s"),
        dram_bytes_per_s=compute.rate("dram_bytes_per_s"),
        copy_bytes_per_s=compute.rate("copy_bytes_per_s"),
        linear=_linear(root.table("linear")),
        elementwise=ElementwiseCosts(
            elementwise.ticks("kernel_us"), elementwise.rate("bytes_per_s")
        ),
        decode=MappingProxyType(decode),
        prefill=MappingProxyType(prefill),
        links=LinkCosts(
            links.rate("peer_bytes_per_s"),
            links.ticks("peer_latency_us"),
            links.rate("host_bytes_per_s"),
        ),
        host=HostCosts(host.ticks("per_step_us"), host.ticks("per_sequence_us")),
        vmm=_vmm(root),
        allocation=_allocation(root.table("allocation")),
        provenance=tuple(found),
        sha256=hashlib.sha256(content).hexdigest(),
    )
    for table in (root, memory, compute, elementwise, links, host):
        table.close()
    return spec


def _short(value: float) -> str:
    """A number for an error; an integer may have more digits than Python prints."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    return repr(value)
